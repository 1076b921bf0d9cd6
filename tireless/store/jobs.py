"""Jobs as all but their holders see them: to find and read them, their events, to cancel and to forget them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tireless.entities import (
    AgentKind,
    EventKind,
    Forge,
    IssueRef,
    Job,
    JobEvent,
    JobState,
    NewWrite,
    RepoRef,
)
from tireless.store import decode, writes
from tireless.store.queries import Connection, row, rows, run

WritesFor = Callable[[Job], Sequence[NewWrite]]


def get(conn: Connection, job_id: UUID) -> Job | None:
    found = row(conn, "get_job", {"id": job_id})
    return decode.job(found) if found else None


def find(
    conn: Connection,
    *,
    states: Sequence[JobState] | None = None,
    lane: AgentKind | None = None,
    forge: Forge | None = None,
    host: str | None = None,
    owner: str | None = None,
    repo: str | None = None,
    number: int | None = None,
    id_prefix: str | None = None,
    limit: int = 50,
) -> list[Job]:
    """Jobs, newest first."""
    params = {
        "states": list(states) if states is not None else None,
        "lane": lane,
        "forge": forge,
        "host": host,
        "owner": owner,
        "repo": repo,
        "number": number,
        "id_prefix": id_prefix,
        "limit": limit,
    }
    of_issue = owner is not None and repo is not None and number is not None
    return [decode.job(r) for r in rows(conn, "find_jobs_of_issue" if of_issue else "find_jobs", params)]


def of_issue(conn: Connection, issue: IssueRef, limit: int = 50) -> list[Job]:
    """The jobs of one issue, newest first. Another forge may have an issue of the same name: the host counts."""
    return find(
        conn,
        forge=issue.forge,
        host=issue.host,
        owner=issue.owner,
        repo=issue.repo,
        number=issue.number,
        limit=limit,
    )


def cancel(
    conn: Connection, jobs: Sequence[UUID], reason: str, *, writes_for: WritesFor, actor: str
) -> list[Job]:
    """Withdraw jobs: pending ones end as abandoned, held ones are asked to stop. The ones it changed."""
    with conn.transaction():
        moved = [
            decode.job(r)
            for r in rows(conn, "request_cancel", {"jobs": list(jobs), "reason": reason, "actor": actor})
        ]
        for job in moved:
            if job.state.terminal:
                end_without_runner(conn, job, writes_for, actor)
    return moved


def end_without_runner(conn: Connection, job: Job, writes_for: WritesFor, actor: str) -> None:
    """A job has ended in nobody's hands: people are told, and the run that its last runner left open is closed."""
    writes.add(conn, job, writes_for(job))
    run(conn, "close_runs", {"job": job.id, "actor": actor})


def events(conn: Connection, job_id: UUID, after: int = 0) -> list[JobEvent]:
    return [decode.event(r) for r in rows(conn, "job_events", {"job": job_id, "after": after})]


def add_event(
    conn: Connection, job_id: UUID, kind: EventKind, actor: str, detail: dict[str, Any] | None = None
) -> None:
    run(conn, "add_event", {"job": job_id, "kind": kind, "actor": actor, "detail": json_of(detail)})


def json_of(detail: dict[str, Any] | None) -> str:
    return json.dumps(detail) if detail else "{}"


def set_pull_request(conn: Connection, job_id: UUID, number: int, url: str) -> None:
    run(conn, "set_pull_request", {"job": job_id, "number": number, "url": url})


def counts(conn: Connection) -> dict[JobState, int]:
    found: dict[JobState, int] = {}
    for r in rows(conn, "job_counts"):
        state = JobState(r["state"])
        found[state] = found.get(state, 0) + r["n"]
    return found


def waiting_after_fault(conn: Connection) -> tuple[int, str | None]:
    """How many jobs wait for their next try after a fault, and why the newest of them does."""
    found = rows(conn, "jobs_waiting_after_fault")[0]
    return found["n"], found["newest"]


@dataclass(frozen=True, slots=True)
class Place:
    """Of a job in the queue: how many of its lane go before it, and how many of its repository are in hand."""

    ahead: int
    repo_running: int


def place_of(conn: Connection, job_id: UUID) -> Place:
    found = row(conn, "place_of_job", {"id": job_id})
    return Place(**found) if found is not None else Place(0, 0)


def live_among(conn: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Those of the jobs that have not ended."""
    return [r["id"] for r in rows(conn, "live_among", {"jobs": list(ids)})] if ids else []


def prune(conn: Connection, keep_days: float) -> int:
    return run(conn, "prune", {"keep": f"{keep_days} days"})


def repo_params(repo: RepoRef) -> dict[str, Any]:
    return {"forge": repo.forge, "host": repo.host, "owner": repo.owner, "repo": repo.repo}
