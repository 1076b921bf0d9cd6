"""One agent run, as the runner's main loop sees it: start, turn after turn, stop, conclude.

Protocol. `start` writes the run's files and starts the guard (guard.py), which starts the agent. Each `turn`
waits a little for news, decodes what the agent printed since, and enforces the limits. The run ends by the
agent's own end, or by `stop`, which records the reason first (runfiles.py) and then sends TERM to the guard.
When `ended` is true nothing of the agent lives, and `conclude` says how it went.

    no complete event for stall_seconds         stop(STALL)
    wall_seconds since the start                stop(WALL_CLOCK)
    more printed than transcript_bytes          the guard ends it by itself, as stop(TRANSCRIPT) would
    the model's API refuses the key again and again (claude tries ten times)   stop(AUTH_RETRIES)
    final event, and linger_seconds later still there   stop(HUNG): judged by that event
    guard not gone grace + 15 s after a stop    KILL to it and to all that carries the run's mark

`start` ends what an earlier run of the job has left alive on this host, the run of a stopped runner included. All
else goes by the run's own mark: who has lost the job must not end his successor's agent.

Call `start` from the thread that lives as long as the runner: the kernel's parent-death signal, by which the
guard learns of the runner's end, belongs to the thread that started it.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from tireless import proctree
from tireless.agents import runfiles
from tireless.agents.base import (
    Adapter,
    AgentNotStarted,
    Command,
    Conclusion,
    Event,
    Limits,
    Places,
    StopReason,
)
from tireless.agents.conclusion import conclude
from tireless.agents.runfiles import StopRecord
from tireless.agents.sandbox import Sandbox
from tireless.agents.seed import sow
from tireless.entities import Usage

log = logging.getLogger(__name__)

_GUARD = Path(__file__).with_name("guard.py")
_STEP_SECONDS = 0.05
_READ_BYTES = 1024 * 1024  # at most so much is decoded in one turn, so that the runner's loop turns
_FORCE_AFTER_SECONDS = 15.0  # beyond the grace: the guard itself needs up to 10 to kill a stubborn tree


class AgentProcess:
    def __init__(
        self, adapter: Adapter, run_dir: Path, job_id: str, limits: Limits, guard: subprocess.Popen[bytes]
    ) -> None:
        """Use `start`."""
        self._adapter = adapter
        self._run_dir = run_dir
        self._job_id = job_id
        self._limits = limits
        self._guard = guard
        self._decoder = adapter.decoder()
        self._read = 0
        self._lines = 0
        self._started = self._last_line = time.monotonic()
        self._final_since: float | None = None
        self._stop: StopRecord | None = None
        self._force_at = float("inf")

    @classmethod
    def start(
        cls,
        command: Command,
        run_dir: Path,
        job_id: str,
        sandbox: Sandbox,
        limits: Limits,
        *,
        adapter: Adapter,
        places: Places,
    ) -> AgentProcess:
        """Start the agent; returns at once. AgentNotStarted if files or guard cannot be made.

        `run_dir` is this run's alone (a resumed run has one of its own). What an earlier run of the job may
        have left alive on this host is killed first.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("an agent is started by the runner's main thread; see the module's text")
        end_job(job_id)
        try:
            _write_run(command, run_dir, sandbox, limits, places)
            guard = _spawn_guard(command, run_dir, sandbox, _run_mark(job_id, run_dir))
        except OSError as e:
            raise AgentNotStarted(f"the agent of job {job_id} cannot be started: {e}") from e
        log.info("agent started job=%s guard=%d sandbox=%r", job_id, guard.pid, sandbox.description)
        return cls(adapter, run_dir, job_id, limits, guard)

    @property
    def usage(self) -> Usage:
        return self._decoder.usage

    @property
    def session_id(self) -> str | None:
        """As the stream names it. Store it as soon as it is there: opencode chooses its own."""
        return self._decoder.session_id

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    @property
    def ended(self) -> bool:
        """Whether the guard is gone, and with it every process of the agent."""
        return self._guard.poll() is not None

    @property
    def stopping(self) -> StopReason | None:
        return None if self._stop is None else self._stop.reason

    def turn(self, timeout: float) -> list[Event]:
        """Wait for news, `timeout` seconds at most; the events since the last turn. Enforces the limits."""
        deadline = time.monotonic() + timeout
        while True:
            gone = self.ended  # asked before the read: what was printed before the end is read after it
            events = self._take()
            if gone or events:
                break
            self._enforce()
            left = deadline - time.monotonic()
            if left <= 0:
                break
            _wait_for_exit(self._guard, min(left, _STEP_SECONDS))
        if not gone:
            self._enforce()
        return events

    def stop(self, reason: StopReason) -> None:
        """Ask the run to end. The reason is on disk before the first signal; the first one stands."""
        if self._stop is None and not self.ended:
            self._stop = StopRecord(reason, runfiles.events_size(self._run_dir))
            try:
                runfiles.write_stop(self._run_dir, self._stop)
            except OSError as e:  # a full disk must not keep an agent alive
                log.error("stop.json not written job=%s error=%s", self._job_id, e)
            log.info("agent stop job=%s reason=%s", self._job_id, reason)
            self._guard.send_signal(signal.SIGTERM)
            self._force_at = time.monotonic() + self._limits.grace_seconds + _FORCE_AFTER_SECONDS

    def kill(self, reason: StopReason) -> None:
        """End the run now, without grace: the claim is lost, or the runner is told to quit at once."""
        if not self.ended:
            self.stop(reason)
            self._force()

    def conclude(self) -> Conclusion:
        """How the run went; only once `ended`."""
        if not self.ended:
            raise RuntimeError("conclude() before the run has ended")
        self._kill_marked()  # if the guard was killed, its tools may have gone elsewhere
        stop = self._stop or runfiles.read_stop(self._run_dir)  # the guard may have stopped it by itself
        if stop is None and runfiles.read_exit(self._run_dir) is None:
            log.warning("guard ended without a record job=%s code=%s", self._job_id, self._guard.returncode)
        return conclude(self._run_dir, self._adapter, stop)

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is left running, however the block ended."""
        self.kill(StopReason.DRAIN)

    def _take(self) -> list[Event]:
        try:
            with open(self._run_dir / runfiles.EVENTS, "rb") as f:
                f.seek(self._read)
                data = f.read(_READ_BYTES)
        except FileNotFoundError:
            return []
        self._read += len(data)
        events = self._decoder.feed(data)
        if self._decoder.lines > self._lines:
            self._lines = self._decoder.lines
            self._last_line = time.monotonic()
        return events

    def _enforce(self) -> None:
        now = time.monotonic()
        if self._stop is not None:
            if now >= self._force_at:
                log.error("guard does not end, killed job=%s guard=%d", self._job_id, self._guard.pid)
                self._force()
            return
        if runfiles.events_size(self._run_dir) > self._read:
            return  # there is more to decode: it may be the news that the limits wait for
        if self._decoder.hopeless is not None:
            self.stop(self._decoder.hopeless)
        elif self._lingers(now):
            self.stop(StopReason.HUNG)
        elif now - self._started >= self._limits.wall_seconds:
            self.stop(StopReason.WALL_CLOCK)
        elif self._decoder.final_at is None and now - self._last_line >= self._limits.stall_seconds:
            self.stop(StopReason.STALL)

    def _lingers(self, now: float) -> bool:
        if self._decoder.final_at is None:
            self._final_since = None
            return False
        if self._final_since is None:
            self._final_since = now
        return now - self._final_since >= self._limits.linger_seconds

    def _kill_marked(self) -> None:
        mark = _run_mark(self._job_id, self._run_dir)
        if not proctree.kill_all(lambda: proctree.marked(mark, proctree.RUN_MARK), 10.0):
            log.error("processes of the run cannot be killed job=%s", self._job_id)

    def _force(self) -> None:
        """KILL the tree under the guard, the guard, and whatever carries the run's mark."""
        pid = self._guard.pid
        proctree.kill_all(lambda: [] if self.ended else proctree.descendants(pid), 5.0)
        if not self.ended:
            self._guard.kill()
        self._guard.wait()
        self._kill_marked()


def _write_run(command: Command, run_dir: Path, sandbox: Sandbox, limits: Limits, places: Places) -> None:
    run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    if command.seed is not None:
        sow(places.home, command.seed)
    sandbox.prepare(places)
    runfiles.write_file(run_dir / runfiles.PROMPT, command.stdin)
    runfiles.write_json(
        run_dir / runfiles.GUARD,
        {
            "argv": list(sandbox.wrap(command.argv, command.programs, places, run_dir)),
            "cwd": str(places.workspace),
            "parent": os.getpid(),
            "grace": limits.grace_seconds,
            "max_output": limits.transcript_bytes,
            "limits": sandbox.limits(),
            "sandboxed": sandbox.bwrap is not None,
            "account": None if sandbox.account is None else sandbox.account.as_json(),
        },
    )


def _spawn_guard(command: Command, run_dir: Path, sandbox: Sandbox, mark: str) -> subprocess.Popen[bytes]:
    """The guard's environment is the agent's: keys travel by environment only, never by argument or file."""
    env = dict(command.env)
    if sandbox.runs_as_root:
        env.update(command.env_as_root)
    env[proctree.RUN_MARK] = mark
    log_fd = os.open(run_dir / runfiles.GUARD_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), str(run_dir)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log_fd,
            env=env,
            cwd="/",
            start_new_session=True,
        )
    finally:
        os.close(log_fd)


def _run_mark(job_id: str, run_dir: Path) -> str:
    return f"{job_id}/{run_dir.name}"


def end_job(job_id: str) -> None:
    """KILL what carries the job's mark on this host, guards first, so that none of them records an end that was ours.
    Only for who holds the job."""
    if not proctree.kill_all(lambda: proctree.marked(job_id), 10.0):
        log.error("processes of the job cannot be killed job=%s", job_id)


def _wait_for_exit(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(max(1, int(seconds * 1000)))
    finally:
        os.close(fd)
