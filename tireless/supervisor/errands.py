"""Errands: what the supervisor has done on the database, each by a forked child that does one thing.

An errand that fails is tried again with growing, jittered delay until it succeeds, unless what waits for it
says otherwise (`prepare` and `finish` are tried once). One that takes longer than its limit is killed, which
counts as a failure. A few run at a time: sixty runners that end together must not open sixty connections.
"""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tireless import errands
from tireless.config import Config
from tireless.process import Exit
from tireless.supervisor.children import Child, Run, describe
from tireless.supervisor.strays import embedded_servers

log = logging.getLogger(__name__)

AT_ONCE = 4
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Errands:
    """What is done on the database. Each runs in a child of its own and may raise: an error with an
    `exit_code`, a ConfigError (78) or a SystemExit ends that child with its code, any other with 70."""

    prepare: Callable[[Config], None] = errands.prepare
    release: Callable[[Config, str, str], None] = errands.release  # (config, worker, why it ended)
    apply_lanes: Callable[[Config, Config], None] = (
        errands.apply_lanes
    )  # (config, the one that was applied last)
    finish: Callable[[Config], None] = errands.finish
    # Asked in the supervisor itself: daemons that `prepare` has started and that are no strays.
    exempt: Callable[[Config], set[int]] = embedded_servers


@dataclass(eq=False, slots=True)
class Errand:
    name: str
    run: Callable[[], None]
    limit: float  # seconds that one try may take
    ended: Callable[[int], bool]  # told the exit code of each try; whether to try again
    due: float = 0.0
    tries: int = 0
    child: Child | None = None
    dropped: bool = False  # not to be tried again


@dataclass(eq=False, slots=True)
class Queue:
    """Errands that wait, and those that run. `fork` makes a child of a body and a name."""

    fork: Callable[[Run, str], Child]
    waiting: list[Errand] = field(default_factory=list)
    running: dict[int, Errand] = field(default_factory=dict)

    def add(self, errand: Errand) -> None:
        self.waiting.append(errand)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.running)

    def is_running(self, name: str) -> bool:
        return any(errand.name == name for errand in self.running.values())

    def has(self, name: str) -> bool:
        return self.is_running(name) or any(errand.name == name for errand in self.waiting)

    def start_due(self, now: float) -> None:
        for errand in [e for e in self.waiting if e.due <= now][: AT_ONCE - len(self.running)]:
            self.waiting.remove(errand)
            errand.tries += 1
            try:
                errand.child = self.fork(partial(_run, errand), f"errand {errand.name}")
            except OSError as e:
                log.error("no process for errand %s: %s", errand.name, e.strerror)
                self._again(errand, now)
                continue
            errand.child.kill_at = now + errand.limit
            self.running[errand.child.pid] = errand

    def ended(self, pid: int, status: int, now: float) -> bool:
        """Whether `pid` was an errand; if so it is over, or waits for another try."""
        errand = self.running.pop(pid, None)
        if errand is None:
            return False
        assert errand.child is not None
        errand.child.close()
        code = os.waitstatus_to_exitcode(status)
        again = errand.ended(code) and not errand.dropped
        if code != 0:
            log.warning(
                "errand %s failed: %s try=%d again=%s", errand.name, describe(status), errand.tries, again
            )
        if again:
            self._again(errand, now)
        return True

    def _again(self, errand: Errand, now: float) -> None:
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(errand.tries - 1, 10))
        errand.due = now + delay * random.uniform(0.75, 1.25)
        self.waiting.append(errand)

    def keep_word(self, now: float) -> None:
        for errand in self.running.values():
            if errand.child is not None:
                errand.child.keep_word(now, 0.0)

    def drop(self, why: str, name: str | None = None) -> None:
        """End those of that name, or all, and try none of them again."""
        self.waiting = [errand for errand in self.waiting if name not in (None, errand.name)]
        for errand in self.running.values():
            if errand.child is not None and name in (None, errand.name):
                errand.dropped = True
                errand.child.kill(why)

    def deadlines(self) -> list[float]:
        running = [when for e in self.running.values() if e.child for when in e.child.deadlines()]
        return running + ([e.due for e in self.waiting] if len(self.running) < AT_ONCE else [])


def _run(errand: Errand, _beat_fd: int) -> int:
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    errand.run()
    return Exit.DRAINED
