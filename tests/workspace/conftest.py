from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forge import start
from tests.workspace.world import NAME, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with start("gitea", token="canary-t0ken-0f-the-f0rge") as forge:
        files = {"README.md": "# site\n", "src/main.py": "print('hello')\n", ".gitignore": "*.log\nbuild/\n"}
        forge.add_repo(NAME, files)
        yield World(forge, tmp_path / "state")
