"""Process trees by /proc: who descends from whom, who carries a mark, and an end to all of them.

Standard library only: the guard of an agent (tireless/agents/guard.py) runs it in a bare interpreter.

A process group is not enough: agents' tools call setsid, fork twice and ignore TERM (AGENT_CLIS.md, rule 7).
What holds a tree together is a child subreaper above it, to which every orphan falls, and a mark in the
environment for what a dead subreaper let go: the job's (TIRELESS_JOB), which its next claimant ends whoever started
it, and the run's (TIRELESS_RUN), so that who has lost a job ends what is his own and not his successor's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterable

MARK = "TIRELESS_JOB"
RUN_MARK = "TIRELESS_RUN"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(sig: int, parent: int) -> None:
    """Get `sig` when the parent ends; at once if it has ended already (it is no longer `parent`)."""
    _prctl(_PR_SET_PDEATHSIG, sig)
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command's name, which may hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            text = f.read().decode("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def start_ticks(pid: int, zombies: bool = False) -> int | None:
    """When the process started, in clock ticks since boot; with the pid it names a process for good.
    None if there is none, or only a zombie (which a parent that has not collected it may ask for)."""
    stat = _stat(pid)
    if stat is None or (stat[0] in ("Z", "X") and not zombies):
        return None
    return int(stat[19])


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as f:
        return f.read().strip()


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root: int, skip: Collection[int] = ()) -> list[int]:
    """All live processes below `root`, zombies left out, parents before their children. The processes in
    `skip` are left out with everything below them."""
    children: dict[int, list[int]] = {}
    alive: set[int] = set()
    for pid in pids():
        stat = _stat(pid)
        if stat is not None:
            children.setdefault(int(stat[1]), []).append(pid)
            if stat[0] not in ("Z", "X"):
                alive.add(pid)
    found: list[int] = []
    queue = list(children.get(root, ()))
    while queue:
        pid = queue.pop(0)
        if pid in skip:
            continue
        if pid in alive:
            found.append(pid)
        queue.extend(children.get(pid, ()))
    return found


def marked(value: str | None = None, mark: str = MARK) -> list[int]:
    """Live processes whose environment holds the mark (= `value`, if given), lower pids first: a guard before what it
    started. Other users' are unseen."""
    wanted = f"{mark}={value}".encode() if value is not None else f"{mark}=".encode()
    found = []
    for pid in sorted(pids()):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                entries = f.read().split(b"\0")
        except OSError:
            continue
        hit = wanted in entries if value is not None else any(e.startswith(wanted) for e in entries)
        if hit and pid != os.getpid() and start_ticks(pid) is not None:
            found.append(pid)
    return found


def marks() -> set[str]:
    """The values of TIRELESS_JOB among live processes."""
    found = set()
    for pid in marked():
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                entries = f.read().split(b"\0")
        except OSError:
            continue
        found |= {
            e.partition(b"=")[2].decode("ascii", "replace") for e in entries if e.startswith(MARK.encode())
        }
    return found


def send(targets: Iterable[int], sig: int) -> None:
    for pid in targets:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sig)


def reap_orphans(known: Iterable[int] = ()) -> None:
    """Collect ended children other than `known`, which their owners wait for."""
    kept = set(known)
    stat_of = {pid: _stat(pid) for pid in pids()}
    for pid, stat in stat_of.items():
        if stat is not None and int(stat[1]) == os.getpid() and stat[0] == "Z" and pid not in kept:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def kill_all(find: Callable[[], list[int]], seconds: float) -> bool:
    """KILL what `find` names until it names nothing; False if something is left after `seconds`.

    It asks again each time: a process that forks while it is being killed leaves a child behind, which the
    next look finds. Ended children of ours are collected on the way, since a zombie would count for ever.
    """
    deadline = time.monotonic() + seconds
    while True:
        targets = find()
        if not targets:
            return True
        send(targets, signal.SIGKILL)
        if time.monotonic() >= deadline:
            return False
        select.select([], [], [], 0.01)
