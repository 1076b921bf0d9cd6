"""Running one git command: an environment made from nothing, a process tree that can be ended.

* Git reads no configuration of the machine or a user: no system or global file, no ~/.netrc, no template.
  What it may do is set here, through the environment, which beats every file (GIT_CONFIG_COUNT).
* No hook, fsmonitor, credential helper, pager, editor, ssh or background maintenance runs. Transports are
  named by the caller; there are none by default.
* The command and all it spawns are one session. It ends at the deadline, when `should_stop` says so, when
  `beat` raises, and when this process dies (PR_SET_PDEATHSIG: hence run git from the main thread).
* `beat` is called at least once a second while git runs.
* A secret comes in by the environment alone, and is taken out of everything that an error shows.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tireless import proctree
from tireless.workspace.errors import Cancelled, DiskFull, GitFailed, GitMissing, GitTimeout

# GIT_CONFIG_GLOBAL came with 2.32, and with it symlinked .gitignore and .gitattributes were no longer followed.
# An older git would ignore the variable in silence.
MIN_GIT = (2, 32)

_TURN_SECONDS = 0.25
_GRACE_SECONDS = 2.0  # from TERM to KILL; TERM lets git remove its temporary packs
_KILL_SECONDS = 5.0  # how long what got KILL is waited for; only a process stuck in the kernel takes as long
_STDERR_KEPT = 16_384
_STDOUT_LIMIT = 256 * 1024 * 1024

_CONFIG: tuple[tuple[str, str], ...] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedCache", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.sshCommand", "false"),
    ("core.askPass", "false"),
    ("core.pager", "cat"),
    ("core.autocrlf", "false"),
    ("core.safecrlf", "false"),
    ("core.fileMode", "true"),
    ("core.symlinks", "true"),
    ("core.protectHFS", "true"),
    ("core.protectNTFS", "true"),
    ("core.fsync", "all"),
    ("credential.helper", ""),
    ("init.defaultBranch", "main"),
    ("transfer.fsckObjects", "true"),
    ("fetch.recurseSubmodules", "false"),
    ("fetch.writeCommitGraph", "false"),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("safe.bareRepository", "explicit"),
    ("advice.detachedHead", "false"),
)

# No path of the machine's HOME may be reached, ~/.netrc least of all; below a file there is nothing.
_NO_HOME = "/dev/null"

_ENV: Mapping[str, str] = {
    "HOME": _NO_HOME,
    "XDG_CONFIG_HOME": _NO_HOME,
    "LC_ALL": "C",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LFS_SKIP_SMUDGE": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_EDITOR": "false",
    "GIT_PAGER": "cat",
    # One allocation, not all of them: a tree that inflates to many gigabytes ends git, not the host.
    "GIT_ALLOC_LIMIT": "2g",
}

_DISK_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_URL_USER = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class Pulse:
    """The caller's main loop, seen from a long step: `turn` shows that it lives and asks whether to go on."""

    beat: Callable[[], None]
    should_stop: Callable[[], bool]

    def turn(self, what: str = "git") -> None:
        self.beat()
        if self.should_stop():
            raise Cancelled(what)


@dataclass(frozen=True, slots=True)
class Where:
    """What git works on. Named in full, so that git never looks for a repository by itself."""

    git_dir: Path | None = None
    work_tree: Path | None = None
    index: Path | None = None

    def env(self) -> dict[str, str]:
        named = {"GIT_DIR": self.git_dir, "GIT_WORK_TREE": self.work_tree, "GIT_INDEX_FILE": self.index}
        return {key: str(path) for key, path in named.items() if path is not None}


@dataclass(frozen=True, slots=True)
class Access:
    """What one command may reach and know beside its repository."""

    protocols: str = "none"  # GIT_ALLOW_PROTOCOL: names with colons between; "none" is no protocol's name
    config: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)


NO_ACCESS = Access()
LOCAL_ACCESS = Access(protocols="file")


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace").strip()


class Git:
    """Runs git commands one at a time. `timeout` in seconds holds for each of them."""

    def __init__(self, pulse: Pulse, timeout: float) -> None:
        self.pulse = pulse
        self.timeout = timeout

    def __call__(
        self,
        args: Sequence[str],
        where: Where,
        *,
        access: Access = NO_ACCESS,
        stdin: bytes = b"",
        ok: Iterable[int] = (0,),
        hold: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run `git args`; GitFailed if it ends with a code outside `ok`.

        `hold`: descriptors that live as long as any process of the command does, such as a lock.
        `env`: further variables that are no secrets, such as the author of a commit.
        """
        environment = {**environment_for(access), **where.env(), **(env or {})}
        cwd = where.work_tree or Path("/")
        command = ["git", *args]
        result = self._finish(self._spawn(command, environment, cwd, hold), command, stdin, access.secrets)
        if result.code not in tuple(ok):
            raise failure(command, result, access.secrets)
        return result

    def plain(self, command: Sequence[str]) -> Result:
        """Run another program the same way, such as rm; its code is the caller's to judge."""
        environment = environment_for(NO_ACCESS)
        return self._finish(self._spawn(command, environment, Path("/"), ()), command, b"", ())

    def require_version(self) -> None:
        """GitMissing unless a new enough git is on PATH."""
        text = self(["--version"], Where()).text
        found = re.search(r"(\d+)\.(\d+)", text)
        if found is None or (int(found[1]), int(found[2])) < MIN_GIT:
            raise GitMissing(f"{text or 'git'} is too old; install git {MIN_GIT[0]}.{MIN_GIT[1]} or newer")

    def _spawn(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, hold: Sequence[int]
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=tuple(hold),
                start_new_session=True,
                umask=0o022,
                preexec_fn=functools.partial(proctree.die_with_parent, signal.SIGKILL, os.getpid()),
            )
        except FileNotFoundError as e:
            if e.filename != command[0]:
                raise
            raise GitMissing(f"there is no {command[0]} on PATH; install it") from None

    def _finish(
        self, process: subprocess.Popen[bytes], command: Sequence[str], stdin: bytes, secrets: Sequence[str]
    ) -> Result:
        what = redact(shlex.join(command[:2]), secrets)
        try:
            stdout, stderr = _Pump(process, stdin).run(lambda: self.pulse.turn(what), what, self.timeout)
        except BaseException:
            self._end(process)
            raise
        return Result(process.returncode, stdout, redact(stderr.decode("utf-8", "replace"), secrets))

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """TERM, grace, KILL to the whole session, until none of it runs. It goes through even where `beat` raises."""
        tree = {pid: proctree.start_ticks(pid) for pid in (process.pid, *proctree.descendants(process.pid))}
        for sig, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
            deadline = time.monotonic() + seconds
            _signal_group(process, sig)
            while _still_runs(process, tree) and time.monotonic() < deadline:
                with contextlib.suppress(Exception):
                    self.pulse.beat()
                time.sleep(0.02)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


class _Pump:
    """Feeds a process and takes what it says, without ever waiting on one pipe only."""

    def __init__(self, process: subprocess.Popen[bytes], feed: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._feed = memoryview(feed)
        self._out: list[bytes] = []
        self._out_size = 0
        self._err = b""

    def run(self, turn: Callable[[], None], what: str, timeout: float) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + timeout
        last_turn = 0.0
        with selectors.DefaultSelector() as selector:
            for stream in (self._stdin, self._stdout, self._stderr):
                os.set_blocking(stream.fileno(), False)
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stderr, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while selector.get_map():
                now = time.monotonic()
                if now - last_turn >= _TURN_SECONDS:
                    turn()
                    last_turn = now
                if now > deadline:
                    raise GitTimeout(what, timeout)
                for key, _ in selector.select(_TURN_SECONDS):
                    self._move(selector, key.fileobj, what)
        self._wait(turn, what, deadline, timeout)
        return b"".join(self._out), self._err

    def _move(self, selector: selectors.BaseSelector, stream: object, what: str) -> None:
        if stream is self._stdin:
            if not self._write():
                selector.unregister(self._stdin)
                self._stdin.close()
            return
        source = self._stdout if stream is self._stdout else self._stderr
        data = os.read(source.fileno(), 1 << 16)
        if not data:
            selector.unregister(source)
            source.close()
        elif source is self._stdout:
            self._out.append(data)
            self._out_size += len(data)
            if self._out_size > _STDOUT_LIMIT:
                raise GitFailed(what, -1, f"it said more than {_STDOUT_LIMIT} bytes")
        else:
            self._err = (self._err + data)[-_STDERR_KEPT:]

    def _write(self) -> bool:
        """Whether there is more to write."""
        if not self._feed:
            return False
        try:
            self._feed = self._feed[os.write(self._stdin.fileno(), self._feed[: 1 << 16]) :]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        return bool(self._feed)

    def _wait(self, turn: Callable[[], None], what: str, deadline: float, timeout: float) -> None:
        while self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_TURN_SECONDS)
            if self._process.returncode is None:
                turn()
                if time.monotonic() > deadline:
                    raise GitTimeout(what, timeout)


def _still_runs(process: subprocess.Popen[bytes], tree: Mapping[int, int | None]) -> bool:
    process.poll()  # reaps it: until then its group has a member
    return any(ticks is not None and proctree.start_ticks(pid) == ticks for pid, ticks in tree.items())


def _signal_group(process: subprocess.Popen[bytes], sig: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, sig)


def environment_for(access: Access) -> dict[str, str]:
    """The whole environment of a command; nothing but PATH comes from our own."""
    config = (*_CONFIG, *access.config)
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        **_ENV,
        "GIT_ALLOW_PROTOCOL": access.protocols,
        "GIT_CONFIG_COUNT": str(len(config)),
        **{f"GIT_CONFIG_KEY_{i}": key for i, (key, _) in enumerate(config)},
        **{f"GIT_CONFIG_VALUE_{i}": value for i, (_, value) in enumerate(config)},
        **access.env,
    }


def write_config(git_dir: Path, settings: Mapping[str, str]) -> None:
    """Add settings to the configuration of a repository of ours, without a git command for each. Keys are of the
    form section.name; values hold no control characters (`git config` would not take them either)."""
    lines = []
    for key, value in settings.items():
        section, _, name = key.partition(".")
        quoted = "".join(c for c in value if c.isprintable()).replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'[{section}]\n\t{name} = "{quoted}"\n')
    with (git_dir / "config").open("a", encoding="utf-8") as f:
        f.write("".join(lines))


def redact(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return _URL_USER.sub("***@", text)


def failure(command: Sequence[str], result: Result, secrets: Sequence[str]) -> GitFailed:
    """The error for a command that ended badly: its last lines, since git says the cause at the end."""
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    tail = redact("; ".join(lines[-12:]), secrets)[-2000:]
    kind = DiskFull if _DISK_FULL.search(result.stderr) else GitFailed
    return kind(redact(shlex.join(command), secrets), result.code, tail)
