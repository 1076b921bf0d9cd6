"""status: lanes, workers, queue, outbox, and what is in trouble, on one page."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tireless.agents import sandbox
from tireless.config import Config, ConfigError
from tireless.ctl import documents
from tireless.ctl.commands import Group
from tireless.ctl.lanes import runners
from tireless.ctl.lanes import shown as lane_documents
from tireless.ctl.lanes import table as lane_table
from tireless.ctl.output import Cell, age, clean, plural, when
from tireless.ctl.repos import is_held
from tireless.ctl.session import Exit, Session, clock
from tireless.entities import AgentKind, JobState, Lane, PollResult, TrackedRepo, WorkerRole, WriteState
from tireless.store import budgets, jobs, lanes, repos, workers, writes
from tireless.store.budgets import Spent
from tireless.store.queries import Connection
from tireless.store.workers import Draining, Worker

MORE = """\
Processes of this host are looked for; those of others count as alive if they were seen in the last three minutes.

examples
  tireless-ctl status
  tireless-ctl status --json | jq .jobs
"""
_GOOD = (PollResult.CHANGED, PollResult.UNCHANGED)


@dataclass(frozen=True, slots=True)
class Picture:
    """What rows tell, all read at `now`, by the database's clock."""

    now: datetime
    lanes: list[Lane]
    spent: dict[AgentKind, Spent]  # of the UTC day so far
    workers: list[tuple[Worker, bool]]  # each with whether it is alive
    jobs: dict[JobState, int]
    writes: dict[WriteState, int]
    repos: list[TrackedRepo]
    after_fault: tuple[int, str | None]  # jobs that wait for their next try, and why the newest of them does
    sandbox: tuple[str, bool]  # in words, and whether it is as the configuration wants it

    @property
    def alive(self) -> list[Worker]:
        return [worker for worker, alive in self.workers if alive]

    @property
    def waiting(self) -> list[tuple[str, str, str]]:
        """Host, lane and reason of the runners that take no work."""
        found = [(w.host, str(w.lane), w.waits_for) for w, alive in self.workers if alive and w.waits_for]
        return list(dict.fromkeys(found))

    @property
    def draining(self) -> list[Draining]:
        return workers.draining(self.alive)

    @property
    def held_repos(self) -> list[TrackedRepo]:
        return [r for r in self.repos if r.schedule.enabled and is_held(r, self.now)]

    @property
    def in_trouble(self) -> list[TrackedRepo]:
        return [r for r in self.repos if r.schedule.enabled and r.poll_result not in (None, *_GOOD)]


def register(group: Group) -> None:
    group.add("status", run, "lanes, workers, queue, and what is in trouble", MORE)


def run(session: Session) -> int:
    with session.database() as conn:
        picture = look(session, conn)
    session.out.give(_document(session, picture), _page(session, picture))
    return Exit.OK


def look(session: Session, conn: Connection) -> Picture:
    now = clock(conn)
    return Picture(
        now=now,
        lanes=lanes.all_lanes(conn),
        spent=budgets.spent_by_lane(conn),
        workers=[(w, session.is_alive(w, now)) for w in workers.of_host(conn)],
        jobs=jobs.counts(conn),
        writes=writes.counts(conn),
        repos=repos.tracked(conn, disabled_too=True),
        after_fault=jobs.waiting_after_fault(conn),
        sandbox=describe_sandbox(session.config),
    )


def describe_sandbox(config: Config) -> tuple[str, bool]:
    """What agents would run in on this machine, in words, and whether that is what is asked for. Runs bubblewrap."""
    try:
        return walls(config).description, True
    except ConfigError as e:
        return str(e), False


def walls(config: Config) -> sandbox.Sandbox:
    """What agents would run in on this machine. ConfigError if it is not what is asked for."""
    warnings = logging.getLogger(sandbox.__name__)
    was, warnings.disabled = warnings.disabled, True  # it is the answer here, not a warning beside it
    try:
        return sandbox.probe(config.sandbox, sandbox.hidden_paths(config))
    finally:
        warnings.disabled = was


def _document(session: Session, picture: Picture) -> dict[str, Any]:
    return {
        "now": documents.plain(picture.now),
        "host": session.config.host,
        "lanes": lane_documents(picture.lanes, picture.spent, runners(picture.alive)),
        "workers": [documents.worker(w, alive) for w, alive in picture.workers],
        "draining": [documents.draining(host) for host in picture.draining],
        "jobs": {state.value: picture.jobs.get(state, 0) for state in JobState},
        "after_fault": {"jobs": picture.after_fault[0], "newest": picture.after_fault[1]},
        "writes": {
            state.value: picture.writes.get(state, 0) for state in (WriteState.WAITING, WriteState.REFUSED)
        },
        "repos": {
            "tracked": len(picture.repos),
            "in_trouble": [documents.repo(r) for r in picture.in_trouble],
            "held": [documents.repo(r) for r in picture.held_repos],
        },
        "sandbox": {"ok": picture.sandbox[1], "text": picture.sandbox[0]},
    }


def _page(session: Session, picture: Picture) -> str:
    out = session.out
    lanes = lane_table(session, picture.lanes, picture.spent, picture.alive, picture.now)
    parts = [lanes, _workers(session, picture)]
    parts += [out.fit(_drains(host, picture.now)) for host in picture.draining]
    queue = ", ".join(f"{n} {state}" for state in JobState if (n := picture.jobs.get(state, 0))) or "no job yet"
    waiting, refused = (picture.writes.get(s, 0) for s in (WriteState.WAITING, WriteState.REFUSED))
    enabled = sum(r.schedule.enabled for r in picture.repos)
    parts.append(
        out.facts(
            [
                ("jobs", queue),
                ("forge writes", f"{waiting} waiting, {refused} refused"),
                ("repositories", f"{enabled} polled, {len(picture.repos) - enabled} disabled"),
                ("sandbox here", picture.sandbox[0]),
            ]
        )
    )
    if picture.waiting:
        head = ["WAITS ON", "LANE", "WHY"]
        parts.append(
            out.table(head, [[host, lane, clean(why)] for host, lane, why in picture.waiting], fold=True)
        )
    waiting_again, newest = picture.after_fault
    if waiting_again:
        verb = "waits" if waiting_again == 1 else "wait"
        parts.append(out.fit(clean(f"{plural(waiting_again, 'job')} {verb} after a fault: {newest}")))
    if picture.held_repos:
        held: list[list[Cell | str]] = [
            [str(r.ref), when(r.held_until) or "", clean(r.hold_reason or "", 120)] for r in picture.held_repos
        ]
        parts.append(out.table(["HELD", "UNTIL", "WHY"], held))
    if picture.in_trouble:
        head = ["IN TROUBLE", "POLL", "SINCE", "DETAIL"]
        parts.append(out.table(head, [_trouble_row(r, picture.now) for r in picture.in_trouble]))
    return "\n\n".join(parts)


def _workers(session: Session, picture: Picture) -> str:
    if not picture.workers:
        return "no worker: no supervisor has registered one; start tireless-supervisor"
    order = {role: i for i, role in enumerate(WorkerRole)}
    shown = sorted(picture.workers, key=lambda pair: (pair[0].host, order[pair[0].role], pair[0].lane or ""))
    rows: list[list[Cell | str]] = [
        [
            w.host,
            f"{w.role} {w.lane}" if w.lane else w.role.value,
            str(w.pid),
            _state(w, alive),
            age(w.seen_at, picture.now),
            str(w.job_id)[:8] if w.job_id else "",
        ]
        for w, alive in shown
    ]
    return session.out.table(["HOST", "WORKER", "PID", "STATE", "SEEN", "JOB"], rows)


def _state(worker: Worker, alive: bool) -> Cell:
    if not alive:
        return Cell("gone", "bad")
    if worker.waits_for is not None:
        return Cell("waits", "bad")
    return Cell("draining", "busy") if worker.draining_since is not None else Cell("alive", "good")


def _drains(host: Draining, now: datetime) -> str:
    since = f"since {when(host.since)} ({age(host.since, now)})"
    return clean(
        f"host {host.host} drains {since}: it takes nothing new and waits for {plural(host.jobs, 'job')}"
    )


def _trouble_row(repo: TrackedRepo, now: datetime) -> list[Cell | str]:
    result = repo.poll_result.value if repo.poll_result else ""
    return [
        str(repo.ref),
        Cell(result, "bad"),
        f"{plural(repo.poll_failures, 'failure')}, {age(repo.last_polled_at, now)}",
        clean(repo.poll_detail or "", 120),
    ]
