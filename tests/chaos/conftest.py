from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.chaos import World

Make = Callable[..., World]


@pytest.fixture
def make_world(database_url: str) -> Iterator[Make]:
    """Makes worlds on the test's database (or on `url`). In the end nothing of their agents may be left."""
    with contextlib.ExitStack() as stack:
        made: list[World] = []

        def make(url: str | None = None, **options: Any) -> World:
            world = World(url or database_url, **options)
            made.append(world)
            stack.callback(world.close)
            return world

        yield make
        for world in made:
            for supervisor in world.supervisors:
                if supervisor.process.poll() is None:
                    supervisor.send(signal.SIGQUIT)  # at once; nobody looks at the rows any more
            for supervisor in world.supervisors:
                with contextlib.suppress(AssertionError):
                    supervisor.wait(5)
                supervisor.end()
            assert world.leftovers() == []
