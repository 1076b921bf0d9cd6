"""Jobs: enqueue, claim, transitions under the fence, sweep, cancel. Nothing here reads a label of a forge to
decide about a claim, a transition or the sweep; only `enqueue` and `reroute`, which the poller calls, do."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import psycopg

from tireless.entities import (
    AgentKind,
    Claim,
    ClaimLost,
    EventKind,
    Forge,
    IllegalTransition,
    Issue,
    IssueRef,
    Job,
    JobEvent,
    JobKind,
    JobState,
    NewWrite,
    Phase,
    Relaned,
    RepoRef,
    TrackedRepo,
    UnknownValue,
)
from tireless.labels import LabelProtocol, agent_override
from tireless.routing import RoutingTable, job_kind_for, lane_for
from tireless.store import decode, writes
from tireless.store.lanes import settle_slots
from tireless.store.queries import Connection, row, rows, run

WritesFor = Callable[[Job], Sequence[NewWrite]]

TITLE_CHARS = 500
BODY_CHARS = 100_000  # of an issue's text that is kept with its job

_CLAIM_TRIES = 5
_CLAIMS_A_MARK = 32  # claims of this process between two marks of the lanes' floors


def _array(words: Iterable[str]) -> str:
    """Texts as the server writes an array of them; psycopg goes through a list several times, each time anew."""
    escaped = [word.replace("\\", "\\\\").replace('"', '\\"') for word in words]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


_KNOWN = {
    "kinds": _array(JobKind),
    "forges": _array(Forge),
    "phases": _array(Phase),
}  # what this build understands
_AGENTS = _array(AgentKind)
WORDS_KNOWN = {"agents": _AGENTS, **_KNOWN}  # what words_known.sql asks for


class Verdict(StrEnum):
    """What enqueue made of an issue."""

    ENQUEUED = "enqueued"
    LIVE = "live"  # it has a live job
    WRITE_WAITING = "write_waiting"
    WRITE_REFUSED = "write_refused"
    STALE = "stale"  # the list was read before the last job ended; the next poll tells
    COOLING = "cooling"
    NOT_ENTITLED = "not_entitled"  # who set the label may not start work; see refusals.py
    CLOSED = "closed"  # withdrawn work, whatever it is labelled
    NOT_OPTED_IN = "not_opted_in"
    PULL_REQUEST = "pull_request"


def stored(text: str, most: int) -> str:
    """A stranger's text as a row can hold it: without NUL and halves of surrogate pairs, cut to `most` characters."""
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return text.replace("\0", "")[:most]


def enqueue(
    conn: Connection,
    repo_id: int | None,
    repo: RepoRef,
    issues: Sequence[Issue],
    *,
    labels: LabelProtocol,
    routing: RoutingTable,
    listed_at: datetime | None = None,
    max_attempts: int = 3,
    cooldown_seconds: float = 0.0,
    state_write: dict[str, Any] | None = None,
    actor: str = "poller",
) -> dict[int, Verdict]:
    """Queue a job for each issue that asks for one; what became of each, by number.

    This is the last gate before work exists, so it checks the opt-in and the issue's state itself. `listed_at`
    is the database's time from before the forge was asked (take_due gives it); an issue whose last job ended
    later is left for the next poll. What the issue says now is kept with its job. `state_write` is the payload of the
    state label that people are to see on each.
    """
    asked, verdicts = _asked(issues, labels, routing)
    if asked:
        numbers, kinds, lanes, child_lanes, pinned_ones, titles, bodies, authors = zip(*asked, strict=True)
        params = {
            "repo_id": repo_id,
            **repo_params(repo),
            "ids": _array(_new_ids(len(asked))),
            "numbers": _array(map(str, numbers)),
            "titles": _array(titles),
            "kinds": _array(kinds),
            "lanes": _array(lanes),
            "child_lanes": _array(child_lanes),
            "bodies": _array(bodies),
            "authors": _array(authors),
            "pinned": _array(map(str, pinned_ones)),
            "listed_at": listed_at,
            "max_attempts": max_attempts,
            "cooldown": f"{cooldown_seconds} seconds",
            "state_write": json.dumps(state_write) if state_write is not None else None,
            "actor": actor,
        }
        verdicts.update({r["number"]: _VERDICTS[r["verdict"]] for r in rows(conn, "enqueue", params)})
    return verdicts


_Asked = tuple[int, JobKind, AgentKind, AgentKind, bool, str, str, str]


def _asked(
    issues: Sequence[Issue], labels: LabelProtocol, routing: RoutingTable
) -> tuple[list[_Asked], dict[int, Verdict]]:
    """The issues that ask for a job, each once: number, intent, title, body and author; and why the others do not."""
    asked: dict[int, _Asked] = {}
    verdicts: dict[int, Verdict] = {}
    intents: dict[tuple[str, ...], _Intent | None] = {}  # a page's issues carry few sets of labels
    for issue in issues:
        if issue.labels not in intents:
            intents[issue.labels] = _intent(issue.labels, labels, routing)
        intent = intents[issue.labels]
        number = issue.ref.number
        if not issue.is_open:
            verdicts[number] = Verdict.CLOSED
        elif issue.is_pull_request:
            verdicts[number] = Verdict.PULL_REQUEST
        elif intent is None:
            verdicts[number] = Verdict.NOT_OPTED_IN
        else:
            title, body = stored(issue.title, TITLE_CHARS), stored(issue.body, BODY_CHARS)
            asked[number] = (number, *intent, title, body, stored(issue.author, 200))
    return list(asked.values()), verdicts


def _new_ids(count: int) -> list[str]:
    """Random UUIDs (version 4). Here, since random bytes are dear where Postgres was built without OpenSSL."""
    noise = os.urandom(16 * count)
    return [UUID(bytes=noise[at : at + 16], version=4).hex for at in range(0, 16 * count, 16)]


_VERDICTS = {str(verdict): verdict for verdict in Verdict}
_Intent = tuple[JobKind, AgentKind, AgentKind, bool]


def _intent(on: tuple[str, ...], labels: LabelProtocol, routing: RoutingTable) -> _Intent | None:
    """What an issue's labels ask for: the kind, the lane (and a planned issue's lane), and whether a label names it."""
    kind = job_kind_for(on, labels)
    if kind is None:
        return None
    own, child = (lane_for(kind, has_parent, on, labels, routing) for has_parent in (False, True))
    return kind, own, child, agent_override(on, labels) is not None


def claim_next(
    conn: Connection,
    worker: str,
    lanes: Sequence[AgentKind],
    *,
    lease_seconds: float,
    host: str | None = None,
) -> Claim | None:
    """Claim the next job of these lanes, oldest first within a priority; None if nothing may start.

    With no lane allowed nothing is asked: it would be a round trip to be told nothing. A second statement is asked only
    if the head of the queue is there and cannot be had (asleep, at its repository's limit, locked by a rival). Two
    claimers that pick the same slot number of one repository's own limit are told apart by a unique index; the loser
    looks again. `host` is whose disk the claimer works on: a job whose workspace lies on another is left to that one
    for an hour.
    """
    if not lanes:
        return None
    params = {
        "worker": worker,
        "lanes": _array(lanes),
        "lease": f"{lease_seconds} seconds",
        "host": host,
        **_KNOWN,
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
        "detail": _json(detail or ({"why": error} if error else None)),
    }
    if to is JobState.PENDING and writes_for is not None:
        with conn.transaction():
            job = _transition(conn, claim, to, params)
            if job.state.terminal:
                _end_without_runner(conn, job, writes_for, claim.worker)
        return job
    return _transition(conn, claim, to, params)


def _json(detail: dict[str, Any] | None) -> str:
    return json.dumps(detail) if detail else "{}"


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
    """Take back what dead workers held, at once. Call it only when nothing of theirs runs any more."""
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
                _end_without_runner(conn, job, writes_for, actor)
    return jobs


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
                _end_without_runner(conn, job, writes_for, actor)
    return moved


def _end_without_runner(conn: Connection, job: Job, writes_for: WritesFor, actor: str) -> None:
    """A job has ended in nobody's hands: people are told, and the run that its last runner left open is closed."""
    writes.add(conn, job, writes_for(job))
    run(conn, "close_runs", {"job": job.id, "actor": actor})


def live_jobs_of_repo(conn: Connection, repo: TrackedRepo) -> list[Job]:
    """Those that this build understands; the others are a newer program's, and its poller's to look after."""
    found = []
    for r in rows(conn, "live_jobs_of_repo", {"repo_id": repo.id}):
        with contextlib.suppress(UnknownValue):
            found.append(decode.job(r))
    return found


def refresh_lanes(
    conn: Connection,
    live: Sequence[Job],
    issues: Sequence[Issue],
    *,
    labels: LabelProtocol,
    routing: RoutingTable,
    actor: str = "poller",
) -> int:
    """Let changed labels reach live jobs; how many moved. History is never re-routed."""
    by_number = {issue.ref.number: issue for issue in issues}
    asked: list[tuple[UUID, JobKind, AgentKind, bool]] = []
    for job in live:
        issue = by_number.get(job.issue.number)
        if issue is None:
            continue
        unbegun = job.state is JobState.PENDING and job.claim_seq == 0
        kind = (job_kind_for(issue.labels, labels) or job.kind) if unbegun else job.kind
        lane = lane_for(kind, job.parent_job_id is not None, issue.labels, labels, routing)
        pinned = agent_override(issue.labels, labels) is not None
        if job.relaned_at is not None and not pinned:
            lane = job.lane
        if (lane, kind, pinned) != (job.lane, job.kind, job.lane_pinned):
            asked.append((job.id, kind, lane, pinned))
    if not asked:
        return 0
    ids, kinds, lanes, pinned_ones = zip(*asked, strict=True)
    params = {
        "jobs": list(ids),
        "kinds": list(kinds),
        "lanes": list(lanes),
        "pinned": list(pinned_ones),
        "actor": actor,
    }
    return len(rows(conn, "reroute", params))


def relane(
    conn: Connection,
    lanes: Sequence[AgentKind],
    *,
    after_seconds: float,
    writes_for: Callable[[Relaned], Sequence[NewWrite]],
    actor: str = "poller",
) -> list[Relaned]:
    """Move jobs that nobody has begun out of lanes that have been held for longer than `after_seconds`, into the first
    of `lanes` that may start something. The ones it moved; what people are told of each is queued with it."""
    params = {"lanes": list(lanes), "after": f"{after_seconds} seconds", "actor": actor}
    with conn.transaction():
        moved = [
            Relaned(decode.job(r), AgentKind(r["was"]), r["hold_reason"], r["held_until"])
            for r in rows(conn, "relane", params)
        ]
        for one in moved:
            writes.add(conn, one.job, writes_for(one))
    return moved


def last_finished_at(conn: Connection, issue: IssueRef, kind: JobKind) -> datetime | None:
    """When the last delivered job of this kind on the issue ended; the discovery cooldown goes by it."""
    params = {**repo_params(issue.repo_ref), "number": issue.number, "kind": kind}
    found = row(conn, "last_finished_at", params)
    return found["last"] if found else None


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


def events(conn: Connection, job_id: UUID, after: int = 0) -> list[JobEvent]:
    return [decode.event(r) for r in rows(conn, "job_events", {"job": job_id, "after": after})]


def add_event(
    conn: Connection, job_id: UUID, kind: EventKind, actor: str, detail: dict[str, Any] | None = None
) -> None:
    run(conn, "add_event", {"job": job_id, "kind": kind, "actor": actor, "detail": _json(detail)})


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


def fence(claim: Claim) -> dict[str, Any]:
    """What every write of a claim's holder must match in the row."""
    return {"job": claim.job.id, "worker": claim.worker, "seq": claim.seq}


def repo_params(repo: RepoRef) -> dict[str, Any]:
    return {"forge": repo.forge, "host": repo.host, "owner": repo.owner, "repo": repo.repo}


def _refused(conn: Connection, claim: Claim, to: JobState) -> Exception:
    """Why a fenced write matched no row."""
    job = get(conn, claim.job.id)
    if job is None or job.state.terminal:
        return IllegalTransition(claim.job.id, job.state if job else None, to)
    return ClaimLost(claim.job.id, claim.worker, claim.seq)
