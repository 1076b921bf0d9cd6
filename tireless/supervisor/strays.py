"""Processes that outlive the child that they belong to: found by /proc, and killed.

The supervisor is a child subreaper, so whatever a dead child leaves behind becomes the supervisor's own child:
a stray is what descends from the supervisor and from no live child of it. The embedded Postgres is such a
descendant too, and exempt. A runner is a subreaper itself, so that nothing of a live runner is ever a stray.

What a dead *supervisor* left has gone to init. It is known by the mark in its environment, and by this state
directory, which is locked, in it too.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Collection
from pathlib import Path

from tireless import embedded, proctree
from tireless.config import Config


def strays(known: Collection[int], exempt: Collection[int]) -> list[int]:
    """What descends from this process and from neither `known` children nor `exempt` ones."""
    return proctree.descendants(os.getpid(), skip={*known, *exempt})


def kill_strays(known: Collection[int], exempt: Collection[int]) -> list[int]:
    """One look, one KILL each; what was found. To be called until that is nothing: a process that forks while
    it is being killed leaves a child behind."""
    found = strays(known, exempt)
    proctree.send(found, signal.SIGKILL)
    return found


def leftovers(state_dir: Path) -> list[int]:
    """What the agents of a dead supervisor of this state directory have left running."""
    place = os.fsencode(state_dir)
    found = []
    for pid in proctree.marked():
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if place + b"/" in environ or place + b"\0" in environ:
            found.append(pid)
    return found


def end_leftovers(state_dir: Path, guard_seconds: float, kill_seconds: float) -> bool:
    """Let the guards among them do it by themselves for a moment, since they record an end that their agent had
    before; then KILL. Blocks. False if something is left."""
    deadline = time.monotonic() + guard_seconds
    while leftovers(state_dir):
        if time.monotonic() >= deadline:
            return proctree.kill_all(lambda: leftovers(state_dir), kill_seconds)
        select.select([], [], [], 0.02)
    return True


def embedded_servers(config: Config) -> set[int]:
    """The embedded Postgres of this state directory, if it is used and runs."""
    if config.database.url is not None:
        return set()
    pid = embedded.postmaster_pid(config)
    return {pid} if pid is not None else set()
