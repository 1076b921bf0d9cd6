"""Fake forges: real HTTP servers that behave as FORGES.md's table says, over real git repositories.

    with start("gitea") as forge:
        forge.add_repo("acme/site", {"README.md": "hello"})
        number = forge.open_issue("Say goodbye", labels=["tireless"])
        client = client_for(forge.config)

core.py holds what the three share; github.py, gitea.py and forgejo.py how they differ; server.py the HTTP side with
its record of requests and its faults; git.py the repositories. `python -m tests.support.forge` runs one as a process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.forge.core import OWN_LOGIN, FakeForge
from tests.support.forge.faults import Fault
from tests.support.forge.forgejo import FakeForgejo
from tests.support.forge.gitea import FakeGitea
from tests.support.forge.github import FakeGitHub
from tests.support.forge.server import Call, Recorded

__all__ = [
    "KINDS",
    "OWN_LOGIN",
    "Call",
    "FakeForge",
    "FakeForgejo",
    "FakeGitHub",
    "FakeGitea",
    "Fault",
    "Recorded",
    "start",
]

KINDS: dict[str, type[FakeForge]] = {"github": FakeGitHub, "gitea": FakeGitea, "forgejo": FakeForgejo}


def start(kind: str, root: Path | None = None, **options: Any) -> FakeForge:
    """A running forge; its repositories live under `root`, or in a directory that goes when it closes."""
    return KINDS[kind](root, **options)
