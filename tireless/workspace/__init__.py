"""Git: a mirror a repository, a checkout a job, and the way of an agent's work from there to the forge.

    forge --update_mirror--> mirror --prepare--> checkout --agent--> checkout --collect--> mirror --push--> forge

The workspace is hostile once an agent has been in it. So:

* No git of ours ever runs in a configuration that an agent could write. Of what the agent committed only the object
  files and where HEAD points are taken (foreign.py); what it left uncommitted is read from the work tree under a git
  directory of ours (leftovers.py). What is pushed is pushed from the mirror.
* The forge's token is in the environment of the one git process that speaks to the forge: never in a URL, an
  argument, a file, a log line or an error (remote.py).
* Nothing outside the checkout is read: links are committed as links, alternates and packs that lead elsewhere are
  no part of what is taken.
* An agent cannot lose its work by leaving a bad git directory behind: whatever cannot be read as history (no .git, one
  that is a file or a link, an unborn or odd HEAD, missing or lying objects, objects that fail the check) is
  replaced by one commit of the work tree on the commit that the agent began with. `Collected.notes` says so.
* History that the agent rewrote is delivered as far as that needs no force: where its commits do not descend from an
  earlier state of the branch on the forge, or from anything of the repository, a commit with both as parents joins
  them. A push is never forced, and never goes to the default branch or outside git.branch_prefix.
* Every step may be repeated. An interrupted one is gone on with: the mirror sweeps what a killed git left
  (mirror.py), a checkout without its record is made anew (checkout.py), collecting the same work again gives the same
  commit, and a push that arrived is found to be up to date.
* While git runs, `beat` is called at least once a second, and `should_stop` ends git's process tree (Cancelled).

Who fails how: RemoteUnreachable, GitTimeout and DiskFull pass with time. RemoteRefused, BadRemote, BadBranch,
NoDefaultBranch and GitMissing need a person. BranchMoved: somebody pushed to the job's branch meanwhile. TooLarge
and UnsafeWorkspace: the work itself cannot be delivered. Cancelled: we were asked to stop. GitFailed: the rest.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tireless.config import GitConfig
from tireless.entities import RepoRef
from tireless.workspace import files
from tireless.workspace.checkout import Checkout, Checkouts, last_use, mirror_path, read_record
from tireless.workspace.collect import Collected, DiffStat, collect
from tireless.workspace.command import Git, Pulse
from tireless.workspace.errors import (
    BadBranch,
    BadRemote,
    BranchMoved,
    Cancelled,
    DiskFull,
    GitError,
    GitFailed,
    GitMissing,
    GitTimeout,
    NoDefaultBranch,
    NotCollected,
    RemoteRefused,
    RemoteUnreachable,
    TooLarge,
    UnsafeWorkspace,
)
from tireless.workspace.files import Limits
from tireless.workspace.leaks import leaks
from tireless.workspace.mirror import Mirror, Mirrors, Pushed, check_branch
from tireless.workspace.remote import Remote
from tireless.workspace.room import Room

__all__ = [
    "BadBranch",
    "BadRemote",
    "BranchMoved",
    "Cancelled",
    "Checkout",
    "Collected",
    "DiffStat",
    "DiskFull",
    "DiskUsage",
    "GitError",
    "GitFailed",
    "GitMissing",
    "GitTimeout",
    "Mirror",
    "NoDefaultBranch",
    "NotCollected",
    "Pushed",
    "Remote",
    "RemoteRefused",
    "RemoteUnreachable",
    "Room",
    "TooLarge",
    "UnsafeWorkspace",
    "Workspaces",
]

log = logging.getLogger(__name__)

MAX_BLOB_BYTES = 100 * 1024 * 1024  # GitHub refuses larger files
MAX_NEW_BYTES = 1024 * 1024 * 1024  # all that one job adds, before compression
_JOB_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z-]{0,63}")


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes on disk under the state directory."""

    mirrors: int
    work: int


class Workspaces:
    """All of it, for one host. Not for use by two threads at once; processes may share the directory.

    `timeout`: seconds for each git command. `owner`: uid and gid of the agent where it runs as another user.
    """

    def __init__(
        self,
        state_dir: Path,
        git: GitConfig,
        timeout: float,
        beat: Callable[[], None],
        should_stop: Callable[[], bool],
        *,
        owner: tuple[int, int] | None = None,
        max_blob_bytes: int = MAX_BLOB_BYTES,
        max_new_bytes: int = MAX_NEW_BYTES,
    ) -> None:
        self._identity = git
        self._git = Git(Pulse(beat, should_stop), timeout)
        self._work = state_dir / "work"
        self._limits = Limits(max_blob_bytes, max_new_bytes)
        self._version_known = False
        for path in (state_dir / "mirrors", self._work):
            path.mkdir(parents=True, exist_ok=True, mode=0o711)
        self._mirrors = Mirrors(state_dir / "mirrors", self._git, owner[1] if owner is not None else None)
        self._checkouts = Checkouts(self._work, self._git, self._mirrors, git, owner)

    def mirror_of(self, repo: RepoRef) -> Mirror:
        """Where the mirror of `repo` is or would be. Asks nobody."""
        return self._mirrors.at(repo)

    def update_mirror(self, repo: RepoRef, remote: Remote) -> Mirror:
        """Fetch what the forge has. RemoteUnreachable, RemoteRefused, GitTimeout, Cancelled, DiskFull."""
        if not self._version_known:
            self._git.require_version()
            self._version_known = True
        return self._mirrors.update(repo, remote)

    def prepare(
        self,
        mirror: Mirror,
        job_id: UUID | str,
        branch: str,
        default_branch: str,
        own_heads: Collection[str] = (),
    ) -> Checkout:
        """The job's checkout on `branch`; as it is, if there is one already.

        `own_heads`: commits that tireless is known to have pushed to the branch, from any host (checkout.py says what
        for; those of this host are known anyway). BadBranch, NoDefaultBranch.
        """
        check_branch(self._git, branch, self._identity.branch_prefix, default_branch)
        return self._checkouts.prepare(mirror, _job(job_id), branch, default_branch, own_heads)

    def find(self, job_id: UUID | str) -> Checkout | None:
        """The job's checkout on this host, if there is a complete one."""
        return read_record(self._work / _job(job_id))

    def commits_between(self, mirror: Mirror, base: str, head: str) -> int:
        """How many commits `head` has that `base` has not."""
        return int(self._git(("rev-list", "--count", head, f"^{base}"), mirror.where).text)

    def collect(self, checkout: Checkout, mirror: Mirror, message: str) -> Collected:
        """Take the agent's work into the mirror, what it left uncommitted as one more commit with `message`.

        To be called once nothing of the agent's runs any more. Nothing in the checkout's git directory is written.
        UnsafeWorkspace, TooLarge, GitFailed, GitTimeout, Cancelled, DiskFull.
        """
        return collect(self._git, self._mirrors, self._identity, self._limits, checkout, mirror, message)

    def leaks(self, mirror: Mirror, collected: Collected, values: Sequence[str]) -> list[str]:
        """Where what was collected holds one of the secret `values`; see leaks.py. GitFailed, GitTimeout, Cancelled."""
        return leaks(self._git, mirror, collected.base_commit, collected.head_commit, values)

    def push(
        self,
        mirror: Mirror,
        remote: Remote,
        job_id: UUID | str,
        branch: str,
        head_commit: str,
        default_branch: str,
    ) -> Pushed:
        """Push what was collected. Never forced; what is there already is success.

        BadBranch, NotCollected, BranchMoved, RemoteRefused, RemoteUnreachable, GitTimeout, Cancelled.
        """
        check_branch(self._git, branch, self._identity.branch_prefix, default_branch)
        return self._mirrors.push(mirror, remote, _job(job_id), branch, head_commit)

    def remove(self, job_id: UUID | str) -> None:
        """Remove the job's directories, and its refs from the mirror. No error where there are none."""
        job = _job(job_id)
        root = self._work / job
        borrowed = mirror_path(root)
        files.remove_tree(self._git, root)
        mirror = self._known_mirror(borrowed)
        if mirror is not None:
            with self._mirrors.locked(mirror) as lock:
                self._mirrors.set_refs(mirror, dict.fromkeys(self._mirrors.refs_of(mirror, job)), lock)

    def jobs(self) -> list[UUID]:
        """The jobs that have a directory on this host."""
        found = []
        for root in self._work.iterdir():
            with contextlib.suppress(ValueError):
                found.append(UUID(root.name))
        return found

    def disk_usage(self) -> DiskUsage:
        return DiskUsage(
            files.size_on_disk(self._mirrors.root, self._turn), files.size_on_disk(self._work, self._turn)
        )

    def room(self, least_bytes: int) -> Room:
        """Of the disk that workspaces lie on."""
        return Room(self._work, least_bytes, self._git.pulse.beat)

    def collect_garbage(
        self,
        ended: Collection[UUID | str],
        older_than: float,
        most_bytes: int | None = None,
        least_free_bytes: int = 0,
    ) -> list[str]:
        """Remove the directories of jobs in `ended` that nobody prepared or collected in the last `older_than`
        seconds, and the oldest others of them while the directories of all jobs take more than `most_bytes` or leave
        less than `least_free_bytes` on their disk. Repack mirrors of many packs. Returns the ids of the jobs
        removed."""
        room = self.room(least_free_bytes)
        roots = [self._work / name for name in map(_job, ended)]
        waiting = deque(sorted((root for root in roots if root.is_dir()), key=last_use))
        now = time.time()
        removed = []
        while waiting and (now - last_use(waiting[0]) >= older_than or room.tight or self._over(most_bytes)):
            root = waiting.popleft()
            try:
                self.remove(root.name)
            except Cancelled:
                raise
            except (OSError, GitError) as e:
                log.error("workspace cannot be removed job=%s error=%s", root.name, e)
            else:
                removed.append(root.name)
        for path in self._mirrors.all():
            mirror = self._known_mirror(path)
            if mirror is not None and self._mirrors.tidy(mirror):
                log.info("mirror repacked path=%s", path)
        return removed

    def remove_mirrors(self, tracked: Collection[RepoRef], older_than: float) -> list[RepoRef]:
        """Remove the mirrors of repositories that are no longer `tracked`, that no job's directory borrows from and
        that nobody wrote into in the last `older_than` seconds; what was removed. One that is tracked again
        meanwhile is made anew, by whoever waits for its lock."""
        wanted = {_key(repo) for repo in tracked}
        removed = []
        for path in self._mirrors.all():
            mirror = self._mirrors.at_path(path)
            if _key(mirror.repo) in wanted:
                continue
            with self._mirrors.unused(mirror, older_than) as is_unused:
                if is_unused and path not in {mirror_path(root) for root in self._work.iterdir()}:
                    files.remove_tree(self._git, path)
                    removed.append(mirror.repo)
        return removed

    def _over(self, most_bytes: int | None) -> bool:
        return most_bytes is not None and files.size_on_disk(self._work, self._turn) > most_bytes

    def _known_mirror(self, path: Path | None) -> Mirror | None:
        return self._mirrors.at_path(path) if path is not None and path.is_dir() else None

    def _turn(self) -> None:
        self._git.pulse.turn("reading the workspace")


def _key(repo: RepoRef) -> tuple[str, ...]:
    """Forges do not tell names apart by case."""
    return (str(repo.forge), repo.host.casefold(), repo.full_name.casefold())


def _job(job_id: UUID | str) -> str:
    """The id as a name of a directory and part of a ref. ValueError if it cannot be one."""
    text = str(job_id)
    if _JOB_ID.fullmatch(text) is None:
        raise ValueError(f"job id {text!r}: letters, digits and dashes only")
    return text
