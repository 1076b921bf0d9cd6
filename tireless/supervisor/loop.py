"""The loop: signals in, children started, judged, reaped and taken down. The package's page is its contract."""

from __future__ import annotations

import gc
import logging
import os
import resource
import select
import signal
import time
from collections.abc import Callable
from enum import Enum

from tireless import poller, proctree, runner
from tireless.config import Config, ConfigError
from tireless.entities import WorkerRole
from tireless.notify import Notifier
from tireless.process import STOP_SECONDS, ChildContext, Exit, Leave, beat_interval
from tireless.supervisor import strays
from tireless.supervisor.children import Child, Run, fork
from tireless.supervisor.errands import Errand, Errands, Queue
from tireless.supervisor.fleet import Fleet, Slot
from tireless.supervisor.lock import lock_state_dir
from tireless.supervisor.signals import Signals

log = logging.getLogger(__name__)

TURN_SECONDS = 1.0  # the longest sleep, unless all is calm
SWEEP_TURN_SECONDS = 0.02  # while strays are being killed
LEFTOVER_SECONDS = 5.0  # for what a dead supervisor left, at the start
SERVER_START_SECONDS = 5.0  # for which strays are let be while an errand may be starting a server
SWEEP_SECONDS = 10.0  # for strays that KILL does not end; they run no further instruction of theirs
GUARD_SECONDS = 1.0  # for the guard of a dead runner's agent to end the agent and record an end it had before
# A fast stop: INT; KILL after STOP_SECONDS; then what is left, the claims, the last errand, all within 5 s.
STOP_GUARD_SECONDS = 0.3
STOP_RELEASE_BY_SECONDS = 3.6
STOP_ALL_SECONDS = 4.4
QUIT_SECONDS = 2.0
POLLER_LEAVE_SECONDS = 30.0  # for its last pass over the outbox, once the runners have left
RELEASE_SECONDS = 15.0  # after a drain, for claims that are still to be released
FINISH_SECONDS = 90.0  # after a drain, for the embedded Postgres to shut down
ERRAND_SECONDS = 60.0
MIGRATION_SECONDS = 900.0  # on top of the time for which `prepare` waits for the database

Main = Callable[[ChildContext], int]


class Stage(Enum):
    PREPARING = "preparing the database"
    RUNNING = "running"
    DRAINING = "draining"
    STOPPING = "stopping"
    FINISHING = "finishing"
    OVER = "over"


class Supervisor:
    """`reload` makes a new configuration of the current one, at HUP, here and in the children; ConfigError if
    it cannot be used."""

    def __init__(
        self,
        config: Config,
        reload: Callable[[Config], Config],
        *,
        errands: Errands | None = None,
        poller: Main = poller.main,
        runner: Main = runner.main,
        notifier: Notifier | None = None,
        on_fork: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.config = config
        self._reload = reload
        self._do = errands or Errands()
        self._mains = {WorkerRole.POLLER: poller, WorkerRole.RUNNER: runner}
        self._notifier = notifier or Notifier()
        self._on_fork = on_fork  # called in each child with its name: logging says who speaks
        self._signals = Signals()
        self._fleet = Fleet(self._spawn, self._release)
        self._errands = Queue(self._fork)
        self._stage = Stage.PREPARING
        self._code: int | None = None
        self._deadline: float | None = None  # of the stage
        self._release_by: float | None = None
        self._quitting = False
        self._applied = config  # what the lane rows say
        self._applying = False
        self._reloading = False  # systemd waits for the end of it
        self._announced = False  # READY is the last that was said
        self._daemons: set[int] = set()  # the embedded Postgres: not a stray
        self._exempt_failed = False
        self._sweeping_since: float | None = None
        self._last_turn = time.monotonic()

    def run(self) -> int:
        """The supervisor's life; its exit code."""
        self._signals.listen()
        try:
            lock = lock_state_dir(self.config.state_dir)
        except Leave as e:
            log.error("%s", e)
            return e.exit_code
        try:
            self._boot()
            while self._stage is not Stage.OVER:
                self._turn()
        except Exception:
            log.exception("the supervisor has a fault and ends")
            self._code = Exit.CRASHED
        finally:
            self._leave_nothing()
            os.close(lock)
        code = self._code if self._code is not None else Exit.CUT_OFF if self._fleet.cut else Exit.DRAINED
        log.info("supervisor ends exit=%d", code)
        return int(code)

    def _boot(self) -> None:
        log.info(
            "supervisor starts host=%s state_dir=%s pid=%d",
            self.config.host,
            self.config.state_dir,
            os.getpid(),
        )
        proctree.become_subreaper()
        # A core of a process that holds tokens would leave them on disk. Agents inherit this.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        left = strays.leftovers(self.config.state_dir)
        if left:
            log.warning("ending what a dead supervisor's agents left running count=%d", len(left))
            strays.end_leftovers(self.config.state_dir, GUARD_SECONDS, LEFTOVER_SECONDS)
        # What is there by now is never freed: collecting it in a child would only copy its pages.
        gc.collect()
        gc.freeze()
        self._prepare()

    # -- one turn -----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        slept = self._sleep()
        now = time.monotonic()
        missing = now - self._last_turn - slept
        if missing > 5.0:  # stopped or suspended: nobody could be heard meanwhile
            log.warning("the supervisor did not run for %.0f s", missing)
            self._fleet.forgive(missing)
        self._last_turn = now
        for number in self._signals.take():
            self._on_signal(number, now)
        self._fleet.listen(now)
        self._reap(now)
        self._fleet.judge(now, self.config.supervisor)
        self._errands.keep_word(now)
        self._sweep(now)
        self._watch_daemons()
        self._progress(now)
        self._fleet.start_due(now)
        self._errands.start_due(now)
        self._announce()
        self._notifier.turned()

    def _sleep(self) -> float:
        """Until a signal comes, a child becomes ready, or something is due; the seconds that were allowed."""
        poller = select.poll()
        poller.register(self._signals, select.POLLIN)
        for child in self._fleet.children():
            if not child.ready and child.beat_fd >= 0:  # beats need no waking: each turn takes them in
                poller.register(child.beat_fd, select.POLLIN)
        seconds = self._pause(time.monotonic())
        poller.poll(seconds * 1000)
        return seconds

    def _pause(self, now: float) -> float:
        if self._fleet.cleaning:
            return SWEEP_TURN_SECONDS
        times = [*self._fleet.deadlines(), *self._errands.deadlines()]
        times += [when for when in (self._deadline, self._release_by) if when is not None]
        longest = self._longest()
        longest = min(longest, self._notifier.watchdog_every or longest)
        # A deadline that has passed and still stands is waited on by something else: no busy loop.
        return max(SWEEP_TURN_SECONDS, min([longest, *(when - now for when in times)]))

    def _longest(self) -> float:
        """Where all is as it should be, only the beats want a look from time to time."""
        calm = self._stage is Stage.RUNNING and self._announced and self._fleet.ready
        return beat_interval(self.config.supervisor) if calm else TURN_SECONDS

    def _on_signal(self, number: int, now: float) -> None:
        match number:
            case signal.SIGTERM | signal.SIGINT:
                if self._stage in (Stage.PREPARING, Stage.RUNNING):
                    self._drain(now, signal.Signals(number).name)
                elif self._stage is not Stage.STOPPING:
                    self._stop(now, signal.Signals(number).name)
            case signal.SIGQUIT:
                self._quit(now)
            case signal.SIGHUP:
                self._on_hup(now)
            case signal.SIGUSR1:
                level = max(logging.INFO, log.getEffectiveLevel())  # it was asked for
                log.log(level, "status: %s; %s", self._stage.value, self._fleet.summary())
                self._fleet.report(now, level)

    def _reap(self, now: float) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            # Neither of both: an orphan that fell to us and has ended.
            if not self._fleet.ended(pid, status, now, self.config.supervisor):
                self._errands.ended(pid, status, now)

    def _sweep(self, now: float) -> None:
        """Kill what ended children have left; when nothing is, their claims can go."""
        if not self._fleet.cleaning:
            self._sweeping_since = None
            return
        if self._sweeping_since is None:
            self._sweeping_since = now
        exempt = self._exempt()
        if self._server_may_start(now - self._sweeping_since):
            return
        guard = STOP_GUARD_SECONDS if self._stage is Stage.STOPPING else GUARD_SECONDS
        since = now - self._sweeping_since
        find = strays.strays if since < guard and not self._quitting else strays.kill_strays
        left = find(self._known(), exempt)
        if left and since < SWEEP_SECONDS:
            return
        if left:
            log.error("some processes do not end by KILL, going on without: pids=%s", left)
        self._sweeping_since = None
        self._fleet.cleaned()

    def _server_may_start(self, waited: float) -> bool:
        """An errand that finds the embedded Postgres gone starts it. In the moment before that is known by its
        pid it looks like a stray."""
        return (
            self._stage in (Stage.RUNNING, Stage.DRAINING)
            and self.config.database.url is None
            and not self._daemons
            and bool(self._errands.running)
            and waited < SERVER_START_SECONDS
        )

    def _known(self) -> set[int]:
        return {child.pid for child in self._fleet.children()} | set(self._errands.running)

    def _exempt(self) -> set[int]:
        try:
            self._daemons |= self._do.exempt(self.config)
        except Exception as e:
            if not self._exempt_failed:
                log.error("an embedded Postgres cannot be told from a stray, one known so far is spared: %s", e)
            self._exempt_failed = True
        return self._daemons

    def _watch_daemons(self) -> None:
        """An embedded server that has ended is started again by the errand that started it."""
        gone = {pid for pid in self._daemons if proctree.start_ticks(pid) is None}
        self._daemons -= gone
        if gone and not self._errands.has("prepare") and self._stage in (Stage.RUNNING, Stage.DRAINING):
            log.error("the embedded Postgres has ended and is started again pid=%s", min(gone))
            self._prepare()

    # -- errands ------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        config = self.config
        limit = config.database.start_timeout_seconds + MIGRATION_SECONDS
        self._errands.add(Errand("prepare", lambda: self._do.prepare(config), limit, self._prepared))

    def _prepared(self, code: int) -> bool:
        if code == 0:
            self._exempt()
            if self._stage is Stage.PREPARING:
                self._stage = Stage.RUNNING
                self._fleet.fit(self.config, time.monotonic())
            self._apply_lanes()
            return False
        if self._stage is Stage.PREPARING:
            self._code = code if code in (Exit.NO_DATABASE, Exit.CONFIG) else Exit.CRASHED
            self._begin_leaving(Stage.DRAINING)
        return self._stage is Stage.RUNNING or (self._stage is Stage.DRAINING and self._code is None)

    def _release(self, worker: str, why: str, then: Callable[[], None]) -> None:
        def ended(code: int) -> bool:
            then()
            return code != 0

        if self._quitting:
            return
        config = self.config
        self._errands.add(
            Errand(f"release {worker}", lambda: self._do.release(config, worker, why), ERRAND_SECONDS, ended)
        )

    def _apply_lanes(self) -> None:
        """Bring the lane rows from what was applied last to what holds now: one errand at a time, since
        what one reload has not got through must not be lost in the next one's difference."""
        if self._applying or self.config is self._applied:
            return
        self._applying = True
        new = self.config

        def ended(code: int) -> bool:
            if code == 0:
                self._applied = new
            if code != 0 and self.config is new:
                self._reload_is_over()
                return True
            self._applying = False
            self._apply_lanes()
            if not self._applying:
                self._reload_is_over()
            return False

        self._errands.add(
            Errand("apply_lanes", lambda: self._do.apply_lanes(new, self._applied), ERRAND_SECONDS, ended)
        )

    # -- reload -------------------------------------------------------------------------------------------

    def _on_hup(self, now: float) -> None:
        if self._stage not in (Stage.PREPARING, Stage.RUNNING):
            log.info("HUP comes too late: %s", self._stage.value)
            return
        if self._announced:
            self._notifier.reloading()
        self._announced = False
        self._reloading = True
        try:
            self.config = self._reload(self.config)
        except Exception as e:
            known = isinstance(e, ConfigError)
            why = e.in_one_line if isinstance(e, ConfigError) else e
            log.error("configuration refused, the old one stays: %s", why, exc_info=None if known else e)
            self._reload_is_over()
            return
        log.info("configuration read again path=%s", self.config.path)
        if self._stage is Stage.PREPARING:
            self._reload_is_over()  # what starts later starts with it
            return
        self._fleet.fit(self.config, now)
        self._fleet.reload(now)
        self._apply_lanes()

    def _reload_is_over(self) -> None:
        self._reloading = False

    def _announce(self) -> None:
        if self._stage is Stage.RUNNING and not self._announced and not self._reloading and self._fleet.ready:
            self._announced = True
            self._notifier.ready()
            log.info("ready: %s", self._fleet.summary())
        self._notifier.status(f"{self._stage.value}: {self._fleet.summary()}".rstrip(": "))

    # -- the way out --------------------------------------------------------------------------------------

    def _begin_leaving(self, stage: Stage) -> None:
        if not self._fleet.closing:
            self._notifier.stopping()
        self._fleet.closing = True
        self._stage = stage

    def _drain(self, now: float, why: str) -> None:
        seconds = self.config.supervisor.drain_seconds
        log.info("draining: %s; no new work, %.0f s at most for what is in hand", why, seconds)
        if self._stage is Stage.PREPARING:
            self._errands.drop("the supervisor leaves")
        self._begin_leaving(Stage.DRAINING)
        self._deadline = now + seconds
        self._fleet.drain(WorkerRole.RUNNER, now, seconds)

    def _stop(self, now: float, why: str) -> None:
        log.warning("stopping fast: %s", why)
        if self._stage is Stage.FINISHING:
            self._deadline = min(now + STOP_ALL_SECONDS, self._deadline or now)
            return
        self._begin_leaving(Stage.STOPPING)
        self._deadline = now + STOP_ALL_SECONDS
        self._release_by = now + STOP_RELEASE_BY_SECONDS
        self._errands.drop("the supervisor leaves", "prepare")
        self._fleet.stop(now, min(self.config.supervisor.stop_grace_seconds, STOP_SECONDS))

    def _quit(self, now: float) -> None:
        log.warning("quitting at once: SIGQUIT")
        self._quitting = True
        self._begin_leaving(Stage.FINISHING)
        self._fleet.cut = self._fleet.cut or not self._fleet.without_runners
        self._fleet.kill("the supervisor quits")
        self._errands.drop("the supervisor quits")
        self._deadline = now + QUIT_SECONDS

    def _progress(self, now: float) -> None:
        """From one stage to the next."""
        match self._stage:
            case Stage.RUNNING if self._fleet.poller_tripped:
                self._code = Exit.CRASHED
                self._drain(now, "the poller crash-loops")
            case Stage.DRAINING:
                if self._deadline is not None and now >= self._deadline:
                    self._stop(now, "the time for draining is over")
                elif self._fleet.without_runners:
                    self._fleet.drain(WorkerRole.POLLER, now, POLLER_LEAVE_SECONDS)
                    if self._fleet.empty:
                        self._await_releases(now)
            case Stage.STOPPING:
                if self._deadline is not None and now >= self._deadline:
                    self._stage = Stage.OVER
                elif self._fleet.empty:
                    self._await_releases(now)
            case Stage.FINISHING:
                over = self._deadline is not None and now >= self._deadline
                if over or (not self._errands and self._fleet.empty):
                    self._stage = Stage.OVER

    def _await_releases(self, now: float) -> None:
        """All children have left. Claims first, then the database that they are in."""
        if self._release_by is None:
            self._release_by = now + RELEASE_SECONDS
        if self._errands and now < self._release_by:
            return
        if self._errands:
            log.warning("some claims are not released; the next start does it, or their lease ends")
            self._errands.drop("the supervisor leaves")
        config = self.config
        limit = FINISH_SECONDS
        if self._stage is Stage.STOPPING and self._deadline is not None:
            limit = max(0.0, self._deadline - now)
        self._deadline = now + limit
        self._stage = Stage.FINISHING
        self._errands.add(Errand("finish", lambda: self._do.finish(config), limit, lambda code: False))

    def _leave_nothing(self) -> None:
        """KILL whatever is left, the embedded Postgres excepted, and collect it. Ends a fault's way out too."""
        self._fleet.kill("the supervisor ends")
        self._errands.drop("the supervisor ends")
        exempt = self._exempt()

        def left() -> list[int]:
            self._reap(time.monotonic())
            return strays.strays((), exempt)

        if not proctree.kill_all(left, QUIT_SECONDS):
            log.error("some processes do not end by KILL: pids=%s", left())

    # -- forking ------------------------------------------------------------------------------------------

    def _fork(self, run: Run, name: str, subreaper: bool = False) -> Child:
        def named(beat_fd: int) -> int:
            self._on_fork(name)
            return run(beat_fd)

        return fork(named, name, self.config.host, subreaper)

    def _spawn(self, slot: Slot) -> Child:
        config = self.config

        def run(beat_fd: int) -> int:
            ctx = ChildContext(config, slot.role, slot.lane, slot.index, beat_fd=beat_fd, reload=self._reload)
            ctx.listen()
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            return self._mains[slot.role](ctx)

        return self._fork(run, slot.name, subreaper=slot.role is WorkerRole.RUNNER)
