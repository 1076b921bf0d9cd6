"""lane: how much of each agent may run, on all hosts together."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tireless import standing
from tireless.budgeting import follow_budget
from tireless.ctl import documents, lookup
from tireless.ctl.commands import Group
from tireless.ctl.output import Cell, clean, plural, when
from tireless.ctl.session import Exit, Refused, Session, clock
from tireless.entities import AgentKind, Lane
from tireless.standing import State, Stop
from tireless.store import budgets, lanes
from tireless.store.budgets import Spent
from tireless.store.queries import Connection
from tireless.store.workers import Worker

CAP_MORE = """\
Exact from the moment it is written, over all hosts. What runs beyond a lowered cap runs to its end; 0 starts
nothing more. A cap in the configuration is written when a supervisor first makes the lane, and when a reload
brings another one.

examples
  tireless-ctl lane cap cc 3
"""
PAUSE_MORE = """\
What runs goes on, nothing new starts until `lane resume`.

examples
  tireless-ctl lane pause cc --reason "invoice first"
"""
HOLD_MORE = """\
A pause that ends by itself. Of two holds the longer one counts; `lane resume` ends them all.

examples
  tireless-ctl lane hold oc --for 2h --reason "rate limit of the account"
  tireless-ctl lane hold oc --until 2026-05-01T06:00+02:00
"""
BUDGET_MORE = """\
What its runs may cost in a UTC day, over all hosts. What is reached holds the lane until that day ends or the budget
is raised; what runs then goes on. Only what is given is changed; without an option it tells what is set and spent.

examples
  tireless-ctl lane budget cc --usd 25 --jobs 40
  tireless-ctl lane budget cc --usd none
"""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def register(top: Group) -> None:
    group = top.group("lane", "how much of each agent may run, over all hosts")
    group.add("list", run_list, "caps, what runs, what waits, what is held")
    cap = group.add("cap", run_cap, "set how many jobs of a lane run at once", CAP_MORE)
    _lane(cap)
    cap.add_argument("cap", type=_cap, metavar="N")
    pause = group.add("pause", run_pause, "start nothing more in a lane", PAUSE_MORE)
    _lane(pause)
    pause.add_argument("--reason", help="what `status` and `explain` say; none: the one that is there stays")
    budget = group.add("budget", run_budget, "set what a lane may spend in a day", BUDGET_MORE)
    _lane(budget)
    budget.add_argument("--usd", type=daily_usd, metavar="N|none", help="US dollars a UTC day")
    budget.add_argument("--jobs", type=daily_jobs, metavar="N|none", help="jobs a UTC day")
    _lane(group.add("resume", run_resume, "end a pause and a hold"))
    hold = group.add("hold", run_hold, "start nothing more in a lane for a while", HOLD_MORE)
    _lane(hold)
    length = hold.add_mutually_exclusive_group(required=True)
    length.add_argument("--for", dest="length", type=_length, metavar="TIME", help="such as 90s, 30m, 2h, 1d")
    length.add_argument(
        "--until", type=_moment, metavar="TIME", help="ISO 8601; without a zone, this machine's"
    )
    hold.add_argument("--reason", default="held by an operator")


def _lane(command: argparse.ArgumentParser) -> None:
    command.add_argument("lane", type=lookup.lane, metavar="LANE", help="claude_code (cc) or opencode (oc)")


def _cap(text: str) -> int:
    if not text.isdigit() or int(text) > 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number between 0 and 1000")
    return int(text)


def daily_usd(text: str) -> float:
    """US dollars a day; 0 stands for none."""
    if text == "none":
        return 0.0
    if re.fullmatch(r"\d{1,7}(\.\d{1,6})?", text) is None or float(text) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither `none` nor an amount of US dollars such as 12.50"
        )
    return float(text)


def daily_jobs(text: str) -> int:
    """Jobs a day; 0 stands for none."""
    if text == "none":
        return 0
    if not re.fullmatch(r"[0-9]{1,7}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is neither `none` nor a number of jobs above 0")
    return int(text)


def _length(text: str) -> float:
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no length of time such as 90s, 30m, 2h or 1d")
    return float(int(match[1]) * _UNITS[match[2]])


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 2026-05-01T06:00+02:00") from None


def run_list(session: Session) -> int:
    with session.database() as conn:
        found = lanes.all_lanes(conn)
        spent = budgets.spent_by_lane(conn)
        alive = session.living(conn)
        now = clock(conn)
    session.out.give(shown(found, spent, runners(alive)), table(session, found, spent, alive, now))
    return Exit.OK


def runners(alive: Iterable[Worker]) -> Mapping[AgentKind, int]:
    """How many runners that take another job each lane has, of the processes that are alive, on all hosts."""
    there = list(alive)
    return {lane: len(standing.takers(lane, there)) for lane in AgentKind}


def shown(
    found: list[Lane], spent: Mapping[AgentKind, Spent], there: Mapping[AgentKind, int]
) -> list[dict[str, Any]]:
    """The lanes as documents, each with its living runners and with what the day has cost."""
    return [
        {
            **documents.lane(lane),
            "runners": there.get(lane.lane, 0),
            "spent_today": documents.spent(spent.get(lane.lane)),
        }
        for lane in found
    ]


def table(
    session: Session,
    found: list[Lane],
    spent: Mapping[AgentKind, Spent],
    alive: Sequence[Worker],
    now: datetime,
) -> str:
    if not found:
        return "no lane yet; a supervisor's first start makes them, or tireless-ctl migrate"
    rows: list[list[Cell | str]] = []
    for lane in found:
        stops = standing.stops(lane, alive, now, standing.lane_off_in(session.config, lane.lane))
        counts = [f"{lane.running}/{lane.cap}", str(lane.pending)]
        cost = today(spent.get(lane.lane), lane.daily_usd, lane.daily_jobs)
        rows.append([lane.lane.value, *counts, cost, _state(lane, stops), _why(lane, stops)])
    return session.out.table(["LANE", "RUNNING", "WAITING", "TODAY", "STATE", "WHY"], rows)


def today(spent: Spent | None, usd: float | None, jobs: int | None) -> str:
    """What the UTC day has cost, of what it may: 1.20/5.00 USD, 3/10 jobs."""
    found = spent or Spent()
    money = f"{found.usd:.2f}" + (f"/{usd:.2f}" if usd is not None else "")
    count = f"{found.jobs}/{jobs} jobs" if jobs is not None else plural(found.jobs, "job")
    return f"{money} USD, {count}"


def _state(lane: Lane, stops: Sequence[Stop]) -> Cell:
    if stops:
        return Cell(stops[0].state.value, "bad")
    if lane.probing:
        return Cell("probing", "busy")
    return Cell("full", "busy") if lane.running >= lane.cap else Cell("open", "good")


def _why(lane: Lane, stops: Sequence[Stop]) -> str:
    held = any(stop.state is State.HELD for stop in stops)
    probing = ["after a usage limit one job goes first"] if lane.probing and not held else []
    return "; ".join([*map(_said, stops), *probing])


def _said(stop: Stop) -> str:
    if stop.state is not State.HELD:
        return clean(stop.why)
    return f"{clean(stop.why, 120)} ({f'until {when(stop.until)}' if stop.until else 'until lane resume'})"


def run_cap(session: Session) -> int:
    with session.database() as conn:
        lanes.set_cap(conn, session.args.lane, session.args.cap)
        lane = _get(conn, session.args.lane)
    text = f"{lane.lane}: cap {lane.cap}, {lane.running} running"
    if lane.running > lane.cap:
        text += "; what is above it runs to its end"
    session.out.give(documents.lane(lane), text)
    return Exit.OK


def run_budget(session: Session) -> int:
    args = session.args
    with session.database() as conn:
        lane = _get(conn, args.lane)
        usd = lane.daily_usd if args.usd is None else args.usd or None
        jobs = lane.daily_jobs if args.jobs is None else args.jobs or None
        before = lane
        if (usd, jobs) != (lane.daily_usd, lane.daily_jobs):
            with conn.transaction():
                lanes.set_budget(conn, lane.lane, usd, jobs)
                follow_budget(conn, lane.lane)
        lane = _get(conn, args.lane)
        spent = budgets.spent_by_lane(conn)
        alive = session.living(conn)
        now = clock(conn)
    text = f"{lane.lane}: {today(spent.get(lane.lane), usd, jobs)} today"
    if usd is None and jobs is None:
        text += ", without a limit"
    if before.held and not lane.held:
        text += "; no longer held"
    for stop in standing.stops(lane, alive, now, None):
        if stop.state is State.HELD:
            text += f"; held: {_said(stop)}; tireless-ctl lane resume {lane.lane} ends that"
    session.out.give(shown([lane], spent, runners(alive))[0], text)
    return Exit.OK


def run_pause(session: Session) -> int:
    with session.database() as conn:
        before = _get(conn, session.args.lane)
        kept = before.pause_reason if before.paused else None
        lanes.pause(conn, before.lane, session.args.reason or kept or "paused by an operator")
        lane = _get(conn, session.args.lane)
    text = f"{lane.lane}: paused, {lane.running} still running; tireless-ctl lane resume {lane.lane} ends it"
    session.out.give(documents.lane(lane), text)
    return Exit.OK


def run_resume(session: Session) -> int:
    with session.database() as conn:
        before = _get(conn, session.args.lane)
        lanes.resume(conn, session.args.lane)
        lane = _get(conn, session.args.lane)
    was = before.paused or before.held
    text = f"{lane.lane}: resumed" if was else f"{lane.lane}: was neither paused nor held"
    session.out.give(documents.lane(lane), text)
    return Exit.OK


def run_hold(session: Session) -> int:
    args = session.args
    with session.database() as conn:
        _get(conn, args.lane)
        if args.until is not None:
            lanes.hold(conn, args.lane, args.reason, until=args.until)
        else:
            lanes.hold(conn, args.lane, args.reason, seconds=args.length)
        lane = _get(conn, args.lane)
    if lane.held_until is None:
        text = f"{lane.lane}: held already, until tireless-ctl lane resume {lane.lane} ({lane.hold_reason})"
    else:
        text = f"{lane.lane}: held until {when(lane.held_until)}"
    session.out.give(documents.lane(lane), clean(text))
    return Exit.OK


def _get(conn: Connection, kind: AgentKind) -> Lane:
    for lane in lanes.all_lanes(conn):
        if lane.lane is kind:
            return lane
    raise Refused(f"lane {kind} has no row yet; start a supervisor or run tireless-ctl migrate")
