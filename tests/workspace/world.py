"""A forge with one repository, workspaces over it, and hands that do what agents do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.support.forge import FakeForge
from tireless.config import GitConfig, Secret
from tireless.workspace import Checkout, Collected, Mirror, Pushed, Remote, Workspaces

NAME = "acme/site"
JOB = "0191d0c0-0000-7000-8000-000000000001"
OTHER_JOB = "0191d0c0-0000-7000-8000-000000000002"
BRANCH = "tireless/issue-1"
IDENTITY = GitConfig(author_name="Tireless Bot", author_email="bot@example.org")


class World:
    def __init__(self, forge: FakeForge, state: Path) -> None:
        self.forge = forge
        self.state = state
        self.repo = forge.ref(NAME)
        self.remote = Remote(f"{forge.url}/{NAME}.git", "x-access-token", Secret(forge.token))
        self.beats = 0
        self.stop: Callable[[], bool] = lambda: False
        self.spaces = self.workspaces()

    def workspaces(self, timeout: float = 30.0, **options: Any) -> Workspaces:
        return Workspaces(self.state, IDENTITY, timeout, self._beat, lambda: self.stop(), **options)

    def _beat(self) -> None:
        self.beats += 1

    @property
    def upstream(self) -> Any:
        """The repository on the forge's own disk."""
        return self.forge.git(NAME)

    def start(self, job: str = JOB, branch: str = BRANCH) -> tuple[Mirror, Checkout]:
        mirror = self.spaces.update_mirror(self.repo, self.remote)
        return mirror, self.spaces.prepare(mirror, job, branch, "main")

    def collect(self, checkout: Checkout, mirror: Mirror) -> Collected:
        return self.spaces.collect(checkout, mirror, "What the agent left")

    def push(self, mirror: Mirror, collected: Collected, job: str = JOB, branch: str = BRANCH) -> Pushed:
        return self.spaces.push(mirror, self.remote, job, branch, collected.head_commit, "main")

    def deliver(self, checkout: Checkout, mirror: Mirror) -> Collected:
        collected = self.collect(checkout, mirror)
        self.push(mirror, collected, checkout.job_id, checkout.branch)
        return collected


def agent(checkout: Checkout, script: str, env: Mapping[str, str] | None = None) -> str:
    """Run a shell script in the checkout, with the environment of an agent. `save MESSAGE` commits all there is."""
    prelude = 'save() { git add -A; git commit -qm "$1"; };'
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(checkout.home), "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_NAME": "agent", "GIT_AUTHOR_EMAIL": "agent@example.org",
        "GIT_COMMITTER_NAME": "agent", "GIT_COMMITTER_EMAIL": "agent@example.org", **(env or {}),
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", prelude + script],
        cwd=checkout.path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def git_bytes(where: Path, *args: str) -> bytes:
    """What git says of a repository that nobody hostile has touched."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C", "GIT_DIR": str(where)}
    environment |= {f"GIT_{role}_{key}": "a@b" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    return subprocess.run(["git", *args], env=environment, capture_output=True, check=True, timeout=60).stdout


def git(where: Path, *args: str) -> str:
    return git_bytes(where, *args).decode().strip()


def files_at(mirror: Mirror, commit: str) -> list[str]:
    return git(mirror.path, "ls-tree", "-r", "--name-only", commit).splitlines()


def content_at(mirror: Mirror, commit: str, path: str) -> str:
    return git_bytes(mirror.path, "show", f"{commit}:{path}").decode()


def every_object(where: Path) -> bytes:
    """The content of every object of a repository."""
    return git_bytes(where, "cat-file", "--batch", "--batch-all-objects", "--unordered")
