"""The measurement runs, and says what it promises. How fast it must be is not for a suite on a shared machine."""

from __future__ import annotations

import json

import pytest

from tests.bench import workspace


def test_it_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert workspace.main(["--json", "--mb", "8", "--rounds", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["ratio"] == pytest.approx(figures["plain_s"] / figures["mirrored_s"])
    assert figures["checkout_mb"] < figures["clone_mb"]
