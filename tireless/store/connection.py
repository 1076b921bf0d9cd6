"""Connections: how they are opened, which failures are an outage, and how to get through one.

An outage (the server is down, restarting, read-only after a failover, out of connections, the socket cut) is
waited out with growing, jittered pauses, and said once, not at each try. Anything else is a fault and is
raised as it is. A connection that met an outage is thrown away, never used again.

A peer that is gone without a word (a firewall that forgot, a host that froze, a proxy that keeps the socket open) is
found by the client's own patience: TCP's keepalives do not see it, and the server's timeouts are the server's.
The server is told to look as well: the connections of a host that has vanished would count for two hours.

Through a pooler (which is told by a backend that is not the one that greeted us) nothing is prepared on the server,
since in transaction mode the next statement may go to another backend.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psycopg
import psycopg_pool
import tenacity
from psycopg.abc import PQGen

from tireless import database_url
from tireless.entities import TirelessError
from tireless.store.queries import Connection, text
from tireless.store.statements import NoAnswer, Remembering, is_stale

log = logging.getLogger(__name__)

T = TypeVar("T")

# SQLSTATE classes and codes of an outage: connection exceptions (08), operator intervention (57: shutdown, crash),
# too many connections and out of resources (53), and a read-only node after a failover. A server that is only too
# busy to answer (a lock or a statement that took too long, a deadlock) is waited out just so: it is no job's fault.
_OUTAGE_CLASSES = ("08", "57P", "53")
_OUTAGE_STATES = ("25006", "55P03", "57014", "40P01", "40001")


class NoDatabase(TirelessError):
    """The database did not answer within the time given. Exit code 69."""


def is_outage(error: BaseException) -> bool:
    if isinstance(error, psycopg_pool.PoolTimeout | psycopg_pool.PoolClosed):
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate
    if state is None:  # no answer from a server at all: refused, cut off, timed out
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    if is_stale(error):
        return True
    return state in _OUTAGE_STATES or state.startswith(_OUTAGE_CLASSES)


class Session(Remembering):
    """A connection that does not wait for ever and keeps its statements; see statements.py."""

    @classmethod
    def connect(cls, conninfo: str = "", **parameters: Any) -> Session:
        try:
            conn = super().connect(conninfo, **parameters)
        except psycopg.errors.ConnectionTimeout as e:  # which is the one that does not tell whom it has asked
            asked = database_url.server(conninfo)
            raise psycopg.errors.ConnectionTimeout(f"{e}: {asked}" if asked else str(e)) from None
        except psycopg.OperationalError as e:
            # PgBouncer, unless it is told to ignore it. The server's timeouts are then its own defaults.
            if "unsupported startup parameter" not in str(e) or "options" not in parameters:
                raise
            conn = super().connect(conninfo, **{**parameters, "options": None})
        backend = conn.execute(text("backend_pid")).fetchone()
        conn.prepare_threshold = None
        if backend is None or backend[0] != conn.info.backend_pid:
            conn.statement_threshold = None
        return conn

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        try:
            return super().wait(_bounded(gen, self.patience), *args, **options)
        except NoAnswer:
            self.pgconn.finish()
            raise


def _bounded(gen: PQGen[T], patience: float) -> PQGen[T]:
    """`gen`, given up if it goes on for longer. The waiting function comes back to it several times a second."""
    deadline = time.monotonic() + patience
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > deadline:
                raise NoAnswer(f"no answer from the server within {patience:g} s")
            wanted = gen.send(ready)
    except StopIteration as e:
        answer: T = e.value
        return answer


# The server's side of a session. Those on TCP are the client's own (below), and mean nothing on a unix socket.
_SETTINGS = (
    "-c statement_timeout=30s -c idle_in_transaction_session_timeout=60s -c lock_timeout=20s"
    " -c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3 -c tcp_user_timeout=20s"
)


def _parameters(timeout: float, name: str) -> dict[str, Any]:
    return {
        "autocommit": True,
        "connect_timeout": max(int(timeout), 2),  # libpq's own least value
        "application_name": name,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20_000,
        "options": _SETTINGS,
    }


def connect(url: str, *, timeout: float = 5, name: str = "tireless") -> Session:
    """An autocommit connection that notices a dead peer within seconds rather than TCP's quarter of an hour."""
    return Session.connect(url, **_parameters(timeout, name))


class Link:
    """One connection that comes back. For a single thread; `connection()` hands it out.

    A statement that meets an outage closes the connection and raises; the next `connection()` opens a new one.
    """

    def __init__(
        self, url: str, *, timeout: float = 5, name: str = "tireless", patience: float = Session.patience
    ) -> None:
        self._patience = patience
        self._url = url
        self._timeout = timeout
        self._name = name
        self._conn: Connection | None = None

    @contextlib.contextmanager
    def connection(self) -> Iterator[Connection]:
        if self._conn is None or self._conn.closed:
            self._conn = connect(self._url, timeout=self._timeout, name=self._name)
            self._conn.patience = self._patience
        try:
            yield self._conn
        except BaseException as e:
            if is_outage(e) or self._conn.broken:
                self.close()
            raise

    def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(psycopg.Error):
                conn.close()


def open_pool(
    url: str, size: int, *, timeout: float = 5, name: str = "tireless"
) -> psycopg_pool.ConnectionPool[Any]:
    """A pool for several threads. Opened after a fork, never before one: it has threads of its own. It says nothing
    of an outage: its owner's listener does, once, and the pool would at each try."""
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    return psycopg_pool.ConnectionPool(
        url,
        min_size=1,
        max_size=size,
        num_workers=1,
        timeout=timeout * 2,
        max_idle=60,
        reconnect_timeout=30,
        open=True,
        name=name,
        check=psycopg_pool.ConnectionPool.check_connection,
        connection_class=Session,
        kwargs=_parameters(timeout, name),
    )


def through_outage(
    action: Callable[[], T],
    *,
    what: str,
    sleep: Callable[[float], None],
    give_up: Callable[[], bool] = lambda: False,
    give_up_after: float | None = None,
) -> T:
    """Repeat `action` until it gets an answer from the database.

    `sleep(seconds)` waits between tries (and may beat, or watch an agent); `give_up()` ends the wait early. The
    last outage is raised when it does, or after `give_up_after` seconds. Said once when it begins, once when it ends.
    """
    said = False

    def before_sleep(state: tenacity.RetryCallState) -> None:
        nonlocal said
        if not said and state.outcome is not None:
            said = True
            log.warning(
                "database unreachable, trying again what=%s error=%s",
                what,
                _one_line(state.outcome.exception()),
            )

    stop: Any = _StopWhen(give_up)
    if give_up_after is not None:
        stop = tenacity.stop_any(stop, tenacity.stop_after_delay(give_up_after))
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_outage),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=10) + tenacity.wait_random(0.05, 0.2),
        stop=stop,
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
    result = retrying(action)
    if said:
        log.warning("database is back what=%s", what)
    return result


class _StopWhen(tenacity.stop.stop_base):
    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition

    def __call__(self, retry_state: tenacity.RetryCallState) -> bool:
        return self._condition()


def _one_line(error: BaseException | None) -> str:
    return " ".join(str(error).split())[:300]


def sleeper(stop: threading.Event) -> Callable[[float], None]:
    return tenacity.sleep_using_event(stop)
