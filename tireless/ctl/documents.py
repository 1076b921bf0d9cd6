"""What things are in JSON. The keys are stable: programs read them. Times are ISO 8601, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, time
from enum import StrEnum
from typing import Any
from uuid import UUID

from tireless.entities import AgentRun, ForgeWrite, IssueRef, Job, JobEvent, Lane, TrackedRepo
from tireless.store.budgets import Spent
from tireless.store.workers import Draining, Worker

_JOB_KEYS = (
    "id title kind state lane priority run_at attempts max_attempts claimed_by claim_expires_at slot phase "
    "parent_job_id work_host lane_pinned relaned_at cancel_requested_at cancel_reason branch base_commit head_commit "
    "pull_request_number pull_request_url result last_error created_at updated_at finished_at"
)
_RUN_KEYS = "id agent host session_id resumed started_at ended_at outcome detail exit_code"
_USAGE_KEYS = "cost_usd input_tokens output_tokens turns model"
_REPO_KEYS = (
    "id clone_url default_branch max_running verify_command daily_usd daily_jobs held_until hold_reason "
    "last_polled_at last_full_sweep_at next_poll_at "
    "poll_result poll_detail poll_failures created_at"
)


def plain(value: Any) -> Any:
    """As JSON can hold it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, time):
        return value.strftime("%H:%M")
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, StrEnum):
        return value.value
    return value


def _pick(thing: Any, keys: str) -> dict[str, Any]:
    return {key: plain(getattr(thing, key)) for key in keys.split()}


def issue(ref: IssueRef) -> dict[str, Any]:
    return {
        "ref": str(ref),
        "forge": ref.forge.value,
        "host": ref.host,
        "owner": ref.owner,
        "repo": ref.repo,
        "number": ref.number,
    }


def job(value: Job) -> dict[str, Any]:
    return {"issue": issue(value.issue), **_pick(value, _JOB_KEYS)}


def event(value: JobEvent) -> dict[str, Any]:
    return {"at": plain(value.at), "kind": value.kind, "actor": value.actor, "detail": value.detail}


def run(value: AgentRun) -> dict[str, Any]:
    return {**_pick(value, _RUN_KEYS), **_pick(value.usage, _USAGE_KEYS)}


def write(value: ForgeWrite) -> dict[str, Any]:
    return {
        "id": value.id,
        "issue": issue(value.issue),
        **_pick(value, "job_id op state attempts next_try_at last_error result"),
    }


def spent(value: Spent | None) -> dict[str, Any]:
    """Of the UTC day so far."""
    found = value or Spent()
    return {"usd": round(found.usd, 6), "jobs": found.jobs}


def repo(value: TrackedRepo) -> dict[str, Any]:
    schedule = value.schedule
    quiet = None
    if schedule.quiet_from is not None and schedule.quiet_until is not None:
        quiet = {
            "from": plain(schedule.quiet_from),
            "until": plain(schedule.quiet_until),
            "zone": schedule.quiet_zone,
        }
    return {
        "repo": str(value.ref),
        "forge": value.ref.forge.value,
        "host": value.ref.host,
        "owner": value.ref.owner,
        "name": value.ref.repo,
        "enabled": schedule.enabled,
        "interval_seconds": schedule.interval_seconds,
        "quiet": quiet,
        **_pick(value, _REPO_KEYS),
    }


def lane(value: Lane) -> dict[str, Any]:
    keys = (
        "lane cap running pending paused pause_reason held held_until hold_reason probing daily_usd daily_jobs"
    )
    return _pick(value, keys)


def worker(value: Worker, alive: bool) -> dict[str, Any]:
    keys = "id host role lane pid version started_at seen_at job_id waits_for draining_since"
    return {**_pick(value, keys), "alive": alive}


def draining(value: Draining) -> dict[str, Any]:
    return _pick(value, "host since jobs")
