"""Fixtures for the whole suite: a Postgres server a session, a fresh migrated database a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import postgres
from tireless.store.connection import connect
from tireless.store.queries import Connection


@pytest.fixture(scope="session")
def pg_server() -> Iterator[postgres.Server]:
    with postgres.server() as server:
        yield server


@pytest.fixture
def database_url(pg_server: postgres.Server) -> Iterator[str]:
    with pg_server.database() as url:
        yield url


@pytest.fixture
def conn(database_url: str) -> Iterator[Connection]:
    with connect(database_url, name="test") as connection:
        yield connection
