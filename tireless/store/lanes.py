"""Lanes: caps, pauses and holds, all in rows, so that every host obeys and a restart forgets nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tireless.entities import AgentKind, Lane, TirelessError
from tireless.store import decode
from tireless.store.queries import Connection, row, rows, run

MAX_CAP = 1000


def ensure(conn: Connection, lane: AgentKind, cap: int) -> None:
    """Make the lane's row if there is none, with this cap; an existing row keeps its own."""
    run(conn, "ensure_lane", {"lane": lane, "cap": cap})


def set_cap(conn: Connection, lane: AgentKind, cap: int) -> None:
    """How many jobs of the lane may be in hand at once, over all hosts. Exact from the moment it commits; what
    is running beyond a lowered cap runs to its end, and counts until then."""
    if not 0 <= cap <= MAX_CAP:
        raise TirelessError(f"a lane's cap is {cap}; set it between 0 and {MAX_CAP}")
    with conn.transaction():
        _found(row(conn, "lock_lane", {"lane": lane}), lane)
        _fit_slots(conn, lane, cap)


def settle_slots(conn: Connection) -> None:
    """Where a cap was lowered below what was running: move what still runs into the slots that became free."""
    for found in rows(conn, "lanes_over_cap"):
        with conn.transaction():
            locked = row(conn, "lock_lane", {"lane": found["lane"]})
            if locked is not None:
                _fit_slots(conn, found["lane"], locked["cap"])


def _fit_slots(conn: Connection, lane: str, cap: int) -> None:
    """Slots to the cap, each step a statement, so that it sees what it waited for. Who holds a job's lock may want its
    slot: with slots locked, no job is waited for."""
    params = {"lane": lane, "cap": cap}
    rows(conn, "lock_slots", params)
    for move in rows(conn, "slots_over_cap", params):
        run(conn, "vacate_slot", {**params, **move})
        run(conn, "occupy_slot", {**params, **move})
    row(conn, "set_cap", params)


def pause(conn: Connection, lane: AgentKind, reason: str) -> None:
    run(conn, "pause_lane", {"lane": lane, "paused": True, "reason": reason})


def resume(conn: Connection, lane: AgentKind) -> None:
    """End a pause and a hold alike."""
    with conn.transaction():
        run(conn, "pause_lane", {"lane": lane, "paused": False, "reason": None})
        run(conn, "release_hold", {"lane": lane})


def hold(
    conn: Connection,
    lane: AgentKind,
    reason: str,
    *,
    until: datetime | None = None,
    seconds: float | None = None,
    probe: bool = False,
    budget: bool = False,
) -> datetime | None:
    """Start nothing in the lane until `until` (UTC), or for `seconds`, or, with neither, until an operator resumes
    it. Of two holds the longer one counts; beneath that of a `budget`, which may be lifted, the other is kept. Returns
    the end in force."""
    found = _found(
        row(
            conn,
            "hold_lane",
            {
                "lane": lane,
                "reason": reason,
                "until": until,
                "seconds": seconds,
                "probe": probe,
                "budget": budget,
            },
        ),
        lane,
    )
    end: datetime | None = found["held_until"]
    return end


def lift_budget_hold(conn: Connection, lane: AgentKind) -> None:
    """The budget allows more. What else holds the lane stays."""
    rows(conn, "lift_budget_hold", {"lane": lane})


def lift_ended_holds(conn: Connection) -> list[AgentKind]:
    return [AgentKind(r["lane"]) for r in rows(conn, "lift_ended_holds")]


def all_lanes(conn: Connection) -> list[Lane]:
    return [decode.lane(r) for r in rows(conn, "lanes")]


def _found(found: dict[str, Any] | None, lane: AgentKind) -> dict[str, Any]:
    if found is None:
        raise TirelessError(f"lane {lane} has no row yet; start a supervisor or run tireless-ctl migrate")
    return found


def end_probe(conn: Connection, lane: AgentKind) -> None:
    """A run after a usage limit has ended well: the others may go."""
    rows(conn, "end_probe", {"lane": lane})


def set_budget(conn: Connection, lane: AgentKind, usd: float | None, jobs: int | None) -> None:
    """What the lane may spend in a UTC day, over all hosts: US dollars and jobs; None for no limit."""
    _found(row(conn, "set_lane_budget", {"lane": lane, "usd": usd, "jobs": jobs}), lane)
