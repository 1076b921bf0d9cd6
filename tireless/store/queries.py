"""Queries by name: store/sql/NAME.sql, read once a process.

A line `-- include OTHER` in a file stands for the text of OTHER.sql.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from psycopg.rows import dict_row

Connection = psycopg.Connection[Any]
Row = dict[str, Any]

_INCLUDE = re.compile(rb"^-- include (\w+)\n", re.MULTILINE)


@cache
def text(name: str) -> bytes:
    whole = (files("tireless.store.sql") / f"{name}.sql").read_bytes()
    return _INCLUDE.sub(lambda line: text(line[1].decode()), whole)


def rows(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> list[Row]:
    with conn.cursor(row_factory=dict_row) as cur:
        cur.execute(text(name), params if params is not None else {})
        return cur.fetchall() if cur.description is not None else []


def row(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> Row | None:
    found = rows(conn, name, params)
    return found[0] if found else None


def run(conn: Connection, name: str, params: Mapping[str, Any] | None = None) -> int:
    """Execute for its effect; the number of rows that it touched."""
    with conn.cursor() as cur:
        cur.execute(text(name), params if params is not None else {})
        return cur.rowcount
