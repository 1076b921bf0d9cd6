"""Queries by name: store/sql/NAME.sql, read once a process.

A line `-- include OTHER` in a file stands for the text of OTHER.sql. Comments and indentation stay here: the server
has no use for them, and psycopg remembers how it took a query apart only up to 4,096 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tireless.store.statements import Answer, Remembering, Row

Connection = psycopg.Connection[Any]

_INCLUDE = re.compile(rb"^-- include (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(rb"(?:^|[ ]+)--.*", re.MULTILINE)
_INDENT = re.compile(rb"\n\s*")


@cache
def text(name: str) -> bytes:
    whole = (files("tireless.store.sql") / f"{name}.sql").read_bytes()
    whole = _INCLUDE.sub(lambda line: text(line[1].decode()) + b"\n", whole)
    return _INDENT.sub(b"\n", _COMMENT.sub(b"", whole)).strip()


def _ask(conn: Connection, name: str, params: Mapping[str, Any] | None) -> Answer:
    if isinstance(conn, Remembering):
        return conn.ask(text(name), params or {})
    with conn.cursor(row_factory=dict_row) as cur:  # anybody's: a test's, a visitor's
        cur.execute(text(name), params or {})
        return Answer(cur.fetchall() if cur.description else [], cur.rowcount)


def rows(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> list[Row]:
    return _ask(conn, name, params).rows


def array(words: Iterable[str]) -> str:
    """Texts as the server writes an array of them; psycopg goes through a list several times, each time anew."""
    escaped = [word.replace("\\", "\\\\").replace('"', '\\"') for word in words]
    return '{"' + '","'.join(escaped) + '"}' if escaped else "{}"


def row(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> Row | None:
    found = rows(conn, name, params)
    return found[0] if found else None


def run(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> int:
    """Execute for its effect; the number of rows that it touched."""
    return _ask(conn, name, params).count
