"""Agent runs: what was started, what it used, how it ended. What is spent is counted from here."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from tireless.entities import AgentKind, AgentRun, Claim, ClaimLost, Outcome, Usage
from tireless.store import decode
from tireless.store.claims import fence
from tireless.store.queries import Connection, row, rows, run


def start(
    conn: Connection,
    claim: Claim,
    run_id: UUID,
    agent: AgentKind,
    *,
    host: str,
    session_id: str | None,
    resumed: bool,
) -> AgentRun:
    """Record a run before its process is started. ClaimLost if the claim is no longer ours: start no agent then."""
    params = {
        **fence(claim),
        "run": run_id,
        "agent": agent,
        "host": host,
        "session": session_id,
        "resumed": resumed,
    }
    found = row(conn, "start_run", params)
    if found is None:
        raise ClaimLost(claim.job.id, claim.worker, claim.seq)
    return decode.agent_run(found)


def note_usage(conn: Connection, run_id: UUID, usage: Usage, session_id: str | None = None) -> None:
    """What it has used so far, while it runs: a crash must not lose it."""
    run(conn, "note_usage", {"run": run_id, "session": session_id, **_usage(usage)})


def end(
    conn: Connection,
    run_id: UUID,
    worker: str,
    outcome: Outcome,
    *,
    detail: str | None,
    exit_code: int | None,
    usage: Usage,
    session_id: str | None = None,
) -> AgentRun | None:
    """Close a run; None if it was closed already."""
    params = {
        "run": run_id,
        "worker": worker,
        "outcome": outcome,
        "detail": detail,
        "exit_code": exit_code,
        "session": session_id,
        **_usage(usage),
    }
    found = row(conn, "end_run", params)
    return decode.agent_run(found) if found else None


def of_job(conn: Connection, job_id: UUID) -> list[AgentRun]:
    """Oldest first."""
    return [decode.agent_run(r) for r in rows(conn, "runs_of_job", {"job": job_id})]


def _usage(usage: Usage) -> dict[str, Any]:
    return {name: getattr(usage, name) for name in Usage.__slots__}
