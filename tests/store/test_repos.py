"""Tracked repositories, their quiet hours and the grid of their polls."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, time, timedelta

import psycopg
import pytest

from tests.support.store import (
    CC,
    NOON,
    REPO,
    claimed,
    clock_at,
    enqueue,
    issue,
    job_of,
    queued,
    scalar,
    set_clock,
    track,
)
from tireless.entities import (
    Forge,
    IssuePage,
    JobState,
    NewWrite,
    PollResult,
    RepoRef,
    TrackedRepo,
    WorkerRole,
    WriteOp,
)
from tireless.store import agenda, claims, intake, jobs, repos, workers, writes
from tireless.store.queries import Connection


def named(name: str) -> RepoRef:
    return RepoRef(Forge.GITEA, "forge.test", "acme", name)


def again(conn: Connection, repo: TrackedRepo) -> TrackedRepo:
    (found,) = repos.find(conn, repo_id=repo.id)
    return found


# Settings


def test_a_repository_is_tracked_once_whatever_its_case(conn: Connection) -> None:
    repo = track(conn)
    loud = RepoRef(REPO.forge, "FORGE.test", "ACME", "Site")
    assert repos.add(conn, loud, repos.RepoSettings("u", "main")) is None
    assert track(conn, RepoRef(REPO.forge, "other.test", "acme", "site")).id != repo.id


def test_settings_go_in_and_come_out(conn: Connection) -> None:
    settings = repos.RepoSettings(
        "https://forge.test/a.git", "trunk", 90, time(22), time(7), "Europe/Berlin", True, 2, "make test"
    )
    added = repos.add(conn, REPO, settings)
    assert added is not None
    assert repos.settings_of(added) == settings
    changed = repos.update(conn, added.id, replace(settings, enabled=False, max_running=None))
    assert changed is not None
    assert (changed.schedule.enabled, changed.max_running) == (False, None)
    assert repos.tracked(conn) == []
    assert repos.tracked(conn, disabled_too=True) == [changed]
    assert repos.update(conn, 999, settings) is None


def test_find_goes_by_any_part_of_the_identity(conn: Connection) -> None:
    one = track(conn)
    two = track(conn, RepoRef(Forge.FORGEJO, "other.test", "acme", "Site"))
    assert repos.find(conn, owner="ACME", repo="site") == [one, two]
    assert repos.find(conn, host="Other.test") == [two]
    assert repos.find(conn, forge="gitea") == [one]
    assert repos.find(conn, repo_id=two.id) == [two]


def test_a_removed_repository_leaves_its_jobs_as_history(conn: Connection) -> None:
    repo = track(conn)
    (job,) = queued(conn, 1, repo=repo)
    claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
    assert repos.remove(conn, repo.id)
    assert not repos.remove(conn, repo.id)
    left = jobs.get(conn, job.id)
    assert left is not None
    assert (left.repo_id, left.issue) == (None, issue(1).ref)


def test_a_moved_repository_takes_its_live_jobs_and_waiting_writes_along(conn: Connection) -> None:
    repo = track(conn)
    queued(conn, 1, 2, repo=repo)
    done = claimed(conn)
    claims.finish(conn, done, JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)])
    repos.rename(conn, repo.id, named("new"), "https://forge.test/acme/new")
    after = again(conn, repo)
    assert (after.ref, after.clone_url) == (named("new"), "https://forge.test/acme/new")
    assert job_of(conn, 2, named("new")).state is JobState.PENDING
    (write,) = writes.of_job(conn, done.job.id)
    assert write.issue.repo == "new"
    assert enqueue(conn, [issue(2, repo=named("new"))], after) == {2: intake.Verdict.LIVE}


# Quiet hours


QUIET = [
    ("22:00", "07:00", "21:59:59", False),
    ("22:00", "07:00", "22:00:00", True),
    ("22:00", "07:00", "23:59:59", True),
    ("22:00", "07:00", "00:00:00", True),
    ("22:00", "07:00", "06:59:59", True),
    ("22:00", "07:00", "07:00:00", False),
    ("09:00", "17:00", "08:59:59", False),
    ("09:00", "17:00", "09:00:00", True),
    ("09:00", "17:00", "16:59:59", True),
    ("09:00", "17:00", "17:00:00", False),
    ("00:00", "12:00", "00:00:00", True),
    ("12:00", "00:00", "23:59:59", True),
    ("12:00", "00:00", "00:00:00", False),
    ("08:00", "08:00", "08:00:00", False),
    ("00:00", "00:00", "12:00:00", False),
    (None, "07:00", "06:00:00", False),
    ("22:00", None, "23:00:00", False),
    (None, None, "23:00:00", False),
]


@pytest.mark.parametrize(("begin", "end", "at", "quiet"), QUIET)
def test_quiet_hours_are_half_open_and_go_over_midnight(
    conn: Connection, begin: str | None, end: str | None, at: str, quiet: bool
) -> None:
    asked = (
        "select tireless_is_quiet(%s::time, %s::time, 'UTC', (date '2026-03-03' + %s::time) at time zone 'UTC')"
    )
    assert scalar(conn, asked, begin, end, at) is quiet


def quiet_minutes(conn: Connection, zone: str, day: str) -> int:
    """How many minutes of the 24 hours and more around this night are quiet, 22:00 to 07:00 on the wall."""
    found = scalar(
        conn,
        "select count(*) from generate_series(%s::date - interval '12 hours', %s::date + interval '36 hours',"
        " interval '1 minute') as wall cross join lateral (select wall at time zone 'UTC' as at) as moment"
        " where tireless_is_quiet('22:00', '07:00', %s, at)"
        "   and (at at time zone %s) between %s::date - interval '6 hours' and %s::date + interval '12 hours'",
        *(day, day, zone, zone, day, day),
    )
    return int(found)


@pytest.mark.parametrize(("day", "hours"), [("2026-11-01", 10), ("2026-03-08", 8), ("2026-06-01", 9)])
def test_a_window_keeps_its_hours_on_the_wall_when_the_clocks_change(
    conn: Connection, day: str, hours: int
) -> None:
    assert quiet_minutes(conn, "America/New_York", day) == hours * 60


# Polls


def test_due_repositories_are_taken_once_and_come_back_if_their_poller_dies(conn: Connection) -> None:
    set_clock(conn, NOON)
    a, b = track(conn, named("a")), track(conn, named("b"))
    taken = repos.take_due(conn, 1) + repos.take_due(conn, 5)
    assert sorted(repo.id for repo, _ in taken) == [a.id, b.id]
    assert {listed_at for _, listed_at in taken} == {NOON}
    assert repos.take_due(conn, 5) == []
    clock_at(conn, NOON, minutes=3)
    assert len(repos.take_due(conn, 5)) == 2


def test_what_a_dead_poller_had_taken_is_due_again(conn: Connection) -> None:
    set_clock(conn, NOON)
    fresh, limited, failing, off, idle = (track(conn, named(name)) for name in "abcde")
    repos.record_poll(conn, limited.id, PollResult.LIMITED, wait_seconds=7200)
    repos.record_poll(conn, failing.id, PollResult.UNREACHABLE)
    repos.update(conn, off.id, replace(repos.settings_of(off), enabled=False))
    repos.record_poll(conn, idle.id, PollResult.UNCHANGED)
    taken = [repo.id for repo, _ in repos.take_due(conn, 5)]
    assert taken == [fresh.id]
    workers.register(conn, "a poller", "here", WorkerRole.POLLER, None, 1)
    workers.register(conn, "a runner", "here", WorkerRole.RUNNER, CC, 2)
    clock_at(conn, NOON, seconds=5)
    assert repos.due_again(conn, "a runner") == 0
    assert repos.due_again(conn, "a poller") == 1
    assert [repo.id for repo, _ in repos.take_due(conn, 5)] == [fresh.id]


def test_quiet_and_disabled_repositories_are_not_polled(conn: Connection) -> None:
    set_clock(conn, NOON)
    track(conn, named("quiet"), quiet_from=time(11), quiet_until=time(13))
    track(conn, named("off"), enabled=False)
    assert repos.take_due(conn, 5) == []
    clock_at(conn, NOON, hours=1)
    assert [repo.ref.repo for repo, _ in repos.take_due(conn, 5)] == ["quiet"]


def next_polls(conn: Connection, repo: TrackedRepo, at: datetime, result: PollResult) -> datetime:
    set_clock(conn, at)
    repos.record_poll(conn, repo.id, result)
    return again(conn, repo).next_poll_at


@pytest.mark.parametrize("interval", [5, 60, 300])
def test_the_grid_gives_each_repository_a_phase_of_its_own_that_it_keeps(
    conn: Connection, interval: int
) -> None:
    tracked = [track(conn, named(f"r{n}"), interval_seconds=interval) for n in range(40)]
    phases = []
    for repo in tracked:
        seen = {
            next_polls(conn, repo, NOON + timedelta(seconds=s), PollResult.UNCHANGED).timestamp() % interval
            for s in (0, 0.4 * interval, 0.9 * interval, 7.3 * interval)
        }
        assert max(seen) - min(seen) < 0.01, "its place in the interval does not depend on when it was polled"
        phases.append(seen.pop())
    quarters = {int(4 * phase / interval) for phase in phases}
    assert quarters == {0, 1, 2, 3}, "spread over the interval"


@pytest.mark.parametrize("offset", [n * 3.7 for n in range(20)])
def test_the_next_poll_is_ahead_and_at_most_an_interval_away(conn: Connection, offset: float) -> None:
    repo = track(conn)
    at = NOON + timedelta(seconds=offset)
    ahead = (next_polls(conn, repo, at, PollResult.CHANGED) - at).total_seconds()
    assert 0 < ahead <= 60


def test_failures_back_off_up_to_an_hour_and_one_success_ends_it(conn: Connection) -> None:
    repo = track(conn, interval_seconds=60)
    waits = []
    for _ in range(12):
        waits.append((next_polls(conn, repo, NOON, PollResult.UNREACHABLE) - NOON).total_seconds())
    assert again(conn, repo).poll_failures == 12
    for failures, wait in enumerate(waits):
        plain = min(3600, 60 * 2**failures)
        assert plain <= wait <= plain * 1.1
    assert (next_polls(conn, repo, NOON, PollResult.UNCHANGED) - NOON).total_seconds() <= 60
    assert again(conn, repo).poll_failures == 0


@pytest.mark.parametrize("result", list(PollResult))
def test_every_result_is_recorded_and_a_limit_is_no_failure(conn: Connection, result: PollResult) -> None:
    set_clock(conn, NOON)
    repo = track(conn)
    repos.record_poll(conn, repo.id, result, detail="so it was")
    after = again(conn, repo)
    assert (after.poll_result, after.poll_detail, after.last_polled_at) == (result, "so it was", NOON)
    good = result in (PollResult.CHANGED, PollResult.UNCHANGED, PollResult.LIMITED)
    assert after.poll_failures == (0 if good else 1)


def test_the_forges_own_wait_is_obeyed(conn: Connection) -> None:
    set_clock(conn, NOON)
    repo = track(conn)
    repos.record_poll(conn, repo.id, PollResult.LIMITED, wait_seconds=3600)
    assert again(conn, repo).next_poll_at == NOON + timedelta(hours=1)


def test_validators_are_stored_only_with_what_was_found(conn: Connection) -> None:
    repo = track(conn)
    page = IssuePage((), etag='"1"', etag_key="k", body_hash="h")
    repos.record_poll(conn, repo.id, PollResult.CHANGED, page=page)
    assert again(conn, repo).last_etag is None
    repos.record_poll(conn, repo.id, PollResult.CHANGED, page=page, store_validators=True, full=True)
    after = again(conn, repo)
    assert (after.last_etag, after.etag_key, after.body_hash) == ('"1"', "k", "h")
    assert after.last_full_sweep_at is not None
    repos.record_poll(conn, repo.id, PollResult.UNREACHABLE)
    assert again(conn, repo).last_etag == '"1"'


def test_a_poll_that_is_asked_for_is_due(conn: Connection) -> None:
    set_clock(conn, NOON)
    repo = track(conn)
    repos.record_poll(conn, repo.id, PollResult.LIMITED, wait_seconds=100)
    assert agenda.look(conn).poll == 100
    repos.make_due(conn, repo.id)
    assert agenda.look(conn).poll == 0


def test_what_was_made_due_during_its_poll_is_due_after_it(conn: Connection) -> None:
    """The list may have been read before whoever asked for a poll did what it is to show."""
    repo = track(conn)
    [(_, listed_at)] = repos.take_due(conn, 1)
    repos.make_due(conn, repo.id)
    repos.record_poll(conn, repo.id, PollResult.CHANGED, listed_at=listed_at)
    [(_, listed_at)] = repos.take_due(conn, 1)
    repos.record_poll(conn, repo.id, PollResult.CHANGED, listed_at=listed_at)
    assert repos.take_due(conn, 1) == []


def test_what_was_made_due_after_the_end_of_its_poll_had_begun_is_due_after_it(
    conn: Connection, database_url: str
) -> None:
    """Its transaction has a time of its own, from before."""
    repo = track(conn)
    [(_, listed_at)] = repos.take_due(conn, 1)
    with conn.transaction():
        conn.execute("select 1")
        with psycopg.connect(database_url, autocommit=True) as other:
            repos.make_due(other, repo.id)
        repos.record_poll(conn, repo.id, PollResult.CHANGED, listed_at=listed_at)
    assert len(repos.take_due(conn, 1)) == 1


def test_a_changed_setting_makes_the_repository_due(conn: Connection) -> None:
    set_clock(conn, NOON)
    repo = track(conn)
    repos.record_poll(conn, repo.id, PollResult.LIMITED, wait_seconds=100)
    repos.update(conn, repo.id, repos.settings_of(repo))
    assert agenda.look(conn).poll == 0
