"""A forked process, seen from its parent: born, ready, beating, told to leave, killed."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from tireless import process
from tireless.process import Exit, Leave, exit_code_of

log = logging.getLogger(__name__)

Run = Callable[[int], int]  # given the write end of the beat pipe; the exit code

ABORT_GRACE_SECONDS = 3.0  # from ABRT, which dumps the stacks, to KILL


@dataclass(eq=False, slots=True)
class Child:
    """One forked process. Times are seconds on the monotonic clock; None is never."""

    pid: int
    worker: str
    name: str
    born: float
    beat_fd: int  # read end of its pipe, -1 once closed
    last_beat: float
    ready: bool = False
    leaving: bool = False  # it was told to: an end with 0 is as it should
    why: str = ""  # the reason for which it was killed, if it was
    stop_at: float | None = None
    kill_at: float | None = None
    _told: set[int] = field(default_factory=set)

    def listen(self, now: float) -> None:
        """Take in what it has said."""
        if self.beat_fd < 0:
            return
        try:
            said = os.read(self.beat_fd, 65536)
        except BlockingIOError:
            return
        if not said:  # it is ending, or has closed its end: it cannot beat any more
            self.close()
            return
        self.last_beat = now
        self.ready = self.ready or process.READY in said

    def close(self) -> None:
        if self.beat_fd >= 0:
            os.close(self.beat_fd)
            self.beat_fd = -1

    def send(self, sig: int) -> None:
        """It is ours and not collected, so its number names nobody else."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, sig)

    def drain(self, now: float, seconds: float) -> None:
        """TERM now; INT if it is still there after `seconds`."""
        if signal.SIGTERM not in self._told:
            self._told.add(signal.SIGTERM)
            self.leaving = True
            self.stop_at = now + seconds
            self.send(signal.SIGTERM)

    def stop(self, now: float, grace: float) -> None:
        """INT now; KILL if it is still there after `grace` seconds."""
        if signal.SIGINT not in self._told:
            self._told.add(signal.SIGINT)
            self.leaving = True
            self.stop_at = None
            self._kill_by(now + grace)
            self.send(signal.SIGINT)

    def abort(self, now: float, why: str) -> None:
        """ABRT now, for a dump of its stacks; KILL a little later."""
        if signal.SIGABRT not in self._told:
            self._told.add(signal.SIGABRT)
            self.why = why
            self._kill_by(now + ABORT_GRACE_SECONDS)
            self.send(signal.SIGABRT)

    def kill(self, why: str) -> None:
        if signal.SIGKILL not in self._told:
            self._told.add(signal.SIGKILL)
            self.why = self.why or why
            self.stop_at = self.kill_at = None
            self.send(signal.SIGKILL)

    def _kill_by(self, when: float) -> None:
        if signal.SIGKILL not in self._told:
            self.kill_at = min(when, self.kill_at) if self.kill_at is not None else when

    def keep_word(self, now: float, grace: float) -> None:
        """INT or KILL, if a time that was set for it has come."""
        if self.stop_at is not None and now >= self.stop_at:
            self.stop(now, grace)
        if self.kill_at is not None and now >= self.kill_at:
            self.kill("it did not leave in time")

    @property
    def was_stopped(self) -> bool:
        """Whether it was told to cut its work off."""
        return signal.SIGINT in self._told

    def forgive(self, seconds: float) -> None:
        """The supervisor itself did not run for so long: that time counts against nobody."""
        self.born += seconds
        self.last_beat += seconds

    def deadlines(self) -> list[float]:
        return [when for when in (self.stop_at, self.kill_at) if when is not None]

    def describe_end(self, status: int) -> str:
        end = describe(status)
        return f"{self.why} ({end})" if self.why else end


def describe(status: int) -> str:
    """What a wait status says, in words."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def fork(run: Run, name: str, host: str, subreaper: bool = False) -> Child:
    """Fork a child that runs `run` with the write end of its beat pipe and leaves with what it returns.

    Returns in the parent only. OSError if no process can be had. `run` is called with all signals still
    blocked; it unblocks them when its handlers are in place (`process.ChildContext.listen`, or at once).
    """
    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    parent = os.getpid()
    # Until the child has handlers of its own, a signal for it would run the parent's in a copy of the parent.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _be_child(run, name, parent, write_fd, subreaper)
    except OSError:
        os.close(read_fd)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(write_fd)
    try:
        worker = process.worker_id(host, pid)
    except OSError:  # no descriptor left to read /proc with: nobody would look after it
        os.kill(pid, signal.SIGKILL)
        os.close(read_fd)
        raise
    now = time.monotonic()
    return Child(pid, worker, name, now, read_fd, now)


def _be_child(run: Run, name: str, parent: int, beat_fd: int, subreaper: bool) -> NoReturn:
    """The child's whole life. Whatever happens, it ends here: a child that returned would be a second
    supervisor."""
    code: int = Exit.CRASHED
    try:
        process.enter_child(name, parent, beat_fd, subreaper)
        code = run(beat_fd)
    except BaseException as e:
        code = exit_code_of(e)
        _report(name, e, code)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code & 0xFF)


def _report(name: str, error: BaseException, code: int) -> None:
    with contextlib.suppress(Exception):
        if isinstance(error, SystemExit):
            return
        if isinstance(error, Leave) or code != Exit.CRASHED:
            log.error("%s: %s exit=%d", name, error, code)
        else:
            log.error("%s ended by an error that nobody expected: %s", name, error, exc_info=error)
