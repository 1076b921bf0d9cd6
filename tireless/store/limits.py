"""Limits of forges, shared by all hosts and processes: until when a host wants no request with a token."""

from __future__ import annotations

from collections.abc import Sequence

from tireless.store.queries import Connection, rows, run

Key = tuple[str, str]  # host as it is asked, with its port; fingerprint of the token


def note(conn: Connection, key: Key, seconds: float) -> None:
    """The host has limited this token for `seconds` from now on. A longer limit stands."""
    run(conn, "note_limit", {"host": key[0], "token": key[1], "seconds": seconds})


def current(conn: Connection) -> dict[Key, float]:
    """What holds now: seconds that are left."""
    return {(r["host"], r["token"]): r["seconds"] for r in rows(conn, "current_limits")}


def prune(conn: Connection) -> int:
    return run(conn, "prune_limits")


def postpone_polls(conn: Connection, limited: Sequence[tuple[str, str, float]]) -> int:
    """Poll none of what is due on these (forge, host) before their limit of so many seconds ends; how many. Each
    repository keeps its place in its interval after that, so that the end of a limit is no stampede."""
    if not limited:
        return 0
    forges, hosts, seconds = zip(*limited, strict=True)
    params = {"forges": list(forges), "hosts": [h.lower() for h in hosts], "seconds": list(seconds)}
    return run(conn, "postpone_polls", params)
