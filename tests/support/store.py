"""What store tests say over and over: a repository, issues in it, lanes that are open, a clock that turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg

from tireless.entities import (
    AgentKind,
    Claim,
    Forge,
    Issue,
    IssueRef,
    Job,
    JobState,
    NewWrite,
    Outcome,
    RepoRef,
    TrackedRepo,
    Usage,
)
from tireless.labels import LabelProtocol
from tireless.routing import RoutingTable
from tireless.store import claims, intake, jobs, lanes, repos, runs
from tireless.store.intake import Verdict
from tireless.store.queries import Connection

CC, OC = AgentKind.CLAUDE_CODE, AgentKind.OPENCODE
BOTH = (CC, OC)
LABELS = LabelProtocol()
ROUTING = RoutingTable()
REPO = RepoRef(Forge.GITEA, "forge.test", "acme", "site")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def issue(
    number: int,
    *labels: str,
    repo: RepoRef = REPO,
    is_open: bool = True,
    is_pull_request: bool = False,
) -> Issue:
    """An issue with these labels beside the opt-in."""
    return Issue(
        ref=IssueRef(repo.forge, repo.host, repo.owner, repo.repo, number),
        title=f"Issue {number}",
        body="",
        labels=("tireless", *labels),
        is_open=is_open,
        is_pull_request=is_pull_request,
        author="ann",
        url=f"https://{repo.host}/{repo.owner}/{repo.repo}/issues/{number}",
    )


def track(conn: Connection, ref: RepoRef = REPO, **settings: Any) -> TrackedRepo:
    added = repos.add(conn, ref, repos.RepoSettings(f"https://{ref.host}/{ref.full_name}", "main", **settings))
    assert added is not None
    return added


def enqueue(
    conn: Connection, issues: Sequence[Issue], repo: TrackedRepo | None = None, **options: Any
) -> dict[int, Verdict]:
    ref = repo.ref if repo is not None else REPO
    repo_id = repo.id if repo is not None else None
    return intake.enqueue(conn, repo_id, ref, issues, **{"labels": LABELS, "routing": ROUTING, **options})


def open_lanes(conn: Connection, cap: int = 4) -> None:
    for lane in BOTH:
        lanes.ensure(conn, lane, cap)


def queued(
    conn: Connection, *numbers: int, repo: TrackedRepo | None = None, labels: Sequence[str] = ()
) -> list[Job]:
    """A pending job for each number, in this order, lanes open."""
    open_lanes(conn)
    ref = repo.ref if repo is not None else REPO
    for number in numbers:
        assert enqueue(conn, [issue(number, *labels, repo=ref)], repo) == {number: Verdict.ENQUEUED}
    return [job_of(conn, number, ref) for number in numbers]


def job_of(conn: Connection, number: int, repo: RepoRef = REPO) -> Job:
    """The newest job of an issue."""
    found = jobs.find(conn, owner=repo.owner, repo=repo.repo, number=number, limit=1)
    assert found, f"no job of issue {number}"
    return found[0]


def claim(
    conn: Connection, worker: str = "w1", lanes: Sequence[AgentKind] = BOTH, **options: Any
) -> Claim | None:
    return claims.claim_next(conn, worker, lanes, **{"lease_seconds": 600.0, **options})


def claimed(conn: Connection, worker: str = "w1", lanes: Sequence[AgentKind] = BOTH, **options: Any) -> Claim:
    found = claim(conn, worker, lanes, **options)
    assert found is not None, "nothing to claim"
    return found


def running(conn: Connection, worker: str = "w1") -> Claim:
    found = claimed(conn, worker)
    claims.transition(conn, found, JobState.RUNNING)
    return found


def spend(conn: Connection, claim: Claim, usd: float) -> None:
    """A run of the claim's job that has cost so much."""
    run_id = uuid4()
    agent = claim.job.claimed_lane or claim.job.lane
    runs.start(conn, claim, run_id, agent, host="here", session_id=None, resumed=False)
    usage = Usage(cost_usd=usd)
    runs.end(conn, run_id, claim.worker, Outcome.COMPLETED, detail="done", exit_code=0, usage=usage)


def no_writes(job: Job) -> list[NewWrite]:
    return []


def sweep(conn: Connection, **options: Any) -> list[Job]:
    return claims.expire_stale_claims(conn, **{"writes_for": no_writes, **options})


def release(conn: Connection, *workers: str, **options: Any) -> list[Job]:
    return claims.release_claims(conn, workers, "worker died", **{"writes_for": no_writes, **options})


def set_clock(conn: Connection, now: datetime | None) -> None:
    """Turn the database's clock for this connection; None lets it run again."""
    conn.execute("select set_config('tireless.now', %s, false)", (now.isoformat() if now else "",))


def clock_at(conn: Connection, now: datetime, **later: float) -> datetime:
    moment = now + timedelta(**later)
    set_clock(conn, moment)
    return moment


def scalar(conn: Connection, query: str, *params: Any) -> Any:
    found = conn.execute(query.encode(), params).fetchone()
    return found[0] if found is not None else None


def event_kinds(conn: Connection, job: Job) -> list[str]:
    return [e.kind for e in jobs.events(conn, job.id)]


@contextmanager
def ear(conn: Connection, url: str, *channels: str) -> Iterator[Callable[[], list[str]]]:
    """Yields a look: what was told on these channels since the last one, in order, as 'channel payload'."""
    with psycopg.connect(url, autocommit=True) as other:
        for channel in (*channels, "mark"):
            other.execute(f"listen {channel}".encode())

        def look() -> list[str]:
            conn.execute("select pg_notify('mark', '')")
            found: list[str] = []
            for told in other.notifies(timeout=5):
                if told.channel == "mark":
                    return found
                found.append(f"{told.channel} {told.payload}".strip())
            raise AssertionError("the mark did not come")

        yield look
