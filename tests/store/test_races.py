"""Races made certain. One side holds its locks in an open transaction; the rival is started in a thread; once
pg_stat_activity shows that it waits, or it has finished, the first side commits or rolls back, and the rows tell.

Also the order of locks: lane, then jobs, then slots. Each pair of operations runs against the other both ways round,
and none may end in a deadlock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.support.store import (
    BOTH,
    CC,
    LABELS,
    NOON,
    OC,
    ROUTING,
    claim,
    claimed,
    enqueue,
    event_kinds,
    issue,
    job_of,
    no_writes,
    open_lanes,
    queued,
    release,
    running,
    scalar,
    set_clock,
    sweep,
    track,
)
from tests.support.wait import wait_until
from tireless.entities import AgentKind, Claim, ClaimLost, IllegalTransition, JobState, NewWrite, Phase, WriteOp
from tireless.store import claims, intake, jobs, lanes
from tireless.store.connection import connect
from tireless.store.queries import Connection

RIVAL = "rival"


class Rival:
    """An action on a connection of its own, in a thread."""

    def __init__(self, url: str, action: Callable[[Connection], Any]) -> None:
        self._url = url
        self._action = action
        self._answer: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with connect(self._url, name=RIVAL) as conn:
                self._answer = self._action(conn)
        except BaseException as e:
            self._error = e

    def settle(self, watch: Connection) -> bool:
        """Until it waits for a lock (True) or has finished (False)."""
        waits = "select 1 from pg_stat_activity where application_name = 'rival' and wait_event_type = 'Lock'"
        seen = wait_until(
            lambda: "waits" if scalar(watch, waits) else "" if self._thread.is_alive() else "done",
            what="the rival waits or is done",
        )
        return seen == "waits"

    def answer(self) -> Any:
        self._thread.join(20)
        assert not self._thread.is_alive(), "the rival never came back"
        if self._error is not None:
            raise self._error
        return self._answer


class Race:
    def __init__(self, url: str, conn: Connection) -> None:
        self.url = url
        self.conn = conn  # the first side, in a transaction
        self.waited = False

    def against(self, action: Callable[[Connection], Any]) -> Rival:
        rival = Rival(self.url, action)
        with psycopg.connect(self.url, autocommit=True) as watch:
            self.waited = rival.settle(watch)
        return rival


@pytest.fixture
def race(database_url: str) -> Iterator[Race]:
    with connect(database_url, name="test") as conn:
        yield Race(database_url, conn)


@contextmanager
def holding(race: Race) -> Iterator[Connection]:
    """A transaction of the first side that commits at the end of the block."""
    with race.conn.transaction():
        yield race.conn


def take(worker: str, *lane_kinds: AgentKind) -> Callable[[Connection], Claim | None]:
    return lambda conn: claim(conn, worker, lane_kinds or BOTH)


# Claim against claim


def test_two_claims_on_the_last_slot(race: Race) -> None:
    open_lanes(race.conn, cap=1)
    enqueue(race.conn, [issue(1), issue(2)])
    with holding(race) as conn:
        assert claim(conn, "a") is not None
        rival = race.against(take("b"))
        assert not race.waited, "a claim never waits for another"
    assert rival.answer() is None


def test_two_claims_in_a_lane_that_probes(race: Race) -> None:
    """After a usage limit one job goes first, also where two runners hear of the hold's end at the same time."""
    queued(race.conn, 1, 2, 3)
    race.conn.execute("update lane set probing = true where lane = 'claude_code'")
    with holding(race) as conn:
        first = claimed(conn, "a")
        rival = race.against(take("b"))
        assert not race.waited
    assert rival.answer() is None
    assert claim(race.conn, "c") is None
    claims.finish(race.conn, first, JobState.DELIVERED, [])
    assert claim(race.conn, "c") is not None
    assert claim(race.conn, "d") is None, "still probing: a good run has to say that it is over"


def test_a_claim_that_is_rolled_back_leaves_slot_and_job(race: Race) -> None:
    open_lanes(race.conn, cap=1)
    enqueue(race.conn, [issue(1)])
    race.conn.execute("begin")
    assert claim(race.conn, "a") is not None
    rival = race.against(take("b"))
    race.conn.execute("rollback")
    assert rival.answer() is None
    again = claimed(race.conn, "b")
    assert (again.job.issue.number, again.job.slot, again.seq) == (1, 1, 1)


def test_two_claims_over_two_lanes_with_a_job_in_each_both_get_one(race: Race) -> None:
    queued(race.conn, 1)
    queued(race.conn, 2, labels=["tireless/agent:oc"])
    with holding(race) as conn:
        first = claimed(conn, "a")
        rival = race.against(take("b"))
        assert not race.waited
    second = rival.answer()
    assert {first.job.issue.number, second.job.issue.number} == {1, 2}


def test_claims_pass_by_a_locked_head_however_long_the_line(race: Race) -> None:
    """More rivals at once than a claim looks at: the look by repository finds the rest."""
    repo = track(race.conn)
    open_lanes(race.conn, cap=40)
    enqueue(race.conn, [issue(n) for n in range(1, 31)], repo)
    with holding(race) as conn:
        mine = [claimed(conn, "a") for _ in range(7)]
        rival = race.against(lambda other: [claim(other, "b") for _ in range(5)])
        assert not race.waited
    theirs = rival.answer()
    assert all(theirs)
    assert len({c.job.id for c in [*mine, *theirs]}) == 12


def test_two_claims_on_a_repositorys_last_place(race: Race) -> None:
    repo = track(race.conn, max_running=1)
    queued(race.conn, 1, repo=repo)
    queued(race.conn, 2, repo=repo, labels=["tireless/agent:oc"])
    with holding(race) as conn:
        assert claim(conn, "a", [CC]) is not None
        rival = race.against(take("b", OC))
    assert rival.answer() is None
    assert scalar(race.conn, "select count(*) from job where state = 'claimed'") == 1


def test_twenty_claimers_and_a_cap_of_three(race: Race, database_url: str) -> None:
    open_lanes(race.conn, cap=3)
    enqueue(race.conn, [issue(n) for n in range(1, 61)])
    most = 0
    lock = threading.Lock()
    held: set[object] = set()
    errors: list[BaseException] = []

    def work(name: str) -> None:
        nonlocal most
        try:
            with psycopg.connect(database_url, autocommit=True) as conn:
                done = 0
                while done < 3:
                    got = claim(conn, name)
                    if got is None:
                        continue
                    with lock:
                        held.add(got.job.id)
                        most = max(most, len(held))
                        # Under this lock, so that it is let go here before it is let go there.
                        held.discard(got.job.id)
                        claims.finish(conn, got, JobState.DELIVERED, [])
                    done += 1
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(20)]
    for thread in threads:
        thread.start()
    over = 0
    while any(thread.is_alive() for thread in threads):
        over = max(over, scalar(race.conn, "select count(*) from job where state in ('claimed', 'running')"))
    for thread in threads:
        thread.join()
    assert not errors
    assert over <= 3
    assert scalar(race.conn, "select count(*) from job where state = 'delivered'") == 60
    assert scalar(race.conn, "select count(*) from lane_slot where job_id is not null") == 0
    assert scalar(race.conn, "select max(claim_seq) from job") == 1, "nothing was claimed twice"


def test_rivals_in_a_hurry_never_come_away_empty_while_there_is_work(race: Race, database_url: str) -> None:
    """What one of them claims and frees between another's look and its lock must not cost the other its turn."""
    open_lanes(race.conn, cap=40)
    enqueue(race.conn, [issue(n) for n in range(1, 201)])
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with psycopg.connect(database_url, autocommit=True) as conn:
                for _ in range(50):
                    claims.finish(conn, claimed(conn, name), JobState.DELIVERED, [])
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert scalar(race.conn, "select count(*) from job where state = 'delivered'") == 200


# Sweep, release, finish, renewal


def test_a_finish_that_is_under_way_is_left_alone_by_the_sweep(race: Race) -> None:
    set_clock(race.conn, NOON)
    queued(race.conn, 1)
    held = running(race.conn)

    def late_sweep(conn: Connection) -> list[Any]:
        set_clock(conn, NOON + timedelta(hours=1))
        return sweep(conn)

    with holding(race) as conn:
        claims.finish(conn, held, JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)])
        rival = race.against(late_sweep)
        assert not race.waited
    assert rival.answer() == []
    assert job_of(race.conn, 1).state is JobState.DELIVERED
    assert sweep(race.conn) == []


def test_a_sweep_that_was_first_makes_the_finish_a_lost_claim(race: Race) -> None:
    set_clock(race.conn, NOON)
    queued(race.conn, 1)
    held = running(race.conn)
    set_clock(race.conn, NOON + timedelta(hours=1))
    with holding(race) as conn:
        assert len(sweep(conn)) == 1
        rival = race.against(
            lambda other: claims.finish(other, held, JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)])
        )
        assert race.waited
    with pytest.raises(ClaimLost):
        rival.answer()
    assert job_of(race.conn, 1).state is JobState.PENDING
    assert scalar(race.conn, "select count(*) from forge_write") == 0
    assert scalar(race.conn, "select count(*) from lane_slot where job_id is not null") == 0


def test_a_renewal_that_is_under_way_keeps_the_claim_from_the_sweep(race: Race) -> None:
    set_clock(race.conn, NOON)
    queued(race.conn, 1)
    held = running(race.conn)
    with holding(race) as conn:
        set_clock(conn, NOON + timedelta(seconds=599))
        assert claims.renew_claim(conn, held, lease_seconds=600) is not None

        def at_the_end(other: Connection) -> list[Any]:
            set_clock(other, NOON + timedelta(seconds=601))
            return sweep(other)

        rival = race.against(at_the_end)
    assert rival.answer() == []
    assert job_of(race.conn, 1).claimed_by == "w1"


@pytest.mark.parametrize("order", ["release first", "renewal first"])
def test_a_release_by_the_supervisor_and_a_renewal_by_the_runner(race: Race, order: str) -> None:
    queued(race.conn, 1)
    held = running(race.conn)

    def renewal(conn: Connection) -> Any:
        return claims.renew_claim(conn, held, lease_seconds=600)

    with holding(race) as conn:
        if order == "release first":
            assert len(release(conn, "w1")) == 1
            rival = race.against(renewal)
            assert race.waited
        else:
            assert renewal(conn) is not None
            rival = race.against(lambda other: release(other, "w1"))
    after = rival.answer()
    if order == "release first":
        assert after is None
        assert job_of(race.conn, 1).state is JobState.PENDING
    else:
        assert len(after) == 1, "nobody asks twice, so what has the row is waited for"
        assert job_of(race.conn, 1).state is JobState.PENDING


@pytest.mark.parametrize("action", ["start", "advance", "requeue", "finish"])
def test_a_release_that_was_first_makes_every_write_a_lost_claim(race: Race, action: str) -> None:
    queued(race.conn, 1)
    held = claimed(race.conn)
    actions: dict[str, Callable[[Connection], object]] = {
        "start": lambda c: claims.transition(c, held, JobState.RUNNING),
        "advance": lambda c: claims.advance(c, held, Phase.PUSH),
        "requeue": lambda c: claims.transition(c, held, JobState.PENDING),
        "finish": lambda c: claims.finish(c, held, JobState.FAILED, []),
    }
    with holding(race) as conn:
        release(conn, "w1")
        rival = race.against(actions[action])
        assert race.waited
    with pytest.raises(ClaimLost):
        rival.answer()
    after = job_of(race.conn, 1)
    assert (after.state, after.phase) == (JobState.PENDING, Phase.PREPARE)


# Cancel


def cancel(conn: Connection) -> Any:
    job = job_of(conn, 1)
    return jobs.cancel(conn, [job.id], "not wanted", writes_for=no_writes, actor="ctl")


def test_a_cancel_at_the_moment_of_completion_finds_nothing_to_cancel(race: Race) -> None:
    queued(race.conn, 1)
    held = running(race.conn)
    with holding(race) as conn:
        claims.finish(conn, held, JobState.DELIVERED, [])
        rival = race.against(cancel)
        assert race.waited
    assert rival.answer() == []
    after = job_of(race.conn, 1)
    assert (after.state, after.cancel_requested_at) == (JobState.DELIVERED, None)
    assert event_kinds(race.conn, after).count("finished") == 1


def test_a_completion_after_the_cancel_was_asked_still_ends_the_job_once(race: Race) -> None:
    queued(race.conn, 1)
    held = running(race.conn)
    with holding(race) as conn:
        assert len(cancel(conn)) == 1
        rival = race.against(lambda other: claims.finish(other, held, JobState.DELIVERED, []))
        assert race.waited
    assert rival.answer().state is JobState.DELIVERED
    assert event_kinds(race.conn, held.job)[-2:] == ["cancel_requested", "finished"]


def test_a_cancel_of_a_job_that_is_just_being_claimed_reaches_its_holder(race: Race) -> None:
    queued(race.conn, 1)
    with holding(race) as conn:
        held = claimed(conn)
        rival = race.against(cancel)
        assert race.waited
    (asked,) = rival.answer()
    assert asked.state is JobState.CLAIMED
    renewal = claims.renew_claim(race.conn, held, lease_seconds=600)
    assert renewal is not None
    assert renewal.cancel_requested


def test_a_claim_passes_by_a_job_that_is_just_being_cancelled(race: Race) -> None:
    queued(race.conn, 1, 2)
    with holding(race) as conn:
        assert len(cancel(conn)) == 1
        rival = race.against(take("b"))
        assert not race.waited
    assert rival.answer().job.issue.number == 2
    assert job_of(race.conn, 1).state is JobState.ABANDONED


def test_a_cancel_between_a_requeue_and_its_commit_ends_the_job(race: Race) -> None:
    queued(race.conn, 1)
    held = running(race.conn)
    with holding(race) as conn:
        claims.transition(conn, held, JobState.PENDING)
        rival = race.against(cancel)
        assert race.waited
    (ended,) = rival.answer()
    assert ended.state is JobState.ABANDONED


# Caps


def test_a_lowered_cap_waits_for_the_claim_of_the_slot_that_it_closes_and_counts_it(race: Race) -> None:
    open_lanes(race.conn, cap=1)
    enqueue(race.conn, [issue(1), issue(2)])
    with holding(race) as conn:
        claimed(conn, "a")
        rival = race.against(lambda other: lanes.set_cap(other, CC, 0))
        assert race.waited
    rival.answer()
    assert claim(race.conn, "b") is None
    assert job_of(race.conn, 1).state is JobState.CLAIMED


def test_a_claim_meanwhile_gets_no_slot_that_is_being_closed(race: Race) -> None:
    open_lanes(race.conn, cap=1)
    enqueue(race.conn, [issue(1)])
    with holding(race) as conn:
        lanes.set_cap(conn, CC, 0)
        rival = race.against(take("b"))
        assert not race.waited
    assert rival.answer() is None
    assert claim(race.conn) is None


def test_a_cap_change_and_a_finish_do_not_block_each_other_for_ever(race: Race) -> None:
    open_lanes(race.conn, cap=2)
    enqueue(race.conn, [issue(n) for n in range(1, 5)])
    first, second = claimed(race.conn), claimed(race.conn)
    with holding(race) as conn:
        claims.finish(conn, first, JobState.DELIVERED, [])
        rival = race.against(lambda other: lanes.set_cap(other, CC, 1))
        assert race.waited
    rival.answer()
    assert claim(race.conn) is None
    claims.finish(race.conn, second, JobState.DELIVERED, [])
    assert claimed(race.conn).job.slot == 1


def test_two_cap_changes_come_one_after_the_other(race: Race) -> None:
    open_lanes(race.conn, cap=1)
    with holding(race) as conn:
        lanes.set_cap(conn, CC, 5)
        rival = race.against(lambda other: lanes.set_cap(other, CC, 3))
        assert race.waited
    rival.answer()
    assert scalar(race.conn, "select count(*) from lane_slot where lane = 'claude_code' and open") == 3


def unsettled(conn: Connection) -> dict[str, Claim]:
    """Three jobs in hand under a cap of four, one of them in a slot that it has closed."""
    open_lanes(conn, cap=5)
    enqueue(conn, [issue(n) for n in range(1, 12)])
    held = sorted((claimed(conn, name) for name in "abcde"), key=lambda c: c.job.slot or 0)
    lanes.set_cap(conn, CC, 4)
    for ending in held[:2]:
        claims.finish(conn, ending, JobState.DELIVERED, [])
    return dict(zip("abc", held[2:], strict=True))


def test_claims_that_meet_a_job_in_a_closed_slot_at_once_take_no_more_than_the_cap(race: Race) -> None:
    unsettled(race.conn)
    with holding(race) as conn:
        assert claim(conn, "d") is not None
        rival = race.against(take("e"))
        assert race.waited, "which slots are free is being settled"
    assert rival.answer() is None
    assert scalar(race.conn, DISAGREE) == 0


SETTLING = ["finish", "requeue", "renew", "release", "sweep", "cancel", "cap down", "cap up"]


@pytest.mark.parametrize("whose", ["a job that stays", "the job that is moved"])
@pytest.mark.parametrize("order", ["claim first", "claim last"])
@pytest.mark.parametrize("name", SETTLING)
def test_a_claim_that_settles_slots_meets_all_else(race: Race, name: str, order: str, whose: str) -> None:
    """Neither waits for ever, and no slot is lost: what ended while it was moved frees the slot that it was in last."""
    held = unsettled(race.conn)
    if whose == "the job that is moved":
        held = {"a": held["c"], "b": held["c"], "c": held["a"]}

    def other(conn: Connection) -> object:
        return OPERATIONS[name](conn, held)

    first, second = (take("new"), other) if order == "claim first" else (other, take("new"))
    with holding(race) as conn:
        first(conn)
        rival = race.against(second)
    rival.answer()
    assert scalar(race.conn, DISAGREE) == 0
    cap = 4
    lanes.set_cap(race.conn, CC, cap)
    while claim(race.conn) is not None:
        pass
    assert scalar(race.conn, "select count(*) from job where slot is not null") == cap
    assert scalar(race.conn, DISAGREE) == 0


# Enqueue and labels


def test_two_polls_of_one_issue_make_one_job(race: Race) -> None:
    open_lanes(race.conn)
    with holding(race) as conn:
        assert enqueue(conn, [issue(1)]) == {1: intake.Verdict.ENQUEUED}
        rival = race.against(lambda other: enqueue(other, [issue(1), issue(2)]))
        assert race.waited
    assert rival.answer() == {1: intake.Verdict.LIVE, 2: intake.Verdict.ENQUEUED}
    assert scalar(race.conn, "select count(*) from job") == 2


def test_a_poll_that_dies_between_answer_and_commit_loses_nothing(race: Race) -> None:
    race.conn.execute("begin")
    enqueue(race.conn, [issue(1)])
    rival = race.against(lambda other: enqueue(other, [issue(1)]))
    assert race.waited
    race.conn.execute("rollback")
    assert rival.answer() == {1: intake.Verdict.ENQUEUED}


def test_two_polls_of_the_same_page_in_another_order_do_not_deadlock(race: Race) -> None:
    page = [issue(n) for n in range(1, 50)]
    with holding(race) as conn:
        enqueue(conn, [issue(25)])
        rival = race.against(lambda other: enqueue(other, list(reversed(page))))
        assert race.waited
        assert intake.Verdict.ENQUEUED in enqueue(conn, page[25:]).values()
    assert len(rival.answer()) == 49
    assert scalar(race.conn, "select count(*) from job") == 49


def reroute(conn: Connection, *labels: str) -> int:
    job = job_of(conn, 1)
    return intake.refresh_lanes(conn, [job], [issue(1, *labels)], labels=LABELS, routing=ROUTING)


def test_a_job_that_is_being_rerouted_is_claimed_in_its_new_lane_only(race: Race) -> None:
    queued(race.conn, 1)
    with holding(race) as conn:
        assert reroute(conn, "tireless/agent:oc") == 1
        rival = race.against(take("b", CC))
        assert not race.waited
    assert rival.answer() is None
    assert claim(race.conn, lanes=[CC]) is None
    assert claimed(race.conn, lanes=[OC]).job.claimed_lane is OC


def test_a_job_that_is_being_claimed_keeps_the_kind_it_was_claimed_with(race: Race) -> None:
    queued(race.conn, 1)
    with holding(race) as conn:
        held = claimed(conn)
        rival = race.against(lambda other: reroute(other, "tireless/plan", "tireless/agent:oc"))
        assert race.waited
    assert rival.answer() == 1
    after = job_of(race.conn, 1)
    assert (after.kind, after.lane, after.claimed_lane) == (held.job.kind, OC, CC)


def test_a_job_enqueued_below_the_floor_is_found_within_a_minute(race: Race) -> None:
    """Its transaction began before others' that were claimed meanwhile, and committed after them."""
    set_clock(race.conn, NOON)
    open_lanes(race.conn, cap=100)
    with psycopg.connect(race.url, autocommit=True) as late:
        set_clock(late, NOON - timedelta(seconds=1))
        with late.transaction():
            enqueue(late, [issue(1)])
            enqueue(race.conn, [issue(2), issue(3)])
            assert claimed(race.conn).job.issue.number == 2
            claims.mark_floors(race.conn)
    enqueue(race.conn, [issue(4)])
    assert claimed(race.conn).job.issue.number == 3, "from the floor on"
    set_clock(race.conn, NOON + timedelta(seconds=61))
    claims.mark_floors(race.conn)
    assert [claimed(race.conn).job.issue.number for _ in range(2)] == [1, 4]


def test_a_job_below_the_floor_is_found_when_there_is_nothing_above(race: Race) -> None:
    open_lanes(race.conn)
    enqueue(race.conn, [issue(1)])
    race.conn.execute("update lane_floor set priority = 9, run_at = now(), number = 0, full_at = now()")
    assert claimed(race.conn).job.issue.number == 1


def test_a_job_from_another_lane_keeps_its_place_below_the_floor(race: Race) -> None:
    set_clock(race.conn, NOON)
    open_lanes(race.conn)
    enqueue(race.conn, [issue(1)])
    set_clock(race.conn, NOON + timedelta(seconds=5))
    enqueue(race.conn, [issue(2, "tireless/agent:oc"), issue(3, "tireless/agent:oc")])
    assert claimed(race.conn, lanes=[OC]).job.issue.number == 2
    claims.mark_floors(race.conn)
    assert reroute(race.conn, "tireless/agent:oc") == 1
    assert [claimed(race.conn, lanes=[OC]).job.issue.number for _ in range(2)] == [1, 3]


@pytest.mark.parametrize("how", ["requeue", "release"])
def test_a_job_that_comes_back_is_found_below_the_floor(race: Race, how: str) -> None:
    set_clock(race.conn, NOON)
    queued(race.conn, 1, 2, 3)
    first = claimed(race.conn)
    claims.mark_floors(race.conn)
    if how == "requeue":
        claims.transition(race.conn, first, JobState.PENDING)
    else:
        release(race.conn, "w1")
    assert claimed(race.conn).job.issue.number == 1


def test_a_floor_is_not_put_above_a_job_that_is_just_being_put_back(race: Race) -> None:
    set_clock(race.conn, NOON)
    queued(race.conn, 1, 2)
    first = claimed(race.conn)
    with holding(race) as conn:
        claims.transition(conn, first, JobState.PENDING)
        rival = race.against(claims.mark_floors)
        assert race.waited
    rival.answer()
    assert claimed(race.conn).job.issue.number == 1


# Every pair, both ways round

DISAGREE = (
    "select count(*) from job j full join (select * from lane_slot where job_id is not null) s on s.job_id = j.id"
    " where j.slot is distinct from s.slot"
)


def set_up(conn: Connection) -> dict[str, Claim]:
    open_lanes(conn, cap=3)
    enqueue(conn, [issue(n) for n in range(1, 9)])
    return {name: claimed(conn, name) for name in ("a", "b", "c")}


Operation = Callable[[Connection, dict[str, Claim]], object]

OPERATIONS: dict[str, Operation] = {
    "claim": lambda c, held: claim(c, "new"),
    "start": lambda c, held: claims.transition(c, held["a"], JobState.RUNNING),
    "finish": lambda c, held: claims.finish(c, held["a"], JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)]),
    "requeue": lambda c, held: claims.transition(c, held["b"], JobState.PENDING),
    "renew": lambda c, held: claims.renew_claim(c, held["a"], lease_seconds=600),
    "release": lambda c, held: release(c, "a", "b"),
    "sweep": lambda c, held: sweep(c),
    "cancel": lambda c, held: jobs.cancel(
        c, [h.job.id for h in held.values()], "no", writes_for=no_writes, actor="ctl"
    ),
    "cap down": lambda c, held: lanes.set_cap(c, CC, 1),
    "cap up": lambda c, held: lanes.set_cap(c, CC, 9),
    "hold": lambda c, held: lanes.hold(c, CC, "why", seconds=60),
    "mark": lambda c, held: claims.mark_floors(c),
    "reroute": lambda c, held: intake.refresh_lanes(
        c,
        jobs.find(c, limit=50),
        [issue(n, "tireless/agent:oc") for n in range(1, 9)],
        labels=LABELS,
        routing=ROUTING,
    ),
}


def given(operation: Operation, held: dict[str, Claim]) -> Callable[[Connection], object]:
    return lambda conn: operation(conn, held)


def begin_again(conn: Connection) -> None:
    """As in a new database, at a hundredth of its price."""
    for table in ("forge_write", "job", "tracked_repo"):
        conn.execute(f"delete from {table}".encode())
    conn.execute("update lane_slot set job_id = null where job_id is not null")
    conn.execute("update lane_floor set run_at = null")
    for lane in BOTH:
        lanes.ensure(conn, lane, 3)
        lanes.resume(conn, lane)
        lanes.set_cap(conn, lane, 3)


@pytest.mark.parametrize("first", OPERATIONS)
def test_no_pair_of_operations_deadlocks(race: Race, first: str) -> None:
    for second in OPERATIONS:
        begin_again(race.conn)
        held = set_up(race.conn)
        with holding(race) as conn:
            OPERATIONS[first](conn, held)
            rival = race.against(given(OPERATIONS[second], held))
        try:
            rival.answer()
        except (ClaimLost, IllegalTransition):
            assert second in ("start", "finish", "requeue"), f"{first}, {second}: a lost claim, told as one"
        assert scalar(race.conn, DISAGREE) == 0, f"{first}, {second}"


@pytest.mark.parametrize(
    ("first", "then", "rival_first", "rival_then"),
    [
        ("finish", "cap down", "cap up", "mark"),
        ("reroute", "finish", "cancel", "release"),
        ("requeue", "mark", "mark", "hold"),
        ("cap down", "hold", "finish", "requeue"),
    ],
)
def test_transactions_of_two_operations_end(
    race: Race, first: str, then: str, rival_first: str, rival_then: str
) -> None:
    """Callers do put two together. One that waits for the other both ways round is cut off by the server and may be
    tried again; rows are whole in any case."""
    held = set_up(race.conn)

    def two(conn: Connection, one: str, other: str) -> None:
        try:
            with conn.transaction():
                OPERATIONS[one](conn, held)
                OPERATIONS[other](conn, held)
        except (ClaimLost, IllegalTransition, psycopg.errors.DeadlockDetected):
            pass

    with race.conn.transaction():
        OPERATIONS[first](race.conn, held)
        rival = race.against(lambda other: two(other, rival_first, rival_then))
        try:
            with race.conn.transaction():
                OPERATIONS[then](race.conn, held)
        except (ClaimLost, IllegalTransition, psycopg.errors.DeadlockDetected):
            pass
    rival.answer()
    assert scalar(race.conn, DISAGREE) == 0
