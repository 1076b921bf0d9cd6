"""Looks at the database on behalf of a request that will not wait long.

A look runs in a thread of its own, at most AT_ONCE of them, and whoever asked for it waits until a deadline:
a database that is frozen, a pool that is empty, a network that swallows packets are no answer within the time
given, and nothing worse. The thread of a look that came too late stays behind until its connection gives
up, and keeps its place meanwhile; with all places taken so, the next look is refused without waiting.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import psycopg

from tireless.entities import TirelessError
from tireless.store import status
from tireless.store.connection import is_outage
from tireless.store.queries import Connection

T = TypeVar("T")

AT_ONCE = 2  # and so the most connections that the web ever takes
SECONDS = 3.0  # for a look as a whole, the wait for a place and a connection included


class Unavailable(TirelessError):
    """There is no answer from the database; the text is the reason, and tells no secret."""


class Looks:
    def __init__(
        self, connect: Callable[[], AbstractContextManager[Connection]], *, seconds: float = SECONDS
    ) -> None:
        self._connect = connect
        self._seconds = seconds
        self._places = threading.Semaphore(AT_ONCE)
        self._late = 0
        self._lock = threading.Lock()

    def look(self, read: Callable[[Connection], T]) -> T:
        """What `read` finds in one read-only snapshot. Unavailable within the time given; any other error as it is."""
        deadline = time.monotonic() + self._seconds
        if self._late >= AT_ONCE or not self._places.acquire(timeout=self._seconds):
            raise Unavailable("the database does not answer: earlier looks still wait for it")
        one = _Look(read)
        try:
            threading.Thread(target=self._run, args=(one,), name="web-look", daemon=True).start()
        except RuntimeError:  # no thread to be had
            self._places.release()
            raise
        if not one.done.wait(max(deadline - time.monotonic(), 0.0)):
            with self._lock:
                if not one.done.is_set():
                    one.late = True
                    self._late += 1
                    raise Unavailable(f"the database did not answer within {self._seconds:g} s")
        if one.error is not None:
            reason = why_unavailable(one.error)
            if reason is None:
                raise one.error
            raise Unavailable(reason) from one.error
        return one.found[0]

    def _run(self, one: _Look[Any]) -> None:
        try:
            with self._connect() as conn, status.looking(conn):
                one.found.append(one.read(conn))
        except BaseException as e:
            one.error = e
        finally:
            with self._lock:
                one.done.set()
                self._late -= one.late
            self._places.release()


class _Look(Generic[T]):
    def __init__(self, read: Callable[[Connection], T]) -> None:
        self.read = read
        self.done = threading.Event()
        self.found: list[T] = []
        self.error: BaseException | None = None
        self.late = False  # nobody waits for it any more


def why_unavailable(error: BaseException) -> str | None:
    """What a failed look says about the database, in words that hold nothing of its connection string (libpq
    quotes one that it cannot read); None for an error that is not the database's."""
    if isinstance(error, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
        return "the database is too slow: a statement was cut off"
    if is_outage(error):
        return f"the database cannot be reached{_sqlstate(error)}"
    if isinstance(error, _OTHER_SCHEMA):
        return f"the schema is not that of this version{_sqlstate(error)}; run tireless-ctl migrate"
    if isinstance(error, psycopg.Error):
        return f"the database refused{_sqlstate(error)}"
    return None


_OTHER_SCHEMA = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.UndefinedFunction,
)


def _sqlstate(error: BaseException) -> str:
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return f" (SQLSTATE {state})" if state else ""
