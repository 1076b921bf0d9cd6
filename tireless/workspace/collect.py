"""One collect: what an agent left in its checkout becomes a commit in the mirror.

The order matters. First the agent's own history is taken into the mirror, where every object is checked. Only then
is the work tree read, over a git directory that borrows from the mirror alone, so that the commit of what was left is
built on objects that are what their names say.
"""

from __future__ import annotations

import contextlib
import logging
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tireless.config import GitConfig
from tireless.workspace import files, foreign, leftovers
from tireless.workspace.checkout import Checkout, commit_tree, touch_record
from tireless.workspace.command import Git, Where
from tireless.workspace.errors import Cancelled, DiskFull, GitFailed, UnsafeWorkspace
from tireless.workspace.files import Limits
from tireless.workspace.mirror import Mirror, Mirrors, job_ref

log = logging.getLogger(__name__)

_STAT_TEXT_CHARS = 8000


@dataclass(frozen=True, slots=True)
class DiffStat:
    """What a diff comes to. `text` is git's own table, cut off where it is long."""

    files: int
    insertions: int
    deletions: int
    text: str


@dataclass(frozen=True, slots=True)
class Collected:
    """An agent's work, in the mirror.

    `changed`: the head differs from the base in content; without that there is nothing to deliver.
    `advanced`: it differs from where the agent began, so that this job did something.
    `base_commit`: what `diffstat` and `commits` are counted from: the merge base with the default branch.
    `left_out`: (path, reason) of files that are not in the commit. `notes`: what a person should know.
    """

    head_commit: str
    base_commit: str
    changed: bool
    advanced: bool
    commits: int
    diffstat: DiffStat
    left_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def collect(
    git: Git,
    mirrors: Mirrors,
    identity: GitConfig,
    limits: Limits,
    checkout: Checkout,
    mirror: Mirror,
    message: str,
) -> Collected:
    """See Workspaces.collect."""

    def turn() -> None:
        git.pulse.turn("reading the workspace")

    files.require_directory(checkout.root)
    files.require_directory(checkout.path)
    files.disarm(checkout.path, turn)
    with _scratch(git, checkout) as scratch:
        collected = _Collection(git, mirrors, identity, limits, checkout, mirror, scratch, message).run()
    touch_record(checkout.root)
    return collected


@contextlib.contextmanager
def _scratch(git: Git, checkout: Checkout) -> Iterator[Path]:
    """A directory beside the checkout for git directories of ours; those of a killed runner are removed."""
    for old in checkout.root.glob("collect-*"):
        files.remove_tree(git, old)
    path = Path(tempfile.mkdtemp(prefix="collect-", dir=checkout.root))
    try:
        yield path
    finally:
        with contextlib.suppress(Cancelled):
            files.remove_tree(git, path)


class _Collection:
    """One `collect`, step by step."""

    def __init__(
        self,
        git: Git,
        mirrors: Mirrors,
        identity: GitConfig,
        limits: Limits,
        checkout: Checkout,
        mirror: Mirror,
        scratch: Path,
        message: str,
    ) -> None:
        self._git = git
        self._mirrors = mirrors
        self._identity = identity
        self._limits = limits
        self._checkout = checkout
        self._mirror = mirror
        self._scratch = scratch
        self._message = message
        self._notes: list[str] = []

    def run(self) -> Collected:
        heads = foreign.read_heads(self._checkout.path / ".git", self._checkout.branch)
        if heads is not None and heads.unfinished is not None:
            self._notes.append(f"the agent left {heads.unfinished} unfinished")
        head = self._history(heads.head if heads is not None else None, "agent")
        parent = head or self._checkout.start_commit
        if head is None:
            self._notes.append("its git directory could not be read: the work tree was taken as one commit")
        where = foreign.borrowing_repository(self._git, self._scratch / "tree.git", self._mirror)
        over = Where(where.git_dir, self._checkout.path, self._scratch / "tree.index")
        shot = leftovers.snapshot(self._git, over, parent, self._limits)
        aside = self._work_set_aside(heads, head, shot.tree)
        tree, parents = (shot.tree, (parent,)) if aside is None else (self._tree(aside), (aside,))
        commit = self._commit(where, tree, self._joined(parents))
        return self._report(commit, shot.left_out)

    def _history(self, commit: str | None, name: str) -> str | None:
        """Take the agent's commit into the mirror; None if it is no complete, sound history."""
        if commit is None:
            return None
        known = [self._checkout.start_commit, self._checkout.base_commit]
        if commit in known:
            return commit
        source = self._scratch / f"{name}.git"
        try:
            where = foreign.borrowing_repository(self._git, source, self._mirror)
            foreign.link_objects(self._checkout.path / ".git", source, self._git.pulse.turn)
            tip = self._mirrors.resolve(self._mirror, f"refs/heads/{self._checkout.default_branch}")
            foreign.check_sizes(self._git, where, commit, [*known, *([tip] if tip else [])], self._limits)
            self._git(("update-ref", "refs/heads/take", commit), where)
            self._mirrors.take(self._mirror, source, job_ref(self._checkout.job_id, name))
        except DiskFull:
            raise
        except GitFailed as e:
            log.warning("history not taken job=%s commit=%s error=%s", self._checkout.job_id, commit, e)
            return None
        return commit

    def _work_set_aside(self, heads: foreign.Heads | None, head: str | None, tree: str) -> str | None:
        """The job's branch, where the agent committed there, then went back to where it began and left nothing new.
        What it left checked out is not its work then."""
        if heads is None or head is None or heads.branch in (None, head, self._checkout.start_commit):
            return None
        untouched = tree == self._tree(head) and self._mirrors.is_ancestor(
            self._mirror, head, self._checkout.start_commit
        )
        if not untouched:
            return None
        found = self._history(heads.branch, "branch")
        if found is not None:
            self._notes.append(f"its work was on {self._checkout.branch}, which it had left")
        return found

    def _joined(self, parents: tuple[str, ...]) -> tuple[str, ...]:
        """Parents such that the push needs no force and the pull request has a common history."""
        start, base = self._checkout.start_commit, self._checkout.base_commit
        (parent,) = parents
        if self._mirrors.is_ancestor(self._mirror, start, parent):
            return parents
        if start == base and self._mirrors.merge_base(self._mirror, base, parent) is not None:
            return parents  # a new branch that begins elsewhere in the repository's history
        self._notes.append("it rewrote history: a commit joins the earlier one with its own")
        return (start, parent)

    def _commit(self, where: Where, tree: str, parents: tuple[str, ...]) -> str:
        """The commit of `tree` on `parents` as the job's head in the mirror; the first parent itself if that adds
        nothing, and the one made before if it is the same."""
        ref = job_ref(self._checkout.job_id, "head")
        commit = parents[0]
        if len(parents) > 1 or tree != self._tree(commit):
            before = self._mirrors.resolve(self._mirror, ref)
            if before is not None and self._is_same(before, tree, parents):
                return before
            commit = commit_tree(self._git, where, tree, parents, self._message, self._identity)
            self._git(("update-ref", "refs/heads/take", commit), where)
            assert where.git_dir is not None
            try:
                self._mirrors.take(self._mirror, where.git_dir, ref)
            except GitFailed as e:
                if "fsck error" in e.stderr or "in packed object" in e.stderr:
                    raise UnsafeWorkspace(f"what it left fails git's check: {e.stderr[:500]}") from None
                raise
            return commit
        with self._mirrors.locked(self._mirror) as lock:
            self._mirrors.set_refs(self._mirror, {ref: commit}, lock)
        return commit

    def _is_same(self, commit: str, tree: str, parents: tuple[str, ...]) -> bool:
        line = self._git(("rev-list", "--parents", "-n", "1", commit), self._mirror.where).text.split()
        return tuple(line[1:]) == parents and self._tree(commit) == tree

    def _tree(self, commit: str) -> str:
        return self._mirrors.tree(self._mirror, commit)

    def _report(self, head: str, left_out: tuple[tuple[str, str], ...]) -> Collected:
        tip = self._mirrors.resolve(self._mirror, f"refs/heads/{self._checkout.default_branch}")
        base = tip and self._mirrors.merge_base(self._mirror, tip, head)
        base = base or self._checkout.base_commit
        count = self._git(("rev-list", "--count", head, f"^{base}"), self._mirror.where).text
        collected = Collected(
            head_commit=head,
            base_commit=base,
            changed=self._tree(head) != self._tree(base),
            advanced=self._tree(head) != self._tree(self._checkout.start_commit),
            commits=int(count),
            diffstat=self._diffstat(base, head),
            left_out=left_out,
            notes=tuple(self._notes),
        )
        log.info(
            "collected job=%s head=%s changed=%s files=%d left_out=%d",
            self._checkout.job_id, head, collected.changed, collected.diffstat.files, len(left_out),
        )  # fmt: skip
        return collected

    def _diffstat(self, base: str, head: str) -> DiffStat:
        plain = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short")
        numbers = self._git((*plain, "--shortstat", base, head), self._mirror.where).text
        table = self._git((*plain, "--stat=100", "--stat-count=100", base, head), self._mirror.where).stdout
        counts = [re.search(rf"(\d+) {word}", numbers) for word in ("file", "insertion", "deletion")]
        found = [int(count[1]) if count else 0 for count in counts]
        return DiffStat(found[0], found[1], found[2], _unindented(table)[:_STAT_TEXT_CHARS])


def _unindented(table: bytes) -> str:
    """Git's table without the space that each of its lines begins with."""
    return "\n".join(line.removeprefix(" ") for line in table.decode("utf-8", "replace").splitlines())
