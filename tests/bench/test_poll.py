"""The measurement runs, and the poller keeps up on a small scale. The full figures are not for a shared machine."""

from __future__ import annotations

import json

import pytest

from tests.bench import poll


def test_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert poll.main(["--json", "--repos", "60", "--interval", "5", "--seconds", "11", "--dead", "10"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["polls_s"] == pytest.approx(figures["wanted_s"], rel=0.25)
    assert figures["connections"] <= poll.AIMS["connections"]
    assert figures["late_p99"] < 0.5
    assert figures["not_modified"] > 0.9
