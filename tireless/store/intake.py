"""What labels make of rows: jobs for issues that ask for one, and other lanes for live jobs. Only the poller calls
it; claims, transitions and the sweep read no label."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from tireless.entities import (
    AgentKind,
    Issue,
    IssueRef,
    Job,
    JobKind,
    JobState,
    NewWrite,
    Relaned,
    RepoRef,
    TrackedRepo,
    UnknownValue,
)
from tireless.labels import LabelProtocol, agent_override
from tireless.routing import RoutingTable, job_kind_for, lane_for
from tireless.store import decode, writes
from tireless.store.jobs import repo_params
from tireless.store.queries import Connection, array, row, rows

TITLE_CHARS = 500
BODY_CHARS = 100_000  # of an issue's text that is kept with its job


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
            "ids": array(_new_ids(len(asked))),
            "numbers": array(map(str, numbers)),
            "titles": array(titles),
            "kinds": array(kinds),
            "lanes": array(lanes),
            "child_lanes": array(child_lanes),
            "bodies": array(bodies),
            "authors": array(authors),
            "pinned": array(map(str, pinned_ones)),
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
