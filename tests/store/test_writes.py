"""The outbox: in order per issue, leased, retried, refused, overtaken; runs and workers beside it."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from tests.support.store import (
    CC,
    NOON,
    REPO,
    claimed,
    clock_at,
    event_kinds,
    issue,
    queued,
    running,
    scalar,
    set_clock,
)
from tireless.entities import JobState, NewWrite, Outcome, Usage, WorkerRole, WriteOp, WriteState
from tireless.store import claims, runs, workers, writes
from tireless.store.queries import Connection

PR = NewWrite(WriteOp.PULL_REQUEST, {"title": "t"})
COMMENT = NewWrite(WriteOp.COMMENT, {"body": "b"})
UNLABEL = NewWrite(WriteOp.REMOVE_LABEL, {"label": "tireless"})


def state_label(name: str) -> NewWrite:
    return NewWrite(WriteOp.STATE_LABEL, {"state": name})


def test_writes_of_an_issue_go_in_order_and_issues_do_not_wait_for_each_other(conn: Connection) -> None:
    set_clock(conn, NOON)
    one, two = queued(conn, 1, 2)
    writes.add(conn, one, [PR, COMMENT])
    writes.add(conn, two, [COMMENT])
    first, second = writes.take(conn, "p"), writes.take(conn, "p")
    assert first is not None
    assert second is not None
    assert (first.op, first.job_id, first.attempts) == (WriteOp.PULL_REQUEST, one.id, 1)
    assert second.job_id == two.id
    assert writes.take(conn, "p") is None, "the comment waits for the pull request"
    writes.done(conn, first, "p", {"number": 3})
    third = writes.take(conn, "p")
    assert third is not None
    assert (third.op, third.job_id) == (WriteOp.COMMENT, one.id)


def test_a_lease_of_two_minutes_stands_in_for_a_transaction(conn: Connection) -> None:
    set_clock(conn, NOON)
    (job,) = queued(conn, 1)
    writes.add(conn, job, [COMMENT])
    first = writes.take(conn, "a")
    clock_at(conn, NOON, seconds=119)
    assert writes.take(conn, "b") is None
    clock_at(conn, NOON, seconds=121)
    second = writes.take(conn, "b")
    assert first is not None
    assert second is not None
    assert (second.id, second.attempts) == (first.id, 2)


def test_a_write_that_failed_is_tried_later_and_those_behind_it_wait(conn: Connection) -> None:
    set_clock(conn, NOON)
    (job,) = queued(conn, 1)
    writes.add(conn, job, [PR, COMMENT])
    first = writes.take(conn, "p")
    assert first is not None
    writes.retry_later(conn, first, 30, "502")
    assert writes.take(conn, "p") is None
    clock_at(conn, NOON, seconds=30)
    again = writes.take(conn, "p")
    assert again is not None
    assert (again.id, again.last_error, again.attempts) == (first.id, "502", 2)


def test_a_refused_write_lets_the_next_go_on_and_is_on_record(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    writes.add(conn, job, [PR, COMMENT])
    first = writes.take(conn, "p")
    assert first is not None
    writes.refused(conn, first, "p", "422 no commits")
    second = writes.take(conn, "p")
    assert second is not None
    assert second.op is WriteOp.COMMENT
    writes.done(conn, second, "p", {"id": 5})
    refused, done = writes.of_job(conn, job.id)
    assert (refused.state, refused.last_error) == (WriteState.REFUSED, "422 no commits")
    assert (done.state, done.result) == (WriteState.DONE, {"id": 5})
    assert event_kinds(conn, job)[-2:] == ["write_refused", "write_done"]
    assert writes.counts(conn) == {WriteState.REFUSED: 1}


def test_a_settled_write_is_not_settled_again(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    writes.add(conn, job, [COMMENT])
    first = writes.take(conn, "p")
    assert first is not None
    writes.done(conn, first, "p", {"id": 5})
    writes.refused(conn, first, "late", "no")
    writes.retry_later(conn, first, 1, "late")
    (after,) = writes.of_job(conn, job.id)
    assert (after.state, after.result, after.last_error) == (WriteState.DONE, {"id": 5}, None)
    assert event_kinds(conn, job) == ["enqueued", "write_done"]


def test_a_runner_takes_only_its_own_jobs_writes(conn: Connection) -> None:
    one, two = queued(conn, 1, 2)
    writes.add(conn, one, [COMMENT])
    writes.add(conn, two, [COMMENT])
    taken = writes.take(conn, "w", job_id=two.id)
    assert taken is not None
    assert taken.job_id == two.id
    assert writes.take(conn, "w", job_id=two.id) is None


def test_a_newer_state_overtakes_one_that_nobody_has_begun_to_tell(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    writes.add(conn, job, [state_label("queued"), COMMENT])
    writes.add(conn, job, [state_label("running")])
    assert [(w.payload.get("state"), w.state) for w in writes.of_job(conn, job.id)] == [
        ("queued", WriteState.VOID),
        (None, WriteState.WAITING),
        ("running", WriteState.WAITING),
    ]


def test_a_state_that_is_being_told_is_not_overtaken(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    writes.add(conn, job, [state_label("queued")])
    taken = writes.take(conn, "p")
    writes.add(conn, job, [state_label("running")])
    assert taken is not None
    assert writes.take(conn, "p") is None, "in order"
    writes.done(conn, taken, "p")
    after = writes.take(conn, "p")
    assert after is not None
    assert after.payload == {"state": "running"}


def test_a_refused_removal_is_void_once_the_label_is_off(conn: Connection) -> None:
    one, two = queued(conn, 1, 2)
    for job in (one, two):
        writes.add(conn, job, [UNLABEL])
        taken = writes.take(conn, "p")
        assert taken is not None
        writes.refused(conn, taken, "p", "403")
    assert writes.void_refused(conn, REPO, [2]) == 1
    assert [writes.of_job(conn, j.id)[0].state for j in (one, two)] == [WriteState.VOID, WriteState.REFUSED]


def test_an_issue_without_a_job_can_be_written_to(conn: Connection) -> None:
    (added,) = writes.add_for_issue(conn, issue(9).ref, [COMMENT])
    assert (added.job_id, added.issue) == (None, issue(9).ref)
    taken = writes.take(conn, "p")
    assert taken is not None
    writes.done(conn, taken, "p")
    assert writes.counts(conn) == {}


# Agent runs


def test_a_run_is_recorded_before_it_starts_and_closed_once(conn: Connection) -> None:
    set_clock(conn, NOON)
    (job,) = queued(conn, 1)
    held = running(conn)
    run_id = uuid4()
    started = runs.start(conn, held, run_id, CC, host="h", session_id="s1", resumed=False)
    assert (started.claim_seq, started.worker, started.outcome) == (1, "w1", None)
    runs.note_usage(conn, run_id, Usage(cost_usd=0.5, turns=2))
    clock_at(conn, NOON, seconds=90)
    ended = runs.end(
        conn,
        run_id,
        "w1",
        Outcome.COMPLETED,
        detail=None,
        exit_code=0,
        usage=Usage(output_tokens=7),
        session_id="s2",
    )
    assert ended is not None
    assert ended.usage == Usage(0.5, None, 7, 2, None), "what was noted on the way is kept"
    assert (ended.session_id, ended.outcome, ended.ended_at) == (
        "s2",
        Outcome.COMPLETED,
        NOON + timedelta(seconds=90),
    )
    second = runs.end(
        conn, run_id, "late", Outcome.CRASHED, detail="late", exit_code=1, usage=Usage(cost_usd=9)
    )
    assert second is None
    runs.note_usage(conn, run_id, Usage(cost_usd=9))
    assert runs.of_job(conn, job.id) == [ended]
    assert event_kinds(conn, job)[-2:] == ["agent_started", "agent_ended"]


# Workers


def test_workers_are_there_until_they_are_forgotten(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    workers.register(conn, "h/1", "h", WorkerRole.RUNNER, CC, 41)
    workers.register(conn, "g/1", "g", WorkerRole.POLLER, None, 42)
    held = claimed(conn, "h/1")
    (mine,) = workers.of_host(conn, "h")
    assert (mine.role, mine.lane, mine.pid, mine.job_id) == (WorkerRole.RUNNER, CC, 41, held.job.id)
    assert [w.id for w in workers.of_host(conn)] == ["g/1", "h/1"]
    later = clock_at(conn, NOON, seconds=5)
    workers.register(conn, "h/1", "h", WorkerRole.RUNNER, CC, 41)
    (mine,) = workers.of_host(conn, "h")
    assert (mine.started_at, mine.seen_at, mine.waits_for) == (NOON, later, None)
    for why in ("x is not on PATH", None):
        workers.register(conn, "h/1", "h", WorkerRole.RUNNER, CC, 41, waits_for=why)
        assert [w.waits_for for w in workers.of_host(conn)] == [None, why]
    workers.forget(conn, ["g/1"])
    assert [w.id for w in workers.of_host(conn)] == ["h/1"]


def test_holders_are_known_by_their_claims_registered_or_not(conn: Connection) -> None:
    queued(conn, 1, 2)
    claimed(conn, "unregistered")
    claims.finish(conn, claimed(conn, "done"), JobState.DELIVERED, [])
    assert workers.holders(conn) == ["unregistered"]


def test_old_workers_are_pruned_unless_they_hold_a_claim(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    for name in ("idle", "busy"):
        workers.register(conn, name, "h", WorkerRole.RUNNER, CC, 1)
    claimed(conn, "busy")
    clock_at(conn, NOON, days=8)
    assert workers.prune(conn) == 1
    assert scalar(conn, "select id from worker") == "busy"
