"""Reading the history that an agent left, without git ever seeing the agent's git directory.

`git fetch <workspace>` would run upload-pack inside a repository that the agent wrote: with its configuration
and what that includes, its alternates (for which git runs `for-each-ref` inside *their* repository), its grafts,
replacements, shallow marks, promisors, commit graph, and a `.git` that may be a link or a file that points
elsewhere. Each of these has a switch; one forgotten switch is a hole. So what is taken instead is the least that
a history consists of:

* where HEAD and the job's branch point, read here as text and believed only if it is a ref name or a commit id;
* the object files, by name and kind: loose objects and packs that are regular files in real directories are
  hard-linked (else copied) into a fresh bare repository of ours. Its alternates are the mirror and nothing else.
  An agent cannot borrow objects from elsewhere, nor link a pack of another repository that tireless can read and
  it cannot.

From that repository, whose configuration is ours, the mirror fetches: index-pack takes every object's name from
its content and checks it, and the fetch checks that nothing is missing. Objects whose name lies, half histories
and cut-off packs end there. Sizes are checked before.

Anything that cannot be read this way is no history; the work tree is then taken alone (leftovers.py).
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tireless.workspace.command import Git, Where, write_config
from tireless.workspace.errors import GitFailed
from tireless.workspace.files import Limits, read_text
from tireless.workspace.mirror import Mirror, is_commit_id

_LOOSE_DIR = re.compile(r"[0-9a-f]{2}")
_LOOSE_FILE = re.compile(r"[0-9a-f]{38}")
_PACK_FILE = re.compile(r"pack-[0-9a-f]{40}\.(pack|idx)")
_REF = re.compile(r"refs/[A-Za-z0-9_@{}#+=,%~!-][^\x00-\x20\x7f\\:?*\[^]*")
_HEAD_LIMIT = 4096
_PACKED_REFS_LIMIT = 64 * 1024 * 1024
_SYMREF_DEPTH = 5
_TURN_ENTRIES = 500

_UNFINISHED = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
}


@dataclass(frozen=True, slots=True)
class Heads:
    """What an agent's git directory says, not yet believed. `unfinished`: an operation it left half-way."""

    head: str | None
    branch: str | None
    unfinished: str | None


def read_heads(dot_git: Path, branch: str) -> Heads | None:
    """Where HEAD and `branch` point; None if `dot_git` is no directory of its own."""
    if not _is_real_directory(dot_git):
        return None
    unfinished = next((what for name, what in _UNFINISHED.items() if os.path.lexists(dot_git / name)), None)
    return Heads(_follow(dot_git, "HEAD"), _follow(dot_git, f"refs/heads/{branch}"), unfinished)


def _follow(dot_git: Path, name: str) -> str | None:
    for _ in range(_SYMREF_DEPTH):
        text = _read_ref(dot_git, name)
        if text is None:
            return None
        if is_commit_id(text):
            return text
        if not text.startswith("ref: ") or not _is_ref_name(text[5:].strip()):
            return None
        name = text[5:].strip()
    return None


def _read_ref(dot_git: Path, name: str) -> str | None:
    parts = name.split("/")
    if all(_is_real_directory(dot_git.joinpath(*parts[:i])) for i in range(1, len(parts))):
        text = read_text(dot_git / name, _HEAD_LIMIT)
        if text is not None:
            return text.strip()
    for line in (read_text(dot_git / "packed-refs", _PACKED_REFS_LIMIT) or "").splitlines():
        commit, _, packed = line.partition(" ")
        if packed == name and is_commit_id(commit):
            return commit
    return None


def _is_ref_name(name: str) -> bool:
    parts = name.split("/")
    return _REF.fullmatch(name) is not None and not any(p in ("", ".", "..") for p in parts)


def _is_real_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def borrowing_repository(git: Git, path: Path, mirror: Mirror) -> Where:
    """A fresh bare repository of ours whose one alternate is the mirror."""
    git(("init", "--quiet", "--bare", "--template=", "--", str(path)), Where())
    (path / "objects/info").mkdir(exist_ok=True)
    (path / "objects/info/alternates").write_text(f"{mirror.objects}\n", "utf-8")
    # upload-pack reads only the file: git clears the environment's configuration for a repository it goes to.
    write_config(
        path,
        {
            "core.commitGraph": "false",
            "core.multiPackIndex": "false",
            "pack.useBitmaps": "false",
            "gc.auto": "0",
        },
    )
    return Where(git_dir=path)


def link_objects(dot_git: Path, into: Path, turn: Callable[[], None]) -> None:
    """Give the repository `into` the object files of `dot_git`; what is not one by name and kind is left out."""
    source = dot_git / "objects"
    if not _is_real_directory(source):
        return
    seen = 0
    for directory in sorted(os.scandir(source), key=lambda entry: entry.name):
        wanted = _PACK_FILE if directory.name == "pack" else _LOOSE_FILE
        if not (directory.name == "pack" or _LOOSE_DIR.fullmatch(directory.name)):
            continue
        if not directory.is_dir(follow_symlinks=False):
            continue
        target = into / "objects" / directory.name
        target.mkdir(exist_ok=True)
        for entry in os.scandir(directory.path):
            seen += 1
            if seen % _TURN_ENTRIES == 0:
                turn()
            if wanted.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _link(entry.path, target / entry.name)


def _link(source: str, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, too many links, or links to other users' files not allowed
        shutil.copyfile(source, target, follow_symlinks=False)


def check_sizes(git: Git, where: Where, head: str, known: Sequence[str], limits: Limits) -> None:
    """TooLarge if an object that `head` has and `known` has not is over the limit, or all of them together.

    Sizes are those of the content, from the objects' headers: a small file that inflates to a large one counts as
    what it would be. A header that lies does not get through the fetch.
    """
    revisions = "".join(f"{line}\n" for line in (head, *(f"^{commit}" for commit in known)))
    names = git(("rev-list", "--objects", "--stdin"), where, stdin=revisions.encode()).stdout.splitlines()
    paths = {line[:40]: line[41:] for line in names}
    feed = b"".join(name + b"\n" for name in paths)
    sizes = git(("cat-file", "--batch-check=%(objectname) %(objectsize)"), where, stdin=feed).stdout
    limits.check(_named_sizes(sizes.splitlines(), paths))


def _named_sizes(lines: Sequence[bytes], paths: Mapping[bytes, bytes]) -> Iterator[tuple[str, int]]:
    for line in lines:
        name, _, size = line.partition(b" ")
        if not size.isdigit():
            raise GitFailed("git cat-file", 1, f"object {name.decode()} is missing")
        yield paths[name].decode("utf-8", "replace") or f"object {name.decode()}", int(size)
