"""The claim: one statement that chooses, locks, gives lease, slot and fence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import time, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.store import (
    BOTH,
    CC,
    NOON,
    OC,
    REPO,
    claim,
    claimed,
    clock_at,
    enqueue,
    event_kinds,
    issue,
    job_of,
    open_lanes,
    queued,
    release,
    running,
    scalar,
    set_clock,
    sweep,
    track,
)
from tireless.entities import AgentKind, ClaimLost, Forge, IllegalTransition, JobState, Phase, RepoRef
from tireless.store import claims, jobs, lanes, repos, runs
from tireless.store.connection import Session
from tireless.store.queries import Connection
from tireless.store.statements import Answer


@contextmanager
def statements(conn: Connection) -> Iterator[list[str]]:
    """The queries that are asked on this connection meanwhile."""
    seen: list[str] = []

    def ask(query: bytes, params: Mapping[str, Any]) -> Answer:
        seen.append(query.decode())
        return Session.ask(mine, query, params)

    assert isinstance(conn, Session)
    mine = conn
    with patch.object(mine, "ask", ask):
        yield seen


def test_the_claim_leaves_its_mark(conn: Connection) -> None:
    set_clock(conn, NOON)
    (job,) = queued(conn, 1)
    found = claimed(conn, "host/1", lease_seconds=600.0)
    held = found.job
    assert (found.worker, found.seq) == ("host/1", 1)
    assert (held.id, held.state, held.claimed_by, held.claim_seq) == (job.id, JobState.CLAIMED, "host/1", 1)
    assert (held.attempts, held.slot, held.claimed_lane) == (1, 1, CC)
    assert held.claim_expires_at == NOON + timedelta(seconds=600)
    assert scalar(conn, "select job_id from lane_slot where lane = 'claude_code' and slot = 1") == job.id
    assert event_kinds(conn, job) == ["enqueued", "claimed"]
    assert jobs.get(conn, job.id) == held


def test_with_no_lane_allowed_nothing_is_asked(conn: Connection) -> None:
    queued(conn, 1)
    with statements(conn) as seen:
        assert claim(conn, lanes=[]) is None
        assert seen == []
        assert claim(conn, lanes=[CC]) is not None
        assert len(seen) == 1, "a claim is one statement"


def test_only_the_lanes_asked_for(conn: Connection) -> None:
    queued(conn, 1, labels=["tireless/agent:oc"])
    assert claim(conn, lanes=[CC]) is None
    assert claimed(conn, lanes=[OC]).job.lane is OC


def test_oldest_first_within_a_priority_and_over_both_lanes(conn: Connection) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    for number, lane in ((1, "cc"), (2, "oc"), (3, "cc"), (4, "oc")):
        clock_at(conn, NOON, seconds=number)
        enqueue(conn, [issue(number, f"tireless/agent:{lane}")])
    conn.execute("update job set priority = 1 where number = 4")
    assert [claimed(conn).job.issue.number for _ in range(4)] == [4, 1, 2, 3]


def test_issues_of_one_poll_go_by_number(conn: Connection) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    enqueue(conn, [issue(n) for n in (7, 3, 5)])
    assert [claimed(conn).job.issue.number for _ in range(3)] == [3, 5, 7]


def test_the_cap_is_exact_and_slots_are_its_numbers(conn: Connection) -> None:
    open_lanes(conn, cap=2)
    enqueue(conn, [issue(n) for n in range(1, 6)])
    first, second = claimed(conn), claimed(conn)
    assert {first.job.slot, second.job.slot} == {1, 2}
    assert claim(conn) is None
    claims.finish(conn, first, JobState.DELIVERED, [])
    assert claimed(conn).job.slot == first.job.slot
    assert claim(conn) is None


def test_no_lane_row_no_claim(conn: Connection) -> None:
    enqueue(conn, [issue(1)])
    assert claim(conn) is None
    lanes.ensure(conn, CC, 0)
    assert claim(conn) is None, "a cap of 0 starts nothing"


def test_a_job_in_backoff_waits_for_its_time(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, 2)
    claims.transition(conn, claimed(conn), JobState.PENDING, delay_seconds=30)
    assert claimed(conn).job.issue.number == 2
    clock_at(conn, NOON, seconds=29)
    assert claim(conn) is None
    clock_at(conn, NOON, seconds=30)
    assert claimed(conn).job.issue.number == 1


def test_a_job_put_back_without_delay_keeps_its_place(conn: Connection) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    for number in (1, 2, 3):
        clock_at(conn, NOON, seconds=number)
        enqueue(conn, [issue(number)])
    clock_at(conn, NOON, seconds=10)
    claims.transition(conn, claimed(conn), JobState.PENDING, keep_attempt=True)
    assert [claimed(conn).job.issue.number for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("held", ["paused", "held", "endless"])
def test_a_paused_or_held_lane_starts_nothing_and_the_other_goes_on(conn: Connection, held: str) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    queued(conn, 2, labels=["tireless/agent:oc"])
    if held == "paused":
        lanes.pause(conn, CC, "maintenance")
    else:
        lanes.hold(conn, CC, "rate limited", seconds=60 if held == "held" else None)
    assert claimed(conn).job.issue.number == 2
    assert claim(conn) is None
    clock_at(conn, NOON, seconds=60)
    if held == "held":
        assert claimed(conn).job.issue.number == 1, "a hold with a known end lifts itself"
    else:
        assert claim(conn) is None
        lanes.resume(conn, CC)
        assert claimed(conn).job.issue.number == 1


def test_a_repository_in_quiet_hours_or_disabled_starts_nothing(conn: Connection) -> None:
    set_clock(conn, NOON)
    repo = track(conn, quiet_from=time(11), quiet_until=time(13))
    other = track(conn, RepoRef(Forge.GITEA, REPO.host, "acme", "other"))
    queued(conn, 1, 2, repo=repo)
    queued(conn, 3, repo=other)
    assert claimed(conn).job.issue.number == 3, "the other repository's work goes past it"
    assert claim(conn) is None
    clock_at(conn, NOON, hours=1)
    assert claimed(conn).job.issue.number == 1, "half-open: 13:00 is no longer quiet"
    settings = repos.settings_of(repo)
    repos.update(conn, repo.id, repos.RepoSettings(settings.clone_url, settings.default_branch, enabled=False))
    assert claim(conn) is None


def test_a_repositorys_own_limit_is_exact_over_lanes(conn: Connection) -> None:
    repo = track(conn, max_running=2)
    queued(conn, 1, 2, repo=repo)
    queued(conn, 3, 4, repo=repo, labels=["tireless/agent:oc"])
    first, second = claimed(conn, lanes=[CC]), claimed(conn, lanes=[OC])
    assert claim(conn) is None
    claims.finish(conn, first, JobState.FAILED, [])
    assert claimed(conn).job.issue.number == 2
    assert claim(conn) is None
    claims.transition(conn, second, JobState.PENDING)
    assert claimed(conn).job.issue.number == 3


def test_a_workspace_on_another_host_is_left_to_it_for_a_while(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1, 2)
    first = claimed(conn, host="a")
    claims.advance(conn, first, Phase.AGENT, work_host="a")
    claims.transition(conn, first, JobState.PENDING, keep_attempt=True)
    assert claimed(conn, host="b").job.issue.number == 2
    assert claim(conn, host="b") is None
    assert claim(conn) is None, "who names no host is another host"
    clock_at(conn, NOON, minutes=31)
    assert claim(conn, host="b", host_gone_seconds=1900) is None
    assert claimed(conn, host="b", host_gone_seconds=1800).job.issue.number == 1


def test_its_own_host_takes_the_job_at_once(conn: Connection) -> None:
    queued(conn, 1, 2)
    first = claimed(conn, host="a")
    claims.advance(conn, first, Phase.AGENT, work_host="a")
    claims.transition(conn, first, JobState.PENDING, keep_attempt=True)
    assert claimed(conn, host="a").job.issue.number == 1


def test_who_cannot_run_an_agent_takes_what_one_has_ended(conn: Connection) -> None:
    """Behind as many that it cannot have as a look sees at once, and then none of those."""
    ended, *_ = queued(conn, *range(1, 20))
    first = claimed(conn)
    assert first.job.id == ended.id
    claims.advance(conn, first, Phase.PUSH, work_host="a")
    claims.transition(conn, first, JobState.PENDING, keep_attempt=True)
    conn.execute("update job set priority = 9 where id = %s", (ended.id,))
    later = tuple(phase for phase in Phase if not phase.needs_agent)
    assert later == (Phase.VERIFY, Phase.PUSH, Phase.ANNOUNCE, Phase.DONE)
    assert claimed(conn, host="a", phases=later).job.id == ended.id
    assert claim(conn, host="a", phases=later) is None
    assert claimed(conn, host="a").job.issue.number == 2


def test_an_expired_lease_is_swept_and_claimed_again_with_a_new_fence(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    first = running(conn)
    clock_at(conn, NOON, seconds=600)
    assert sweep(conn) == [], "the lease ends after its last moment"
    clock_at(conn, NOON, seconds=600.001)
    (swept,) = sweep(conn)
    assert (swept.state, swept.last_error, swept.claimed_by) == (JobState.PENDING, "claim lease expired", None)
    second = claimed(conn, "w2")
    assert (second.seq, second.job.attempts) == (first.seq + 1, 2)
    assert event_kinds(conn, swept)[-2:] == ["lease_expired", "claimed"]


def test_every_write_of_a_stale_holder_is_refused(conn: Connection) -> None:
    queued(conn, 1)
    stale = running(conn)
    release(conn, "w1")
    fresh = claimed(conn, "w2")
    before = jobs.get(conn, stale.job.id)
    count = scalar(conn, "select count(*) from job_event")
    for write in (
        lambda: claims.transition(conn, stale, JobState.RUNNING),
        lambda: claims.transition(conn, stale, JobState.PENDING),
        lambda: claims.finish(conn, stale, JobState.DELIVERED, []),
        lambda: claims.advance(conn, stale, Phase.VERIFY, branch="x"),
        lambda: runs.start(conn, stale, stale.job.id, CC, host="h", session_id=None, resumed=False),
    ):
        with pytest.raises(ClaimLost, match=f"claim 1 of w1 on job {stale.job.id} is lost"):
            write()
    assert claims.renew_claim(conn, stale, lease_seconds=9999) is None
    assert jobs.get(conn, stale.job.id) == before
    assert scalar(conn, "select count(*) from job_event") == count
    assert scalar(conn, "select count(*) from agent_run") == 0
    assert claims.renew_claim(conn, fresh, lease_seconds=600) is not None


def test_the_same_worker_claiming_again_does_not_revive_its_old_claim(conn: Connection) -> None:
    queued(conn, 1)
    old = claimed(conn, "w1")
    claims.transition(conn, old, JobState.PENDING)
    new = claimed(conn, "w1")
    assert claims.renew_claim(conn, old, lease_seconds=600) is None
    with pytest.raises(ClaimLost):
        claims.finish(conn, old, JobState.FAILED, [])
    assert claims.renew_claim(conn, new, lease_seconds=600) is not None


def test_a_job_that_has_ended_refuses_every_move_and_says_so(conn: Connection) -> None:
    queued(conn, 1)
    held = claimed(conn)
    claims.finish(conn, held, JobState.DELIVERED, [])
    for to in JobState:
        if to is JobState.CLAIMED:
            continue
        with pytest.raises(IllegalTransition, match=f"job {held.job.id} is delivered and cannot become {to}"):
            claims.transition(conn, held, to)
    after = job_of(conn, 1)
    assert (after.state, after.phase) == (JobState.DELIVERED, Phase.DONE)


def test_no_transition_leads_to_claimed(conn: Connection) -> None:
    queued(conn, 1)
    with pytest.raises(IllegalTransition):
        claims.transition(conn, claimed(conn), JobState.CLAIMED)


def test_a_job_that_does_not_exist_cannot_move(conn: Connection) -> None:
    queued(conn, 1)
    held = claimed(conn)
    conn.execute("delete from job")
    with pytest.raises(IllegalTransition, match="does not exist"):
        claims.transition(conn, held, JobState.RUNNING)


def test_renewal_pushes_the_lease_and_tells_of_a_cancel(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    held = running(conn)
    clock_at(conn, NOON, seconds=590)
    assert claims.renew_claim(conn, held, lease_seconds=600) == claims.Renewal(False, None)
    assert job_of(conn, 1).claim_expires_at == NOON + timedelta(seconds=1190)
    clock_at(conn, NOON, seconds=700)
    assert sweep(conn) == []


def test_both_lanes_are_asked_in_one_statement_whatever_their_order(conn: Connection) -> None:
    queued(conn, 1)
    queued(conn, 2, labels=["tireless/agent:oc"])
    order: list[tuple[AgentKind, ...]] = [BOTH, tuple(reversed(BOTH))]
    assert [claimed(conn, lanes=lane_order).job.issue.number for lane_order in order] == [1, 2]


def test_the_place_of_a_job_in_its_queue(conn: Connection) -> None:
    repo = track(conn)
    queued(conn, 1, 2, 3, repo=repo)
    enqueue(conn, [issue(4, "tireless/agent:oc")], repo)
    assert [jobs.place_of(conn, job_of(conn, n).id).ahead for n in (1, 2, 3, 4)] == [0, 1, 2, 0]
    held = claimed(conn, lanes=[CC])
    assert jobs.place_of(conn, job_of(conn, 3).id) == jobs.Place(ahead=1, repo_running=1)
    claims.transition(conn, held, JobState.PENDING, delay_seconds=60)
    assert jobs.place_of(conn, job_of(conn, 3).id) == jobs.Place(1, 0), "one in backoff goes before nobody"
