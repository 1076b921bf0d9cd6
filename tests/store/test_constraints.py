"""What the database refuses by itself, tried by direct SQL; and rows that a newer program wrote."""

from __future__ import annotations

import re
from enum import StrEnum

import psycopg
import pytest

from tests.support.store import claimed, issue, job_of, queued, running, scalar, track
from tireless.entities import (
    AgentKind,
    Forge,
    JobKind,
    JobState,
    Outcome,
    Phase,
    PollResult,
    UnknownValue,
    WorkerRole,
    WriteOp,
    WriteState,
)
from tireless.store import claims, jobs, lanes, repos
from tireless.store.queries import Connection

CLAIM = {
    "claimed_by": "'w'",
    "claim_expires_at": "now()",
    "claimed_lane": "'claude_code'",
    "slot": "7",
    "repo_slot": "1",
}


@pytest.mark.parametrize("column", CLAIM)
def test_pending_holds_no_claim(conn: Connection, column: str) -> None:
    queued(conn, 1)
    with pytest.raises(psycopg.errors.CheckViolation, match="pending_holds_no_claim"):
        conn.execute(f"update job set {column} = {CLAIM[column]}".encode())


@pytest.mark.parametrize("column", CLAIM)
def test_a_terminal_job_holds_no_claim(conn: Connection, column: str) -> None:
    queued(conn, 1)
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
    with pytest.raises(psycopg.errors.CheckViolation, match="terminal_holds_no_claim"):
        conn.execute(f"update job set {column} = {CLAIM[column]}".encode())


@pytest.mark.parametrize("state", ["claimed", "running"])
@pytest.mark.parametrize("column", [c for c in CLAIM if c != "repo_slot"])
def test_a_claim_has_holder_lease_lane_and_slot(conn: Connection, state: str, column: str) -> None:
    queued(conn, 1)
    if state == "running":
        running(conn)
    else:
        claimed(conn)
    with pytest.raises(psycopg.errors.CheckViolation, match="claim_has_lease_and_slot"):
        conn.execute(f"update job set {column} = null".encode())


def test_returning_to_pending_without_letting_go_is_refused(conn: Connection) -> None:
    queued(conn, 1)
    claimed(conn)
    with pytest.raises(psycopg.errors.CheckViolation, match="pending_holds_no_claim"):
        conn.execute("update job set state = 'pending'")


@pytest.mark.parametrize("state", [s for s in JobState if s.terminal])
def test_an_end_has_its_time_and_nothing_else_has(conn: Connection, state: JobState) -> None:
    queued(conn, 1)
    with pytest.raises(psycopg.errors.CheckViolation, match="terminal_has_end"):
        conn.execute("update job set state = %s", (state,))
    with pytest.raises(psycopg.errors.CheckViolation, match="terminal_has_end"):
        conn.execute("update job set finished_at = now()")


def test_a_slot_has_one_holder_and_a_job_one_slot(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    claimed(conn)
    with pytest.raises(psycopg.errors.UniqueViolation, match="lane_slot_job_key"):
        conn.execute("update lane_slot set job_id = %s where slot = 2", (job.id,))


@pytest.mark.parametrize("slot", [0, 1001])
def test_slots_and_caps_have_a_range(conn: Connection, slot: int) -> None:
    queued(conn, 1)
    claimed(conn)
    with pytest.raises(psycopg.errors.CheckViolation, match="slot"):
        conn.execute("update job set slot = %s", (slot,))
    with pytest.raises(psycopg.errors.CheckViolation, match="lane_cap_check"):
        conn.execute("update lane set cap = %s", (slot if slot else -1,))


def test_a_repositorys_slot_has_one_holder(conn: Connection) -> None:
    repo = track(conn, max_running=2)
    queued(conn, 1, 2, repo=repo)
    claimed(conn)
    claimed(conn)
    with pytest.raises(psycopg.errors.UniqueViolation, match="job_repo_slot_key"):
        conn.execute("update job set repo_slot = 1")


def test_an_issue_has_one_live_job(conn: Connection) -> None:
    queued(conn, 1, 2)
    with pytest.raises(psycopg.errors.UniqueViolation, match="job_live_issue_key"):
        conn.execute("update job set number = 1")


def test_a_hold_has_a_reason(conn: Connection) -> None:
    queued(conn, 1)
    with pytest.raises(psycopg.errors.CheckViolation, match="hold_has_reason"):
        conn.execute("update lane set held_until = now()")


def test_an_unknown_zone_is_refused(conn: Connection) -> None:
    with pytest.raises(psycopg.Error, match="time zone"):
        track(conn, quiet_zone="Mars/Olympus")
    repo = track(conn)
    with pytest.raises(psycopg.Error, match="time zone"):
        repos.update(conn, repo.id, repos.RepoSettings("u", "main", quiet_zone="Mars/Olympus"))


@pytest.mark.parametrize("values", ["number = 0", "priority = 10", "attempts = -1", "max_attempts = 0"])
def test_numbers_out_of_range_are_refused(conn: Connection, values: str) -> None:
    queued(conn, 1)
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(f"update job set {values}".encode())


# One vocabulary

VOCABULARY: dict[str, type[StrEnum]] = {
    "agent_run_agent_known": AgentKind,
    "agent_run_outcome_known": Outcome,
    "child_issue_forge_known": Forge,
    "forge_write_forge_known": Forge,
    "forge_write_op_known": WriteOp,
    "forge_write_state_known": WriteState,
    "job_claimed_lane_known": AgentKind,
    "job_forge_known": Forge,
    "job_kind_known": JobKind,
    "job_lane_known": AgentKind,
    "job_phase_known": Phase,
    "job_state_known": JobState,
    "lane_lane_known": AgentKind,
    "tracked_repo_forge_known": Forge,
    "tracked_repo_poll_result_known": PollResult,
    "worker_lane_known": AgentKind,
    "worker_role_known": WorkerRole,
}


def known_lists(conn: Connection) -> dict[str, set[str]]:
    found = conn.execute(
        "select conname, pg_get_constraintdef(oid) from pg_constraint where contype = 'c' and conname like '%\\_known'"
    ).fetchall()
    return {name: set(re.findall(r"'([^']*)'::text", definition)) for name, definition in found}


def test_the_schemas_lists_are_the_enums(conn: Connection) -> None:
    assert known_lists(conn) == {name: {str(m) for m in enum} for name, enum in VOCABULARY.items()}


def test_a_constraint_is_named_after_its_table_and_column(conn: Connection) -> None:
    found = conn.execute(
        "select conname, conrelid::regclass::text || '_' || a.attname || '_known'"
        "  from pg_constraint c join pg_attribute a on a.attrelid = c.conrelid and a.attnum = any(c.conkey)"
        " where contype = 'c' and conname like '%\\_known'"
    ).fetchall()
    assert found
    assert all(name == expected for name, expected in found)


@pytest.mark.parametrize("column", ["forge", "kind", "state", "lane", "claimed_lane", "phase"])
def test_a_value_of_a_newer_program_is_named(conn: Connection, column: str) -> None:
    (job,) = queued(conn, 1)
    held = claimed(conn)
    for constraint in (f"job_{column}_known", "claim_has_lease_and_slot", "terminal_holds_no_claim"):
        conn.execute(f"alter table job drop constraint {constraint}".encode())
    conn.execute(f"update job set {column} = 'novel'".encode())
    with pytest.raises(UnknownValue) as caught:
        jobs.get(conn, job.id)
    assert (caught.value.column, caught.value.value) == (f"job.{column}", "novel")
    assert f"job.{column} holds 'novel'" in str(caught.value)
    assert held.job.id == job.id


def test_an_unknown_kind_is_left_for_a_newer_worker(conn: Connection) -> None:
    """It is neither thrown away nor in the way of the jobs behind it, and it burns no attempt."""
    queued(conn, 1, 2)
    conn.execute("alter table job drop constraint job_kind_known")
    conn.execute("update job set kind = 'novel' where number = 1")
    assert claimed(conn).job.issue.number == 2
    assert claims.claim_next(conn, "w2", list(AgentKind), lease_seconds=600) is None
    assert (
        scalar(conn, "select (state, attempts, claim_seq)::text from job where number = 1") == "(pending,0,0)"
    )


def test_an_unknown_lane_is_named(conn: Connection) -> None:
    conn.execute("alter table lane drop constraint lane_lane_known")
    conn.execute("insert into lane (lane, cap) values ('novel', 1)")
    with pytest.raises(UnknownValue, match=r"lane\.lane holds 'novel'"):
        lanes.all_lanes(conn)


def test_an_unknown_poll_result_is_named(conn: Connection) -> None:
    track(conn)
    conn.execute("alter table tracked_repo drop constraint tracked_repo_poll_result_known")
    conn.execute("update tracked_repo set poll_result = 'novel'")
    with pytest.raises(UnknownValue, match=r"tracked_repo\.poll_result holds 'novel'"):
        repos.tracked(conn)


def test_a_malformed_row_stops_nobody_else(conn: Connection) -> None:
    """A row that cannot be decoded is an error for who asks for it; the queue goes on."""
    queued(conn, 1, 2)
    conn.execute("alter table job drop constraint job_phase_known")
    conn.execute("update job set phase = 'novel' where number = 1")
    assert claimed(conn).job.issue.number == 2
    assert job_of(conn, 2).issue == issue(2).ref
