"""Signals as a queue: a handler notes its signal and wakes the loop; the loop decides, in one place."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque

HANDLED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGCHLD,  # only wakes: what has ended is found by asking, since many ends may raise one signal
)


class Signals:
    def __init__(self) -> None:
        self._seen: deque[int] = deque()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def listen(self) -> None:
        for sig in HANDLED:
            signal.signal(sig, lambda number, _frame: self._seen.append(number))
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def fileno(self) -> int:
        return self._read

    def take(self) -> list[int]:
        """What has come since the last call, in order, SIGCHLD left out."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 4096):
                pass
        taken = []
        while self._seen:
            taken.append(self._seen.popleft())
        return [number for number in taken if number != signal.SIGCHLD]
