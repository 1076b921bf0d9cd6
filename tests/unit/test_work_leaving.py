"""How a job that goes back is logged: what somebody may have to mend is a warning."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tireless.work import ends
from tireless.work.leaving import Leave, Passing, Stopped


@pytest.mark.parametrize(
    ("why", "level"),
    [(Passing("claude is not on PATH"), "WARNING"), (Stopped("tireless is stopping"), "INFO")],
)
def test_a_fault_that_is_not_the_jobs_is_a_warning(
    why: Leave, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    row = SimpleNamespace(id="a-job")
    hand = SimpleNamespace(job=row, config=None, db=lambda _: None)
    leaving = ends.Ends(cast(Any, hand), cast(Any, None), cast(Any, None))
    with caplog.at_level(logging.INFO, logger=ends.__name__):
        leaving.leave(why)
    assert [(r.levelname, str(why) in r.message) for r in caplog.records] == [(level, True)]
