"""Files that an agent left: looked at without following or opening anything, removed whatever they are.

Nothing here runs while an agent does: its process tree has been ended before.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tireless.workspace.command import Git
from tireless.workspace.errors import TooLarge, UnsafeWorkspace

# Git reads these whole, wherever they lie in a work tree.
_CONTROL_FILES = frozenset({b".gitignore", b".gitattributes", b".gitmodules", b".mailmap"})
_CONTROL_LIMIT = 16 * 1024 * 1024
_TURN_ENTRIES = 500


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be pushed: bytes of one file, and of all that one job adds, before compression."""

    blob: int
    total: int

    def check(self, sizes: Iterable[tuple[str, int]]) -> None:
        """TooLarge for the first of (name, bytes) over the limit, or for all of them together."""
        total = 0
        for name, size in sizes:
            if size > self.blob:
                raise TooLarge(name, size, self.blob)
            total += size
        if total > self.total:
            raise TooLarge("all that is new together", total, self.total)


def require_directory(path: Path) -> None:
    """UnsafeWorkspace unless `path` is a directory of its own, not a link to one."""
    try:
        mode = path.lstat().st_mode
    except OSError as e:
        raise UnsafeWorkspace(f"{path} cannot be read: {e.strerror}") from None
    if not stat.S_ISDIR(mode):
        raise UnsafeWorkspace(f"{path} is no longer a directory")


def disarm(work_tree: Path, turn: Callable[[], None]) -> None:
    """Make a work tree one that git can read to its end. The top `.git` is not entered.

    Pipes, sockets and devices are removed: no commit can hold them, and whoever opens a pipe (git does, for a
    .gitignore) waits for ever. What the agent made unreadable for its owner is made readable. UnsafeWorkspace
    where a control file of git is too large to be read whole, or a path too long to be named.
    """
    top = os.fsencode(work_tree)
    waiting = [top]
    seen = 0
    while waiting:
        directory = waiting.pop()
        try:
            for entry in _entries(directory):
                seen += 1
                if seen % _TURN_ENTRIES == 0:
                    turn()
                if not (directory == top and entry.name == b".git") and _disarm_entry(entry):
                    waiting.append(entry.path)
        except OSError as e:
            shown = os.fsdecode(directory)
            raise UnsafeWorkspace(f"{shown[:200]} cannot be read to its end: {e.strerror}") from None


def _entries(directory: bytes) -> list[os.DirEntry[bytes]]:
    try:
        return list(os.scandir(directory))
    except PermissionError:
        os.chmod(directory, 0o700)
        return list(os.scandir(directory))


def _disarm_entry(entry: os.DirEntry[bytes]) -> bool:
    """Whether the entry is a directory to go into."""
    info = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(info.st_mode):
        return True
    if stat.S_ISREG(info.st_mode):
        if entry.name in _CONTROL_FILES and info.st_size > _CONTROL_LIMIT:
            raise UnsafeWorkspace(f"{os.fsdecode(entry.path)} has {info.st_size} bytes")
        if not info.st_mode & stat.S_IRUSR:
            os.chmod(entry.path, stat.S_IMODE(info.st_mode) | stat.S_IRUSR)
    elif not stat.S_ISLNK(info.st_mode):
        os.unlink(entry.path)
    return False


def read_text(path: Path, limit: int) -> str | None:
    """A regular file's text, without following a link or waiting on a pipe; None if it is no such file, over
    `limit` bytes or not text."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(fd, "rb") as f:
        info = os.fstat(f.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > limit:
            return None
        try:
            return f.read(limit).decode("utf-8")
        except UnicodeDecodeError:
            return None


def remove_tree(git: Git, path: Path) -> None:
    """Remove whatever is at `path`. By rm, since an agent can nest directories deeper than Python recurses."""
    if not os.path.lexists(path):
        return
    command = ("rm", "-rf", "--", str(path))
    if git.plain(command).code != 0:
        git.plain(("chmod", "-R", "u+rwX", "--", str(path)))
        result = git.plain(command)
        if result.code != 0:
            raise OSError(f"{path} cannot be removed: {result.stderr.strip()[-500:]}")


def size_on_disk(root: Path, turn: Callable[[], None]) -> int:
    """Bytes that a tree takes, links not followed, a file with several names counted once, what cannot be read left
    out."""
    total = 0
    known: set[tuple[int, int]] = set()
    seen = 0
    waiting = [os.fsencode(root)]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:
            continue
        for entry in entries:
            seen += 1
            if seen % _TURN_ENTRIES == 0:
                turn()
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(info.st_mode):
                waiting.append(entry.path)
            elif info.st_nlink > 1:
                if (info.st_dev, info.st_ino) in known:
                    continue
                known.add((info.st_dev, info.st_ino))
            total += info.st_blocks * 512
    return total
