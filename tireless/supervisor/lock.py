"""One supervisor a state directory, held by a lock that the kernel drops when its holder ends.

A POSIX lock (fcntl), not flock: it belongs to the process, so that a forked child which lives a moment longer
than a killed supervisor does not keep the next one out. It is lost when any descriptor of the file is closed
in this process; nothing else here opens it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tireless.process import Exit, Leave

NAME = "supervisor.lock"


def lock_state_dir(state_dir: Path) -> int:
    """Make the directory if it is not there, and lock it for the life of this process; the descriptor.
    Leave with 78 if the directory cannot be used, with 64 if another supervisor has it."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(state_dir / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise Leave(
            Exit.CONFIG,
            f"state_dir {state_dir} cannot be used: {e.strerror}; "
            "set state_dir to a directory that this user may write",
        ) from e
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(fd, 32).decode("ascii", "replace").strip()
        raise Leave(
            Exit.USAGE,
            f"state_dir {state_dir} is in use by another supervisor (pid {holder or 'unknown'}); "
            "stop it, or give this one a state_dir of its own",
        ) from None
    try:
        os.ftruncate(fd, 0)
        os.write(fd, f"{os.getpid()}\n".encode())
    except OSError:
        pass  # a full disk: the lock holds without the holder's number in it
    return fd
