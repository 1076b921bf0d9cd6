"""What people and Prometheus are shown: read-only looks, each over one snapshot, none of which reads history
as a whole. Call them inside `looking`.

Values of the vocabulary stay text here, unlike everywhere else: nothing is decided by them, and a page that
shows an unknown value is of more use to an operator than one that stops at it.

Counts over history start at midnight UTC. They only grow until the next one, so they are counters that reset once
a day. Sums over all rows kept would be none: they would shrink whenever old jobs are pruned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tireless.store.queries import Connection, row, rows, run

# The longest that each list gets.
LIVE_JOBS = 50  # in hand, and as many pending ones a lane
FINISHED_JOBS = 30
REPOS = 200
WORKERS = 5000  # what a lane does is judged by each; fewer are shown (WORKERS_SHOWN)
WORKERS_SHOWN = 200
WRITES = 50  # of each state
HISTORY = 500  # events, runs, writes of one job


@dataclass(frozen=True, slots=True)
class LaneStatus:
    lane: str
    cap: int
    paused: bool
    pause_reason: str | None
    hold_reason: str | None
    held_until: datetime | None
    held: bool  # now, as the claim judges it; with `held_until` None, until an operator resumes it
    used: int  # slots in hand
    oldest_pending_at: datetime | None


@dataclass(frozen=True, slots=True)
class JobCount:
    lane: str
    state: str
    n: int


@dataclass(frozen=True, slots=True)
class JobStatus:
    id: UUID
    forge: str
    host: str
    owner: str
    repo: str
    number: int
    title: str
    kind: str
    lane: str
    state: str
    phase: str
    attempts: int
    max_attempts: int
    since: datetime  # of a live job in hand: its claim; of any other: when it was queued
    run_at: datetime
    cancel_requested: bool
    last_error: str | None
    finished_at: datetime | None
    pull_request_number: int | None
    pull_request_url: str | None
    cost_usd: float | None


@dataclass(frozen=True, slots=True)
class JobFacts:
    claimed_by: str | None
    claim_expires_at: datetime | None
    branch: str | None
    work_host: str | None
    base_commit: str | None
    head_commit: str | None
    parent_job_id: UUID | None
    cancel_reason: str | None


@dataclass(frozen=True, slots=True)
class EventStatus:
    id: int
    at: datetime
    kind: str
    actor: str
    detail: str  # JSON


@dataclass(frozen=True, slots=True)
class RunStatus:
    id: UUID
    agent: str
    host: str
    model: str | None
    resumed: bool
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    detail: str | None
    exit_code: int | None
    cost_usd: float | None
    input_tokens: int | None
    output_tokens: int | None
    turns: int | None


@dataclass(frozen=True, slots=True)
class WriteStatus:
    id: int
    job_id: UUID | None
    forge: str
    host: str
    owner: str
    repo: str
    number: int
    op: str
    state: str
    attempts: int
    next_try_at: datetime
    created_at: datetime
    done_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class RepoStatus:
    id: int
    forge: str
    host: str
    owner: str
    repo: str
    enabled: bool
    poll_result: str | None
    poll_detail: str | None
    poll_failures: int
    last_polled_at: datetime | None
    next_poll_at: datetime


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    id: str
    host: str
    role: str
    lane: str | None
    pid: int
    version: str
    started_at: datetime
    seen_at: datetime
    job_id: UUID | None
    waits_for: str | None
    draining_since: datetime | None


@dataclass(frozen=True, slots=True)
class Overview:
    now: datetime  # the database's clock
    lanes: tuple[LaneStatus, ...]
    counts: tuple[JobCount, ...]  # live jobs
    workers: tuple[WorkerStatus, ...]
    live: tuple[JobStatus, ...]
    finished: tuple[JobStatus, ...]
    repos: tuple[RepoStatus, ...]
    writes: tuple[WriteStatus, ...]


@dataclass(frozen=True, slots=True)
class History:
    now: datetime
    job: JobStatus
    facts: JobFacts
    events: tuple[EventStatus, ...]
    runs: tuple[RunStatus, ...]
    writes: tuple[WriteStatus, ...]


@dataclass(frozen=True, slots=True)
class RunTotal:
    agent: str
    outcome: str
    n: int
    cost_usd: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class OpenWrites:
    state: str
    n: int
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class Numbers:
    """What /metrics is made of."""

    now: datetime
    lanes: tuple[LaneStatus, ...]
    counts: tuple[JobCount, ...]  # live jobs
    finished_today: tuple[JobCount, ...]
    runs_today: tuple[RunTotal, ...]
    writes_open: tuple[OpenWrites, ...]
    writes_done_today: int
    repos: dict[str, int]  # enabled ones, by the result of their last poll, or "never"
    workers: dict[str, int]  # present ones, by role


@contextlib.contextmanager
def looking(conn: Connection) -> Iterator[None]:
    """One read-only snapshot, in which no statement takes longer than 2 seconds (QueryCanceled)."""
    with conn.transaction():
        run(conn, "status_begin")
        yield


def now(conn: Connection) -> datetime:
    """The database's clock: the least that it can answer."""
    found = row(conn, "now")
    assert found is not None
    at: datetime = found["now"]
    return at


def overview(conn: Connection) -> Overview:
    return Overview(
        now(conn),
        _lanes(conn),
        _live_counts(conn),
        tuple(WorkerStatus(**r) for r in rows(conn, "status_workers", {"limit": WORKERS})),
        tuple(JobStatus(**r) for r in rows(conn, "status_live_jobs", {"limit": LIVE_JOBS})),
        tuple(JobStatus(**r) for r in rows(conn, "status_finished_jobs", {"limit": FINISHED_JOBS})),
        tuple(RepoStatus(**r) for r in rows(conn, "status_repos", {"limit": REPOS})),
        tuple(WriteStatus(**r) for r in rows(conn, "status_open_writes", {"limit": WRITES})),
    )


def history(conn: Connection, job_id: UUID) -> History | None:
    """One job's, the newest HISTORY rows of each kind; None if there is no such job."""
    job = row(conn, "status_job", {"job": job_id})
    facts = row(conn, "status_job_facts", {"job": job_id})
    if job is None or facts is None:
        return None
    params = {"job": job_id, "limit": HISTORY}
    return History(
        now(conn),
        JobStatus(**job),
        JobFacts(**facts),
        tuple(EventStatus(**r) for r in rows(conn, "status_job_events", params)),
        tuple(RunStatus(**r) for r in rows(conn, "status_job_runs", params)),
        tuple(WriteStatus(**r) for r in rows(conn, "status_job_writes", params)),
    )


def numbers(conn: Connection) -> Numbers:
    return Numbers(
        now(conn),
        _lanes(conn),
        _live_counts(conn),
        tuple(JobCount(**r) for r in rows(conn, "status_finished_today")),
        tuple(RunTotal(**r) for r in rows(conn, "status_runs_today")),
        tuple(OpenWrites(**r) for r in rows(conn, "status_writes_open")),
        sum(r["n"] for r in rows(conn, "status_writes_today")),
        {r["result"]: r["n"] for r in rows(conn, "status_repos_by_result")},
        {r["role"]: r["n"] for r in rows(conn, "status_workers_by_role")},
    )


def _lanes(conn: Connection) -> tuple[LaneStatus, ...]:
    return tuple(LaneStatus(**r) for r in rows(conn, "status_lanes"))


def _live_counts(conn: Connection) -> tuple[JobCount, ...]:
    return tuple(JobCount(**r) for r in rows(conn, "status_live_counts"))
