"""The poller: turns labels into rows, and tidies. One process a host; several hosts share the work by rows.

Main loop. Each turn begins with one statement, the agenda: it says what is due, wakes the runners of lanes where a
backoff has ended, and sends the pulse by which all listeners know that they hear (store/listen.py). Only what is due
is then done. Repositories whose poll is due are taken and handed to a few threads, and one thread drains
`forge_write`. Expired leases are swept, ended holds lifted and, where `routing.relane_on_hold` says so, jobs are
moved out of lanes that are held for long, all that every few seconds at most. Every hour it prunes finished jobs, every
ten minutes, sooner on a full disk, it removes workspaces that are old or take too much room. Then it waits for a
notification (a webhook, `tireless-ctl repo poll`), for what is due next, for a thread to become free, for the next
pulse, or for `poller.wake_seconds`; `_TURN_SECONDS` at least, so that what ends together is looked at together.

Hosts. No forge has more polls under way than `poller.per_host`, and one that does not answer, or slowly, has one
(tireless/inflight.py): it delays its own repositories, no others. What is due on a host that has limited our token is
not taken: it is moved behind the end of the limit, by rows that all hosts and processes share (tireless/gate.py).

After an outage of the database it sweeps later by as long as that took (15 s at most): a runner that was cut off too
gives its job back itself, and burns no attempt by it, as a sweep would.

TERM and INT: no new poll is begun, and it leaves within a second, whatever its threads wait for; on TERM
after a last pass over the outbox, since that comes when the host's runners have left. That pass ends when a forge
has kept it waiting for `_SILENT_SECONDS`, after `_LAST_PASS_SECONDS` at most, and on INT. What the poller had taken
and not done is due again within minutes; at once where its supervisor saw it die (tireless/errands.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psycopg

from tireless import delivery, embedded, outbox, proctree, web, webhook
from tireless.clients import Clients
from tireless.config import Config
from tireless.gate import RowsGate
from tireless.inflight import Host, InFlight
from tireless.polling import Polling
from tireless.process import ChildContext
from tireless.store import agenda, claims, intake, jobs, lanes, limits, repos, workers
from tireless.store.agenda import Agenda
from tireless.store.connection import is_outage, open_pool
from tireless.store.listen import POLL_CHANNEL, Listener
from tireless.store.queries import Connection
from tireless.web import Web
from tireless.web.service import Service
from tireless.webhook import Webhook
from tireless.workspace import Room, Workspaces

log = logging.getLogger(__name__)

_LAST_PASS_SECONDS = 20.0  # below what the supervisor gives the poller to leave
_SILENT_SECONDS = 5.0  # without a settled write, and the last pass is over
_LEAVE_SECONDS = 0.5  # for threads to end what they are in
_TURN_SECONDS = 0.05
_CONNECTIONS = 4  # for all polls together: what a poll stores takes a hundredth of what it waits for its forge
_AFTER_OUTAGE_SECONDS = 15.0  # longer than a runner waits between two tries
_LOOK_PATIENCE_SECONDS = 4.0
_SWEEP_SECONDS = 2.0
_TIDY_SECONDS = 3600.0
_MB = 1024 * 1024
_CLEAR_SECONDS = 600.0
_CROWDED_SECONDS = 10.0  # the same, while the disk has too little room
_SEEN_SECONDS = 60.0


def _is_due(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0


def main(ctx: ChildContext) -> int:
    return Poller(ctx).run()


class Poller:
    def __init__(self, ctx: ChildContext) -> None:
        self._ctx = ctx
        config = ctx.config
        url = embedded.database_url(config, start=False)
        timeout = config.database.connect_timeout_seconds
        name = workers.session_name(ctx.worker, "poller")
        size = min(config.poller.threads, _CONNECTIONS) + 3 + web.CONNECTIONS + webhook.CONNECTIONS
        self._pool = open_pool(url, size, timeout=timeout, name=name)
        self._listener = Listener(url, (POLL_CHANNEL,), timeout=timeout, wait=self._wait, name=name)
        # Two more than polls at once: neither outbox nor tidying may wait behind slow forges.
        self._threads = ThreadPoolExecutor(config.poller.threads + 2, thread_name_prefix="poll")
        self._in_flight = InFlight(config.poller.threads, config.poller.per_host)
        self._polls: dict[Future[None], Host] = {}
        self._drain: Future[None] | None = None
        self._clients = Clients(ctx, RowsGate(self._connect))
        self._polling = Polling(ctx, self._clients, self._in_flight, self._connect)
        self._services: tuple[Service, ...] = ()
        self._services_for: Config | None = None
        self._done = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # a thread has become free
        self._looked_at: datetime | None = None  # the database's time of the last agenda
        self._swept_at = float("-inf")
        self._out_since: float | None = None  # the database, as far as the main thread has seen
        self._tidied_at = float("-inf")
        self._cleared_at = float("-inf")
        self._clearing: Future[None] | None = None
        self._seen_at = float("-inf")

    def run(self) -> int:
        ctx = self._ctx
        ctx.ready()
        try:
            while ctx.turn():
                self._renew_services()
                began = time.monotonic()
                pause = self._turn()
                if ctx.turn() and pause > 0:
                    self._listener.wait(pause)
                if (left := began + _TURN_SECONDS - time.monotonic()) > 0 and ctx.turn():
                    ctx.wait(left)
            self._deliver_the_rest()
        finally:
            self._leave()
        return 0

    def _renew_services(self) -> None:
        """The status page and the webhooks; after a reload they are other ones, perhaps elsewhere."""
        config = self._ctx.config
        if config is not self._services_for:
            for service in self._services:
                service.stop()
            self._services_for = config
            self._services = (Web(config, self._connect), Webhook(config, self._connect))
            for service in self._services:
                service.start()

    def _wait(self, seconds: float, fds: Sequence[int]) -> list[int]:
        found = self._ctx.wait(seconds, [*fds, self._done])
        if self._done in found:
            os.eventfd_read(self._done)
        return [fd for fd in found if fd != self._done]

    def _turn(self) -> float:
        """One look at the rows; how long to wait before the next, in seconds."""
        wake = self._ctx.config.poller.wake_seconds
        for poll in [poll for poll in self._polls if poll.done()]:
            self._in_flight.done(self._polls.pop(poll))
        try:
            with self._listener.connection() as conn:
                pulse = self._listener.pulse_seconds <= _TURN_SECONDS
                with conn.patient(_LOOK_PATIENCE_SECONDS):  # it is also how a silent server is noticed
                    due = agenda.look(conn, self._looked_at, pulse=pulse)
                self._looked_at = due.at
                self._sweep(conn, due)
                if _is_due(due.poll):
                    self._begin_polls(conn)
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            self._out_since = self._out_since or time.monotonic()
            return wake
        if _is_due(due.write):
            self._begin_drain()
        # What is due already is in hand, or locked elsewhere, or waits for a thread: a free one ends the wait.
        least = _SWEEP_SECONDS if _is_due(due.lease) or _is_due(due.hold) else 0.5
        return min(wake, max(self._listener.pulse_seconds, _TURN_SECONDS), max(due.first, least))

    def _sweep(self, conn: Connection, due: Agenda) -> None:
        """What needs no hurry: at most once in `_SWEEP_SECONDS`, however busy the polling is."""
        if time.monotonic() - self._swept_at < _SWEEP_SECONDS:
            return
        self._swept_at = time.monotonic()
        if self._out_since is not None:
            # Runners that were cut off from the database as well speak first: they burn no attempt, a sweep does.
            self._swept_at += min(self._swept_at - self._out_since, _AFTER_OUTAGE_SECONDS)
            self._out_since = None
            return
        self._say_seen(conn)
        if _is_due(due.lease):
            claims.expire_stale_claims(
                conn,
                writes_for=delivery.writes_for_end(self._ctx.config),
                backoff_seconds=self._ctx.config.lease.backoff_seconds,
            )
        if _is_due(due.hold):
            lanes.lift_ended_holds(conn)
        if due.held and self._ctx.config.routing.relane_on_hold:
            relane(conn, self._ctx.config)
        self._tidy(conn)

    def _say_seen(self, conn: Connection) -> None:
        if time.monotonic() - self._seen_at >= _SEEN_SECONDS:
            ctx = self._ctx
            workers.register(conn, ctx.worker, ctx.config.host, ctx.role, None, os.getpid())
            self._seen_at = time.monotonic()

    def _begin_polls(self, conn: Connection) -> None:
        limits.postpone_polls(conn, self._clients.limited())
        flying = self._in_flight
        if flying.free > 0:
            places, elsewhere = flying.places(), flying.per_unknown_host
            for repo, listed_at in repos.take_due(conn, flying.free, places=places, places_elsewhere=elsewhere):
                host = (str(repo.ref.forge), repo.ref.host.lower())
                flying.begin(host)
                self._polls[self._submit(self._polling.poll, repo, listed_at)] = host

    def _begin_drain(self) -> None:
        if self._drain is None or self._drain.done():
            self._drain = self._submit(self._drain_writes, self._ctx.stop_event.is_set)

    def _submit(self, task: Callable[..., None], *args: Any) -> Future[None]:
        future = self._threads.submit(self._guarded, task, *args)
        future.add_done_callback(lambda _: os.eventfd_write(self._done, 1))
        return future

    def _deliver_the_rest(self) -> None:
        """The runners have left, this one leaves last: what can be told now need not wait for the next start. In a
        thread, since INT must be heard while a forge is slow to answer."""
        deadline = time.monotonic() + _LAST_PASS_SECONDS
        silent_at = time.monotonic() + _SILENT_SECONDS

        def over() -> bool:
            return self._ctx.stopping or time.monotonic() >= min(deadline, silent_at)

        def progress() -> None:
            nonlocal silent_at
            silent_at = time.monotonic() + _SILENT_SECONDS

        self._wait_for([self._drain] if self._drain is not None else [], over)
        if not over():
            self._drain = self._threads.submit(self._guarded, self._drain_writes, over, progress)
            self._wait_for([self._drain], over)

    def _wait_for(self, futures: Iterable[Future[None]], over: Callable[[], bool]) -> None:
        while not over() and not all(f.done() for f in futures):
            self._ctx.wait(0.05)

    def _drain_writes(self, give_up: Callable[[], bool], turn: Callable[[], None] = lambda: None) -> None:
        outbox.drain(self._connect, self._clients.of_issue, self._ctx.worker, give_up=give_up, turn=turn)

    def _tidy(self, conn: Connection) -> None:
        if time.monotonic() - self._tidied_at >= _TIDY_SECONDS:
            jobs.prune(conn, self._ctx.config.poller.keep_days)
            workers.prune(conn)
            limits.prune(conn)
            self._tidied_at = time.monotonic()
        since = time.monotonic() - self._cleared_at
        due = since >= _CLEAR_SECONDS or (since >= _CROWDED_SECONDS and self._crowded())
        if due and (self._clearing is None or self._clearing.done()):
            self._clearing = self._submit(self._collect_garbage)
            self._cleared_at = time.monotonic()

    def _crowded(self) -> bool:
        """Whether the disk that workspaces lie on has too little room."""
        try:
            return Room(self._ctx.config.state_dir, self._ctx.config.runner.min_free_bytes).tight
        except OSError:
            return False

    def _collect_garbage(self) -> None:
        """Remove the workspaces of jobs that ended some days ago, and older ones sooner where they take too much
        room or leave too little; never one of a live job. Then mirrors of which nobody has need any more."""
        config = self._ctx.config
        workspaces = Workspaces(
            config.state_dir,
            config.git,
            timeout=config.runner.git_timeout_seconds,
            beat=lambda: None,
            should_stop=self._ctx.stop_event.is_set,
        )
        found = workspaces.jobs()
        with self._connect() as conn:
            live = set(jobs.live_among(conn, found))
            tracked = [repo.ref for repo in repos.tracked(conn, disabled_too=True)]
        # A job may have ended in its row while its agent is still being ended.
        running = proctree.marks()
        ended = [job for job in found if job not in live and str(job) not in running]
        keep_seconds, most = config.runner.keep_workspace_days * 86_400, config.runner.workspace_disk_mb
        removed = workspaces.collect_garbage(
            ended, keep_seconds, None if most is None else most * _MB, config.runner.min_free_bytes
        )
        if removed:
            log.info("workspaces removed count=%d", len(removed))
        for repo in workspaces.remove_mirrors(tracked, keep_seconds):
            log.info("mirror of a repository that is not tracked any more removed repo=%s", repo)

    @contextlib.contextmanager
    def _connect(self) -> Iterator[Connection]:
        with self._pool.connection() as conn:
            yield conn

    @staticmethod
    def _guarded(task: Any, *args: Any) -> None:
        """What a thread runs: an error is a log line, an outage not even that (the listener has said it)."""
        try:
            task(*args)
        except Exception as e:
            if not is_outage(e):
                log.exception("poller task failed")

    def _leave(self) -> None:
        self._ctx.stop_event.set()
        for service in self._services:
            service.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Threads that are in a request end with the process; the leases of what they held run out.
        deadline = time.monotonic() + _LEAVE_SECONDS
        self._wait_for([f for f in self._polls if f.running()], lambda: time.monotonic() >= deadline)
        self._sign_off()
        self._listener.close()
        self._pool.close(timeout=0.5)

    def _sign_off(self) -> None:
        """As a runner's. What it had begun to poll and has not done is due again, which only its row tells."""
        if self._listener.connected:
            with contextlib.suppress(psycopg.Error), self._listener.connection() as conn, conn.patient(1.0):
                repos.due_again(conn, self._ctx.worker)
                workers.leave(conn, self._ctx.worker)


def relane(conn: Connection, config: Config) -> None:
    """Move what waits in a lane held for long to one that this host runs, where the operator wants that."""
    moved = intake.relane(
        conn,
        [kind for kind, lane in config.lane.items() if lane.processes > 0],
        after_seconds=config.routing.relane_after_seconds,
        writes_for=lambda one: delivery.writes_for_relane(config, one),
    )
    for one in moved:
        log.info("relaned job=%s issue=%s from=%s to=%s", one.job.id, one.job.issue, one.was, one.job.lane)
