"""Statements of a connection, executed without a cursor: what does not change between two executions is kept.

A cursor of psycopg finds out anew each time how to write each parameter and how to read each column, and goes through
a generator a step. Beside the server's own work for a claim that was most of what a runner had to do. The rest
is psycopg's: how values are written and read (its Transformer), the protocol (its pq), errors, notifications.

Protocol of one execution, under the connection's lock:

    write      parameters as psycopg writes them; their types make a `_Plan`
    send       by text, or once that plan was met `statement_threshold` times as a statement prepared on the server
    wait       at most `patience` seconds: then NoAnswer, and the connection is closed
    interrupted (a signal's exception): the server is asked to stop, and the connection is closed, since what it would
               still say belongs to nobody
    an error   is raised as psycopg would; the connection is as usable as psycopg would leave it
"""

from __future__ import annotations

import contextlib
import re
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult

Row = dict[str, Any]

_PLANS = 16  # of one statement; parameters come in few types, and each costs the server memory
_GOOD = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_PLACE = re.compile(rb"%(?:\((\w+)\)s|%)")


class NoAnswer(psycopg.OperationalError):
    """The server did not answer within the client's patience; the connection is closed."""


class Answer:
    """What a statement returned: its rows as dicts by column, and how many rows it touched."""

    __slots__ = ("count", "rows")

    def __init__(self, rows: list[Row], count: int) -> None:
        self.rows = rows
        self.count = count


class Remembering(psycopg.Connection[Any]):
    """An autocommit connection that keeps its statements. `patience` is how long one answer may take, in seconds; by
    default longer than the server's own statement_timeout, so that a slow statement is told from a silent server.

    `statement_threshold` is how often a statement goes as text before the server prepares it; None: always. psycopg's
    own cursors prepare nothing here: after a rollback they would throw away all that is prepared, ours too.
    """

    patience = 40.0
    statement_threshold: int | None = 2

    @contextlib.contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """Answers may take that long meanwhile, no longer."""
        usual, self.patience = self.patience, seconds
        try:
            yield
        finally:
            self.patience = usual

    def ask(self, query: bytes, params: Mapping[str, Any]) -> Answer:
        """Execute a query with named placeholders, as one thread at a time may."""
        kept: dict[bytes, Statement] = self.__dict__.setdefault("_statements", {})
        statement = kept.get(query)
        if statement is None:
            statement = kept[query] = Statement(self, query, b"tireless_%d" % len(kept))
        with self.lock:
            try:
                return statement.execute(params)
            except psycopg.errors.FeatureNotSupported as e:
                if not is_stale(e):
                    raise
                for one in kept.values():  # each of them would fail once
                    one.forget()
                if self.info.transaction_status is not TransactionStatus.IDLE:
                    raise
                return statement.execute(params)


def is_stale(error: BaseException) -> bool:
    """Whether a migration has changed what a prepared statement returns; nothing of it was executed."""
    return isinstance(error, psycopg.Error) and error.diag.source_function == "RevalidateCachedQuery"


class _Plan:
    """A statement whose parameters are of certain types."""

    __slots__ = ("columns", "name", "reader", "times")

    def __init__(self, conn: Remembering) -> None:
        self.times = 0
        self.name: bytes | None = None  # by which the server knows it; None: not prepared
        self.columns: list[str] | None = None  # of a prepared one's result, which cannot change
        self.reader = Transformer(conn)

    def read(self, result: PGresult) -> list[Row]:
        known = self.columns
        if known is None:
            known = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
            self.columns = known if self.name is not None else None
            self.reader.set_pgresult(result)
        else:
            self.reader.set_pgresult(result, set_loaders=False)
        columns = known
        rows = self.reader.load_rows(0, result.ntuples, lambda values: dict(zip(columns, values, strict=True)))
        self.reader.set_pgresult(None, set_loaders=False)  # or it would be kept until the next time
        return rows


class Statement:
    """One query of one connection."""

    def __init__(self, conn: Remembering, query: bytes, name: bytes) -> None:
        assert conn.autocommit, "nothing here begins a transaction"
        self._conn = conn
        self._pgconn = conn.pgconn
        self._name = name
        self._query, self._order = placed(query)
        self._several = not self._order and b";" in self._query  # commands: the server takes them as text only
        self._writer = Transformer(conn)
        self._formats = [PyFormat.AUTO] * len(self._order)
        self._plans: dict[tuple[int, ...], _Plan] = {}
        self._prepared = 0
        self._to_hear, self._to_talk = select.poll(), select.poll()
        self._to_hear.register(self._pgconn.socket, select.POLLIN)
        self._to_talk.register(self._pgconn.socket, select.POLLIN | select.POLLOUT)

    def execute(self, params: Mapping[str, Any]) -> Answer:
        values = self._writer.dump_sequence([params[name] for name in self._order], self._formats)
        types, formats = self._writer.types or (), self._writer.formats
        plan = self._plans.get(types) or self._new_plan(types)
        try:
            self._send(plan, values, types, formats)
            result = self._answer()
        except psycopg.Error:
            raise
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                self._conn.cancel_safe(timeout=2)
            self._pgconn.finish()
            raise
        if result.nfields:
            return Answer(plan.read(result), result.ntuples)
        return Answer([], result.command_tuples or 0)

    def forget(self) -> None:
        """What is prepared is of before a migration."""
        self._plans.clear()

    def _new_plan(self, types: tuple[int, ...]) -> _Plan:
        plan = _Plan(self._conn)
        if len(self._plans) < _PLANS:
            self._plans[types] = plan
        return plan

    def _send(
        self,
        plan: _Plan,
        values: Sequence[Buffer | None],
        types: tuple[int, ...],
        formats: Sequence[pq.Format] | None,
    ) -> None:
        if self._several:
            self._pgconn.send_query(self._query)
            return
        threshold = self._conn.statement_threshold
        if plan.name is None and threshold is not None and plan.times >= threshold:
            self._prepared += 1
            name = b"%s_%d" % (self._name, self._prepared)
            self._pgconn.send_prepare(name, self._query, types)
            self._answer()
            plan.name = name
        plan.times += 1
        if plan.name is not None:
            self._pgconn.send_query_prepared(plan.name, values, formats)
        else:
            self._pgconn.send_query_params(self._query, values, types, formats)

    def _answer(self) -> PGresult:
        """The result of what was sent. Raises what the server says against it."""
        pgconn = self._pgconn
        deadline = time.monotonic() + self._conn.patience
        while pgconn.flush():
            self._wait(self._to_talk, deadline)
        result = None
        while True:
            while pgconn.is_busy():
                self._wait(self._to_hear, deadline)
            following = pgconn.get_result()
            if following is None:
                break
            result = following
        while notice := pgconn.notifies():
            if pgconn.notify_handler is not None:
                pgconn.notify_handler(notice)
        assert result is not None, "something was sent"
        if result.status not in _GOOD:
            raise error_from_result(result, self._conn.info.encoding)
        return result

    def _wait(self, poll: select.poll, deadline: float) -> None:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            self._pgconn.finish()
            raise NoAnswer(f"no answer from the server within {self._conn.patience:g} s")
        if ready[0][1] != select.POLLOUT:
            self._pgconn.consume_input()


@cache
def placed(query: bytes) -> tuple[bytes, tuple[str, ...]]:
    """The query as the protocol wants it, with $1, $2 ... for its named placeholders, and their names in order."""
    order: dict[bytes, int] = {}

    def number(place: re.Match[bytes]) -> bytes:
        name = place[1]
        return b"$%d" % order.setdefault(name, len(order) + 1) if name is not None else b"%"

    text = _PLACE.sub(number, query)
    return text, tuple(name.decode() for name in order)
