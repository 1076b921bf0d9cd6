"""Whether work that is to be pushed holds a value that must not leave this machine.

An agent knows the keys of its lane. What it commits is the one thing that goes out unmasked, so it is searched: each
new object once, commits that a later one undoes included, since they are pushed too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tireless.workspace.command import Git
from tireless.workspace.mirror import Mirror

LEAST_CHARS = 16  # a shorter value may be an ordinary word, such as a key that nobody checks
_BATCH = 500  # objects a command


def leaks(git: Git, mirror: Mirror, base: str, head: str, values: Sequence[str]) -> list[str]:
    """Where any of `values` stands in what `head` has and `base` has not: paths, or "a commit message". GitFailed."""
    wanted = _searchable(values)
    if not wanted:
        return []
    found = set()
    said = git(("log", "--format=%an%n%ae%n%cn%n%ce%n%B", head, f"^{base}"), mirror.where).stdout
    if any(value in said for value in wanted):
        found.add("a commit message")
    paths = dict(_new_objects(git, mirror, base, head))
    found |= {"a file's name" for path in paths.values() if any(value in path for value in wanted)}
    ids = list(paths)
    for start in range(0, len(ids), _BATCH):
        batch = ids[start : start + _BATCH]
        answer = git(
            ("grep", "--no-color", "-a", "-l", "-z", "-F", "-f", "-", *batch),
            mirror.where,
            stdin=b"\n".join(wanted) + b"\n",
            ok=(0, 1),
        )
        named = (
            paths.get(name.decode("ascii", "replace"), b"?") for name in answer.stdout.split(b"\0") if name
        )
        found |= {name.decode("utf-8", "replace") for name in named if not any(v in name for v in wanted)}
    return sorted(found)


def _searchable(values: Sequence[str]) -> list[bytes]:
    """Of a value of several lines the longest one: git searches line by line."""
    lines = (max(value.splitlines(), key=len, default="") for value in values)
    return sorted({line.encode() for line in lines if len(line) >= LEAST_CHARS})


def _new_objects(git: Git, mirror: Mirror, base: str, head: str) -> Iterator[tuple[str, bytes]]:
    """Files that `base` has not, each with a path that it has. Trees and commits have no content of their own."""
    listed = git(("rev-list", "--objects", "--filter=object:type=blob", head, f"^{base}"), mirror.where).stdout
    for line in listed.splitlines():
        name, _, path = line.partition(b" ")
        if path:
            yield name.decode("ascii"), path
