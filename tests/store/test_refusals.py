"""Refused labels and the text that is kept with a job."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.support.store import NOON, clock_at, enqueue, issue, job_of, open_lanes, set_clock, track
from tireless.store import refusals
from tireless.store.intake import BODY_CHARS, Verdict
from tireless.store.queries import Connection


def test_an_issue_with_a_refused_label_makes_no_job_until_it_is_lifted(conn: Connection) -> None:
    open_lanes(conn)
    repo = track(conn)
    clock_at(conn, NOON)
    refusals.add(conn, repo.id, 1, 77)
    assert enqueue(conn, [issue(1), issue(2)], repo) == {1: Verdict.NOT_ENTITLED, 2: Verdict.ENQUEUED}
    later = NOON + timedelta(minutes=1)
    assert refusals.lift(conn, repo.id, [1], later, []) == 0
    assert enqueue(conn, [issue(1)], repo) == {1: Verdict.NOT_ENTITLED}
    assert refusals.lift(conn, repo.id, [1], later, [1]) == 1
    assert enqueue(conn, [issue(1)], repo) == {1: Verdict.ENQUEUED}


def test_only_a_list_that_was_read_later_shows_that_the_label_is_off(conn: Connection) -> None:
    repo = track(conn)
    clock_at(conn, NOON)
    refusals.add(conn, repo.id, 1, None)
    assert refusals.lift(conn, repo.id, [], NOON - timedelta(seconds=1), []) == 0
    assert refusals.lift(conn, repo.id, [], NOON + timedelta(seconds=1), []) == 1


def test_a_later_refusal_forgets_what_was_seen_before(conn: Connection) -> None:
    repo = track(conn)
    refusals.add(conn, repo.id, 1, 77)
    refusals.seen(conn, repo.id, 1, NOON)
    assert refusals.of_repo(conn, repo.id)[1].seen_update == NOON
    refusals.add(conn, repo.id, 1, 78)
    found = refusals.of_repo(conn, repo.id)[1]
    assert (found.labelling, found.seen_update) == (78, None)


def test_a_job_keeps_what_its_issue_said_as_far_as_a_row_can_hold_it(conn: Connection) -> None:
    open_lanes(conn)
    set_clock(conn, NOON)
    said = replace(issue(1), title="T\0" + "t" * 600, body="\ud800" + "ä" * (BODY_CHARS + 9), author="eve")
    enqueue(conn, [said])
    text = refusals.text_of(conn, job_of(conn, 1).id)
    assert text is not None
    assert text.title == "T" + "t" * 499
    assert text.body == "?" + "ä" * (BODY_CHARS - 1)
    assert (text.author, text.seen_at) == ("eve", NOON)


def test_a_job_of_an_older_program_has_no_text(conn: Connection) -> None:
    open_lanes(conn)
    enqueue(conn, [issue(1)])
    conn.execute("delete from job_text")
    assert refusals.text_of(conn, job_of(conn, 1).id) is None
