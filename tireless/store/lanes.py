"""Lanes: caps, pauses and holds, all in rows, so that every host obeys and a restart forgets nothing."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from tireless.entities import AgentKind, Lane, TirelessError
from tireless.store import decode
from tireless.store.queries import Connection, row, rows, run


def ensure(conn: Connection, lane: AgentKind, cap: int) -> None:
    """Make the lane's row if there is none, with this cap; an existing row keeps its own."""
    with conn.transaction():
        if run(conn, "ensure_lane", {"lane": lane, "cap": cap}) == 1:
            set_cap(conn, lane, cap)


def set_cap(conn: Connection, lane: AgentKind, cap: int) -> None:
    """How many jobs of the lane may be in hand at once, over all hosts. Exact from the moment it commits; what
    is running beyond a lowered cap runs to its end."""
    with conn.transaction():
        _found(row(conn, "set_cap", {"lane": lane, "cap": cap}), lane)


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
) -> datetime | None:
    """Start nothing in the lane until `until` (UTC), or for `seconds`, or, with neither, until an operator resumes
    it. Of two holds the longer one counts. Returns the end in force."""
    found = _found(
        row(conn, "hold_lane", {"lane": lane, "reason": reason, "until": until, "seconds": seconds}), lane
    )
    end: datetime | None = found["held_until"]
    return end


def lift_ended_holds(conn: Connection) -> list[AgentKind]:
    return [AgentKind(r["lane"]) for r in rows(conn, "lift_ended_holds")]


def all_lanes(conn: Connection) -> list[Lane]:
    return [decode.lane(r) for r in rows(conn, "lanes")]


def _found(found: dict[str, Any] | None, lane: AgentKind) -> dict[str, Any]:
    if found is None:
        raise TirelessError(f"lane {lane} has no row yet; start a supervisor or run tireless-ctl migrate")
    return found
