"""Labels that were set by who may not start work, and the text that a job was asked with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tireless.store.queries import Connection, row, rows, run


@dataclass(frozen=True, slots=True)
class Refusal:
    """`labelling`: the forge's id of the refused setting of the label; None if nobody knows."""

    number: int
    labelling: int | None
    refused_at: datetime
    seen_update: datetime | None  # the time of change when its history was last read


@dataclass(frozen=True, slots=True)
class JobText:
    """An issue as it was when its job was queued; see intake.stored for what is kept of a text."""

    title: str
    body: str
    author: str
    seen_at: datetime


def text_of(conn: Connection, job_id: UUID) -> JobText | None:
    """None for a job that an older program queued."""
    found = row(conn, "job_text", {"job": job_id})
    return JobText(found["title"], found["body"], found["author"], found["seen_at"]) if found else None


def add(conn: Connection, repo_id: int, number: int, labelling: int | None) -> None:
    """The issue makes no new job until its label is set again."""
    run(conn, "refuse_label", {"repo_id": repo_id, "number": number, "labelling": labelling})


def of_repo(conn: Connection, repo_id: int) -> dict[int, Refusal]:
    return {
        r["number"]: Refusal(r["number"], r["labelling"], r["refused_at"], r["seen_update"])
        for r in rows(conn, "refused_labels", {"repo_id": repo_id})
    }


def seen(conn: Connection, repo_id: int, number: int, updated_at: datetime | None) -> None:
    """The history of the issue as it was at `updated_at` tells of no later setting."""
    run(conn, "refusal_seen", {"repo_id": repo_id, "number": number, "updated_at": updated_at})


def lift(
    conn: Connection, repo_id: int, opted_in: Sequence[int], listed_at: datetime, set_again: Sequence[int]
) -> int:
    """After a complete sweep, begun at `listed_at`: forget the refusals of issues that are not in it, and of those
    whose label was set again; how many."""
    params = {
        "repo_id": repo_id,
        "opted_in": list(opted_in),
        "listed_at": listed_at,
        "set_again": list(set_again),
    }
    return run(conn, "lift_refusals", params)
