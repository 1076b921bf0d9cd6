"""Who is there: one row a process, for people to see and for a starting supervisor to find the dead by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tireless import __version__
from tireless.entities import AgentKind, WorkerRole, parse_enum
from tireless.store.queries import Connection, rows, run


@dataclass(frozen=True, slots=True)
class Worker:
    id: str
    host: str
    role: WorkerRole
    lane: AgentKind | None
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime
    job_id: UUID | None
    waits_for: str | None = None  # why it takes no work, if that is its host's own matter


def register(
    conn: Connection,
    worker_id: str,
    host: str,
    role: WorkerRole,
    lane: AgentKind | None,
    pid: int,
    *,
    waits_for: str | None = None,
) -> None:
    """Say that a process is there, and whether it waits for something; said again, it moves `seen_at`."""
    params = {"id": worker_id, "host": host, "role": role, "lane": lane, "pid": pid, "version": __version__}
    run(conn, "register_worker", {**params, "waits_for": waits_for})


def forget(conn: Connection, ids: Sequence[str]) -> None:
    run(conn, "forget_workers", {"ids": list(ids)})


def of_host(conn: Connection, host: str | None = None) -> list[Worker]:
    """The processes of a host, or of all."""
    return [
        Worker(
            r["id"],
            r["host"],
            parse_enum(WorkerRole, r["role"], "worker.role"),
            parse_enum(AgentKind, r["lane"], "worker.lane") if r["lane"] else None,
            r["pid"],
            r["version"],
            r["started_at"],
            r["seen_at"],
            r["job_id"],
            r["waits_for"],
        )
        for r in rows(conn, "workers", {"host": host})
    ]


def holders(conn: Connection) -> list[str]:
    """The workers that hold a claim, registered or not."""
    return [r["claimed_by"] for r in rows(conn, "holders")]


def session_name(worker_id: str, what: str) -> str:
    """What a worker calls a connection of its own (application_name): its sessions can be told by it."""
    return f"{_session_prefix(worker_id)} {what}"


def end_sessions(conn: Connection, worker_id: str, wait_seconds: float = 5.0) -> int:
    """End what a worker's statements still do in the server, this connection's apart; how many sessions there were.
    Waits so long for each to be gone."""
    params = {"prefix": _session_prefix(worker_id), "wait": int(wait_seconds * 1000)}
    return len(rows(conn, "end_sessions", params))


def _session_prefix(worker_id: str) -> str:
    return f"tireless {hashlib.blake2s(worker_id.encode(), digest_size=6).hexdigest()}"


def prune(conn: Connection) -> int:
    return run(conn, "prune_workers")
