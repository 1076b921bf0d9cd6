"""LISTEN: a hint that there is something to look at, never the reason to believe that there is not.

A `Listener` holds one connection of its own. `wait` returns when a notification is there or the time is up;
whoever waits looks at the rows in either case, so a lost notification costs one wait. It heals itself:

- After each (re)connect it checks itself by a round trip: a notification that it sends to a channel of its own
  must come back. Behind a transaction-mode pooler it does not; that is said once, and the listener then only
  sleeps, so that its owner polls. Every few minutes it checks again.
- A connection that breaks is dropped and opened again, with a jittered pause that grows; `wait` returns at once
  after each reconnect, since anything may have happened meanwhile.
- A half-open connection is found by its silence. Some poller of the database sends a pulse every few seconds, which
  all listeners hear and no owner is woken for. Where nothing was heard for almost eleven seconds, neither that nor a
  notification nor an answer to the owner's own queries, a round trip must come back within four, or the connection
  counts as broken. So a listener asks for itself only where no poller runs.
"""

from __future__ import annotations

import contextlib
import logging
import random
import select
import time
from collections.abc import Callable, Iterator, Sequence

import psycopg
from psycopg import sql

from tireless.store.connection import Session, connect, is_outage
from tireless.store.queries import Connection, rows

log = logging.getLogger(__name__)

_CHECK_SECONDS = 5.0  # for a notification to come back
_CHECK_AGAIN_SECONDS = 300.0  # after one that did not: it may only have been late
_SILENCE_SECONDS = 10.8
_PATIENCE_SECONDS = 4.0
_deaf: set[str] = set()  # databases of which this process has said that notifications do not arrive


def lane_channel(lane: str) -> str:
    return f"tireless_lane_{lane}"


CANCEL_CHANNEL = "tireless_cancel"
PULSE_CHANNEL = "tireless_pulse"
PULSE_SECONDS = 9.0  # a sender is late at times, and still within the silence that is borne
POLL_CHANNEL = "tireless_poll"

# Sleeps for so many seconds or until one of the descriptors is readable; returns those that are.
Wait = Callable[[float, Sequence[int]], Sequence[int]]


def _heard(conn: Connection, channel: str, seconds: float) -> bool:
    """Whether a notification of that channel comes in time; those of others may come before it."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if any(n.channel == channel for n in conn.notifies(timeout=left, stop_after=1)):
            return True
    return False


def plain_wait(seconds: float, fds: Sequence[int]) -> Sequence[int]:
    return select.select(list(fds), [], [], max(seconds, 0))[0]


class Listener:
    """One connection that listens. For a single thread. `url` as for store.connection.connect."""

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        *,
        timeout: float = 5,
        wait: Wait = plain_wait,
        name: str = "tireless",
        patience: float = Session.patience,
    ) -> None:
        """`patience`: how long the owner's own questions over `connection()` may take, in seconds."""
        self._patience = patience
        self._url = url
        self._channels = tuple(channels)
        self._timeout = timeout
        self._wait = wait
        self._name = name
        self._conn: Session | None = None
        self._heard_at = 0.0
        self._pulse_at = float("-inf")
        self._hears = False  # whether notifications arrive, by the self-check
        self._said_down = False
        self._checked_at = 0.0
        self._failures = 0
        self._retry_at = 0.0

    @property
    def hears(self) -> bool:
        """Whether notifications get through; without, the owner lives by its poll interval."""
        return self._hears

    @property
    def connected(self) -> bool:
        """Whether there is a connection now, as far as anybody has noticed."""
        return self._conn is not None and not self._conn.closed

    @property
    def pulse_seconds(self) -> float:
        """Until the next pulse should be sent, by whom it may; never, behind a pooler."""
        return self._pulse_at + PULSE_SECONDS - time.monotonic() if self._hears else float("inf")

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, at most so long. True: one came, or the connection is new; look at once."""
        deadline = time.monotonic() + seconds
        if self._conn is None or self._conn.closed:
            pause = self._retry_at - time.monotonic()
            if pause > 0:
                self._wait(min(pause, seconds), ())
                return False
            return self._reconnect()
        if not self._hears:
            if time.monotonic() - self._checked_at >= _CHECK_AGAIN_SECONDS:
                self.close()
                return self._reconnect()
            self._wait(seconds, ())
            return False
        try:
            return self._hear(deadline)
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            self._lost(e)
            return False

    def _hear(self, deadline: float) -> bool:
        conn = self._conn
        assert conn is not None
        while not self._drain(conn):
            now = time.monotonic()
            if now >= self._heard_at + _SILENCE_SECONDS:
                self._prove_alive(conn)
                continue
            until = min(deadline, self._heard_at + _SILENCE_SECONDS)
            if conn.fileno() in self._wait(max(until - now, 0), (conn.fileno(),)):
                continue
            # The owner's wait ends for reasons of its own too (a signal), and then it wants to know.
            if time.monotonic() < until or until == deadline:
                return False
        return True

    def _prove_alive(self, conn: Session) -> None:
        with conn.patient(_PATIENCE_SECONDS):
            rows(conn, "backend_pid")
        self._heard_at = time.monotonic()

    def _drain(self, conn: Connection) -> bool:
        """Take in what has come; whether any of it is for the owner."""
        heard = [notification.channel for notification in conn.notifies(timeout=0)]
        if heard:
            self._heard_at = time.monotonic()
        if PULSE_CHANNEL in heard:
            self._pulse_at = self._heard_at
        return any(channel != PULSE_CHANNEL for channel in heard)

    @contextlib.contextmanager
    def connection(self) -> Iterator[Session]:
        """The listening connection, for the look at the rows: an outage met on it is also the listener's."""
        if self._conn is None or self._conn.closed:
            self._open()
        assert self._conn is not None
        try:
            yield self._conn
            self._heard_at = time.monotonic()
        except psycopg.Error as e:
            if is_outage(e) or self._conn.broken:
                self._lost(e)
            raise

    def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                conn.close()

    def _reconnect(self) -> bool:
        try:
            self._open()
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            self._lost(e)
            return False
        return True

    def _open(self) -> None:
        conn = connect(self._url, timeout=self._timeout, name=self._name)
        try:
            self._hears = self._listen(conn)
        except BaseException:
            conn.close()
            raise
        conn.patience = self._patience
        self._conn = conn
        self._heard_at = self._checked_at = time.monotonic()
        self._failures = 0
        if self._said_down:
            log.warning("listening again channels=%s", ",".join(self._channels))
        self._said_down = False

    def _listen(self, conn: Connection) -> bool:
        own = f"tireless_check_{random.getrandbits(48):x}"
        try:
            for channel in (*self._channels, PULSE_CHANNEL, own):
                conn.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
            with connect(self._url, timeout=self._timeout, name=self._name) as other:
                other.execute("select pg_notify(%s, '')", (own,))
            heard = _heard(conn, own, _CHECK_SECONDS)
            conn.execute(sql.SQL("unlisten {}").format(sql.Identifier(own)))
        except psycopg.errors.FeatureNotSupported as e:
            heard, reason = False, str(e)
        else:
            reason = "a notification to itself did not come back; a pooler in transaction mode does that"
        if not heard and self._url not in _deaf:
            _deaf.add(self._url)
            log.warning("notifications do not arrive, polling instead why=%s", " ".join(reason.split()))
        return heard

    def _lost(self, error: BaseException) -> None:
        self.close()
        self._failures += 1
        pause = min(0.2 * 2 ** min(self._failures, 6), 10.0) * random.uniform(0.5, 1.0)
        self._retry_at = time.monotonic() + pause
        if not self._said_down:
            log.warning("listening connection lost, reconnecting error=%s", " ".join(str(error).split())[:300])
            self._said_down = True
