"""Transitions under the fence, attempts and backoff, the sweep, cancel and rerouting."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.store import (
    CC,
    LABELS,
    NOON,
    OC,
    REPO,
    ROUTING,
    claim,
    claimed,
    clock_at,
    enqueue,
    event_kinds,
    issue,
    job_of,
    no_writes,
    queued,
    release,
    running,
    scalar,
    set_clock,
    sweep,
    track,
)
from tireless.entities import (
    Forge,
    Job,
    JobKind,
    JobState,
    NewWrite,
    Phase,
    RepoRef,
    WriteOp,
)
from tireless.store import claims, intake, jobs, writes
from tireless.store.queries import Connection


def told(job: Job) -> list[NewWrite]:
    return [NewWrite(WriteOp.COMMENT, {"state": str(job.state)})]


def cancel(conn: Connection, *held: Job, reason: str = "not wanted") -> list[Job]:
    return jobs.cancel(conn, [j.id for j in held], reason, writes_for=told, actor="ctl")


# Attempts


def test_attempts_count_at_the_claim_and_the_last_one_fails_with_the_reasons(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    conn.execute("update job set max_attempts = 2")
    claimed(conn)
    (first,) = release(conn, "w1")
    assert (first.state, first.attempts) == (JobState.PENDING, 1)
    claimed(conn)
    (last,) = release(conn, "w1", writes_for=told)
    assert (last.state, last.attempts) == (JobState.FAILED, 2)
    assert last.last_error == "gave up after 2 attempts; the last: worker died"
    assert [e.detail["why"] for e in jobs.events(conn, job.id) if e.kind == "released"] == ["worker died"] * 2
    assert [w.payload for w in writes.of_job(conn, job.id)] == [{"state": "failed"}]


def test_a_drain_a_hold_or_a_lost_database_burns_no_attempt(conn: Connection) -> None:
    queued(conn, 1)
    conn.execute("update job set max_attempts = 1")
    for _ in range(5):
        held = running(conn)
        assert held.job.attempts == 1
        back = claims.transition(conn, held, JobState.PENDING, keep_attempt=True, error="draining")
        assert (back.attempts, back.last_error) == (0, "draining")
    assert job_of(conn, 1).claim_seq == 5


def test_the_backoff_of_a_crash_grows_and_is_bounded(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    conn.execute("update job set max_attempts = 20")
    waits = []
    for _ in range(10):
        claimed(conn)
        (back,) = release(conn, "w1", backoff_seconds=30.0)
        waits.append((back.run_at - NOON).total_seconds())
        conn.execute("update job set run_at = tireless_now()")
    assert waits == [0, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600], "the first comes back at once"


def test_the_reason_of_a_move_is_kept_and_an_end_without_one_clears_it(conn: Connection) -> None:
    queued(conn, 1)
    claims.transition(conn, claimed(conn), JobState.PENDING, error="overloaded")
    assert job_of(conn, 1).last_error == "overloaded"
    held = claimed(conn)
    assert claims.transition(conn, held, JobState.RUNNING).last_error == "overloaded"
    assert claims.finish(conn, held, JobState.DELIVERED, []).last_error is None


# Ends and what the forge is told


def test_an_end_and_its_writes_are_one_transaction(conn: Connection) -> None:
    queued(conn, 1)
    held = claimed(conn)
    release(conn, "w1")
    with pytest.raises(Exception, match="lost"):
        claims.finish(conn, held, JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)])
    assert scalar(conn, "select count(*) from forge_write") == 0


def test_an_end_lets_go_of_everything(conn: Connection) -> None:
    set_clock(conn, NOON)
    repo = track(conn, max_running=1)
    queued(conn, 1, repo=repo)
    ended = claims.finish(conn, running(conn), JobState.BLOCKED, [], error="which database?")
    assert (ended.state, ended.finished_at, ended.last_error) == (JobState.BLOCKED, NOON, "which database?")
    assert (ended.claimed_by, ended.claim_expires_at, ended.claimed_lane, ended.slot) == (None,) * 4
    assert scalar(conn, "select count(*) from lane_slot where job_id is not null") == 0
    assert scalar(conn, "select repo_slot from job") is None


def test_phases_and_facts_are_recorded_under_the_fence(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    held = running(conn)
    claims.advance(conn, held, Phase.AGENT, branch="tireless/issue-1", base_commit="a" * 40, work_host="h")
    after = claims.advance(conn, held, Phase.PUSH, head_commit="b" * 40, result={"outcome": "done"})
    assert (after.phase, after.branch, after.base_commit) == (Phase.PUSH, "tireless/issue-1", "a" * 40)
    assert (after.head_commit, after.result, after.work_host) == ("b" * 40, {"outcome": "done"}, "h")
    claims.advance(conn, held, head_commit="c" * 40)
    phases = [e.detail["phase"] for e in jobs.events(conn, job.id) if e.kind == "phase"]
    assert phases == ["agent", "push"], "a fact alone is no phase"
    claims.transition(conn, held, JobState.PENDING)
    assert claimed(conn, host="h").job.phase is Phase.PUSH, "the next claimant goes on where this one was"


def test_a_pull_request_is_recorded(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    jobs.set_pull_request(conn, job.id, 7, "https://forge.test/pulls/7")
    after = job_of(conn, 1)
    assert (after.pull_request_number, after.pull_request_url) == (7, "https://forge.test/pulls/7")


# The sweep and the release


def test_a_release_takes_back_what_these_workers_hold_and_nothing_else(conn: Connection) -> None:
    queued(conn, 1, 2, 3, 4)
    for worker in ("a", "b", "c"):
        claimed(conn, worker)
    back = release(conn, "a", "c", "nobody")
    assert sorted(j.issue.number for j in back) == [1, 3]
    assert [j.state for j in (job_of(conn, n) for n in (1, 2, 3, 4))] == [
        JobState.PENDING,
        JobState.CLAIMED,
        JobState.PENDING,
        JobState.PENDING,
    ]
    assert release(conn) == []
    assert event_kinds(conn, back[0])[-1] == "released"


def test_a_sweep_leaves_live_leases_and_ended_jobs_alone(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, 2, 3)
    claimed(conn, "long", lease_seconds=7200)
    claims.finish(conn, claimed(conn, "done"), JobState.DELIVERED, [])
    claimed(conn, "dead")
    clock_at(conn, NOON, hours=1)
    assert [j.issue.number for j in sweep(conn)] == [3]
    assert sweep(conn) == []


def test_a_job_that_was_cancelled_and_then_lost_ends_as_abandoned(conn: Connection) -> None:
    """Nobody wants it: its holder died before it could say so, and another run would be waste."""
    queued(conn, 1)
    held = running(conn)
    cancel(conn, held.job)
    (back,) = release(conn, "w1", writes_for=told)
    assert back.state is JobState.ABANDONED
    assert claim(conn) is None
    assert [w.payload for w in writes.of_job(conn, held.job.id)] == [{"state": "abandoned"}]


# Cancel


def test_cancel_ends_a_pending_job_here_and_now(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    (ended,) = cancel(conn, job)
    assert (ended.state, ended.last_error, ended.cancel_reason) == (
        JobState.ABANDONED,
        "not wanted",
        "not wanted",
    )
    assert claim(conn) is None
    assert [w.payload for w in writes.of_job(conn, job.id)] == [{"state": "abandoned"}]
    assert event_kinds(conn, job) == ["enqueued", "finished"]


def test_cancel_asks_a_holder_to_stop_and_tells_it_at_its_renewal(conn: Connection) -> None:
    queued(conn, 1)
    held = running(conn)
    (asked,) = cancel(conn, held.job)
    assert asked.state is JobState.RUNNING
    assert claims.renew_claim(conn, held, lease_seconds=600) == claims.Renewal(True, "not wanted")
    assert event_kinds(conn, held.job)[-1] == "cancel_requested"
    assert scalar(conn, "select count(*) from forge_write") == 0
    assert claims.finish(conn, held, JobState.ABANDONED, []).state is JobState.ABANDONED


def test_a_repeated_cancel_changes_nothing(conn: Connection) -> None:
    queued(conn, 1, 2)
    held = running(conn)
    pending = job_of(conn, 2)
    assert len(cancel(conn, held.job, pending)) == 2
    before = [jobs.get(conn, j.id) for j in (held.job, pending)]
    assert cancel(conn, held.job, pending, reason="again") == []
    assert [jobs.get(conn, j.id) for j in (held.job, pending)] == before


def test_a_held_job_keeps_its_last_error_when_it_is_cancelled(conn: Connection) -> None:
    queued(conn, 1)
    claims.transition(conn, claimed(conn), JobState.PENDING, error="overloaded")
    held = running(conn)
    assert cancel(conn, held.job)[0].last_error == "overloaded"


def test_a_cancelled_job_that_is_put_back_is_not_queued_again(conn: Connection) -> None:
    """A drain that meets a cancel: the requeue must not turn what nobody wants into a pending job."""
    queued(conn, 1)
    held = running(conn)
    cancel(conn, held.job)
    after = claims.transition(conn, held, JobState.PENDING, keep_attempt=True, error="draining")
    assert after.state is JobState.ABANDONED
    assert claim(conn) is None


# Rerouting


def refresh(conn: Connection, live: list[Job], *labels: str, number: int = 1) -> int:
    return intake.refresh_lanes(conn, live, [issue(number, *labels)], labels=LABELS, routing=ROUTING)


def test_changed_labels_reach_a_queued_job(conn: Connection) -> None:
    (job,) = queued(conn, 1)
    assert refresh(conn, [job], "tireless/agent:oc", "tireless/plan") == 1
    after = job_of(conn, 1)
    assert (after.lane, after.kind) == (OC, JobKind.PLAN)
    assert event_kinds(conn, job) == ["enqueued", "rerouted"]
    assert refresh(conn, [after], "tireless/agent:oc", "tireless/plan") == 0, "the same again is nothing"
    assert claim(conn, lanes=[CC]) is None
    assert claimed(conn, lanes=[OC]).job.id == job.id


def test_the_kind_of_a_begun_job_stays(conn: Connection) -> None:
    queued(conn, 1)
    held = running(conn)
    assert refresh(conn, [held.job], "tireless/agent:oc", "tireless/plan") == 1
    after = job_of(conn, 1)
    assert (after.lane, after.kind, after.claimed_lane) == (OC, JobKind.IMPLEMENT, CC)
    claims.transition(conn, held, JobState.PENDING)
    assert scalar(conn, "select count(*) from lane_slot where job_id is not null") == 0, "its own lane's slot"
    assert claim(conn, lanes=[CC]) is None
    again = claimed(conn, lanes=[OC])
    assert again.job.claimed_lane is OC
    assert refresh(conn, [job_of(conn, 1)], "tireless/agent:oc", "tireless/plan") == 0


def test_a_job_begun_and_put_back_keeps_its_kind_even_if_its_attempt_was_given_back(conn: Connection) -> None:
    queued(conn, 1)
    held = running(conn)
    claims.advance(conn, held, Phase.AGENT)
    claims.transition(conn, held, JobState.PENDING, keep_attempt=True)
    refresh(conn, [job_of(conn, 1)], "tireless/plan")
    assert job_of(conn, 1).kind is JobKind.IMPLEMENT


def test_history_is_not_rerouted(conn: Connection) -> None:
    queued(conn, 1)
    held = claimed(conn)
    claims.finish(conn, held, JobState.DELIVERED, [])
    assert refresh(conn, [held.job], "tireless/agent:oc") == 0
    assert job_of(conn, 1).lane is CC


def test_an_issue_that_lost_its_opt_in_keeps_its_kind(conn: Connection) -> None:
    """Whether to cancel it is the poller's decision; rerouting only moves lanes."""
    (job,) = queued(conn, 1, labels=["tireless/plan"])
    unlabelled = issue(1)
    unlabelled = type(unlabelled)(**{f: getattr(unlabelled, f) for f in unlabelled.__slots__} | {"labels": ()})
    assert intake.refresh_lanes(conn, [job], [unlabelled], labels=LABELS, routing=ROUTING) == 0


def test_live_jobs_of_a_repository(conn: Connection) -> None:
    repo = track(conn)
    other = track(conn, RepoRef(Forge.GITEA, REPO.host, "acme", "other"))
    queued(conn, 1, 2, 3, repo=repo)
    queued(conn, 4, repo=other)
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
    running(conn)
    assert sorted(j.issue.number for j in intake.live_jobs_of_repo(conn, repo)) == [2, 3]


# Looking


def test_find_and_counts(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, 2)
    clock_at(conn, NOON, seconds=1)
    queued(conn, 3, labels=["tireless/agent:oc"])
    held = claimed(conn)
    assert [j.issue.number for j in jobs.find(conn)] == [3, 2, 1]
    assert [j.issue.number for j in jobs.find(conn, states=[JobState.PENDING])] == [3, 2]
    assert [j.issue.number for j in jobs.find(conn, lane=OC)] == [3]
    assert [j.id for j in jobs.find(conn, id_prefix=str(held.job.id)[:8])] == [held.job.id]
    assert [j.issue.number for j in jobs.find(conn, owner="ACME", repo="Site", number=2)] == [2]
    assert len(jobs.find(conn, limit=1)) == 1
    assert jobs.counts(conn) == {JobState.PENDING: 2, JobState.CLAIMED: 1}
    assert jobs.get(conn, held.job.id) == held.job
    seen = jobs.events(conn, held.job.id)
    assert jobs.events(conn, held.job.id, after=seen[0].id) == seen[1:]


def test_prune_forgets_old_history_but_nothing_that_is_still_owed(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, 2, 3, 4)
    old = claimed(conn)
    claims.finish(conn, old, JobState.DELIVERED, [])
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)])
    plan = claimed(conn)
    claims.finish(conn, plan, JobState.DELIVERED, [])
    writes.add_child(conn, plan.job.id, "a", issue(5).ref, "u")
    enqueue(conn, [issue(5)])
    clock_at(conn, NOON, days=89)
    assert jobs.prune(conn, 90) == 0
    clock_at(conn, NOON, days=91)
    assert jobs.prune(conn, 90) == 1
    assert [j.issue.number for j in jobs.find(conn)] == [5, 4, 3, 2]
    assert jobs.events(conn, old.job.id) == []
    assert job_of(conn, 2).finished_at == NOON
    assert NOON + timedelta(days=91) == scalar(conn, "select tireless_now()")
    assert no_writes(old.job) == []
