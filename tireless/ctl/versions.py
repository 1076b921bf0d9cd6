"""Asking programs for their version: outside of any job, so that nothing of it may stay, however we are left."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

ANSWER_SECONDS = 10.0


class Asked:
    """A program that was started with `--version`. None of them waits for another's answer."""

    def __init__(self, child: subprocess.Popen[str] | None) -> None:
        self._child = child
        self._deadline = time.monotonic() + ANSWER_SECONDS
        self.silent = False  # it has not ended in time

    def answer(self) -> str | None:
        """The first line that it prints; None if it does not end with 0 within ANSWER_SECONDS of its start."""
        if self._child is None:
            return None
        try:
            said, _ = self._child.communicate(timeout=self.seconds_left)
        except subprocess.TimeoutExpired:
            self.silent = True
            return None
        if self._child.returncode != 0:
            return None
        return next((line.strip() for line in said.splitlines() if line.strip()), None)

    def ready(self) -> list[int]:
        """The descriptor to wait for, until it says something or leaves; none if there is nothing to wait for."""
        return (
            [self._child.stdout.fileno()] if self._child is not None and self._child.stdout is not None else []
        )

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())


def first_of(questions: Sequence[Asked]) -> Asked:
    """The first of them that has something to say, or whose time is over."""
    for one in questions:
        if not one.ready() or one.seconds_left == 0:
            return one
    soonest = min(one.seconds_left for one in questions)
    said, _, _ = select.select([fd for one in questions for fd in one.ready()], [], [], soonest)
    return next((one for one in questions if said and one.ready()[0] in said), questions[0])


@contextlib.contextmanager
def asked(argv: Sequence[str]) -> Iterator[Asked]:
    """Ask, and go on. At the end of the block nothing of the program runs, and what it wrote is gone: it gets a home of
    its own, for its temporary files too (OpenCode, when it does more than this, leaves a library of 5.5 MB there)."""
    with _home() as home:
        quiet = {"DISABLE_AUTOUPDATER": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "LC_ALL": "C"}
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "TMPDIR": home, **quiet}
        child = _start([*argv, "--version"], env, home)
        try:
            yield Asked(child)
        finally:
            if child is not None:
                _end(child)


@contextlib.contextmanager
def _home() -> Iterator[str]:
    """A directory that is gone afterwards, whenever a signal ends us (only KILL leaves it)."""
    made: tempfile.TemporaryDirectory[str] | None = None
    try:
        with _undisturbed():
            made = tempfile.TemporaryDirectory(prefix="tireless-doctor-", ignore_cleanup_errors=True)
        yield made.name
    finally:
        if made is not None:
            with _undisturbed():
                made.cleanup()


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """What would end us waits until the end of the block; doctor has one thread, and so nobody else to tell it to."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def version_of(argv: Sequence[str]) -> str | None:
    """As `Asked.answer` has it."""
    with asked(argv) as one:
        return one.answer()


def _start(argv: list[str], env: dict[str, str], cwd: str) -> subprocess.Popen[str] | None:
    try:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError:
        return None


def _end(child: subprocess.Popen[str]) -> None:
    """It and what it may have started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    if child.stdout is not None:
        child.stdout.close()
