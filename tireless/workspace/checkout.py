"""A job's checkout: a clone of its own that borrows the mirror's objects and shares nothing else.

    state_dir/work/<job id>/checkout/        what the agent works on
                            home/ report/ run/ tmp/
                            checkout.json    what it was made from; not the agent's to write

* It is made beside its place and renamed into it; checkout.json comes last. A checkout with its record is
  complete and is kept as it is, with the agent's work in it (a resumed job). One without is thrown away: no agent
  can have been in it.
* It stands on the job's branch: from the forge's branch of that name, if there is one (earlier work on the same
  issue), else from the default branch.
* It has the forge's branches as refs/remotes/origin/*, and no remote, so nothing in it can lead to a token.
* What configures an agent CLI comes from the default branch (AGENT_CONFIG): a headless CLI trusts its directory, and
  a branch may have been pushed by anybody who may push. Where an earlier branch that tireless did not push itself
  touches such files, a commit of ours on top puts them back, open for all to see.
* `collect` never runs git in it; that is the business of the module next door, which says how.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from tireless.config import GitConfig
from tireless.workspace.command import LOCAL_ACCESS, Git, Where, write_config
from tireless.workspace.errors import NoDefaultBranch
from tireless.workspace.files import remove_tree
from tireless.workspace.mirror import Mirror, Mirrors, job_ref

_RECORD = "checkout.json"
_SIBLINGS = ("home", "report", "run", "tmp")

# Directories and files by which the agent CLIs configure themselves from their working directory, in any case of
# letters: a file system may not tell them apart.
AGENT_CONFIG_DIRS = frozenset({".claude", ".opencode", ".husky"})
AGENT_CONFIG_FILES = frozenset(
    {"claude.md", "claude.local.md", "agents.md", ".mcp.json", "opencode.json", "opencode.jsonc"}
)


@dataclass(frozen=True, slots=True)
class Checkout:
    """A job's directories. `base_commit`: merge base with the default branch's tip when it was made (its tip for a
    new branch); `start_commit`: where the agent began."""

    job_id: str
    root: Path
    branch: str
    default_branch: str
    base_commit: str
    start_commit: str

    @property
    def path(self) -> Path:
        return self.root / "checkout"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"


@dataclass(frozen=True, slots=True)
class _Start:
    default_tip: str
    base: str
    commit: str
    foreign: bool  # an earlier branch that was last pushed by somebody else


def is_agent_config(path: str) -> bool:
    parts = path.casefold().split("/")
    return parts[-1] in AGENT_CONFIG_FILES or not AGENT_CONFIG_DIRS.isdisjoint(parts)


def read_record(root: Path) -> Checkout | None:
    """The checkout of a job's directory, if it is complete."""
    try:
        record = json.loads((root / _RECORD).read_text("utf-8"))
        return Checkout(root=root, **{key: record[key] for key in _RECORDED})
    except (OSError, ValueError, KeyError, TypeError):
        return None


_RECORDED = ("job_id", "branch", "default_branch", "base_commit", "start_commit")


def touch_record(root: Path) -> None:
    """The job's directory was used now."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(root / _RECORD)


def last_use(root: Path) -> float:
    """When a job's directory was last prepared or collected from, in seconds since the epoch."""
    record = root / _RECORD
    return (record if record.exists() else root).stat().st_mtime


def mirror_path(root: Path) -> Path | None:
    """The mirror that a job's checkout borrows from, as recorded."""
    try:
        return Path(json.loads((root / _RECORD).read_text("utf-8"))["mirror"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


class Checkouts:
    """Makes checkouts under `root`. `owner`: uid and gid of an agent that runs as another user than we."""

    def __init__(
        self, root: Path, git: Git, mirrors: Mirrors, identity: GitConfig, owner: tuple[int, int] | None
    ) -> None:
        self.root = root
        self.git = git
        self.mirrors = mirrors
        self.identity = identity
        self.owner = owner

    def prepare(
        self, mirror: Mirror, job_id: str, branch: str, default_branch: str, own_heads: Collection[str]
    ) -> Checkout:
        root = self.root / job_id
        for path in (root, *(root / name for name in _SIBLINGS)):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711 if path == root and self.owner is not None else 0o700)
        done = read_record(root)
        if done is not None and done.path.is_dir() and not done.path.is_symlink():
            touch_record(root)
            return done
        start = self._start(mirror, job_id, branch, default_branch, own_heads)
        commit = self._build(mirror, root, job_id, branch, default_branch, start)
        checkout = Checkout(job_id, root, branch, default_branch, start.base, commit)
        self._give_away(checkout)
        self._write_record(checkout, mirror)
        return checkout

    def _start(
        self, mirror: Mirror, job_id: str, branch: str, default_branch: str, own_heads: Collection[str]
    ) -> _Start:
        """Where the branch begins; kept by refs of the job, so that the mirror never loses what it borrows."""
        with self.mirrors.locked(mirror) as lock:
            names = (f"refs/heads/{default_branch}", f"refs/heads/{branch}", f"refs/pushed/{branch}")
            tip, earlier, pushed = self.mirrors.tips(mirror, names)
            if tip is None:
                raise NoDefaultBranch(str(mirror.repo), default_branch)
            commit = earlier or tip
            base = (self.mirrors.merge_base(mirror, tip, commit) if earlier else None) or tip
            refs: dict[str, str | None] = {job_ref(job_id, "base"): base, job_ref(job_id, "start"): commit}
            self.mirrors.set_refs(mirror, refs, lock)
        return _Start(tip, base, commit, earlier is not None and earlier != pushed and earlier not in own_heads)

    def _build(
        self, mirror: Mirror, root: Path, job_id: str, branch: str, default_branch: str, start: _Start
    ) -> str:
        """Make the clone and put it in its place; returns the commit that it stands on."""
        new = root / "checkout.new"
        for leftover in (new, root / "checkout"):
            remove_tree(self.git, leftover)
        new.mkdir(mode=0o700)
        self.git(("init", "--quiet", "--template=", f"--initial-branch={branch}", "--", str(new)), Where())
        where = Where(git_dir=new / ".git", work_tree=new)
        (new / ".git/objects/info").mkdir(exist_ok=True)
        (new / ".git/objects/info/alternates").write_text(f"{mirror.objects}\n", "utf-8")
        write_config(new / ".git", self._configuration())
        commit = self._restored(where, mirror, job_id, start) if start.foreign else start.commit
        self._point(where, mirror, branch, default_branch, start.default_tip, commit)
        self.git(("read-tree", "--reset", "-u", commit), where)
        new.rename(root / "checkout")
        return commit

    def _configuration(self) -> dict[str, str]:
        """The agent commits as the configured identity; nothing tidies up in the background."""
        return {
            "user.name": self.identity.author_name,
            "user.email": self.identity.author_email,
            "gc.auto": "0",
            "maintenance.auto": "false",
        }

    def _point(
        self, where: Where, mirror: Mirror, branch: str, default_branch: str, default_tip: str, commit: str
    ) -> None:
        """Branches: the forge's as origin/*, the default branch, the job's own as HEAD. The tags too."""
        refspecs = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
        args = (
            "fetch",
            "--quiet",
            "--no-tags",
            "--no-auto-gc",
            "--no-write-fetch-head",
            "--no-recurse-submodules",
        )
        self.git((*args, "--", str(mirror.path), *refspecs), where, access=LOCAL_ACCESS)
        lines = f"update refs/heads/{default_branch} {default_tip}\nupdate refs/heads/{branch} {commit}\n"
        self.git(("update-ref", "--stdin"), where, stdin=lines.encode())
        head = ("symbolic-ref", "refs/remotes/origin/HEAD", f"refs/remotes/origin/{default_branch}")
        self.git(head, where)

    def _restored(self, where: Where, mirror: Mirror, job_id: str, start: _Start) -> str:
        """The start, or a commit on it in which the agents' configuration is the default branch's."""
        args = ("diff-tree", "-r", "-z", "--name-only", "--no-renames", start.base, start.commit)
        names = self.git(args, mirror.where).stdout.split(b"\0")
        touched = [name for name in names if name and is_agent_config(os.fsdecode(name))]
        if not touched:
            return start.commit
        wanted = {}
        for entry in self.git(("ls-tree", "-r", "-z", start.default_tip), mirror.where).stdout.split(b"\0"):
            meta, _, name = entry.partition(b"\t")
            wanted[name] = meta
        lines = [b"0 " + b"0" * 40 + b"\t" + name for name in touched if name not in wanted]
        lines += [wanted[name] + b"\t" + name for name in touched if name in wanted]
        self.git(("read-tree", start.commit), where)
        self.git(("update-index", "-z", "--index-info"), where, stdin=b"".join(line + b"\0" for line in lines))
        tree = self.git(("write-tree",), where).text
        if tree == self.mirrors.tree(mirror, start.commit):
            return start.commit
        message = (
            "Agent configuration as on the default branch\n\n"
            "This branch was last pushed by somebody else than tireless. What configures a coding agent is\n"
            "taken from the default branch only; to change it, merge the change there.\n"
        )
        commit = commit_tree(self.git, where, tree, (start.commit,), message, self.identity)
        self.git(("update-ref", "refs/heads/take", commit), where)
        assert where.git_dir is not None
        self.mirrors.take(mirror, where.git_dir, job_ref(job_id, "start"))
        self.git(("update-ref", "-d", "refs/heads/take"), where)
        return commit

    def _give_away(self, checkout: Checkout) -> None:
        """To the user that the agent runs as; `run` stays ours."""
        if self.owner is None:
            return
        owner = f"{self.owner[0]}:{self.owner[1]}"
        paths = [str(path) for path in (checkout.path, checkout.home, checkout.report, checkout.tmp)]
        result = self.git.plain(("chown", "-R", "-h", owner, "--", *paths))
        if result.code != 0:
            raise OSError(f"the workspace cannot be given to {owner}: {result.stderr.strip()}")

    def _write_record(self, checkout: Checkout, mirror: Mirror) -> None:
        record = {key: getattr(checkout, key) for key in _RECORDED}
        path = checkout.root / _RECORD
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps({**record, "mirror": str(mirror.path)}) + "\n", "utf-8")
        partial.replace(path)


def commit_tree(
    git: Git, where: Where, tree: str, parents: Collection[str], message: str, identity: GitConfig
) -> str:
    """Write a commit by the configured author; returns its id."""
    who = {
        f"GIT_{role}_{key}": value
        for role in ("AUTHOR", "COMMITTER")
        for key, value in (("NAME", identity.author_name), ("EMAIL", identity.author_email))
    }
    text = message.replace("\0", "").strip() or "Work of the agent"
    args = ["commit-tree", "-F", "-", *(part for parent in parents for part in ("-p", parent)), tree]
    return git(args, where, stdin=f"{text}\n".encode("utf-8", "replace"), env=who).text
