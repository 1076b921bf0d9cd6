"""What a day has cost, of a lane and of a repository, beside what each may cost. Spent is what agent_run says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from tireless.entities import AgentKind
from tireless.store.queries import Connection, row, rows


@dataclass(frozen=True, slots=True)
class Budget:
    """US dollars and jobs of one UTC day: the limits (None for none) and what is spent."""

    usd: float | None
    jobs: int | None
    usd_spent: float
    jobs_spent: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Of a UTC day so far: US dollars, and jobs by their first run of the day."""

    usd: float = 0.0
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class Spending:
    """`ends_at` (UTC) is when the next day begins. `repo` is None where the job has no tracked repository."""

    ends_at: datetime
    lane: Budget
    repo: Budget | None


def spent_today(conn: Connection, lane: AgentKind | None, repo_id: int | None) -> Spending | None:
    """Of the two that are asked for; None where neither has a limit."""
    r = row(conn, "spent_today", {"lane": lane, "repo_id": repo_id})
    if r is None:
        return None
    lane_budget = Budget(r["lane_usd"], r["lane_jobs"], r["lane_usd_spent"], r["lane_jobs_spent"])
    repo_budget = Budget(r["repo_usd"], r["repo_jobs"], r["repo_usd_spent"], r["repo_jobs_spent"])
    return Spending(r["ends_at"], lane_budget, repo_budget if repo_id is not None else None)


def spent_by_lane(conn: Connection) -> dict[AgentKind, Spent]:
    return {AgentKind(r["lane"]): Spent(r["usd"], r["jobs"]) for r in rows(conn, "spent_by_lane")}


def spent_by_repo(conn: Connection) -> dict[int, Spent]:
    """By the row's number; who ran nothing is left out."""
    return {r["repo_id"]: Spent(r["usd"], r["jobs"]) for r in rows(conn, "spent_by_repo")}
