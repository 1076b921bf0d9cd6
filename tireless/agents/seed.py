"""Puts into a job's home what its CLI should find there at its first start.

The home may be hostile: an earlier run of the job has had it, and what is written here is written by tireless itself.
So no link is followed, on the whole way down, and a directory that is there is left as it is, whatever it holds: what
is sown lies in a directory that was made here a moment ago. A seed saves work and is never needed, so a home that
cannot be sown is no fault of the job.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from tireless.agents.base import Seed

log = logging.getLogger(__name__)

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def sow(home: Path, seed: Seed) -> None:
    """Make the seed's directory with what is in it, unless there is something in its place."""
    *above, last = Path(seed.directory).parts
    opened: list[int] = []
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened.append(os.open(home, _OPEN))
        for name in above:
            opened.append(_enter(opened[-1], name))
        os.mkdir(last, 0o700, dir_fd=opened[-1])
        opened.append(os.open(last, _OPEN, dir_fd=opened[-1]))
        _fill(opened[-1], seed)
    except FileExistsError:
        return
    except OSError as e:
        log.warning("home not prepared home=%s error=%s", home, e)
    finally:
        for fd in opened:
            os.close(fd)


def _enter(parent: int, name: str) -> int:
    """The directory `name`, made if it is not there. OSError for a link or a file of that name."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _OPEN, dir_fd=parent)


def _fill(directory: int, seed: Seed) -> None:
    for name in seed.directories:
        os.mkdir(name, 0o700, dir_fd=directory)
    for name, data in seed.files.items():
        with os.fdopen(os.open(name, _WRITE, 0o600, dir_fd=directory), "wb") as f:
            f.write(data)
