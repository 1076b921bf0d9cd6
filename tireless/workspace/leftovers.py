"""Committing what an agent left uncommitted, from its work tree alone.

Git runs with a git directory of ours over the agent's work tree: no configuration, index, hook, exclude file or
attribute driver of the agent's is in reach. In-tree .gitignore and .gitattributes count (line endings among
them), but no filter is defined, so none can run.

`git add` and `git status` are not used. They look into nested repositories, and to see whether one is dirty git
runs `git status` *inside* it, under the configuration that lies there. The plumbing used here is told to leave them
alone: what is a submodule stays as its parent commit has it, and a nested repository that is none is left out.

What is left out is named, with the reason: `Snapshot.left_out`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tireless.workspace.command import Git, Where
from tireless.workspace.files import Limits

_GITLINK = b"160000"
_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
_LFS_POINTER_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A work tree as a tree object. `left_out`: (path, reason) of what it does not hold."""

    tree: str
    left_out: tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Changes:
    removed: list[bytes] = field(default_factory=list)
    written: list[bytes] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)

    def leave(self, path: bytes, why: str) -> None:
        self.left_out.append((os.fsdecode(path).encode("utf-8", "replace").decode("utf-8"), why))


def snapshot(git: Git, where: Where, parent: str, limits: Limits) -> Snapshot:
    """The tree of `parent` with all that the work tree changes. TooLarge for a file over the limit."""
    git(("read-tree", parent), where)
    changes = _tracked(git, where)
    _untracked(git, where, changes)
    _without_filtered(git, where, changes)
    limits.check(_sizes(where, changes.written))
    _stage(git, where, changes)
    return Snapshot(git(("write-tree",), where).text, tuple(changes.left_out))


def _stage(git: Git, where: Where, changes: _Changes) -> None:
    """Removals by name, since what is beyond a link now must not be looked at. Of what is written git passes over
    names that are `.git` to some file system (`.GIT`, `git~1`) and links in the place of its own files."""
    gone = b"".join(path + b"\0" for path in changes.removed)
    git(("update-index", "--force-remove", "-z", "--stdin"), where, stdin=gone)
    feed = b"".join(path + b"\0" for path in changes.written)
    git(("update-index", "--add", "--replace", "-z", "--stdin"), where, stdin=feed)
    held = set(git(("ls-files", "-z", "--cached"), where).stdout.split(b"\0"))
    for path in changes.written:
        if path not in held:
            changes.leave(path, "a name that git does not take")


def _tracked(git: Git, where: Where) -> _Changes:
    changes = _Changes()
    git(("update-index", "-q", "--ignore-submodules", "--refresh"), where, ok=(0, 1))
    raw = git(("diff-files", "-z", "--raw", "--no-renames", "--ignore-submodules=all"), where).stdout
    for path, old_mode, new_mode, status in parse_raw(raw):
        if old_mode == _GITLINK:
            continue
        if status == b"D":
            changes.removed.append(path)
        elif new_mode == _GITLINK:
            changes.removed.append(path)
            changes.leave(path, "a git repository of its own")
        else:
            changes.written.append(path)
    return changes


def _untracked(git: Git, where: Where, changes: _Changes) -> None:
    for path in git(("ls-files", "-z", "--others", "--exclude-standard"), where).stdout.split(b"\0"):
        if not path:
            continue
        if path.endswith(b"/"):
            changes.leave(path, "a git repository of its own")
        else:
            changes.written.append(path)


def _without_filtered(git: Git, where: Where, changes: _Changes) -> None:
    """Leave out what a filter would have to translate (LFS, encryption); without it the content is not what
    belongs in a commit. An LFS pointer is its own translation; git filters no links."""
    feed = b"".join(path + b"\0" for path in changes.written)
    fields = git(("check-attr", "-z", "--stdin", "filter"), where, stdin=feed).stdout.split(b"\0")
    filtered = {
        path for path, value in zip(fields[::3], fields[2::3], strict=False)
        if value not in (b"unspecified", b"unset", b"set")
    }  # fmt: skip
    kept = []
    for path in changes.written:
        if path in filtered and not _is_link(where, path) and not _is_lfs_pointer(where, path):
            changes.leave(path, "a filter is set for it, and filters are not run")
        else:
            kept.append(path)
    changes.written = kept


def _sizes(where: Where, paths: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    for path in paths:
        yield os.fsdecode(path), os.lstat(_full(where, path)).st_size


def _full(where: Where, path: bytes) -> bytes:
    assert where.work_tree is not None
    return os.path.join(os.fsencode(where.work_tree), path)


def _is_link(where: Where, path: bytes) -> bool:
    return stat.S_ISLNK(os.lstat(_full(where, path)).st_mode)


def _is_lfs_pointer(where: Where, path: bytes) -> bool:
    info = os.lstat(_full(where, path))
    if not stat.S_ISREG(info.st_mode) or info.st_size > _LFS_POINTER_LIMIT:
        return False
    with open(_full(where, path), "rb") as f:
        return f.read(_LFS_POINTER_LIMIT).startswith(_LFS_POINTER)


def parse_raw(raw: bytes) -> list[tuple[bytes, bytes, bytes, bytes]]:
    """(path, old mode, new mode, status letter) of `git diff-files -z --raw`. Pure."""
    fields = raw.split(b"\0")
    found = []
    for meta, path in zip(fields[::2], fields[1::2], strict=False):
        old_mode, new_mode, _, _, status = meta.lstrip(b":").split(b" ")
        found.append((path, old_mode, new_mode, status[:1]))
    return found
