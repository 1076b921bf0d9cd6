"""The room on the disk that the workspaces lie on, and which job has taken it.

An agent that fills the disk stops everybody's work, and once it has ended its workspace still lies there. So the
disk keeps `least_bytes` free (runner.min_free_mb): with less it is short, and the agent whose workspace took the room
is stopped. With less than twice that it is tight: no work begins and finished workspaces go, so that whoever makes it
short has taken a real share."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tireless.workspace.files import size_on_disk

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MB = 1024 * 1024
_LEAST_INODES = 1000
_LEAST_WRITE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Room:
    """On the file system of `work`, where each job has a directory of its own. `beat` is called while sizes are
    taken."""

    work: Path
    least_bytes: int
    beat: Callable[[], None] = lambda: None

    @property
    def free_bytes(self) -> int:
        """Of what an ordinary user may have."""
        found = os.statvfs(self.work)
        return found.f_bavail * found.f_frsize

    @property
    def free_inodes(self) -> int | None:
        """None where the file system does not count them."""
        found = os.statvfs(self.work)
        return found.f_favail if found.f_files > 0 else None

    @property
    def short(self) -> bool:
        """Too little for those who are at work."""
        return self.free_bytes < self.least_bytes

    @property
    def tight(self) -> bool:
        """Too little for work to begin."""
        inodes = self.free_inodes
        return self.free_bytes < 2 * self.least_bytes or (inodes is not None and inodes < _LEAST_INODES)

    @property
    def full(self) -> bool:
        """Whether nothing can be written: seen by trying, since there are inodes and quotas as well as bytes."""
        try:
            with tempfile.TemporaryFile(dir=self.work) as f:
                f.write(b"x" * _LEAST_WRITE_BYTES)
                f.flush()
                os.fsync(f.fileno())
        except OSError as e:
            return e.errno in _FULL
        return False

    def taken_by(self, job_id: str, *, alone: bool = True) -> int | None:
        """Bytes that the job's directory takes, if it is to blame for a short disk: no other takes more, and without
        it (not `alone`: without all of them) there would be room. None if there is room, or others are to blame."""
        if not self.short:
            return None
        own = self._size(self.work / job_id)
        others = [self._size(path) for path in self.work.iterdir() if path.name != job_id]
        could_be_had = own if alone else own + sum(others)
        if own == 0 or self.free_bytes + could_be_had < self.least_bytes:
            return None
        return own if all(size <= own for size in others) else None

    @property
    def to_go_on(self) -> str:
        """What is there and what has to be, in words."""
        return f"{self.free_bytes // _MB} MB are free, and {self.least_bytes // _MB} have to be (runner.min_free_mb)"

    @property
    def to_begin(self) -> str:
        """The same for work that is to begin."""
        free, least = self.free_bytes, 2 * self.least_bytes
        if free >= least:
            return f"{self.free_inodes} inodes are free, and work begins with {_LEAST_INODES}"
        return f"{free // _MB} MB are free, and work begins with {least // _MB} (twice runner.min_free_mb)"

    @property
    def too_little(self) -> str | None:
        """Why no work begins here, in the same words as long as it is so; None if there is room."""
        if not self.tight:
            return None
        least = f"{2 * self.least_bytes // _MB} MB (twice runner.min_free_mb) and {_LEAST_INODES} inodes"
        return f"the disk under {self.work} has too little room: work begins with {least}"

    def _size(self, path: Path) -> int:
        return size_on_disk(path, self.beat)
