"""Lanes: caps, pauses and holds, all in rows."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.support.store import (
    CC,
    NOON,
    OC,
    claim,
    claimed,
    clock_at,
    enqueue,
    issue,
    open_lanes,
    queued,
    scalar,
    set_clock,
    sweep,
)
from tireless.entities import JobState, Lane, TirelessError
from tireless.store import claims, lanes
from tireless.store.queries import Connection


def cc(conn: Connection) -> Lane:
    return next(lane for lane in lanes.all_lanes(conn) if lane.lane is CC)


def test_ensure_makes_the_row_once_and_keeps_what_an_operator_set(conn: Connection) -> None:
    lanes.ensure(conn, CC, 2)
    lanes.set_cap(conn, CC, 5)
    lanes.ensure(conn, CC, 2)
    assert cc(conn).cap == 5
    assert scalar(conn, "select count(*) from lane_slot where open") == 5


def test_a_lane_shows_what_runs_and_what_waits(conn: Connection) -> None:
    queued(conn, 1, 2, 3)
    claimed(conn)
    lane = cc(conn)
    assert (lane.cap, lane.running, lane.pending, lane.paused, lane.held) == (4, 1, 2, False, False)


def test_a_lane_without_a_row_is_a_clear_error(conn: Connection) -> None:
    with pytest.raises(TirelessError, match="lane opencode has no row"):
        lanes.set_cap(conn, OC, 1)
    with pytest.raises(TirelessError, match="lane opencode has no row"):
        lanes.hold(conn, OC, "why")


def test_of_two_holds_the_longer_one_counts(conn: Connection) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    hour, day = NOON + timedelta(hours=1), NOON + timedelta(days=1)
    assert lanes.hold(conn, CC, "session limit", until=hour) == hour
    assert lanes.hold(conn, CC, "weekly limit", until=day) == day
    assert lanes.hold(conn, CC, "overloaded", seconds=30) == day
    assert cc(conn).hold_reason == "weekly limit", "the reason of the hold that is in force"


def test_a_hold_without_end_outlasts_all(conn: Connection) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    lanes.hold(conn, CC, "session limit", seconds=60)
    assert lanes.hold(conn, CC, "not logged in") is None
    assert lanes.hold(conn, CC, "overloaded", seconds=60) is None
    assert (cc(conn).hold_reason, cc(conn).held) == ("not logged in", True)
    clock_at(conn, NOON, days=365)
    assert lanes.lift_ended_holds(conn) == []
    lanes.resume(conn, CC)
    assert not cc(conn).held


def test_an_ended_hold_does_not_outlast_a_new_one(conn: Connection) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    lanes.hold(conn, CC, "session limit", seconds=60)
    later = clock_at(conn, NOON, hours=1)
    assert lanes.hold(conn, CC, "overloaded", seconds=30) == later + timedelta(seconds=30)
    assert cc(conn).hold_reason == "overloaded"


def test_an_ended_hold_is_tidied(conn: Connection) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    lanes.hold(conn, CC, "session limit", seconds=60)
    clock_at(conn, NOON, seconds=59)
    assert lanes.lift_ended_holds(conn) == []
    clock_at(conn, NOON, seconds=60)
    assert lanes.lift_ended_holds(conn) == [CC]
    assert (cc(conn).held_until, cc(conn).hold_reason) == (None, None)


def test_resume_ends_pause_and_hold_alike(conn: Connection) -> None:
    open_lanes(conn)
    lanes.pause(conn, CC, "maintenance")
    assert (cc(conn).paused, cc(conn).pause_reason) == (True, "maintenance")
    lanes.hold(conn, CC, "no credit")
    lanes.resume(conn, CC)
    assert (cc(conn).paused, cc(conn).pause_reason, cc(conn).held) == (False, None, False)


# Caps


def test_a_raised_cap_lets_more_start_and_a_lowered_one_cuts_nothing_off(conn: Connection) -> None:
    open_lanes(conn, cap=1)
    enqueue(conn, [issue(n) for n in range(1, 9)])
    held = [claimed(conn)]
    assert claim(conn) is None
    lanes.set_cap(conn, CC, 3)
    held += [claimed(conn), claimed(conn)]
    assert claim(conn) is None
    lanes.set_cap(conn, CC, 1)
    assert [claims.renew_claim(conn, c, lease_seconds=60) is not None for c in held] == [True] * 3


def test_after_a_lowered_cap_nothing_starts_until_fewer_than_the_cap_run(conn: Connection) -> None:
    """The cap is about jobs, not about slot numbers: those beyond it count until they end."""
    open_lanes(conn, cap=3)
    enqueue(conn, [issue(n) for n in range(1, 9)])
    a, b, c = claimed(conn), claimed(conn), claimed(conn)
    lanes.set_cap(conn, CC, 1)
    for ending in (a, c):
        claims.finish(conn, ending, JobState.DELIVERED, [])
        assert claim(conn) is None
    claims.finish(conn, b, JobState.DELIVERED, [])
    assert claimed(conn).job.slot == 1
    assert claim(conn) is None


def test_a_job_in_a_high_slot_moves_down_when_the_cap_is_lowered(conn: Connection) -> None:
    open_lanes(conn, cap=3)
    enqueue(conn, [issue(n) for n in range(1, 9)])
    a, b, c = claimed(conn), claimed(conn), claimed(conn)
    for ending in (a, b):
        claims.finish(conn, ending, JobState.DELIVERED, [])
    lanes.set_cap(conn, CC, 2)
    assert claimed(conn).job.slot in (1, 2)
    assert claim(conn) is None, "the job that was in slot 3 counts"
    assert claims.renew_claim(conn, c, lease_seconds=60) is not None
    claims.finish(conn, c, JobState.DELIVERED, [])
    assert claimed(conn).job.slot in (1, 2)


def test_over_cap_jobs_move_into_what_is_freed_and_then_the_lane_fills_to_its_cap(conn: Connection) -> None:
    """No job in a slot that the cap has closed keeps the lane waiting for that very job to end."""
    open_lanes(conn, cap=5)
    enqueue(conn, [issue(n) for n in range(1, 12)])
    held = [claimed(conn) for _ in range(5)]
    lanes.set_cap(conn, CC, 3)
    ending = sorted(held, key=lambda c: c.job.slot or 0)[:3]
    for claim_ in ending[:2]:
        claims.finish(conn, claim_, JobState.DELIVERED, [])
        assert claim(conn) is None
    claims.finish(conn, ending[2], JobState.DELIVERED, [])
    assert claimed(conn).job.slot in (1, 2, 3)
    assert claim(conn) is None, "two of before and one new are three"


def test_a_cap_lowered_and_raised_again_loses_no_slot(conn: Connection) -> None:
    open_lanes(conn, cap=4)
    enqueue(conn, [issue(n) for n in range(1, 12)])
    held = [claimed(conn) for _ in range(4)]
    for cap in (2, 0, 3, 1, 4):
        lanes.set_cap(conn, CC, cap)
        sweep(conn)
    assert claim(conn) is None
    for ending in held:
        claims.finish(conn, ending, JobState.DELIVERED, [])
    assert sorted(claimed(conn).job.slot or 0 for _ in range(4)) == [1, 2, 3, 4]
    assert claim(conn) is None


def test_caps_are_a_lanes_own(conn: Connection) -> None:
    open_lanes(conn, cap=1)
    enqueue(conn, [issue(1), issue(2), issue(3, "tireless/agent:oc")])
    lanes.set_cap(conn, CC, 2)
    assert {claimed(conn).job.issue.number for _ in range(3)} == {1, 2, 3}


def test_a_usage_limit_whose_reset_is_past_still_holds_for_a_minute(conn: Connection) -> None:
    open_lanes(conn)
    now = NOON
    set_clock(conn, now)
    end = lanes.hold(conn, CC, "usage limit", until=now - timedelta(hours=1), probe=True)
    assert end == now + timedelta(minutes=1)


def test_after_a_usage_limit_one_job_goes_first_and_lets_the_others_go(conn: Connection) -> None:
    queued(conn, 1, 2, 3)
    set_clock(conn, NOON + timedelta(days=365))
    lanes.hold(conn, CC, "usage limit", seconds=60, probe=True)
    set_clock(conn, NOON + timedelta(days=366))
    assert lanes.lift_ended_holds(conn) == [CC]
    probe = claimed(conn, "w1", [CC])
    assert claim(conn, "w2", [CC]) is None
    claims.transition(conn, probe, JobState.PENDING)  # it ran into something else: the next one probes
    probe = claimed(conn, "w1", [CC])
    lanes.end_probe(conn, CC)
    assert claim(conn, "w2", [CC]) is not None
    assert probe.job.state is JobState.CLAIMED
