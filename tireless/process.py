"""What every child of the supervisor is given: an identity, a beat, and signals that only wake its loop.

Identity. A worker is named `host/boot id/pid namespace/pid/start time`: enough to tell, on the same host,
whether it still lives (`is_dead`), and never the name of two processes. It is what a claim is held by.

The beat. One pipe a child, from child to parent, non-blocking: `r` says "ready", `b` says "my main loop has
turned", a dozen times in `supervisor.beat_seconds`, so that one late beat is nothing. A child that is idle
wakes for it half as often, if nothing else wakes it. Nothing else ever travels on it. A child that waits
for a database or a forge goes on turning its loop, so an outage is no hang; a child that does not beat for
`supervisor.beat_seconds` is aborted with a dump of its stacks on stderr, then killed, and replaced.

Signals, as every child takes them. Handlers only set a flag and wake the loop; `turn` and `wait` act on it.
    TERM    drain: finish what is in hand, take nothing new, leave with 0   (`draining`)
    INT     stop: cut the work off now, requeue it, leave                   (`stopping`, implies `draining`)
            KILL follows after `stop_grace_seconds`, and after STOP_SECONDS at the latest
    HUP     read the configuration again; a bad one leaves the old one in place, with one error line
    USR1    dump the stacks of all threads on stderr and go on
    ABRT    dump the stacks of all threads on stderr and end (what the supervisor sends a child that hangs)
    QUIT    end at once (the default action; nothing is requeued by the child itself)
    KILL    what the kernel sends when the supervisor ends before its child does. A signal that can be handled
            would leave behind a child that hangs, without anybody to notice; the claims of a killed child are
            released by the next supervisor of the host, and its agents die by their guard.

A child lives in a session of its own, so that Ctrl-C in a terminal reaches the supervisor alone, which then
drains. It inherits no descriptor but 0 (/dev/null), 1, 2 and its beat pipe, and leaves by os._exit: what was
registered with atexit before the fork belongs to another process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tireless import proctree
from tireless.config import Config, ConfigError, SupervisorConfig
from tireless.entities import AgentKind, TirelessError, WorkerRole

log = logging.getLogger(__name__)

READY, BEAT = b"r", b"b"
LONGEST_BEAT_INTERVAL_SECONDS = 10.0
STOP_SECONDS = 2.5  # what a child has, at most, from INT to KILL: its agent's end and the requeueing included

# What a service manager tells the process that it started, and nobody below it.
SUPERVISOR_ONLY = (
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
)


class Exit(IntEnum):
    """The supervisor's exit codes; those of an errand are the same where they have the same meaning."""

    DRAINED = 0
    CUT_OFF = 1  # stopped with work cut off (and requeued)
    USAGE = 64  # a bad command line, or the state directory is in use by another supervisor
    NO_DATABASE = 69
    CRASHED = 70  # a crash-looping poller, or a fault in the supervisor itself
    CONFIG = 78  # the configuration, or a schema from a newer program


class Leave(TirelessError):
    """Ends a child with an exit code of its own; the text is the one line that its log gets."""

    def __init__(self, exit_code: int, text: str) -> None:
        self.exit_code = exit_code
        super().__init__(text)


def exit_code_of(error: BaseException) -> int:
    """The exit code of a child that ended by `error`: its own `exit_code` if it has one, 78 for ConfigError,
    the code of a SystemExit, 70 for everything else."""
    own = getattr(error, "exit_code", None)
    if isinstance(own, int):
        return int(own)
    if isinstance(error, ConfigError):
        return Exit.CONFIG
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return Exit.CRASHED


# -- identity ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerId:
    host: str
    boot_id: str
    pid_namespace: int  # inode of /proc/PID/ns/pid
    pid: int
    start_ticks: int  # clock ticks since boot

    def __str__(self) -> str:
        return f"{self.host}/{self.boot_id}/{self.pid_namespace}/{self.pid}/{self.start_ticks}"


def worker_id(host: str, pid: int) -> str:
    """The name of the live or not yet collected process `pid` of this pid namespace, as a worker on `host`.
    ProcessLookupError if there is none."""
    ticks = proctree.start_ticks(pid, zombies=True)
    if ticks is None:
        raise ProcessLookupError(f"no process {pid}")
    return str(WorkerId(host, proctree.boot_id(), _pid_namespace(), pid, ticks))


def parse_worker_id(text: str) -> WorkerId | None:
    """The parts of a worker's name; None if it is none. A host may hold slashes."""
    parts = text.rsplit("/", 4)
    if len(parts) != 5 or not parts[0] or not parts[1]:
        return None
    try:
        return WorkerId(parts[0], parts[1], int(parts[2]), int(parts[3]), int(parts[4]))
    except ValueError:
        return None


def is_dead(worker: str, host: str) -> bool | None:
    """Whether the worker has ended, as far as this process, on `host`, can tell.

    True for sure: another boot of this host, or no such process in this pid namespace. False: it lives.
    None: it cannot be told from here (another host, another pid namespace, not a name of ours); its lease
    tells. The host's name must be its own: two machines under one name would declare each other dead.
    """
    parsed = parse_worker_id(worker)
    if parsed is None or parsed.host != host:
        return None
    if parsed.boot_id != proctree.boot_id():
        return True
    if parsed.pid_namespace != _pid_namespace():
        return None
    ticks = proctree.start_ticks(parsed.pid)
    if ticks is None and _hidden(parsed.pid):
        return None
    return ticks != parsed.start_ticks


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _hidden(pid: int) -> bool:
    """Whether a process exists that /proc does not show: another user's, under hidepid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


def beat_interval(policy: SupervisorConfig) -> float:
    """Seconds between two beats of a child, and between two looks of the supervisor at all beats."""
    return min(LONGEST_BEAT_INTERVAL_SECONDS, policy.beat_seconds / 12)


# -- configuration ----------------------------------------------------------------------------------------


def check_reload(current: Config, new: Config) -> Config:
    """`new`, if a running process can go over to it from `current`. ConfigError if it changes what only a
    restart can: the host's name, the state directory, the database."""
    changed = [
        key
        for key, old_value, new_value in (
            ("host", current.host, new.host),
            ("state_dir", current.state_dir, new.state_dir),
            ("database.url", current.database.url, new.database.url),
            (
                "database.postgres_version",
                current.database.postgres_version,
                new.database.postgres_version,
            ),
        )
        if old_value != new_value
    ]
    if changed:
        # Without the values: a database URL may hold a password.
        where = new.path or "configuration"
        raise ConfigError("\n".join(f"{where}: {key} has changed, which takes a restart" for key in changed))
    return new


# -- the child's side -------------------------------------------------------------------------------------


class ChildContext:
    """What the main of a poller or runner is given. All methods are for its main thread; `config`,
    `draining`, `stopping` and `stop_event` may be read by any thread.

    Without `beat_fd` nobody listens to the beat, without `listen()` no signal is taken: so a test can use
    one in its own process and call `on_signal` in place of a signal.
    """

    def __init__(
        self,
        config: Config,
        role: WorkerRole,
        lane: AgentKind | None = None,
        index: int = 0,
        *,
        worker: str | None = None,
        beat_fd: int | None = None,
        reload: Callable[[Config], Config] | None = None,
    ) -> None:
        """`reload` makes a new configuration of the current one; ConfigError if it cannot be used."""
        self.config = config  # replaced on HUP by a new, validated one
        self.worker = worker if worker is not None else worker_id(config.host, os.getpid())
        self.role = role
        self.lane = lane
        self.index = index
        self.stop_event = threading.Event()  # set when draining or stopping, for sleeps in threads
        self._beat_fd = beat_fd
        self._reload = reload
        self._last_beat = float("-inf")
        self._is_ready = False
        self._draining = False
        self._stopping = False
        self._reload_asked = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        """Take signals from now on. SIGCHLD too: it wakes `wait`."""
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(sig, lambda number, _frame: self.on_signal(number))
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def on_signal(self, number: int) -> None:
        """What a handler does: note it, no more. It may run between any two steps of the main thread, which
        may hold the lock inside `stop_event`, so that is set by the loop."""
        if number == signal.SIGTERM:
            self._draining = True
        elif number == signal.SIGINT:
            self._draining = self._stopping = True
        elif number == signal.SIGHUP:
            self._reload_asked = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"\0")

    @property
    def draining(self) -> bool:
        """Finish what is in hand, take nothing new."""
        return self._draining

    @property
    def stopping(self) -> bool:
        """Cut the work off now, requeue it, leave."""
        return self._stopping

    def ready(self) -> None:
        """Tell the parent that the main loop is about to turn. Idempotent. It must not wait for a database: an
        outage of that would look like a child that never gets ready."""
        if not self._is_ready:
            self._is_ready = True
            self._tell(READY)

    def beat(self) -> None:
        """Tell the parent that the main loop has turned, if it is time to."""
        now = time.monotonic()
        if now - self._last_beat >= beat_interval(self.config.supervisor):
            self._last_beat = now
            self._tell(BEAT)

    def turn(self) -> bool:
        """One turn of the main loop: beat, take in signals. False when the child should leave that loop."""
        self.beat()
        self._take_in()
        return not self._draining

    def wait(self, seconds: float, fds: Sequence[int] = ()) -> list[int]:
        """Sleep until a signal, until one of `fds` is readable (or closed), or for `seconds`; beats on the
        way. The readable ones; none of them after a signal or the time. It may return early with none."""
        deadline = time.monotonic() + seconds
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        for fd in fds:
            poller.register(fd, select.POLLIN)
        while True:
            self.beat()
            left = deadline - time.monotonic()
            beat_at = self._last_beat + 2 * beat_interval(self.config.supervisor)
            pause = max(0.0, min(left, beat_at - time.monotonic()))
            events = [fd for fd, _ in poller.poll(pause * 1000 + (1 if pause else 0))]
            if events or left <= pause:
                self.beat()
                self._take_in()
                return [fd for fd in events if fd != self._wake_read]

    def _tell(self, byte: bytes) -> None:
        if self._beat_fd is not None:
            # A full pipe has beats enough; a broken one means that the parent is gone, and KILL on its way.
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._beat_fd, byte)

    def _take_in(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
        if self._draining and not self.stop_event.is_set():
            self.stop_event.set()
        if self._reload_asked:
            self._reload_asked = False
            self._read_again()

    def _read_again(self) -> None:
        if self._reload is None:
            return
        self._last_beat = float("-inf")  # the new one may want beats more often
        try:
            self.config = self._reload(self.config)
        except ConfigError as e:
            log.error("configuration refused, the old one stays: %s", e.in_one_line)
        except Exception:
            log.exception("configuration not read, the old one stays")


def enter_child(name: str, parent: int, beat_fd: int, subreaper: bool) -> None:
    """Turn the copy that fork made into a child (see the module's page). Signals are blocked by the caller
    until the child's own handlers are in place: the parent's would write into the parent's pipe."""
    signal.set_wakeup_fd(-1)
    for sig in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        if callable(signal.getsignal(sig)):
            signal.signal(sig, signal.SIG_DFL)
    os.setsid()
    proctree.die_with_parent(signal.SIGKILL, parent)
    if subreaper:
        proctree.become_subreaper()
    _close_inherited(beat_fd)
    for variable in SUPERVISOR_ONLY:
        os.environ.pop(variable, None)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as f:
        f.write(f"tireless:{name}"[:15])  # what ps and top show


def _close_inherited(beat_fd: int) -> None:
    """Close everything but stdout, stderr and the beat; /dev/null becomes stdin, which may be a terminal."""
    for fd in [int(entry) for entry in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd != beat_fd:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)
    null = os.open(os.devnull, os.O_RDONLY)
    if null != 0:  # it is 0 where the supervisor itself was started without a stdin
        os.dup2(null, 0)
        os.close(null)
