"""Queries by name: store/sql/NAME.sql, read once a process.

A line `-- include OTHER` in a file stands for the text of OTHER.sql. Comments and indentation stay here: the server
has no use for them, and psycopg remembers how it took a query apart only up to 4,096 bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]
Cursor = psycopg.Cursor[Any]
Row = dict[str, Any]

_INCLUDE = re.compile(rb"^-- include (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(rb"(?:^|[ ]+)--.*", re.MULTILINE)
_INDENT = re.compile(rb"\n\s*")


@cache
def text(name: str) -> bytes:
    whole = (files("tireless.store.sql") / f"{name}.sql").read_bytes()
    whole = _INCLUDE.sub(lambda line: text(line[1].decode()) + b"\n", whole)
    return _INDENT.sub(b"\n", _COMMENT.sub(b"", whole)).strip()


def _as_dict(cursor: Cursor) -> Callable[[Sequence[Any]], Row]:
    """As psycopg's dict_row, which makes an object of each column of each result: half the time, for a job's."""
    result = cursor.pgresult
    if result is None or result.nfields == 0:
        return dict
    names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
    return lambda values: dict(zip(names, values, strict=True))


def rows(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> list[Row]:
    with conn.cursor(row_factory=_as_dict) as cur:
        cur.execute(text(name), params if params is not None else {})
        return cur.fetchall() if cur.pgresult is not None and cur.pgresult.nfields else []


def row(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> Row | None:
    found = rows(conn, name, params)
    return found[0] if found else None


def run(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> int:
    """Execute for its effect; the number of rows that it touched."""
    with conn.cursor() as cur:
        cur.execute(text(name), params if params is not None else {})
        return cur.rowcount
