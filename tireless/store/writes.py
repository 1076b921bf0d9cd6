"""The outbox to the forges: rows of `forge_write`, in order per issue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tireless.entities import ForgeWrite, IssueRef, Job, NewWrite, RepoRef, WriteState
from tireless.store import decode
from tireless.store.queries import Connection, row, rows, run


def add(conn: Connection, job: Job, new: Sequence[NewWrite]) -> list[ForgeWrite]:
    """Queue writes about a job's issue. Call it in the transaction of the transition that wants them."""
    return add_for_issue(conn, job.issue, new, job_id=job.id)


def add_for_issue(
    conn: Connection, issue: IssueRef, new: Sequence[NewWrite], *, job_id: UUID | None = None
) -> list[ForgeWrite]:
    added = []
    for write in new:
        params = {
            "job": job_id,
            "forge": issue.forge,
            "host": issue.host,
            "owner": issue.owner,
            "repo": issue.repo,
            "number": issue.number,
            "op": write.op,
            "payload": json.dumps(write.payload),
        }
        found = row(conn, "add_write", params)
        assert found is not None
        added.append(decode.write(found))
    return added


def take(conn: Connection, worker: str, *, job_id: UUID | None = None) -> ForgeWrite | None:
    """The next write that may be tried now (of one job, if given), leased to `worker` for two minutes."""
    found = row(conn, "take_write", {"worker": worker, "job": job_id})
    return decode.write(found) if found else None


def done(conn: Connection, write: ForgeWrite, worker: str, result: dict[str, Any] | None = None) -> None:
    _settle(conn, write, worker, WriteState.DONE, result, None)


def refused(conn: Connection, write: ForgeWrite, worker: str, why: str) -> None:
    """The forge said no for good; those behind it on the same issue go on."""
    _settle(conn, write, worker, WriteState.REFUSED, None, why)


def _settle(
    conn: Connection,
    write: ForgeWrite,
    worker: str,
    state: WriteState,
    result: dict[str, Any] | None,
    error: str | None,
) -> None:
    params = {
        "id": write.id,
        "state": state,
        "result": json.dumps(result) if result is not None else None,
        "error": error,
        "worker": worker,
    }
    rows(conn, "finish_write", params)


def retry_later(conn: Connection, write: ForgeWrite, seconds: float, why: str) -> None:
    run(conn, "retry_write", {"id": write.id, "seconds": seconds, "error": why})


def unlock(conn: Connection, worker: str) -> int:
    """Let go of what a dead worker had taken; how many."""
    return run(conn, "unlock_writes", {"worker": worker})


def void_refused(conn: Connection, repo: RepoRef, opted_in: Sequence[int]) -> int:
    """A complete sweep saw which issues carry the opt-in label; on all others a refused removal is settled."""
    params = {
        "forge": repo.forge,
        "host": repo.host,
        "owner": repo.owner,
        "repo": repo.repo,
        "opted_in": list(opted_in),
    }
    return run(conn, "void_refused_writes", params)


def of_job(conn: Connection, job_id: UUID) -> list[ForgeWrite]:
    return [decode.write(r) for r in rows(conn, "writes_of_job", {"job": job_id})]


def counts(conn: Connection) -> dict[WriteState, int]:
    return {WriteState(r["state"]): r["n"] for r in rows(conn, "count_writes")}


def add_child(conn: Connection, job_id: UUID, key: str, issue: IssueRef, url: str) -> None:
    params = {
        "job": job_id,
        "key": key,
        "forge": issue.forge,
        "host": issue.host,
        "owner": issue.owner,
        "repo": issue.repo,
        "number": issue.number,
        "url": url,
    }
    run(conn, "add_child", params)


def children_of(conn: Connection, job_id: UUID) -> dict[str, tuple[IssueRef, str]]:
    """The issues that a plan has brought about so far: key -> (issue, URL)."""
    return {
        r["key"]: (decode.issue_of(r, "child_issue"), r["url"])
        for r in rows(conn, "children_of", {"job": job_id})
    }
