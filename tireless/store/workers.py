"""Who is there: one row a process, for people to see and for a starting supervisor to find the dead by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol
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
    draining_since: datetime | None = None  # it finishes its job, and then leaves


class _Present(Protocol):
    """What is asked of a worker here, however it was read."""

    @property
    def host(self) -> str: ...
    @property
    def job_id(self) -> UUID | None: ...
    @property
    def draining_since(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Draining:
    """A host whose supervisor takes nothing new and waits for `jobs` to end."""

    host: str
    since: datetime
    jobs: int


def draining(present: Iterable[_Present]) -> list[Draining]:
    """The hosts that drain, by the processes that are there; pure. One that has nothing left to wait for leaves at
    once, and is none."""
    hosts: dict[str, list[_Present]] = {}
    for worker in present:
        if worker.job_id is not None:
            hosts.setdefault(worker.host, []).append(worker)
    return [
        Draining(host, min(since), len(busy))
        for host, busy in sorted(hosts.items())
        if (since := [w.draining_since for w in busy if w.draining_since is not None])
    ]


def say_draining(conn: Connection, worker_id: str) -> None:
    """Say that a process that is there finishes what it has in hand and then leaves. Repeated, it changes nothing."""
    run(conn, "say_draining", {"id": worker_id})


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


def leave(conn: Connection, worker_id: str) -> None:
    """Forget a worker that has ended in order, unless it still holds something: that is its supervisor's to take back,
    and only a poller's row tells which polls it had begun (repos.due_again)."""
    run(conn, "worker_leaves", {"id": worker_id})


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
            draining_since=r["draining_since"],
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
