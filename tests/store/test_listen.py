"""The listener: what wakes it, what it finds out about itself, and how it heals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest

from tests.support import pgbouncer
from tests.support.proxy import Proxy
from tests.support.store import (
    CC,
    OC,
    claimed,
    ear,
    enqueue,
    issue,
    job_of,
    no_writes,
    open_lanes,
    queued,
    release,
    running,
    scalar,
    track,
)
from tests.support.wait import wait_until
from tireless.entities import JobState, NewWrite, Phase, WriteOp
from tireless.store import agenda, claims, intake, jobs, lanes, listen, migrate, repos, writes
from tireless.store.connection import Link, Session, connect, is_outage, open_pool
from tireless.store.listen import CANCEL_CHANNEL, POLL_CHANNEL, Listener, lane_channel
from tireless.store.queries import Connection
from tireless.store.statements import NoAnswer

needs_pgbouncer = pytest.mark.skipif(
    pgbouncer.PROGRAM is None, reason="no pgbouncer on PATH: the pooler's side is not tested here"
)


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    listen._deaf.clear()


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    with Proxy(database_url) as between:
        yield between


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# What is told, and to whom


@pytest.fixture
def heard(conn: Connection, database_url: str) -> Iterator[Callable[[], list[str]]]:
    channels = (lane_channel(CC), lane_channel(OC), CANCEL_CHANNEL, POLL_CHANNEL)
    with ear(conn, database_url, *channels) as look:
        yield look


CC_ROWS = "tireless_lane_claude_code"


def test_what_makes_work_is_told_and_a_heartbeat_is_not(
    conn: Connection, heard: Callable[[], list[str]]
) -> None:
    open_lanes(conn)
    heard()
    enqueue(conn, [issue(1), issue(2)])
    assert heard() == [CC_ROWS], "once a lane, with no payload"
    enqueue(conn, [issue(1), issue(2)])
    assert heard() == []
    held = claimed(conn)
    claims.transition(conn, held, JobState.RUNNING)
    claims.advance(conn, held, Phase.VERIFY)
    for _ in range(3):
        claims.renew_claim(conn, held, lease_seconds=600)
    assert heard() == [], "neither a claim nor a heartbeat wakes anybody"
    claims.finish(conn, held, JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)])
    assert heard() == [CC_ROWS], "a slot is free"
    claims.transition(conn, claimed(conn), JobState.PENDING)
    assert heard() == [CC_ROWS]
    claimed(conn, "dead")
    release(conn, "dead")
    assert heard() == [CC_ROWS]


def test_cancels_caps_and_holds_are_told(conn: Connection, heard: Callable[[], list[str]]) -> None:
    queued(conn, 1, 2)
    running(conn)
    heard()
    jobs.cancel(conn, [job_of(conn, 1).id, job_of(conn, 2).id], "no", writes_for=no_writes, actor="ctl")
    assert heard() == [CANCEL_CHANNEL]
    lanes.set_cap(conn, OC, 3)
    assert heard() == ["tireless_lane_opencode"]
    lanes.pause(conn, CC, "why")
    lanes.hold(conn, CC, "why", seconds=60)
    assert heard() == [], "what stops a lane need wake nobody"
    lanes.resume(conn, CC)
    assert set(heard()) == {CC_ROWS}


def test_a_reroute_tells_the_new_lane_and_a_due_poll_the_poller(
    conn: Connection, heard: Callable[[], list[str]]
) -> None:
    repo = track(conn)
    (job,) = queued(conn, 1, repo=repo)
    heard()
    from tests.support.store import LABELS, ROUTING

    intake.refresh_lanes(conn, [job], [issue(1, "tireless/agent:oc")], labels=LABELS, routing=ROUTING)
    assert heard() == ["tireless_lane_opencode"]
    repos.make_due(conn, repo.id)
    assert heard() == [POLL_CHANNEL]


# The listener


def listener(url: str, **options: object) -> Listener:
    return Listener(url, (lane_channel(CC),), **options)  # type: ignore[arg-type]


def test_it_checks_itself_wakes_at_once_and_says_nothing(
    conn: Connection, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_lanes(conn)
    ears = listener(database_url)
    assert ears.wait(0) is True, "new: look at once"
    assert ears.hears
    assert ears.wait(0) is False
    began = time.monotonic()
    waker = threading.Timer(0.2, lambda: woken(database_url))
    waker.start()
    assert ears.wait(30) is True
    assert time.monotonic() - began < 5
    waker.join()
    ears.close()
    assert warnings(caplog) == []


def woken(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as other:
        enqueue(other, [issue(1)])


def test_a_notification_during_the_owners_look_is_not_lost(conn: Connection, database_url: str) -> None:
    open_lanes(conn)
    ears = listener(database_url)
    ears.wait(0)
    with ears.connection() as mine:
        with psycopg.connect(database_url, autocommit=True) as other:
            enqueue(other, [issue(1)])
        mine.execute("select 1")
        mine.execute("select 1")
    assert ears.wait(0) is True
    assert ears.wait(0) is False, "and is told once"
    ears.close()


def test_a_wait_ends_when_its_owner_says_so(database_url: str) -> None:
    """The owner's own way to wait may end early, for a signal; then it wants to know."""

    def interrupted(seconds: float, fds: Sequence[int]) -> Sequence[int]:
        return ()

    ears = listener(database_url, wait=interrupted)
    ears.wait(0)
    began = time.monotonic()
    assert ears.wait(60) is False
    assert time.monotonic() - began < 2
    ears.close()


def test_a_cut_connection_comes_back_with_a_look_and_one_warning(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    ears = listener(proxy.url)
    assert ears.wait(0) is True
    proxy.cut()
    assert ears.wait(5) is False, "lost"
    answer = wait_until(lambda: ears.wait(0.1), what="a look after the reconnect")
    assert answer is True
    assert ears.wait(0) is False
    ears.close()
    said = warnings(caplog)
    assert len([m for m in said if "listening connection lost" in m]) == 1
    assert len([m for m in said if "listening again" in m]) == 1


def test_while_the_server_is_away_it_knocks_with_growing_jittered_pauses(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    ears = listener(proxy.url)
    ears.wait(0)
    proxy.refusing = True
    proxy.knocks.clear()
    proxy.cut()
    wait_until(lambda: ears.wait(0.05) or len(proxy.knocks) >= 5, timeout=30, what="five knocks")
    pauses = [b - a for a, b in zip(proxy.knocks, proxy.knocks[1:], strict=False)]
    assert all(pause > 0.15 for pause in pauses)
    assert pauses[3] > pauses[0]
    assert len({round(pause, 3) for pause in pauses}) == len(pauses), "no two hosts in step"
    assert len([m for m in warnings(caplog) if "lost" in m]) == 1, "said once, not at each try"
    proxy.refusing = False
    assert wait_until(lambda: ears.wait(0.1), timeout=20, what="back") is True
    ears.close()


def test_a_half_open_connection_is_noticed_within_fifteen_seconds(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The socket stays open and nothing comes through: only asking finds out."""
    ears = listener(proxy.url)
    ears.wait(0)
    proxy.silent = True
    began = time.monotonic()
    assert ears.wait(60) is False
    assert time.monotonic() - began < 15
    proxy.silent = False
    assert wait_until(lambda: ears.wait(0.1), what="back, with a look") is True
    assert ears.hears
    ears.close()
    assert len([m for m in warnings(caplog) if "listening connection lost" in m]) == 1


def test_a_live_connection_is_asked_only_when_nothing_was_heard(
    conn: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listen, "_SILENCE_SECONDS", 0.3)
    ears = listener(database_url)
    ears.wait(0)
    began = statements_of(conn, "select pg_backend_pid()")
    assert ears.wait(1.0) is False
    assert began != statements_of(conn, "select pg_backend_pid()"), "asked meanwhile"
    monkeypatch.setattr(listen, "_SILENCE_SECONDS", 60.0)
    began = statements_of(conn, "select pg_backend_pid()")
    assert ears.wait(0.5) is False
    assert began == statements_of(conn, "select pg_backend_pid()")
    assert ears.hears
    ears.close()


def test_a_pulse_is_heard_and_wakes_nobody(
    conn: Connection, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a poller about, a listener need not ask whether it still hears."""
    monkeypatch.setattr(listen, "_SILENCE_SECONDS", 0.5)
    open_lanes(conn)
    ears = listener(database_url)
    ears.wait(0)
    assert ears.pulse_seconds < 0, "none so far"
    began = statements_of(conn, "select pg_backend_pid()")
    over = threading.Event()

    def beat() -> None:
        with psycopg.connect(database_url, autocommit=True) as other:
            while not over.wait(0.1):
                agenda.look(other, pulse=True)

    pulse = threading.Thread(target=beat)
    pulse.start()
    try:
        assert ears.wait(2.0) is False
        assert began == statements_of(conn, "select pg_backend_pid()"), "nothing was asked"
        assert listen.PULSE_SECONDS - 1 < ears.pulse_seconds <= listen.PULSE_SECONDS
        waker = threading.Timer(0.2, lambda: woken(database_url))
        waker.start()
        assert ears.wait(30) is True
        waker.join()
    finally:
        over.set()
        pulse.join()
        ears.close()


def test_what_comes_before_the_check_is_no_failed_check(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A pulse, or news of the lane, after LISTEN and before the notification to itself, which is slow to come."""
    late: list[threading.Timer] = []

    class Slow:
        def __enter__(self) -> Slow:
            return self

        def __exit__(self, *_: object) -> None: ...

        def execute(self, query: str, params: tuple[str]) -> None:
            say("notify tireless_pulse")
            late.append(threading.Timer(0.5, say, (query, params)))
            late[0].start()

    def say(query: str, params: tuple[str, ...] = ()) -> None:
        with psycopg.connect(database_url, autocommit=True) as other:
            other.execute(query.encode(), params)

    opened = iter([connect(database_url), Slow()])
    monkeypatch.setattr(listen, "connect", lambda *_, **__: next(opened))
    ears = listener(database_url)
    assert ears.wait(0) is True
    assert ears.hears
    assert warnings(caplog) == []
    late[0].join()
    ears.close()


def test_a_listener_that_heard_nothing_checks_again(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listen, "_CHECK_SECONDS", 0.0)  # its notification comes too late
    ears = listener(database_url)
    ears.wait(0)
    assert not ears.hears
    monkeypatch.undo()
    assert ears.wait(0) is False
    assert not ears.hears, "not at once"
    monkeypatch.setattr(listen, "_CHECK_AGAIN_SECONDS", 0.0)
    assert ears.wait(0) is True
    assert ears.hears
    ears.close()


def test_who_sends_the_pulse_hears_it_too(conn: Connection, database_url: str) -> None:
    ears = listener(database_url)
    ears.wait(0)
    with ears.connection() as mine:
        agenda.look(mine, pulse=True)
    assert ears.wait(0) is False
    assert ears.pulse_seconds > 0
    ears.close()


def statements_of(conn: Connection, query: str) -> object:
    """When a session last began this statement, as the server saw it."""
    return scalar(
        conn,
        "select max(query_start) from pg_stat_activity where query like %s and pid <> pg_backend_pid()",
        f"{query}%",
    )


# Connections that do not wait for ever


def test_a_query_into_silence_ends_and_is_an_outage(proxy: Proxy) -> None:
    link = Link(proxy.url, patience=0.5)
    with link.connection() as conn:
        assert scalar(conn, "select 1") == 1
    proxy.silent = True
    began = time.monotonic()
    with pytest.raises(NoAnswer) as caught, link.connection() as conn:
        conn.execute("select 1")
    assert time.monotonic() - began < 5
    assert is_outage(caught.value)
    proxy.silent = False
    with link.connection() as conn:
        assert scalar(conn, "select 1") == 1
    link.close()


def test_patience_is_for_silence_not_for_work(database_url: str) -> None:
    assert Session.patience > 30, "longer than the server's own statement_timeout"
    with connect(database_url) as conn:
        assert scalar(conn, "select current_setting('statement_timeout')") == "30s"
        with pytest.raises(psycopg.errors.QueryCanceled):
            conn.execute("set statement_timeout = '100ms'; select pg_sleep(5)")
        assert scalar(conn, "select 1") == 1


# Behind a pooler in transaction mode


@needs_pgbouncer
@pytest.mark.parametrize("ignore_options", [False, True])
def test_behind_a_pooler_it_says_once_that_it_is_deaf_and_only_sleeps(
    conn: Connection, database_url: str, ignore_options: bool, caplog: pytest.LogCaptureFixture
) -> None:
    open_lanes(conn)
    with pgbouncer.transaction_mode(database_url, ignore_options=ignore_options) as url:
        ears = listener(url)
        assert ears.wait(0) is True
        assert not ears.hears
        woken(database_url)
        assert ears.wait(0.3) is False
        with ears.connection() as mine:
            assert claimed(mine).job.issue.number == 1, "the owner's look finds it all the same"
        ears.close()
        again = listener(url)
        again.wait(0)
        again.close()
    said = [m for m in warnings(caplog) if "polling instead" in m]
    assert len(said) == 1
    assert "pooler in transaction mode" in said[0]


@needs_pgbouncer
def test_the_store_works_through_a_pooler_in_transaction_mode(conn: Connection, database_url: str) -> None:
    """More clients than backends, each statement more often than it takes to be prepared."""
    open_lanes(conn, cap=50)
    enqueue(conn, [issue(n) for n in range(1, 41)])
    errors: list[BaseException] = []

    def work(url: str, name: str) -> None:
        try:
            with connect(url) as mine:
                for _ in range(10):
                    held = claimed(mine, name)
                    claims.transition(mine, held, JobState.RUNNING)
                    assert claims.renew_claim(mine, held, lease_seconds=60) is not None
                    claims.finish(mine, held, JobState.DELIVERED, [NewWrite(WriteOp.COMMENT)])
                    write = writes.take(mine, name, job_id=held.job.id)
                    assert write is not None
                    writes.done(mine, write, name)
        except BaseException as e:
            errors.append(e)

    with pgbouncer.transaction_mode(database_url, pool_size=2) as url:
        threads = [threading.Thread(target=work, args=(url, f"w{n}")) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with open_pool(url, 2) as pool, pool.connection() as pooled:
            assert scalar(pooled, "select count(*) from job where state = 'delivered'") == 40
            assert migrate.migrate(pooled) == []
    assert errors == []


def test_directly_statements_are_prepared(database_url: str) -> None:
    with connect(database_url) as conn:
        assert conn.statement_threshold is not None
