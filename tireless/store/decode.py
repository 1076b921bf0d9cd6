"""Rows -> entities; pure. An enum value that this build lacks is an UnknownValue naming the column."""

from __future__ import annotations

from tireless.entities import (
    AgentKind,
    AgentRun,
    Forge,
    ForgeWrite,
    IssueRef,
    Job,
    JobEvent,
    JobKind,
    JobState,
    Lane,
    Outcome,
    Phase,
    PollResult,
    PollSchedule,
    RepoRef,
    TrackedRepo,
    Usage,
    WriteOp,
    WriteState,
    parse_enum,
)
from tireless.store.statements import Row


def issue_of(row: Row, table: str) -> IssueRef:
    forge = parse_enum(Forge, row["forge"], f"{table}.forge")
    return IssueRef(forge, row["host"], row["owner"], row["repo"], row["number"])


def job(row: Row) -> Job:
    claimed_lane = row["claimed_lane"]
    return Job(
        id=row["id"],
        issue=issue_of(row, "job"),
        repo_id=row["repo_id"],
        title=row["title"],
        kind=parse_enum(JobKind, row["kind"], "job.kind"),
        state=parse_enum(JobState, row["state"], "job.state"),
        lane=parse_enum(AgentKind, row["lane"], "job.lane"),
        priority=row["priority"],
        run_at=row["run_at"],
        attempts=row["attempts"],
        max_attempts=row["max_attempts"],
        claim_seq=row["claim_seq"],
        claimed_by=row["claimed_by"],
        claim_expires_at=row["claim_expires_at"],
        claimed_lane=parse_enum(AgentKind, claimed_lane, "job.claimed_lane") if claimed_lane else None,
        slot=row["slot"],
        phase=parse_enum(Phase, row["phase"], "job.phase"),
        parent_job_id=row["parent_job_id"],
        cancel_requested_at=row["cancel_requested_at"],
        cancel_reason=row["cancel_reason"],
        branch=row["branch"],
        work_host=row["work_host"],
        base_commit=row["base_commit"],
        head_commit=row["head_commit"],
        pull_request_number=row["pull_request_number"],
        pull_request_url=row["pull_request_url"],
        result=row["result"],
        last_error=row["last_error"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        finished_at=row["finished_at"],
        lane_pinned=row["lane_pinned"],
        relaned_at=row["relaned_at"],
    )


def repo(row: Row) -> TrackedRepo:
    result = row["poll_result"]
    return TrackedRepo(
        id=row["id"],
        ref=RepoRef(
            parse_enum(Forge, row["forge"], "tracked_repo.forge"), row["host"], row["owner"], row["repo"]
        ),
        clone_url=row["clone_url"],
        default_branch=row["default_branch"],
        schedule=PollSchedule(
            row["interval_seconds"],
            row["quiet_from"],
            row["quiet_until"],
            row["quiet_zone"],
            row["enabled"],
        ),
        max_running=row["max_running"],
        verify_command=row["verify_command"],
        daily_usd=row["daily_usd"],
        daily_jobs=row["daily_jobs"],
        held_until=row["held_until"],
        hold_reason=row["hold_reason"],
        last_etag=row["last_etag"],
        etag_key=row["etag_key"],
        body_hash=row["body_hash"],
        last_polled_at=row["last_polled_at"],
        last_full_sweep_at=row["last_full_sweep_at"],
        next_poll_at=row["next_poll_at"],
        poll_result=parse_enum(PollResult, result, "tracked_repo.poll_result") if result else None,
        poll_detail=row["poll_detail"],
        poll_failures=row["poll_failures"],
        created_at=row["created_at"],
    )


def lane(row: Row) -> Lane:
    return Lane(
        lane=parse_enum(AgentKind, row["lane"], "lane.lane"),
        cap=row["cap"],
        paused=row["paused"],
        pause_reason=row["pause_reason"],
        held_until=row["held_until"],
        hold_reason=row["hold_reason"],
        running=row["running"],
        pending=row["pending"],
        daily_usd=row["daily_usd"],
        daily_jobs=row["daily_jobs"],
        probing=row["probing"],
    )


def write(row: Row) -> ForgeWrite:
    return ForgeWrite(
        id=row["id"],
        job_id=row["job_id"],
        issue=issue_of(row, "forge_write"),
        op=parse_enum(WriteOp, row["op"], "forge_write.op"),
        payload=row["payload"],
        state=parse_enum(WriteState, row["state"], "forge_write.state"),
        attempts=row["attempts"],
        next_try_at=row["next_try_at"],
        last_error=row["last_error"],
        result=row["result"],
    )


def agent_run(row: Row) -> AgentRun:
    outcome = row["outcome"]
    return AgentRun(
        id=row["id"],
        job_id=row["job_id"],
        claim_seq=row["claim_seq"],
        agent=parse_enum(AgentKind, row["agent"], "agent_run.agent"),
        host=row["host"],
        worker=row["worker"],
        session_id=row["session_id"],
        resumed=row["resumed"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=parse_enum(Outcome, outcome, "agent_run.outcome") if outcome else None,
        detail=row["detail"],
        exit_code=row["exit_code"],
        usage=Usage(row["cost_usd"], row["input_tokens"], row["output_tokens"], row["turns"], row["model"]),
    )


def event(row: Row) -> JobEvent:
    return JobEvent(row["id"], row["job_id"], row["at"], row["kind"], row["actor"], row["detail"])
