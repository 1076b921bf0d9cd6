"""The guard: one process between a runner and an agent, so that no process of the agent outlives its job.

Run as a script in a bare interpreter (`python -I -S guard.py RUN_DIR`); standard library and proctree only.

Protocol. RUN_DIR/guard.json says what to start. The guard is a child subreaper: whatever the agent's tools
daemonise falls to it. The agent writes its events straight into a file, so they survive any of us.

    waiting   The agent runs. When its main process ends: write exit.json, KILL what is left below, leave.
    stopping  SIGTERM came: TERM to the agent's tree; KILL once the main process is gone or the grace is over;
              write exit.json with "stopped": true.
    flooded   The agent printed more than it may (both streams together): stop.json says so, KILL to the tree,
              then as when stopping. The guard sees to it, since a runner may be busy for seconds and a disk
              fills at a gigabyte a second. What is beyond the limit is cut off the files.
    orphaned  The runner died (a parent-death signal, and a look at getppid with each tick): KILL the tree at
              once, since on TERM claude writes a false success; write nothing, so that the next runner
              knows that the run was cut off. If the main process had ended by itself before, exit.json
              is written all the same: that work is done and paid.

An agent that ended is ended: a TERM that comes later changes nothing in exit.json. If the guard itself is
killed, the kernel kills the agent's main process (parent-death signal), and with it, behind bubblewrap, all of
it; without bubblewrap the rest is found by its mark. Everything here is bounded: the guard never hangs.
exit.json is replaced atomically; a run without one has no known end. On a full disk it is left out, and all else
is done as ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

KILL_SECONDS = 10.0
TICK_SECONDS = 0.2
ORPHANED = signal.SIGUSR1  # what the kernel sends when the runner dies; SIGTERM is what the runner sends
_LIMITS = {
    "data": resource.RLIMIT_DATA,
    "processes": resource.RLIMIT_NPROC,
    "file": resource.RLIMIT_FSIZE,
    "core": resource.RLIMIT_CORE,
}


def _load_proctree() -> ModuleType:
    """By path: a bare interpreter (-I -S) has no site-packages, and the package must not be imported whole."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "proctree.py")
    spec = importlib.util.spec_from_file_location("proctree", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Guard:
    def __init__(self, run_dir: str, spec: dict[str, Any], proctree: ModuleType) -> None:
        self.run_dir = run_dir
        self.spec = spec
        self.proctree = proctree
        self.pid = 0
        self.code: int | None = None
        self.ended = False
        self.error: str | None = None
        self.stopped = False
        self.orphaned = False
        self.asked = False
        self.wake, self._wake_write = os.pipe()

    def run(self) -> int:
        self._listen()
        self.proctree.become_subreaper()
        self.proctree.die_with_parent(ORPHANED, self.spec["parent"])
        if self._looks_orphaned():
            return 0
        self._start()
        deadline: float | None = None
        while not self.ended:
            self._wait(TICK_SECONDS if deadline is None else min(TICK_SECONDS, deadline - time.monotonic()))
            self._reap()
            if self.ended:
                break
            if self._looks_orphaned():
                self._kill_rest()
                return 0
            if self.asked and deadline is None:
                self.stopped = True
                deadline = time.monotonic() + self.spec["grace"]
                self.proctree.send(self._to_terminate(), signal.SIGTERM)
            elif self._flooded() or (deadline is not None and time.monotonic() >= deadline):
                self.stopped = True
                self._kill_rest()
                self._reap()
                self._cut_flood()
                break
        self._record()
        return 0 if self._kill_rest() else 3

    def _listen(self) -> None:
        """Signals only set a word and wake the loop. SIGCHLD has a handler so that it wakes it too."""
        for fd in (self.wake, self._wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(ORPHANED, self._on_orphaned)
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(sig, self._on_stop)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    def _on_stop(self, *_: object) -> None:
        self.asked = True

    def _on_orphaned(self, *_: object) -> None:
        self.orphaned = True

    def _looks_orphaned(self) -> bool:
        return self.orphaned or os.getppid() != self.spec["parent"]

    def _wait(self, seconds: float) -> None:
        if select.select([self.wake], [], [], max(0.0, seconds))[0]:
            with contextlib.suppress(BlockingIOError):
                while os.read(self.wake, 512):
                    pass

    def _start(self) -> None:
        """Start the agent. A pipe that closes at exec brings back why it could not be started."""
        read, write = os.pipe()
        own_pid = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            bind = functools.partial(self.proctree.die_with_parent, signal.SIGKILL, own_pid)
            _become_agent(self.run_dir, self.spec, bind, write)
        os.close(write)
        ready = select.select([read], [], [], 30.0)[0]
        message = os.read(read, 4096) if ready else b""
        os.close(read)
        if message:
            self.error = message.decode("utf-8", "replace")

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.ended = True
                self.code = os.waitstatus_to_exitcode(status)

    def _flooded(self) -> bool:
        sizes = (os.stat(os.path.join(self.run_dir, name)).st_size for name in ("events.jsonl", "stderr.log"))
        most: int = self.spec["max_output"]
        if sum(sizes) <= most:
            return False
        if not os.path.exists(os.path.join(self.run_dir, "stop.json")):
            self._write("stop.json", {"reason": "transcript", "offset": most, "at": time.time()})
        return True

    def _cut_flood(self) -> None:
        """Nobody reads beyond the limit, and a gigabyte would have to be gone through by whoever reads on."""
        for name in ("events.jsonl", "stderr.log"):
            path = os.path.join(self.run_dir, name)
            with contextlib.suppress(OSError):
                if os.stat(path).st_size > self.spec["max_output"]:
                    os.truncate(path, self.spec["max_output"])

    def _to_terminate(self) -> list[int]:
        """Bubblewrap's own processes are spared at first: a TERM to the outer one KILLs all that is inside."""
        found: list[int] = self.proctree.descendants(os.getpid())
        return [pid for pid in found if pid != self.pid] if self.spec["sandboxed"] else found

    def _kill_rest(self) -> bool:
        gone: bool = self.proctree.kill_all(lambda: self.proctree.descendants(os.getpid()), KILL_SECONDS)
        return gone

    def _record(self) -> None:
        row: dict[str, Any] = {"code": self.code, "at": time.time(), "stopped": self.stopped}
        if self.error is not None:
            row["error"] = self.error
        self._write("exit.json", row)

    def _write(self, name: str, row: dict[str, Any]) -> None:
        path = os.path.join(self.run_dir, name)
        try:
            fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w") as f:
                json.dump(row, f)
                f.flush()
                os.fsync(f.fileno())
            os.replace(path + ".new", path)
        except OSError as e:  # a full disk must not keep the guard from ending the tree
            print(f"{name} not written: {e}", file=sys.stderr)


def _become_agent(run_dir: str, spec: dict[str, Any], bind_to_guard: Callable[[], None], report: int) -> None:
    """In the child: own session, files, limits, account; then the agent's program. Never returns."""
    try:
        os.setsid()
        _open_streams(run_dir)
        os.umask(0o022)  # as a checkout and its tests expect; the directories around it are 0700
        for name, value in spec["limits"].items():
            _lower_limit(_LIMITS[name], value)
        if spec["account"] is not None:
            account = spec["account"]
            os.setgroups(account["groups"])
            os.setgid(account["gid"])
            os.setuid(account["uid"])
        bind_to_guard()  # a change of account clears it, so it comes after that
        os.chdir(spec["cwd"])
        for sig in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(sig, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.execve(spec["argv"][0], spec["argv"], dict(os.environ))
    except BaseException as e:
        reason = e.strerror if isinstance(e, OSError) and e.strerror else repr(e)
        os.write(report, f"{spec['argv'][0]} could not be started: {reason}".encode()[:4000])
    finally:
        os._exit(127)


def _open_streams(run_dir: str) -> None:
    stdin = os.open(os.path.join(run_dir, "prompt.txt"), os.O_RDONLY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    stdout = os.open(os.path.join(run_dir, "events.jsonl"), flags, 0o600)
    stderr = os.open(os.path.join(run_dir, "stderr.log"), flags, 0o600)
    for target, fd in enumerate((stdin, stdout, stderr)):
        os.dup2(fd, target, inheritable=True)
    # What else is open here closes at exec: Python opens everything close-on-exec.
    for fd in (stdin, stdout, stderr):
        if fd > 2:
            os.close(fd)


def _lower_limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))


def main(run_dir: str) -> int:
    f = open(os.path.join(run_dir, "guard.json"), "rb")  # noqa: SIM115  open to the end, for its lock
    _lock(f.fileno())
    return Guard(run_dir, json.load(f), _load_proctree()).run()


def _lock(fd: int) -> None:
    """Held until the kernel closes the file, when all else of this process is gone: who finds it free knows
    that the run has ended. Somebody who looks at that very moment may hold it for an instant."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        select.select([], [], [], 0.01)


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1])
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(code)  # not sys.exit: that would close the file, and the lock with it, before the end
