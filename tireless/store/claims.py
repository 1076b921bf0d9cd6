"""The claim and all that its holder writes, under the fence; and what takes a job from who no longer works it.
Nothing here reads a label."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from tireless.entities import (
    AgentKind,
    Claim,
    ClaimLost,
    EventKind,
    Forge,
    IllegalTransition,
    Job,
    JobKind,
    JobState,
    NewWrite,
    Phase,
)
from tireless.store import decode, writes
from tireless.store.jobs import WritesFor, end_without_runner, get, json_of
from tireless.store.lanes import settle_slots
from tireless.store.queries import Connection, array, row, rows, run

_CLAIM_TRIES = 5
_CLAIMS_A_MARK = 32  # claims of this process between two marks of the lanes' floors

KNOWN = {
    "kinds": array(JobKind),
    "forges": array(Forge),
    "phases": array(Phase),
}  # what this build understands
WORDS_KNOWN = {"agents": array(AgentKind), **KNOWN}  # what words_known.sql asks for


def claim_next(
    conn: Connection,
    worker: str,
    lanes: Sequence[AgentKind],
    *,
    lease_seconds: float,
    host: str | None = None,
    host_gone_seconds: float = 3600.0,
    phases: Collection[Phase] = tuple(Phase),
) -> Claim | None:
    """Claim the next job of these lanes, oldest first within a priority; None if nothing may start.

    With no lane allowed nothing is asked: it would be a round trip to be told nothing. A second statement is asked
    only if the head of the queue is there and cannot be had (asleep, at its repository's limit, locked by a rival), or
    once the slots of a lane whose cap was lowered are settled. Two claimers that pick the same slot number of one
    repository's own limit are told apart by a unique index; the loser looks again. `host` is whose disk the claimer
    works on: a job whose workspace lies on another is left to that one for `host_gone_seconds`. `phases`: of the jobs
    that it can go on with.
    """
    if not lanes:
        return None
    params = {
        "worker": worker,
        "lanes": array(lanes),
        "lease": f"{lease_seconds} seconds",
        "host": host,
        "host_gone": f"{host_gone_seconds} seconds",
        **KNOWN,
        "phases": array(phases),
    }
    name = "claim_next"
    for _ in range(_CLAIM_TRIES):
        try:
            found = row(conn, name, params)
        except psycopg.errors.UniqueViolation:
            continue
        assert found is not None
        if found["id"] is not None:
            if next(_claims) % _CLAIMS_A_MARK == 0:
                mark_floors(conn)
            return Claim(decode.job(found), worker, found["claim_seq"])
        if found["unsettled"]:
            settle_slots(conn)
            continue
        if found["seen"] == 0 or name == "claim_past":
            return None
        name = "claim_past"
    return None


def held_claim(conn: Connection, worker: str) -> Claim | None:
    """A claim of this worker that it has not begun to work. One whose claim got no answer looks for it here."""
    found = row(conn, "held_claim", {"worker": worker})
    return Claim(decode.job(found), worker, found["claim_seq"]) if found is not None else None


_claims = itertools.count(1)


def mark_floors(conn: Connection) -> None:
    """Tell the claims of all lanes where to begin to look; see lane_floor."""
    with conn.transaction():
        rows(conn, "lock_floors")
        run(conn, "mark_floors")


def transition(
    conn: Connection,
    claim: Claim,
    to: JobState,
    *,
    phase: Phase | None = None,
    error: str | None = None,
    clear_error: bool = False,
    keep_attempt: bool = False,
    delay_seconds: float = 0.0,
    event: EventKind | None = None,
    detail: dict[str, Any] | None = None,
    writes_for: WritesFor | None = None,
) -> Job:
    """Move a held job. Raises ClaimLost if the claim is no longer ours, IllegalTransition if it has ended.

    `keep_attempt` gives the attempt of this claim back (a drain, a hold, a lost database burn none); `delay_seconds`
    is the backoff of a job that returns to pending; without, it keeps its place in the queue. A job whose cancel was
    asked for does not return: it ends as abandoned, and `writes_for` says what the forge is to be told then.
    """
    if to is JobState.CLAIMED:
        raise IllegalTransition(claim.job.id, claim.job.state, to)
    params = {
        **fence(claim),
        "to": to,
        "phase": phase,
        "set_error": error is not None or clear_error,
        "error": error,
        "keep_attempt": keep_attempt,
        "delay": f"{delay_seconds} seconds",
        "event": event or _EVENT_OF.get(to, EventKind.FINISHED),
        "detail": json_of(detail or ({"why": error} if error else None)),
    }
    if to is JobState.PENDING and writes_for is not None:
        with conn.transaction():
            job = _transition(conn, claim, to, params)
            if job.state.terminal:
                end_without_runner(conn, job, writes_for, claim.worker)
        return job
    return _transition(conn, claim, to, params)


def _transition(conn: Connection, claim: Claim, to: JobState, params: dict[str, Any]) -> Job:
    moved = row(conn, "transition", params)
    if moved is None:
        raise _refused(conn, claim, to)
    return decode.job(moved)


_EVENT_OF = {JobState.RUNNING: EventKind.STARTED, JobState.PENDING: EventKind.REQUEUED}


def finish(
    conn: Connection, claim: Claim, to: JobState, new_writes: Sequence[NewWrite], *, error: str | None = None
) -> Job:
    """End a job and queue what the forge is to be told, in one transaction."""
    with conn.transaction() if new_writes else contextlib.nullcontext():
        job = transition(conn, claim, to, phase=Phase.DONE, error=error, clear_error=error is None)
        writes.add(conn, job, new_writes)
    return job


def advance(
    conn: Connection,
    claim: Claim,
    phase: Phase | None = None,
    *,
    branch: str | None = None,
    base_commit: str | None = None,
    head_commit: str | None = None,
    result: dict[str, Any] | None = None,
    work_host: str | None = None,
) -> Job:
    """Record that the phases before `phase` are complete, or a fact. ClaimLost if the claim is no longer ours."""
    params = {
        **fence(claim),
        "phase": phase,
        "branch": branch,
        "base_commit": base_commit,
        "head_commit": head_commit,
        "result": json.dumps(result) if result is not None else None,
        "work_host": work_host,
    }
    moved = row(conn, "advance", params)
    if moved is None:
        raise _refused(conn, claim, JobState.RUNNING)
    return decode.job(moved)


@dataclass(frozen=True, slots=True)
class Renewal:
    cancel_requested: bool
    cancel_reason: str | None


def renew_claim(conn: Connection, claim: Claim, *, lease_seconds: float) -> Renewal | None:
    """Push the lease out, for who still holds the claim; None if it is lost."""
    found = row(conn, "renew_claim", {**fence(claim), "lease": f"{lease_seconds} seconds"})
    if found is None:
        return None
    return Renewal(found["cancel_requested_at"] is not None, found["cancel_reason"])


def expire_stale_claims(
    conn: Connection, *, writes_for: WritesFor, backoff_seconds: float = 30.0, actor: str = "sweep"
) -> list[Job]:
    """Take back what is held past its lease; the jobs, as they are now (pending, failed at their last attempt, or
    abandoned where a cancel was asked for). Tidies the lanes' floors as well."""
    taken = _take_back(
        conn,
        None,
        "claim lease expired",
        EventKind.LEASE_EXPIRED,
        writes_for=writes_for,
        backoff_seconds=backoff_seconds,
        actor=actor,
    )
    mark_floors(conn)
    return taken


def release_claims(
    conn: Connection,
    workers: Sequence[str],
    why: str,
    *,
    writes_for: WritesFor,
    backoff_seconds: float = 30.0,
    actor: str = "supervisor",
) -> list[Job]:
    """Take back what dead workers held, at once. Call it only when nothing of theirs runs any more, and no session of
    theirs is left: what others do with one of the rows at this moment is waited for, since nobody asks twice."""
    with conn.transaction():
        rows(conn, "lock_claims_of", {"workers": list(workers)})
        return _take_back(
            conn,
            list(workers),
            why,
            EventKind.RELEASED,
            writes_for=writes_for,
            backoff_seconds=backoff_seconds,
            actor=actor,
        )


def _take_back(
    conn: Connection,
    workers: list[str] | None,
    why: str,
    event: EventKind,
    *,
    writes_for: WritesFor,
    backoff_seconds: float,
    actor: str,
) -> list[Job]:
    params = {
        "workers": workers,
        "why": why,
        "event": event,
        "backoff": backoff_seconds,
        "actor": actor,
        **WORDS_KNOWN,
    }
    with conn.transaction():
        jobs = [decode.job(r) for r in rows(conn, "expire_stale_claims", params)]
        for job in jobs:
            if job.state.terminal:
                end_without_runner(conn, job, writes_for, actor)
    return jobs


def fence(claim: Claim) -> dict[str, Any]:
    """What every write of a claim's holder must match in the row."""
    return {"job": claim.job.id, "worker": claim.worker, "seq": claim.seq}


def _refused(conn: Connection, claim: Claim, to: JobState) -> Exception:
    """Why a fenced write matched no row."""
    job = get(conn, claim.job.id)
    if job is None or job.state.terminal:
        return IllegalTransition(claim.job.id, job.state if job else None, to)
    return ClaimLost(claim.job.id, claim.worker, claim.seq)
