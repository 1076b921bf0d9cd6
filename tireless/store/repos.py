"""Tracked repositories: settings, and the polls that are due."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time

from tireless.entities import IssuePage, PollResult, RepoRef, TrackedRepo
from tireless.store import decode
from tireless.store.queries import Connection, row, rows, run


@dataclass(frozen=True, slots=True)
class RepoSettings:
    """What an operator may set about a repository."""

    clone_url: str
    default_branch: str
    interval_seconds: int = 60
    quiet_from: time | None = None
    quiet_until: time | None = None
    quiet_zone: str = "UTC"
    enabled: bool = True
    max_running: int | None = None
    verify_command: str | None = None
    daily_usd: float | None = None  # what its runs may cost in a UTC day
    daily_jobs: int | None = None


def settings_of(repo: TrackedRepo) -> RepoSettings:
    s = repo.schedule
    return RepoSettings(
        repo.clone_url,
        repo.default_branch,
        s.interval_seconds,
        s.quiet_from,
        s.quiet_until,
        s.quiet_zone,
        s.enabled,
        repo.max_running,
        repo.verify_command,
        repo.daily_usd,
        repo.daily_jobs,
    )


def _params(settings: RepoSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in RepoSettings.__slots__}


def add(conn: Connection, ref: RepoRef, settings: RepoSettings) -> TrackedRepo | None:
    """Start to track a repository; None if it is tracked already."""
    identity = {"forge": ref.forge, "host": ref.host, "owner": ref.owner, "repo": ref.repo}
    found = row(conn, "add_repo", {**identity, **_params(settings)})
    return decode.repo(found) if found else None


def update(conn: Connection, repo_id: int, settings: RepoSettings) -> TrackedRepo | None:
    found = row(conn, "update_repo", {"id": repo_id, **_params(settings)})
    return decode.repo(found) if found else None


def remove(conn: Connection, repo_id: int) -> bool:
    """Forget a repository. Its jobs stay as history."""
    return run(conn, "remove_repo", {"id": repo_id}) == 1


def hold(conn: Connection, repo_id: int, reason: str, until: datetime) -> None:
    """Start nothing of the repository until `until` (UTC), since its budget is used up: no other reason holds one. A
    longer hold stands."""
    run(conn, "hold_repo", {"id": repo_id, "reason": reason, "until": until})


def release_hold(conn: Connection, repo_id: int) -> None:
    rows(conn, "release_repo_hold", {"id": repo_id})


def rename(conn: Connection, repo_id: int, to: RepoRef, clone_url: str) -> None:
    """Follow a repository that moved on its forge, with its live jobs and waiting writes."""
    params = {"id": repo_id, "owner": to.owner, "repo": to.repo, "clone_url": clone_url}
    run(conn, "rename_repo", params)


def tracked(conn: Connection, *, disabled_too: bool = False) -> list[TrackedRepo]:
    return [decode.repo(r) for r in rows(conn, "tracked_repos", {"disabled_too": disabled_too})]


def find(
    conn: Connection,
    *,
    repo_id: int | None = None,
    forge: str | None = None,
    host: str | None = None,
    owner: str | None = None,
    repo: str | None = None,
) -> list[TrackedRepo]:
    params = {"id": repo_id, "forge": forge, "host": host, "owner": owner, "repo": repo}
    return [decode.repo(r) for r in rows(conn, "find_repo", params)]


def make_due(conn: Connection, repo_id: int) -> None:
    """Poll it now: wakes a poller."""
    rows(conn, "make_due", {"id": repo_id})


def take_due(
    conn: Connection,
    limit: int,
    *,
    places: Mapping[tuple[str, str], int] | None = None,
    places_elsewhere: int | None = None,
) -> list[tuple[TrackedRepo, datetime]]:
    """Repositories whose poll is due, taken by this caller, each with the database's time of now: what is listed
    after it is no older than it. `places`: at most so many of a (forge, host), which is in lower case;
    `places_elsewhere`: of any other."""
    known = places or {}
    params = {
        "limit": limit,
        "forges": [forge for forge, _ in known],
        "hosts": [host for _, host in known],
        "places": list(known.values()),
        "places_elsewhere": limit if places_elsewhere is None else places_elsewhere,
    }
    return [(decode.repo(r), r["listed_at"]) for r in rows(conn, "take_due_repos", params)]


def due_again(conn: Connection, poller: str) -> int:
    """Make due what a dead poller had taken and not done; how many. Nothing, if it was no poller."""
    return len(rows(conn, "due_again", {"worker": poller}))


def record_poll(
    conn: Connection,
    repo_id: int,
    result: PollResult,
    *,
    detail: str | None = None,
    page: IssuePage | None = None,
    store_validators: bool = False,
    full: bool = False,
    wait_seconds: float | None = None,
    listed_at: datetime | None = None,
) -> None:
    """The end of a poll. Validators (ETag, body hash) are stored only with `store_validators`, in the transaction that
    stores what the poll found: stored earlier, a crash in between would hide those issues behind 304s for ever. Who
    made the repository due after `listed_at`, the time when it was taken, is not forgotten."""
    run(
        conn,
        "record_poll",
        {
            "id": repo_id,
            "result": result,
            "detail": detail,
            "failed": result not in (PollResult.CHANGED, PollResult.UNCHANGED, PollResult.LIMITED),
            "store_validators": store_validators and page is not None,
            "etag": page.etag if page else None,
            "etag_key": page.etag_key if page else None,
            "body_hash": page.body_hash if page else None,
            "full": full,
            "wait": wait_seconds,
            "listed_at": listed_at,
        },
    )
