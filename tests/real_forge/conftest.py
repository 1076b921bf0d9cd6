"""The forge that the environment names; and the fakes in its place, so that these tests are known to run without one.

Both go the same way: the variables are read, and from then on there is nothing but a URL, a token and a repository.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import real_forge
from tests.support.forge import start
from tests.support.real_forge import Scratch, Target
from tireless.entities import RepoRef
from tireless.forge import ForgeClient, MemoryGate, client_for


@pytest.fixture(scope="module", params=["real", "fake-github", "fake-gitea", "fake-forgejo"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One for many tests, since a real one is that too: each leaves alone what is not its own."""
    if request.param == "real":
        yield named_target()
        return
    kind = request.param.removeprefix("fake-")
    with start(kind, tmp_path_factory.mktemp("forge") / kind) as forge:
        forge.add_repo("acme/scratch", {"README.md": "hello\n"}, labels=["bug"])
        found = real_forge.target(
            {
                real_forge.KIND: kind,
                real_forge.URL: f"{forge.url}/",
                real_forge.TOKEN: forge.token,
                real_forge.REPO: "acme/scratch",
            }
        )
        assert found is not None
        yield found


def named_target() -> Target:
    try:
        found = real_forge.target(os.environ)
    except real_forge.Wrong as e:
        pytest.fail(str(e), pytrace=False)
    if found is None:
        pytest.skip(real_forge.UNSET)
    return found


@pytest.fixture
def scratch(target: Target, tmp_path: Path) -> Iterator[Scratch]:
    made = Scratch(target, tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(target: Target) -> Iterator[ForgeClient]:
    made = client_for(target.config, gate=MemoryGate())
    yield made
    made.close()


@pytest.fixture
def repo(target: Target) -> RepoRef:
    return target.ref
