"""The room on the disk that the workspaces lie on, and which job has taken it.

An agent that fills the disk stops everybody's work, and once it has ended its workspace still lies there. So the
disk keeps `least_bytes` free (runner.min_free_mb): below that no work begins, finished workspaces go, and the
agent whose workspace took the room is stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tireless.workspace.files import size_on_disk


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
    def short(self) -> bool:
        return self.free_bytes < self.least_bytes

    def taken_by(self, job_id: str) -> int | None:
        """Bytes that the job's directory takes, if it is to blame: no other takes more, and without it there would be
        room. None if there is room, or others are to blame."""
        if not self.short:
            return None
        own = self._size(self.work / job_id)
        if self.free_bytes + own < self.least_bytes:
            return None
        others = (self._size(path) for path in self.work.iterdir() if path.name != job_id)
        return own if all(size <= own for size in others) else None

    def __str__(self) -> str:
        mb = 1024 * 1024
        return (
            f"{self.free_bytes // mb} MB are free, and {self.least_bytes // mb} have to be (runner.min_free_mb)"
        )

    def _size(self, path: Path) -> int:
        return size_on_disk(path, self.beat)
