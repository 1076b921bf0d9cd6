from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agent.real_jobs import NewRig, real_rigs
from tests.support.agent.runs import Job


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """A job of its own, and an end to all its processes."""
    job = Job(tmp_path)
    yield job
    job.clean()


@pytest.fixture
def new_rig(database_url: str) -> Iterator[NewRig]:
    with real_rigs(database_url) as make:
        yield make
