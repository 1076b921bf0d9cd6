"""The outbox carried out: rows of `forge_write` -> the forge, once each, in order per issue.

Who drains: the runner right after it has queued a job's writes, the poller later whatever is left. Both may
at the same time: a write is leased by a row, never more than the first waiting one of an issue is handed out,
and no transaction is open while the forge is asked. Each write is idempotent, so a drainer that dies between
the forge's answer and the row costs a repetition that changes nothing.

    done      with the forge's answer in `result`; a pull request's number goes to its job
    refused   the forge said no for good (missing permission, issue gone or transferred, unprocessable): on
              record for the operator, and the writes behind it go on
    waiting   everything else: unreachable, limited, a token that is not valid now; tried again, less and less
              often, up to `RETRY_CAP_SECONDS` apart, or when the forge said
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tireless.delivery import CHILDREN_PLACEHOLDER, PULL_REQUEST_PLACEHOLDER
from tireless.entities import ForgeWrite, IssueRef, TirelessError, WriteOp
from tireless.forge import ForgeClient
from tireless.forge.errors import ForgeError, Limited
from tireless.prose import cut
from tireless.store import jobs, writes
from tireless.store.queries import Connection

log = logging.getLogger(__name__)

RETRY_FIRST_SECONDS = 5.0
RETRY_CAP_SECONDS = 120.0

Connect = Callable[[], AbstractContextManager[Connection]]
ClientFor = Callable[[IssueRef], ForgeClient]


def drain(
    connect: Connect,
    client_for: ClientFor,
    worker: str,
    *,
    job_id: Any = None,
    give_up: Callable[[], bool] = lambda: False,
    turn: Callable[[], None] = lambda: None,
) -> int:
    """Carry out what may be tried now (of one job, if given); how many writes were settled."""
    settled = 0
    while not give_up():
        turn()
        with connect() as conn:
            write = writes.take(conn, worker, job_id=job_id)
        if write is None:
            return settled
        settled += _attempt(connect, client_for, worker, write)
    return settled


def _attempt(connect: Connect, client_for: ClientFor, worker: str, write: ForgeWrite) -> bool:
    try:
        client = client_for(write.issue)
        result = perform(connect, client, write)
    except TirelessError as e:
        if isinstance(e, ForgeError) and not e.retryable:
            log.error("forge write refused op=%s issue=%s error=%s", write.op, write.issue, e)
            with connect() as conn:
                writes.refused(conn, write, worker, str(e))
            return True
        seconds = retry_seconds(e, write.attempts)
        log.warning(
            "forge write delayed op=%s issue=%s seconds=%.0f error=%s", write.op, write.issue, seconds, e
        )
        with connect() as conn:
            writes.retry_later(conn, write, seconds, str(e))
        return False
    with connect() as conn, conn.transaction():
        if write.op is WriteOp.PULL_REQUEST and write.job_id is not None:
            jobs.set_pull_request(conn, write.job_id, result["number"], result["url"])
        if write.op is WriteOp.CHILD_ISSUE and write.job_id is not None:
            child = IssueRef(
                write.issue.forge, write.issue.host, write.issue.owner, write.issue.repo, result["number"]
            )
            writes.add_child(conn, write.job_id, write.payload["key"], child, result["url"])
        writes.done(conn, write, worker, result)
    log.info("forge write done op=%s issue=%s", write.op, write.issue)
    return True


def retry_seconds(error: BaseException, attempts: int) -> float:
    backoff = min(RETRY_FIRST_SECONDS * 2.0 ** max(attempts - 1, 0), RETRY_CAP_SECONDS)
    if isinstance(error, Limited):
        return max(error.retry_after_seconds, backoff)
    return backoff


def perform(connect: Connect, client: ForgeClient, write: ForgeWrite) -> dict[str, Any]:
    """Do one write on the forge; what it answered. Raises ForgeError."""
    payload = write.payload
    match write.op:
        case WriteOp.PULL_REQUEST:
            return _pull_request(client, write)
        case WriteOp.STATUS_COMMENT:
            body = _fill(connect, write, payload["body"])
            comment = client.upsert_comment(write.issue, payload["marker"], body)
            return {"comment": comment.id, "url": comment.url}
        case WriteOp.COMMENT:
            comment = client.upsert_comment(write.issue, payload["marker"], payload["body"])
            return {"comment": comment.id, "url": comment.url}
        case WriteOp.STATE_LABEL:
            return _state_label(client, write)
        case WriteOp.ADD_LABEL:
            client.add_label(write.issue, payload["name"])
            return {"label": payload["name"]}
        case WriteOp.REMOVE_LABEL:
            client.remove_label(write.issue, payload["name"])
            return {"label": payload["name"]}
        case WriteOp.CHILD_ISSUE:
            return _child_issue(connect, client, write)


def _state_label(client: ForgeClient, write: ForgeWrite) -> dict[str, Any]:
    """Exactly the named label under the prefix, or none."""
    payload = write.payload
    if payload["name"] is not None:
        client.set_state_label(
            write.issue, payload["prefix"], payload["name"], payload["colour"], payload["description"]
        )
    else:
        for label in client.get_issue(write.issue).labels:
            if label.casefold().startswith(payload["prefix"].casefold()):
                client.remove_label(write.issue, label)
    return {"label": payload["name"]}


def _pull_request(client: ForgeClient, write: ForgeWrite) -> dict[str, Any]:
    """Found by its head before one is made; one that is there gets the new text, since it tells of newer work."""
    payload, repo = write.payload, write.issue.repo_ref
    found = client.find_pull_request(repo, payload["head"], payload["base"])
    if found is None:
        found = client.create_pull_request(
            repo, payload["head"], payload["base"], payload["title"], payload["body"], payload["draft"]
        )
    elif found.body != payload["body"]:
        client.edit_pull_request(repo, found.number, None, payload["body"])
    return {"number": found.number, "url": found.url}


def _child_issue(connect: Connect, client: ForgeClient, write: ForgeWrite) -> dict[str, Any]:
    payload, repo = write.payload, write.issue.repo_ref
    if write.attempts > 1:  # it may have been made before its maker died
        found = client.find_issue_by_marker(repo, payload["marker"], None)
        if found is not None:
            return {"number": found.ref.number, "url": found.url}
    lines = [payload["body"], f"Part of #{payload['parent']}."]
    if payload["depends_on"] and write.job_id is not None:
        with connect() as conn:
            children = writes.children_of(conn, write.job_id)
        known = [f"#{children[key][0].number}" for key in payload["depends_on"] if key in children]
        if known:
            lines.append(f"Depends on {', '.join(known)}.")
    lines.append(f"<!-- {payload['marker']} -->")
    issue = client.create_issue(repo, payload["title"], "\n\n".join(lines), payload["labels"])
    return {"number": issue.ref.number, "url": issue.url}


def _fill(connect: Connect, write: ForgeWrite, body: str) -> str:
    """Put in what only the forge's answers to earlier writes could tell."""
    if write.job_id is None or (PULL_REQUEST_PLACEHOLDER not in body and CHILDREN_PLACEHOLDER not in body):
        return body
    with connect() as conn:
        job = jobs.get(conn, write.job_id)
        children = writes.children_of(conn, write.job_id)
        queued = writes.of_job(conn, write.job_id)
    request = (
        f"#{job.pull_request_number}" if job and job.pull_request_number else "a pull request (not made yet)"
    )
    titles = {w.payload["key"]: w.payload["title"] for w in queued if w.op is WriteOp.CHILD_ISSUE}
    listed = "\n".join(f"- #{children[k][0].number} {title}" for k, title in titles.items() if k in children)
    return body.replace(PULL_REQUEST_PLACEHOLDER, request).replace(CHILDREN_PLACEHOLDER, cut(listed, 20_000))
