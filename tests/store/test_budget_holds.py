"""A budget that is used up holds until the UTC day ends; one that is raised lets go at once, and ends no other hold."""

from __future__ import annotations

import threading
from datetime import timedelta

import psycopg
import pytest

from tests.support.store import CC, NOON, claimed, clock_at, queued, scalar, set_clock, spend, track
from tests.support.wait import wait_until
from tireless.budgeting import follow_budget, hold_used_up
from tireless.entities import Lane
from tireless.store import lanes, repos
from tireless.store.queries import Connection
from tireless.store.repos import settings_of

MIDNIGHT = NOON.replace(hour=0) + timedelta(days=1)


def cc(conn: Connection) -> Lane:
    return next(lane for lane in lanes.all_lanes(conn) if lane.lane is CC)


def budget(conn: Connection, usd: float | None, jobs: int | None = None) -> None:
    with conn.transaction():
        lanes.set_budget(conn, CC, usd, jobs)
        follow_budget(conn, CC)


@pytest.fixture
def spent(conn: Connection) -> Connection:
    """A day at noon with one job that has cost 2.50 USD."""
    set_clock(conn, NOON)
    queued(conn, 1)
    spend(conn, claimed(conn), 2.5)
    return conn


def test_a_budget_holds_and_lets_go(spent: Connection) -> None:
    budget(spent, 2.5)
    assert (cc(spent).held_until, cc(spent).held) == (MIDNIGHT, True)
    assert cc(spent).hold_reason == "the lane's budget of 2.50 USD a day is used up (2.50 spent)"
    budget(spent, 2)
    assert cc(spent).hold_reason == "the lane's budget of 2.00 USD a day is used up (2.50 spent)"
    budget(spent, 2, 9)
    assert cc(spent).held
    budget(spent, 3, 1)  # dollars are left, but no job
    assert "budget of 1 jobs" in (cc(spent).hold_reason or "")
    budget(spent, 3, 2)
    assert (cc(spent).held_until, cc(spent).hold_reason, cc(spent).held) == (None, None, False)
    budget(spent, 1)
    budget(spent, None)
    assert not cc(spent).held


def test_who_lets_go_wakes_the_runners(spent: Connection) -> None:
    budget(spent, 1)
    spent.execute("listen tireless_lane_claude_code")
    budget(spent, 5)
    assert [n.channel for n in spent.notifies(timeout=5, stop_after=1)] == ["tireless_lane_claude_code"]


@pytest.mark.parametrize("first", ["the budget", "the other"])
@pytest.mark.parametrize("hours", [1, 12, 24, None])
def test_another_hold_stays(spent: Connection, first: str, hours: float | None) -> None:
    seconds = None if hours is None else hours * 3600
    if first == "the budget":
        budget(spent, 1)
    lanes.hold(spent, CC, "usage limit", seconds=seconds)
    lanes.hold(spent, CC, "overloaded", seconds=600)
    budget(spent, 1, 5)
    if hours == 1:
        assert "the lane's budget" in (cc(spent).hold_reason or "")
    budget(spent, 5)
    until = None if hours is None else NOON + timedelta(hours=hours)
    assert (cc(spent).hold_reason, cc(spent).held_until, cc(spent).held) == ("usage limit", until, True)
    lanes.resume(spent, CC)
    budget(spent, 1)
    budget(spent, 5)
    assert not cc(spent).held


def test_another_hold_that_has_ended_meanwhile_is_over(spent: Connection) -> None:
    budget(spent, 1)
    lanes.hold(spent, CC, "usage limit", seconds=3600)
    clock_at(spent, NOON, hours=2)
    budget(spent, 5)
    assert (cc(spent).hold_reason, cc(spent).held_until) == (None, None)


def test_what_a_budget_held_yesterday_says_nothing_today(spent: Connection) -> None:
    budget(spent, 1)
    lanes.hold(spent, CC, "usage limit", seconds=3600)
    clock_at(spent, NOON, days=1)
    assert lanes.lift_ended_holds(spent) == [CC]
    lanes.hold(spent, CC, "overloaded", seconds=60)
    budget(spent, 9)
    assert cc(spent).hold_reason == "overloaded"


def test_of_a_repository(conn: Connection) -> None:
    set_clock(conn, NOON)
    repo = track(conn)
    queued(conn, 1, repo=repo)
    spend(conn, claimed(conn), 2.5)
    for usd, until in ((1.0, MIDNIGHT), (9.0, None), (2.5, MIDNIGHT), (None, None)):
        settings = settings_of(repo)
        with conn.transaction():
            repos.update(conn, repo.id, type(settings)(settings.clone_url, "main", daily_usd=usd))
            follow_budget(conn, repo_id=repo.id)
        [found] = repos.find(conn, repo_id=repo.id)
        assert found.held_until == until


def test_a_run_that_ends_while_the_budget_is_raised_holds_nothing(spent: Connection, database_url: str) -> None:
    """It has seen the old budget, and waits for the operator's row."""
    budget(spent, 2.6)

    def run() -> None:
        with psycopg.connect(database_url, application_name="the run") as other:
            set_clock(other, NOON)
            other.execute("update agent_run set cost_usd = 2.7")
            hold_used_up(other, CC, None)

    waiting = (
        "select count(*) from pg_stat_activity where application_name = 'the run' and wait_event_type = 'Lock'"
    )
    thread = threading.Thread(target=run)
    with psycopg.connect(database_url) as operator:
        set_clock(operator, NOON)
        lanes.set_budget(operator, CC, 9.0, None)
        thread.start()
        wait_until(lambda: scalar(spent, waiting), 10, "the run waits for the lane's row")
        follow_budget(operator, CC)
        operator.commit()
    thread.join(10)
    assert not thread.is_alive()
    assert not cc(spent).held
