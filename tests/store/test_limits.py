"""Limits of forges in rows, polls put off by them, and repositories taken host by host."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from tests.support.store import NOON, clock_at, scalar, set_clock, track
from tests.support.wait import wait_until
from tireless.entities import Forge, PollResult, RepoRef
from tireless.gate import FRESH_SECONDS, RowsGate
from tireless.store import limits, repos
from tireless.store.queries import Connection

KEY = ("forge.test", "abc")


def test_the_longer_limit_stands_and_ends_by_itself(conn: Connection) -> None:
    set_clock(conn, NOON)
    limits.note(conn, KEY, 3600)
    limits.note(conn, KEY, 60)
    assert limits.current(conn) == {KEY: 3600.0}
    clock_at(conn, NOON, seconds=3601)
    assert limits.current(conn) == {}
    assert limits.prune(conn) == 0
    clock_at(conn, NOON, days=2)
    assert limits.prune(conn) == 1


def test_what_is_due_on_a_limited_host_waits_behind_the_limits_end(conn: Connection) -> None:
    set_clock(conn, NOON)
    here = [track(conn, RepoRef(Forge.GITEA, "Forge.Test", "acme", f"r{n}")) for n in range(20)]
    elsewhere = track(conn, RepoRef(Forge.GITEA, "other.test", "acme", "site"))
    assert limits.postpone_polls(conn, [("gitea", "forge.test", 600.0)]) == 20
    assert [repo.id for repo, _ in repos.take_due(conn, 100)] == [elsewhere.id]
    found = [repos.find(conn, repo_id=repo.id)[0] for repo in here]
    assert {repo.poll_result for repo in found} == {PollResult.LIMITED}
    first, last = NOON + timedelta(seconds=600), NOON + timedelta(seconds=660)
    assert all(first <= repo.next_poll_at < last for repo in found)
    assert len({repo.next_poll_at for repo in found}) > 15  # no stampede when it ends
    assert limits.postpone_polls(conn, [("gitea", "forge.test", 600.0)]) == 0
    assert limits.postpone_polls(conn, []) == 0


def test_of_each_host_only_so_many_are_taken_as_it_has_places(conn: Connection) -> None:
    for host in ("a.test", "b.test", "c.test"):
        for n in range(6):
            track(conn, RepoRef(Forge.GITEA, host, "acme", f"r{n}"))
    taken = repos.take_due(
        conn, 100, places={("gitea", "a.test"): 4, ("gitea", "b.test"): 0}, places_elsewhere=2
    )
    hosts = [repo.ref.host for repo, _ in taken]
    assert (hosts.count("a.test"), hosts.count("b.test"), hosts.count("c.test")) == (4, 0, 2)
    assert len(repos.take_due(conn, 3)) == 3
    assert len(repos.take_due(conn, 100)) == 9
    assert repos.take_due(conn, 100) == []


def test_the_longest_due_go_first_over_all_hosts(conn: Connection) -> None:
    found = [track(conn, RepoRef(Forge.GITEA, f"{n % 3}.test", "acme", f"r{n}")) for n in range(9)]
    for n, repo in enumerate(found):
        conn.execute(
            "update tracked_repo set next_poll_at = now() - make_interval(mins => %s) where id = %s",
            (n + 1, repo.id),
        )
    assert {repo.id for repo, _ in repos.take_due(conn, 4)} == {repo.id for repo in found[-4:]}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def gate_on(url: str, clock: Clock) -> RowsGate:
    @contextmanager
    def connect() -> Iterator[Connection]:
        with psycopg.connect(url, autocommit=True) as conn:
            yield conn

    return RowsGate(connect, clock=clock)


def test_a_limit_of_one_process_closes_the_gate_of_another(conn: Connection, database_url: str) -> None:
    one, two = Clock(), Clock()
    first, second = gate_on(database_url, one), gate_on(database_url, two)
    assert second.check(*KEY) == 0
    first.limit(*KEY, 3600)
    assert first.check(*KEY) == 3600
    wait_until(lambda: scalar(conn, "select count(*) from forge_limit"), 10, "the limit is in the rows")
    assert second.check(*KEY) == 0  # it has just looked
    two.now += FRESH_SECONDS

    def closed() -> bool:
        two.now += FRESH_SECONDS
        return second.check(*KEY) > 3000

    wait_until(closed, 10, "the other gate is closed")
    assert second.check("other.test", KEY[1]) == 0
    assert second.check(KEY[0], "another token") == 0


def test_a_database_that_hangs_or_is_down_delays_no_call() -> None:
    frozen = threading.Event()

    @contextmanager
    def hangs() -> Iterator[Connection]:
        frozen.wait(30)
        raise psycopg.OperationalError("gone")
        yield  # never

    gate = RowsGate(hangs)
    gate.limit(*KEY, 3600)
    done = threading.Event()

    def ask() -> None:
        for _ in range(100):
            assert gate.check(*KEY) > 3000
            assert gate.check("other.test", "abc") == 0
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    try:
        assert done.wait(2.0)
    finally:
        frozen.set()


def test_what_could_not_be_written_is_written_when_the_database_is_back(
    conn: Connection, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, away = Clock(), [True]

    @contextmanager
    def connect() -> Iterator[Connection]:
        if away[0]:
            raise psycopg.OperationalError("connection refused")
        with psycopg.connect(database_url, autocommit=True) as conn:
            yield conn

    gate = RowsGate(connect, clock=clock)
    gate.limit(*KEY, 3600)
    for _ in range(3):
        clock.now += 10
        assert gate.check(*KEY) > 3500
    assert [r.levelname for r in caplog.records] == ["WARNING"]  # said once
    away[0] = False
    clock.now += 10

    def written() -> float:
        gate.check(*KEY)
        return float(
            scalar(conn, "select coalesce(max(extract(epoch from limited_until - now())), 0) from forge_limit")
        )

    assert 3500 < wait_until(written, 10, "the limit is in the rows") <= 3560
