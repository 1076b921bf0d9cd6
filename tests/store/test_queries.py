"""Queries as files: what of them reaches the server, and a schema that changes under a running program."""

from __future__ import annotations

from importlib.resources import files

import psycopg
import pytest

from tests.support.store import claimed, enqueue, issue, open_lanes
from tireless.store import jobs, queries
from tireless.store.connection import Link, connect, is_outage
from tireless.store.queries import Connection, text

NAMES = sorted(
    f.name.removesuffix(".sql") for f in files("tireless.store.sql").iterdir() if f.name.endswith(".sql")
)


@pytest.mark.parametrize("name", NAMES)
def test_a_query_reaches_the_server_without_its_comments(name: str) -> None:
    sent = text(name)
    assert b"--" not in sent
    assert b"\n " not in sent
    whole = (files("tireless.store.sql") / f"{name}.sql").read_bytes()
    literals = whole.split(b"'")[1::2] if whole.count(b"'") % 2 == 0 else []
    assert not any(b"--" in word and b"\n" not in word for word in literals), "a literal is no comment"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "claim_past"])
def test_a_query_is_short_enough_to_be_remembered(name: str) -> None:
    """Longer ones psycopg takes apart anew at each execution (its _MAX_CACHED_STATEMENT_LENGTH)."""
    assert len(text(name)) <= 4096


def test_rows_are_dicts_by_column_in_order(conn: Connection) -> None:
    enqueue(conn, [issue(1)])
    (row,) = queries.rows(
        conn,
        "find_jobs_of_issue",
        dict.fromkeys(("forge", "host", "states", "lane", "id_prefix"))
        | {"owner": "acme", "repo": "site", "number": 1, "limit": 1},
    )
    columns = conn.execute("select * from job").description
    assert columns is not None
    assert list(row) == [c.name for c in columns]
    assert queries.row(conn, "get_job", {"id": row["id"]}) == row
    assert queries.rows(conn, "get_job", {"id": "00000000-0000-0000-0000-000000000000"}) == []


def test_a_column_added_meanwhile_costs_a_repetition_and_nothing_else(
    conn: Connection, database_url: str
) -> None:
    """A harmless migration while runners work: the plans of their connections are of before."""
    open_lanes(conn, cap=50)
    enqueue(conn, [issue(n) for n in range(1, 21)])
    link = Link(database_url)
    with link.connection() as mine:
        for _ in range(8):
            claimed(mine)
            jobs.find(mine, limit=1)
    conn.execute("alter table job add column novel text")
    with link.connection() as mine:
        found = claimed(mine)
    assert found.job.issue.number == 9, "the refused statement did nothing"
    assert jobs.get(conn, found.job.id) == found.job
    with link.connection() as mine:
        for _ in range(4):
            claimed(mine)
    conn.execute("alter table job add column another text")
    with (
        pytest.raises(psycopg.errors.FeatureNotSupported) as caught,
        link.connection() as mine,
        mine.transaction(),
    ):
        claimed(mine)
    assert is_outage(caught.value), (
        "what came before it in the transaction is lost: to be tried again as a whole"
    )
    link.close()


def test_another_unsupported_feature_is_no_outage(database_url: str) -> None:
    with connect(database_url) as conn, pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        conn.execute("select count(*) from job for update")
    assert not is_outage(caught.value)
