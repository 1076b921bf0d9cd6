"""Bare mirrors: one a repository a host, the only place that tireless fetches to and pushes from.

    state_dir/mirrors/<forge>/<host>/<owner>/<repo>.git     the mirror
    state_dir/mirrors/<forge>/<host>/<owner>/<repo>.lock    its lock, held by whoever writes into the mirror

    refs/heads/*, refs/tags/*         as the forge has them, pruned
    refs/tireless/<job>/base, start   what a checkout was made from
    refs/tireless/<job>/agent, head   the agent's own commits; what is to be pushed
    refs/tireless/<job>/remote        what the forge had when it turned our push down
    refs/pushed/<branch>              what tireless itself last pushed there

* One writer at a time. The lock is inherited by the git command that writes, so a runner that dies in the
  middle keeps the next one out until its git has ended too. Therefore a lock file or a temporary pack of git's
  that is found with the lock in hand belongs to nobody, and is removed: a killed fetch costs nothing but itself.
* Every object that comes in, from the forge or from a workspace, is checked (fsckObjects).
* Checkouts borrow objects, so nothing here ever drops an object that a checkout may need: no gc, and repacking
  keeps what is unreachable.
* A push is never forced. Up to date is success, and so is a remote branch that already holds the commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, unquote

from tireless.entities import Forge, RepoRef
from tireless.workspace.command import LOCAL_ACCESS, Git, Result, Where, failure
from tireless.workspace.errors import (
    BadBranch,
    BranchMoved,
    GitError,
    GitFailed,
    GitTimeout,
    NotCollected,
    RemoteRefused,
    RemoteUnreachable,
)
from tireless.workspace.remote import Remote, explain

log = logging.getLogger(__name__)

# Old repositories hold these mistakes of old tools and cannot be cloned where they count as errors. None of
# them makes git do or write anything; they are forgiven to the forge only, not to an agent.
_FORGIVEN = (
    "zeroPaddedFilemode", "missingSpaceBeforeDate", "badTimezone", "missingSpaceBeforeEmail", "missingEmail",
    "missingTaggerEntry", "nullSha1", "badDateOverflow", "badDate",
)  # fmt: skip
_FORGE_FSCK = tuple((f"fetch.fsck.{name}", "warn") for name in _FORGIVEN)

_HEX = re.compile(r"[0-9a-f]{40}")
_FETCH = (
    "fetch", "--quiet", "--no-tags", "--no-auto-gc", "--no-write-fetch-head", "--no-recurse-submodules",
    "--no-show-forced-updates",
)  # fmt: skip
_TIDY_PACKS = 40  # a mirror with more packs than this is repacked when garbage is collected


@dataclass(frozen=True, slots=True)
class Mirror:
    repo: RepoRef
    path: Path

    @property
    def where(self) -> Where:
        return Where(git_dir=self.path)

    @property
    def objects(self) -> Path:
        return self.path / "objects"

    @property
    def lock_path(self) -> Path:
        return self.path.with_suffix(".lock")


@dataclass(frozen=True, slots=True)
class Pushed:
    """`already`: the remote branch held the commit before (an earlier push whose answer was lost)."""

    branch: str
    commit: str
    already: bool


def job_ref(job_id: str, name: str) -> str:
    return f"refs/tireless/{job_id}/{name}"


def is_commit_id(text: str) -> bool:
    return _HEX.fullmatch(text) is not None


class Mirrors:
    """The mirrors under `root`. `group`: who may read them beside us (an agent that runs as another user)."""

    def __init__(self, root: Path, git: Git, group: int | None = None) -> None:
        self.root = root
        self.git = git
        self.group = group

    def at(self, repo: RepoRef) -> Mirror:
        names = [_component(part) for part in (str(repo.forge), repo.host, repo.owner, repo.repo)]
        return Mirror(repo, self.root.joinpath(*names[:3], f"{names[3]}.git"))

    def at_path(self, path: Path) -> Mirror:
        """The mirror that lies at a path below the root."""
        forge, host, owner, name = (unquote(part) for part in path.relative_to(self.root).parts)
        return Mirror(RepoRef(Forge(forge), host, owner, name.removesuffix(".git")), path)

    def all(self) -> list[Path]:
        kinds = set(Forge)  # a newer program's kinds of forges are left to it
        return sorted(
            path for path in self.root.glob("*/*/*/*.git") if path.parts[-4] in kinds and path.is_dir()
        )

    def update(self, repo: RepoRef, remote: Remote) -> Mirror:
        """Bring the mirror up to what the forge has now, making it if there is none."""
        mirror = self.at(repo)
        mirror.path.parent.mkdir(parents=True, exist_ok=True, mode=0o711)
        with self.locked(mirror) as lock:
            self._init(mirror, lock)
            access = remote.access()
            access = replace(access, config=(*access.config, *_FORGE_FSCK))
            refspecs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
            args = (*_FETCH, "--prune", "--", remote.url, *refspecs)
            try:
                self.git(args, mirror.where, access=access, hold=(lock,))
            except GitFailed as e:
                raise explain(e, remote.url) from None
        log.info("mirror is up to date repo=%s", repo)
        return mirror

    @contextlib.contextmanager
    def locked(self, mirror: Mirror) -> Iterator[int]:
        """The mirror is ours to write while this lasts; yields a descriptor for `hold`. GitTimeout."""
        fd = os.open(mirror.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        what = f"waiting for the lock of the mirror of {mirror.repo}"
        deadline = time.monotonic() + self.git.timeout
        try:
            while not _try_lock(fd):
                self.git.pulse.turn(what)
                if time.monotonic() > deadline:
                    raise GitTimeout(what, self.git.timeout)
                time.sleep(0.1)
            _sweep_debris(mirror.path)
            os.utime(fd)
            yield fd
        finally:
            os.close(fd)  # not LOCK_UN: that would free it for a git that still writes

    @contextlib.contextmanager
    def unused(self, mirror: Mirror, seconds: float) -> Iterator[bool]:
        """Whether nobody has the lock, or had it in the last `seconds`; if so it is ours while this lasts."""
        fd = os.open(mirror.lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _try_lock(fd) and time.time() - os.fstat(fd).st_mtime >= seconds
        finally:
            os.close(fd)

    def _init(self, mirror: Mirror, lock: int) -> None:
        if (mirror.path / "HEAD").is_file() and (mirror.path / "config").is_file():
            return
        mirror.path.mkdir(exist_ok=True)
        if self.group is not None:
            os.chown(mirror.path, -1, self.group)
        mirror.path.chmod(0o700 if self.group is None else 0o750)
        self.git(("init", "--quiet", "--bare", "--template=", "--", str(mirror.path)), Where(), hold=(lock,))

    def resolve(self, mirror: Mirror, ref: str) -> str | None:
        """The commit that `ref` names, or None."""
        args = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        result = self.git(args, mirror.where, ok=(0, 1, 128))
        return result.text if result.code == 0 else None

    def tips(self, mirror: Mirror, refs: Sequence[str]) -> list[str | None]:
        """The objects that full ref names point at, in their order, None for those that are not there."""
        args = ("for-each-ref", "--format=%(objectname) %(refname)", "--", *refs)
        found = (line.split(" ", 1) for line in self.git(args, mirror.where).text.splitlines())
        by_name = {name: commit for commit, name in found}
        return [by_name.get(ref) for ref in refs]

    def merge_base(self, mirror: Mirror, one: str, other: str) -> str | None:
        result = self.git(("merge-base", one, other), mirror.where, ok=(0, 1))
        return result.text if result.code == 0 else None

    def is_ancestor(self, mirror: Mirror, one: str, of: str) -> bool:
        return self.git(("merge-base", "--is-ancestor", one, of), mirror.where, ok=(0, 1)).code == 0

    def tree(self, mirror: Mirror, commit: str) -> str:
        return self.git(("rev-parse", "--verify", f"{commit}^{{tree}}"), mirror.where).text

    def set_refs(self, mirror: Mirror, refs: Mapping[str, str | None], lock: int) -> None:
        """Point `refs` at commits, all or none; None deletes."""
        lines = [
            f"update {ref} {commit}\n" if commit is not None else f"delete {ref}\n"
            for ref, commit in refs.items()
        ]
        args = ("update-ref", "--no-deref", "--stdin")
        self.git(args, mirror.where, stdin="".join(lines).encode(), hold=(lock,))

    def refs_of(self, mirror: Mirror, job_id: str) -> list[str]:
        args = ("for-each-ref", "--format=%(refname)", job_ref(job_id, ""))
        return self.git(args, mirror.where).text.split()

    def take(self, mirror: Mirror, source: Path, ref: str) -> None:
        """Bring `refs/heads/take` of our own repository `source` in, checked, as `ref`."""
        with self.locked(mirror) as lock:
            args = (*_FETCH, "--", str(source), f"+refs/heads/take:{ref}")
            self.git(args, mirror.where, access=LOCAL_ACCESS, hold=(lock,))

    def push(self, mirror: Mirror, remote: Remote, job_id: str, branch: str, commit: str) -> Pushed:
        """Push the collected `commit` to `branch`; see the module for what counts as success.

        NotCollected, BranchMoved, RemoteRefused, RemoteUnreachable, GitFailed.
        """
        if not is_commit_id(commit) or self.resolve(mirror, job_ref(job_id, "head")) != commit:
            raise NotCollected(job_id, commit)
        args = (
            "push",
            "--porcelain",
            "--no-verify",
            "--no-follow-tags",
            "--recurse-submodules=no",
            "--",
            remote.url,
        )
        target = f"refs/heads/{branch}"
        try:
            result = self.git((*args, f"{commit}:{target}"), mirror.where, access=remote.access(), ok=(0, 1))
        except GitFailed as e:
            raise explain(e, remote.url) from None
        flag, reason = push_answer(result.stdout.decode("utf-8", "replace"), target)
        if flag == "!" and not _is_race(reason):
            raise RemoteRefused(remote.url, f"{reason}; {result.stderr.strip()[-1000:]}")
        if flag == "!" and not self._holds(mirror, remote, job_id, target, commit):
            raise BranchMoved(branch, reason)
        if flag == "" or (result.code != 0 and flag != "!"):
            raise _cut_off(result, remote)
        with self.locked(mirror) as lock:
            self.set_refs(mirror, {f"refs/pushed/{branch}": commit}, lock)
        log.info("pushed job=%s branch=%s commit=%s already=%s", job_id, branch, commit, flag in "=!")
        return Pushed(branch, commit, already=flag in ("=", "!"))

    def _holds(self, mirror: Mirror, remote: Remote, job_id: str, target: str, commit: str) -> bool:
        """Whether the remote branch contains the commit: somebody went on from a push of ours."""
        ref = job_ref(job_id, "remote")
        try:
            with self.locked(mirror) as lock:
                args = (*_FETCH, "--", remote.url, f"+{target}:{ref}")
                self.git(args, mirror.where, access=remote.access(), hold=(lock,))
        except GitFailed as e:
            explained = explain(e, remote.url)
            if explained is e:
                return False
            raise explained from None
        return self.is_ancestor(mirror, commit, ref)

    def tidy(self, mirror: Mirror) -> bool:
        """Repack a mirror of many packs, dropping nothing. Whether there was anything to do."""
        if sum(1 for _ in (mirror.objects / "pack").glob("*.pack")) <= _TIDY_PACKS:
            return False
        with self.locked(mirror) as lock:
            self.git(("repack", "-q", "-a", "-d", "--keep-unreachable"), mirror.where, hold=(lock,))
            self.git(("pack-refs", "--all", "--prune"), mirror.where, hold=(lock,))
        return True


def check_branch(git: Git, branch: str, prefix: str, default_branch: str) -> None:
    """BadBranch unless `branch` is one that tireless may write to."""
    if branch.casefold() == default_branch.casefold():
        raise BadBranch(branch, "it is the default branch")
    if not branch.startswith(prefix):
        raise BadBranch(branch, f"it does not start with git.branch_prefix {prefix!r}")
    args = ("check-ref-format", f"refs/heads/{branch}")
    if branch.startswith("-") or git(args, Where(), ok=(0, 1)).code != 0:
        raise BadBranch(branch, "git does not take it as a branch name")


def push_answer(porcelain: str, target: str) -> tuple[str, str]:
    """(flag, summary) of `target` in the output of `git push --porcelain`; ("", "") if it is not there. Pure."""
    for line in porcelain.splitlines():
        flag, _, rest = line.partition("\t")
        refs, _, summary = rest.partition("\t")
        if refs.endswith(f":{target}"):
            return flag or " ", summary.strip()
    return "", ""


def _cut_off(result: Result, remote: Remote) -> GitError:
    """A push that ended without an answer about its branch."""
    error = explain(failure(("git", "push"), result, ()), remote.url)
    return RemoteUnreachable(remote.url, error.stderr) if isinstance(error, GitFailed) else error


def _is_race(reason: str) -> bool:
    """Whether a push was turned down because the branch is not where we thought, not by a rule."""
    moved = (
        "non-fast-forward",
        "fetch first",
        "needs force",
        "stale info",
        "cannot lock ref",
        "already exists",
    )
    return any(word in reason for word in (*moved, "failed to update ref", "incorrect old value"))


def _component(text: str) -> str:
    """A part of a repository's name as a file name: nothing in it is special to a file system or to git."""
    name = quote(text, safe="")
    if name in ("", ".", ".."):
        raise GitError(f"{text!r} cannot be part of a repository's name")
    return name


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep_debris(git_dir: Path) -> None:
    """Remove what a killed git left. Only with the lock in hand (see the module)."""
    for root in (git_dir, git_dir / "refs", git_dir / "objects" / "info"):
        found = root.rglob("*.lock") if root.name == "refs" else root.glob("*.lock")
        for path in list(found):
            path.unlink(missing_ok=True)
    for pattern in ("tmp_*", ".tmp-*"):
        for path in [*git_dir.glob(f"objects/pack/{pattern}"), *git_dir.glob(f"objects/??/{pattern}")]:
            path.unlink(missing_ok=True)
    for path in [*git_dir.glob("objects/incoming-*"), *git_dir.glob("objects/tmp_objdir-*")]:
        shutil.rmtree(path, ignore_errors=True)
