"""How a job that goes back is logged: what somebody may have to mend is a warning."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from tireless import work


@pytest.mark.parametrize(
    ("why", "level"),
    [(work._Passing("claude is not on PATH"), "WARNING"), (work._Stopped("tireless is stopping"), "INFO")],
)
def test_a_fault_that_is_not_the_jobs_is_a_warning(
    why: work._Leave, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(work.Work, "_requeue", lambda *_, **__: None)
    leaving = object.__new__(work.Work)
    leaving._job = SimpleNamespace(id="a-job")  # type: ignore[assignment]
    with caplog.at_level(logging.INFO, logger=work.__name__):
        leaving._leave(why)
    assert [(r.levelname, str(why) in r.message) for r in caplog.records] == [(level, True)]
