from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.lifecycle import Supervised
from tests.support.rig import NewRig, rigs

Make = Callable[..., Supervised]


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Make]:
    """Makes supervisors with stub children; what is left of them is killed afterwards."""
    made: list[Supervised] = []

    def make(name: str = "one", **settings: Any) -> Supervised:
        directory = tmp_path / name
        directory.mkdir(exist_ok=True)
        made.append(Supervised(directory, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def new_rig(database_url: str) -> Iterator[NewRig]:
    """Makes rigs that run, on the test's database."""
    with rigs(database_url) as make:
        yield make
