"""Jobs leave a lane that is held for long, if nobody has begun them and no label binds them to it."""

from __future__ import annotations

from datetime import timedelta

from tests.support.store import (
    CC,
    LABELS,
    NOON,
    OC,
    ROUTING,
    claim,
    claimed,
    clock_at,
    event_kinds,
    issue,
    job_of,
    queued,
    scalar,
    set_clock,
    spend,
)
from tireless.entities import AgentKind, JobState, NewWrite, Relaned, WriteOp
from tireless.store import claims, intake, lanes, writes
from tireless.store.queries import Connection

BOTH = [CC, OC]


def relane(conn: Connection, into: list[AgentKind] | None = None, after: float = 600.0) -> list[Relaned]:
    return intake.relane(
        conn,
        BOTH if into is None else into,
        after_seconds=after,
        writes_for=lambda one: [NewWrite(WriteOp.STATUS_COMMENT, {"body": f"{one.was} {one.hold_reason}"})],
    )


def hold(conn: Connection, lane: AgentKind = CC) -> None:
    """Held at noon for five hours, as a usage limit would; the clock is at ten past."""
    set_clock(conn, NOON)
    lanes.hold(conn, lane, "usage limit", seconds=5 * 3600.0)
    clock_at(conn, NOON, minutes=10)


def test_a_job_that_waits_in_a_lane_held_for_long_goes_to_the_other(conn: Connection) -> None:
    set_clock(conn, NOON)
    (job,) = queued(conn, 1)
    hold(conn)
    conn.execute("listen tireless_lane_opencode")
    (moved,) = relane(conn)
    assert (moved.was, moved.job.lane, moved.hold_reason) == (CC, OC, "usage limit")
    assert moved.held_until == NOON + timedelta(hours=5)
    assert moved.job.relaned_at == NOON + timedelta(minutes=10)
    assert event_kinds(conn, job) == ["enqueued", "relaned"]
    assert [w.op for w in writes.of_job(conn, job.id)] == [WriteOp.STATUS_COMMENT]
    assert [n.channel for n in conn.notifies(timeout=5, stop_after=1)] == ["tireless_lane_opencode"]
    assert claimed(conn, lanes=[OC]).job.id == job.id


def test_not_before_it_was_held_for_so_long(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    hold(conn)
    clock_at(conn, NOON, minutes=9, seconds=59)
    assert relane(conn) == []
    lanes.hold(conn, CC, "a longer one", seconds=9 * 3600)  # lengthened: it is held since noon all the same
    clock_at(conn, NOON, minutes=10)
    assert [one.hold_reason for one in relane(conn)] == ["a longer one"]


def test_a_hold_after_a_hold_counts_from_its_own_beginning(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    hold(conn)
    lanes.resume(conn, CC)
    lanes.hold(conn, CC, "again", seconds=3600)
    assert relane(conn) == []
    clock_at(conn, NOON, minutes=80)  # over, though nobody has tidied the row yet
    assert relane(conn) == []
    lanes.hold(conn, CC, "once more", seconds=3600)
    clock_at(conn, NOON, minutes=89)
    assert relane(conn) == []
    clock_at(conn, NOON, minutes=90)
    assert len(relane(conn)) == 1


def test_a_label_binds_a_job_to_its_lane(conn: Connection) -> None:
    set_clock(conn, NOON)
    (job,) = queued(conn, 1, labels=["tireless/agent:cc"])
    assert job.lane_pinned
    hold(conn)
    assert relane(conn) == []
    intake.refresh_lanes(conn, [job], [issue(1)], labels=LABELS, routing=ROUTING)  # the label was taken off
    assert not job_of(conn, 1).lane_pinned
    assert event_kinds(conn, job) == ["enqueued"]
    assert len(relane(conn)) == 1


def test_what_was_begun_stays(conn: Connection) -> None:
    """A run that a limit cut off has its session in that lane, though it burnt no attempt."""
    set_clock(conn, NOON)
    queued(conn, 1, 2)
    held = claimed(conn, "w1", lanes=[CC])
    claims.transition(conn, held, JobState.RUNNING)
    spend(conn, held, 0.1)
    running = claimed(conn, "w2", lanes=[CC])
    claims.transition(conn, held, JobState.PENDING, keep_attempt=True)
    assert job_of(conn, 1).attempts == 0
    hold(conn)
    assert relane(conn) == []
    assert job_of(conn, running.job.issue.number).lane is CC


def test_nowhere_to_go(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    hold(conn)
    assert relane(conn, into=[CC]) == []  # the other is not run here
    lanes.pause(conn, OC, "x")
    assert relane(conn) == []
    lanes.resume(conn, OC)
    lanes.set_cap(conn, OC, 0)
    assert relane(conn) == []
    lanes.set_cap(conn, OC, 1)
    lanes.hold(conn, OC, "no login")
    assert relane(conn) == []
    lanes.resume(conn, OC)
    conn.execute("update lane set probing = true where lane = 'opencode'")
    assert relane(conn) == []
    conn.execute("update lane set probing = false")
    assert len(relane(conn)) == 1


def test_nothing_is_moved_back(conn: Connection) -> None:
    """Neither by a poll that knows the routing table only, nor once the hold is over, nor by a hold of the other."""
    set_clock(conn, NOON)
    queued(conn, 1)
    hold(conn)
    relane(conn)
    assert intake.refresh_lanes(conn, [job_of(conn, 1)], [issue(1)], labels=LABELS, routing=ROUTING) == 0
    lanes.resume(conn, CC)
    assert relane(conn) == []
    hold(conn, OC)
    assert relane(conn) == []
    job = job_of(conn, 1)
    assert job.lane is OC
    assert (
        intake.refresh_lanes(conn, [job], [issue(1, "tireless/agent:cc")], labels=LABELS, routing=ROUTING) == 1
    )
    assert job_of(conn, 1).lane is CC  # a person may


def test_a_poll_that_read_the_row_before_it_was_moved_does_not_flip_it(conn: Connection) -> None:
    set_clock(conn, NOON)
    (before,) = queued(conn, 1, labels=["tireless/agent:cc"])
    conn.execute("update job set lane_pinned = false")  # the label went, and another poller has seen that
    hold(conn)
    relane(conn)
    assert intake.refresh_lanes(conn, [before], [issue(1)], labels=LABELS, routing=ROUTING) == 0
    assert job_of(conn, 1).lane is OC


def test_a_job_of_a_program_that_knows_nothing_of_this_stays(conn: Connection) -> None:
    set_clock(conn, NOON)
    queued(conn, 1)
    assert scalar(conn, "update job set lane_pinned = default returning lane_pinned") is True
    hold(conn)
    assert relane(conn) == []
    assert claim(conn, lanes=[OC]) is None
