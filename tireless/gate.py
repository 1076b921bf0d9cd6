"""Who may ask which forge now: the limits of forges in rows, which every process of every host obeys.

    check    the longest of what this process was told and of what the rows said, looked up again once they are older
             than `FRESH_SECONDS`
    limit    holds in this process at once; in the rows, and so for the others, within about a second

The rows are read and written by a thread that is started for it, one at a time. A call waits for it, but not for longer
than `PATIENCE_SECONDS` after it began: a database that is down or frozen delays no call, and this process goes by what
it knows until then. What could not be written is written when the database is back, if it still holds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from tireless.store import limits
from tireless.store.queries import Connection

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
PATIENCE_SECONDS = 0.25
_RETRY_SECONDS = 5.0  # after trouble with the database


class RowsGate:
    """A Gate (tireless/forge/gate.py). `connect` lends a connection in autocommit mode, to a thread of the gate's own.
    Make it after the last fork."""

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Connection]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._lock = threading.Lock()
        self._told: dict[limits.Key, float] = {}  # to this process; until when, by its clock
        self._read: dict[limits.Key, float] = {}  # in the rows
        self._unwritten: set[limits.Key] = set()
        self._stale_at = float("-inf")
        self._begun_at = float("-inf")
        self._idle = threading.Event()
        self._idle.set()
        self._in_trouble = False

    def check(self, host: str, token_fingerprint: str) -> float:
        """Seconds to wait before this host may be asked with this token; 0 for now."""
        if self._clock() >= self._stale_at:
            self._exchange_soon()
        key = (host, token_fingerprint)
        with self._lock:
            until = max(self._told.get(key, 0.0), self._read.get(key, 0.0))
        return max(0.0, until - self._clock())

    def limit(self, host: str, token_fingerprint: str, seconds: float) -> None:
        """The host has limited this token for `seconds` from now on."""
        key = (host, token_fingerprint)
        with self._lock:
            self._told[key] = max(self._told.get(key, 0.0), self._clock() + seconds)
            self._unwritten.add(key)
        self._exchange_soon()

    def _exchange_soon(self) -> None:
        with self._lock:
            if self._idle.is_set() and (self._unwritten or self._clock() >= self._stale_at):
                self._idle.clear()
                self._begun_at = self._clock()
                threading.Thread(target=self._exchange, name="gate", daemon=True).start()
        patience = self._begun_at + PATIENCE_SECONDS - self._clock()
        if patience > 0:
            self._idle.wait(patience)

    def _exchange(self) -> None:
        fresh = FRESH_SECONDS
        try:
            with self._connect() as conn:
                self._write(conn)
                found = limits.current(conn)
            now = self._clock()
            with self._lock:
                self._read = {key: now + seconds for key, seconds in found.items()}
            self._in_trouble = False
        except Exception as e:
            fresh = _RETRY_SECONDS
            if not self._in_trouble:  # said once
                self._in_trouble = True
                log.warning("limits of forges are not shared for now error=%s", " ".join(str(e).split())[:300])
        finally:
            self._stale_at = self._clock() + fresh
            self._idle.set()

    def _write(self, conn: Connection) -> None:
        while True:
            with self._lock:
                key = next(iter(self._unwritten), None)
                left = self._told[key] - self._clock() if key is not None else 0.0
            if key is None:
                return
            if left > 0:
                limits.note(conn, key, left)
            with self._lock:
                if self._told[key] - self._clock() <= left:  # not lengthened meanwhile
                    self._unwritten.discard(key)
