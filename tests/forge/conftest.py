"""A fake forge of each kind, with one repository acme/site, and the client for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forge import FakeForge, FakeGitea, FakeGitHub, start
from tireless.entities import RepoRef
from tireless.forge import ForgeClient, MemoryGate, Pace, client_for

QUICK = Pace(connect_seconds=2, answer_seconds=2, total_seconds=8, first_wait_seconds=0.01)


@pytest.fixture(params=["github", "gitea", "forgejo"])
def forge(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeForge]:
    with start(request.param, tmp_path / "forge") as running:
        running.add_repo("acme/site", {"README.md": "hello\n"})
        yield running


@pytest.fixture(params=["gitea", "forgejo"])
def gitea_like(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeForge]:
    with start(request.param, tmp_path / "forge") as running:
        running.add_repo("acme/site", {"README.md": "hello\n"})
        yield running


@pytest.fixture
def github(tmp_path: Path) -> Iterator[FakeGitHub]:
    with FakeGitHub(tmp_path / "forge") as running:
        running.add_repo("acme/site", {"README.md": "hello\n"})
        yield running


@pytest.fixture
def gitea(tmp_path: Path) -> Iterator[FakeGitea]:
    with FakeGitea(tmp_path / "forge") as running:
        running.add_repo("acme/site", {"README.md": "hello\n"})
        yield running


@pytest.fixture
def client(forge: FakeForge) -> Iterator[ForgeClient]:
    made = client_for(forge.config, gate=MemoryGate(), pace=QUICK)
    yield made
    made.close()


@pytest.fixture
def repo(forge: FakeForge) -> RepoRef:
    return forge.ref("acme/site")


@pytest.fixture
def gitea_like_client(gitea_like: FakeForge) -> Iterator[ForgeClient]:
    made = client_for(gitea_like.config, gate=MemoryGate(), pace=QUICK)
    yield made
    made.close()


@pytest.fixture
def github_client(github: FakeGitHub) -> Iterator[ForgeClient]:
    made = client_for(github.config, gate=MemoryGate(), pace=QUICK)
    yield made
    made.close()


@pytest.fixture
def gitea_client(gitea: FakeGitea) -> Iterator[ForgeClient]:
    made = client_for(gitea.config, gate=MemoryGate(), pace=QUICK)
    yield made
    made.close()
