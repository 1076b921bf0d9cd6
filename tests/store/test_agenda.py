"""The poller's one statement: what is due, who is woken, and the pulse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import time, timedelta
from unittest.mock import ANY

import pytest

from tests.support.store import (
    CC,
    NOON,
    OC,
    claimed,
    clock_at,
    ear,
    enqueue,
    issue,
    open_lanes,
    queued,
    set_clock,
    track,
)
from tireless.entities import JobState, NewWrite, PollResult, WriteOp
from tireless.store import agenda, claims, lanes, repos, writes
from tireless.store.agenda import Agenda
from tireless.store.listen import PULSE_CHANNEL, lane_channel
from tireless.store.queries import Connection

CC_ROWS, OC_ROWS = lane_channel(CC), lane_channel(OC)


@pytest.fixture
def told(conn: Connection, database_url: str) -> Iterator[Callable[[], list[str]]]:
    with ear(conn, database_url, CC_ROWS, OC_ROWS, PULSE_CHANNEL) as look:
        yield look


def test_with_nothing_to_do_there_is_nothing_to_wait_for(conn: Connection) -> None:
    set_clock(conn, NOON)
    assert agenda.look(conn) == Agenda(NOON, None, None, None, None, None, False)
    assert agenda.look(conn).first == float("inf")


def test_polls_writes_leases_holds_and_backoffs_are_on_it(conn: Connection) -> None:
    set_clock(conn, NOON)
    repo = track(conn)
    repos.record_poll(conn, repo.id, PollResult.LIMITED, wait_seconds=100)
    writes.add_for_issue(conn, issue(9).ref, [NewWrite(WriteOp.ADD_LABEL, {"name": "x"})])
    queued(conn, 1, 2)
    held = claimed(conn, lease_seconds=50.0)
    claims.transition(conn, held, JobState.PENDING, delay_seconds=70)
    claimed(conn, lease_seconds=60.0)
    lanes.hold(conn, OC, "a limit", seconds=80)
    assert agenda.look(conn) == Agenda(NOON, 70, 100, 0, 60, 80, True)
    clock_at(conn, NOON, seconds=90)
    due = agenda.look(conn)
    assert due == Agenda(NOON + timedelta(seconds=90), None, 10, -90, -30, -10, True)
    assert due.first == -90


def test_a_write_that_cannot_be_taken_is_not_waited_for_as_due(conn: Connection) -> None:
    set_clock(conn, NOON)
    two = [NewWrite(WriteOp.ADD_LABEL, {"name": name}) for name in "ab"]
    writes.add_for_issue(conn, issue(1).ref, two)
    taken = writes.take(conn, "another poller")
    assert taken is not None
    assert agenda.look(conn).write == 120, "in somebody's hands, and the second waits for the first"
    writes.retry_later(conn, taken, 300, "unreachable")
    assert agenda.look(conn).write == 300
    writes.add_for_issue(conn, issue(2).ref, two)
    assert agenda.look(conn).write == 0


@pytest.mark.parametrize("column", ["kind", "phase", "lane", "forge"])
def test_a_lease_that_the_sweep_leaves_alone_is_not_waited_for(conn: Connection, column: str) -> None:
    """A row with a newer program's word: the poller would look and sweep every two seconds, for nothing."""
    set_clock(conn, NOON)
    queued(conn, 1, 2)
    newer = claimed(conn, lease_seconds=50.0)
    claimed(conn, lease_seconds=70.0)
    assert agenda.look(conn).lease == 50
    conn.execute(f"alter table job drop constraint job_{column}_known".encode())
    conn.execute(f"update job set {column} = 'newer' where id = %s".encode(), [newer.job.id])
    assert agenda.look(conn).lease == 70
    clock_at(conn, NOON, seconds=60)
    assert agenda.look(conn).lease == 10
    assert claims.expire_stale_claims(conn, writes_for=lambda _: []) == []
    clock_at(conn, NOON, seconds=80)
    assert agenda.look(conn).lease == -10
    assert len(claims.expire_stale_claims(conn, writes_for=lambda _: [])) == 1
    assert agenda.look(conn).lease is None


def test_a_hold_without_an_end_is_held_and_not_waited_for(conn: Connection) -> None:
    open_lanes(conn)
    lanes.hold(conn, CC, "not logged in")
    assert agenda.look(conn) == Agenda(ANY, None, None, None, None, None, True)


def test_quiet_hours_are_no_reason_to_look(conn: Connection) -> None:
    set_clock(conn, NOON)
    track(conn, quiet_from=time(11), quiet_until=time(13))
    assert agenda.look(conn).poll is None
    assert repos.take_due(conn, 1) == []
    clock_at(conn, NOON, hours=1)
    assert agenda.look(conn).poll == -3600


def test_the_end_of_a_backoff_wakes_the_runners_of_its_lane_once(
    conn: Connection, told: Callable[[], list[str]]
) -> None:
    set_clock(conn, NOON)
    open_lanes(conn)
    enqueue(conn, [issue(1), issue(2, "tireless/agent:oc")])
    for _ in range(2):
        claims.transition(conn, claimed(conn), JobState.PENDING, delay_seconds=30)
    told()
    first = agenda.look(conn, NOON - timedelta(seconds=8))
    assert (first.job, told()) == (30, [])
    clock_at(conn, NOON, seconds=29)
    second = agenda.look(conn, first.at)
    assert (second.job, told()) == (1, [])
    clock_at(conn, NOON, seconds=37)
    third = agenda.look(conn, second.at)
    assert third.job is None
    assert sorted(told()) == [CC_ROWS, OC_ROWS]
    agenda.look(conn, third.at)
    assert told() == []
    agenda.look(conn)
    assert sorted(told()) == [CC_ROWS, OC_ROWS], "the first look of a poller knows of no other before it"


def test_the_pulse_is_sent_when_it_is_wanted(conn: Connection, told: Callable[[], list[str]]) -> None:
    agenda.look(conn)
    assert told() == []
    agenda.look(conn, pulse=True)
    assert told() == [PULSE_CHANNEL]
