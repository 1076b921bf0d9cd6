"""Statements that a connection keeps: each sentence of the protocol in tireless/store/statements.py."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.support.proxy import Proxy
from tests.support.store import scalar
from tests.support.wait import wait_until
from tireless.store.connection import Session, connect, is_outage
from tireless.store.queries import Connection
from tireless.store.statements import _PLANS, NoAnswer, placed


@pytest.fixture
def mine(database_url: str) -> Iterator[Session]:
    with connect(database_url) as session:
        yield session


def prepared(conn: Connection) -> list[str]:
    """The statements that the server has prepared for this connection, in order."""
    found = conn.execute("select statement from pg_prepared_statements order by prepare_time").fetchall()
    return [statement for (statement,) in found]


def test_placeholders_get_their_numbers() -> None:
    assert placed(b"select %(b)s, %(a)s, %(b)s, 5 %% 2") == (b"select $1, $2, $1, 5 % 2", ("b", "a"))


def test_values_go_there_and_back(mine: Session) -> None:
    values: dict[str, Any] = {
        "a": 'it\'s "quoted" \\ 100 % ä',
        "b": 2**40,
        "c": True,
        "d": None,
        "e": UUID(int=7),
        "f": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        "g": ["x", "y"],
        "h": 0.5,
    }
    query = b"""select %(a)s::text as a, %(b)s::bigint as b, %(c)s::boolean as c, %(d)s::text as d, %(e)s::uuid as e,
                       %(f)s::timestamptz as f, %(g)s::text[] as g, %(h)s::float8 as h"""
    for _ in range(5):  # as text and prepared
        (row,) = mine.ask(query, values).rows
        assert row == values
    assert mine.ask(b"select 1 as n where false", {}).rows == []


def test_it_counts_what_it_touched(mine: Session) -> None:
    mine.execute("create temp table t (n int)")
    for _ in range(4):
        assert mine.ask(b"insert into t select generate_series(1, %(most)s)", {"most": 3}).count == 3
    assert mine.ask(b"update t set n = 0 returning n", {}).count == 12


def test_a_statement_is_prepared_when_it_comes_again_and_again(mine: Session) -> None:
    for times in range(1, 6):
        mine.ask(b"select %(n)s::int as n", {"n": 1})
        assert prepared(mine) == (["select $1::int as n"] if times > 2 else [])


def test_several_commands_at_once_are_never_prepared(mine: Session) -> None:
    for n in range(5):
        mine.ask(b"set application_name = 'first'; set application_name = 'second'", {})
        assert scalar(mine, "show application_name") == "second", n
        with pytest.raises(psycopg.errors.DivisionByZero):
            mine.ask(b"select 1 as n; select 1 / 0 as n", {})
    assert prepared(mine) == []


def test_without_a_threshold_nothing_is_prepared(mine: Session) -> None:
    mine.statement_threshold = None
    for _ in range(8):
        mine.ask(b"select %(n)s::int as n", {"n": 1})
    assert prepared(mine) == []


def test_parameters_of_other_types_are_another_plan_and_there_is_an_end_to_them(mine: Session) -> None:
    for width in range(1, _PLANS + 5):
        values: dict[str, Any] = {f"p{n}": 1 if n < width else "1" for n in range(_PLANS + 4)}
        query = b"select " + b", ".join(b"%%(p%d)s::text::int as c%d" % (n, n) for n in range(_PLANS + 4))
        for _ in range(4):
            assert set(mine.ask(query, values).rows[0].values()) == {1}
    assert len(prepared(mine)) == _PLANS


def test_what_is_prepared_outlives_a_rollback(mine: Session) -> None:
    query = b"select %(n)s::int as n"
    for _ in range(4):
        mine.ask(query, {"n": 1})
        mine.ask(b"select 1 / %(n)s::int as n", {"n": 1})
    with pytest.raises(psycopg.errors.DivisionByZero), mine.transaction():
        mine.ask(b"select 1 / %(n)s::int as n", {"n": 0})
    assert mine.ask(query, {"n": 5}).rows == [{"n": 5}]
    assert len(prepared(mine)) == 2


def test_an_error_is_raised_as_it_is_and_the_next_statement_works(mine: Session) -> None:
    for _ in range(5):
        with pytest.raises(psycopg.errors.DivisionByZero) as caught:
            mine.ask(b"select 1 / %(n)s::int as n", {"n": 0})
        assert caught.value.sqlstate == "22012"
        assert mine.ask(b"select 1 / %(n)s::int as n", {"n": 1}).rows == [{"n": 1}]
    with pytest.raises(psycopg.DataError):
        mine.ask(b"select %(t)s::text as t", {"t": "NUL \0"})
    assert mine.ask(b"select %(t)s::text as t", {"t": "none"}).rows == [{"t": "none"}]


def test_a_result_that_changed_is_asked_for_again(conn: Connection, mine: Session) -> None:
    """By a migration. In a transaction it is an outage, once for all statements of the connection."""
    conn.execute("create table t (a int)")
    conn.execute("insert into t values (1)")
    for _ in range(4):
        mine.ask(b"select * from t", {})
        mine.ask(b"select * from t where a = 1", {})
    conn.execute("alter table t add column b int default 2")
    for _ in range(4):
        assert mine.ask(b"select * from t", {}).rows == [{"a": 1, "b": 2}]
        mine.ask(b"select * from t where a = 1", {})
    conn.execute("alter table t add column c int default 3")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught, mine.transaction():
        mine.ask(b"select * from t", {})
    assert is_outage(caught.value)
    with mine.transaction():
        assert mine.ask(b"select * from t where a = 1", {}).rows == [{"a": 1, "b": 2, "c": 3}]
        assert mine.ask(b"select * from t", {}).rows == [{"a": 1, "b": 2, "c": 3}]


def test_a_notification_that_comes_with_an_answer_is_kept(conn: Connection, mine: Session) -> None:
    mine.execute("listen something")
    for n in range(3):
        conn.execute(f"notify something, '{n}'".encode())
        mine.ask(b"select 1 as n", {})
    assert [heard.payload for heard in mine.notifies(timeout=0, stop_after=3)] == ["0", "1", "2"]


def test_more_than_a_socket_holds_goes_through(database_url: str) -> None:
    text = "0123456789abcdef" * 500_000
    with Proxy(database_url) as proxy, connect(proxy.url) as mine:
        assert mine.ask(b"select %(t)s::text as t", {"t": text}).rows == [{"t": text}]


def test_a_silent_server_is_given_up(database_url: str) -> None:
    with Proxy(database_url) as proxy, connect(proxy.url) as mine:
        mine.patience = 0.3
        proxy.silent = True
        with pytest.raises(NoAnswer) as caught:
            mine.ask(b"select 1 as n", {})
        assert is_outage(caught.value)
        assert mine.closed
        with pytest.raises(psycopg.OperationalError) as again:
            mine.ask(b"select 1 as n", {})
        assert is_outage(again.value)


def test_a_connection_that_is_cut_is_an_outage(conn: Connection, mine: Session) -> None:
    pid = mine.info.backend_pid
    conn.execute("select pg_terminate_backend(%s)", (pid,))
    wait_until(
        lambda: not scalar(conn, "select count(*) from pg_stat_activity where pid = %s", pid), what="it is gone"
    )
    with pytest.raises(psycopg.OperationalError) as caught:
        mine.ask(b"select 1 as n", {})
    assert is_outage(caught.value)


class Interrupt(BaseException):
    pass


def test_an_interrupted_statement_is_stopped_and_its_connection_closed(conn: Connection, mine: Session) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Interrupt):
            mine.ask(b"select pg_sleep(25)", {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert mine.closed
    asleep = "select count(*) from pg_stat_activity where query = 'select pg_sleep(25)' and state = 'active'"
    wait_until(lambda: scalar(conn, asleep) == 0, timeout=5, what="the server has stopped")
