"""What a job's home gets for its CLI's first start; the home may be hostile, and a start never fails by it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from tireless.agents.base import Seed
from tireless.agents.seed import sow

SEED = Seed(".config/cli", {"lock.json": b"{}", "package.json": b"[]"}, ("modules",))


def tree(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): "" if p.is_dir() else p.read_text() for p in sorted(root.rglob("*"))}


def test_it_is_sown_once_and_only_for_its_owner(tmp_path: Path) -> None:
    home = tmp_path / "home"
    sow(home, SEED)
    there = home / ".config/cli"
    assert tree(there) == {"lock.json": "{}", "modules": "", "package.json": "[]"}
    assert {oct(p.stat().st_mode & 0o777) for p in (home, there, there / "modules")} == {"0o700"}
    assert oct((there / "lock.json").stat().st_mode & 0o777) == "0o600"
    (there / "lock.json").unlink()
    (there / "package.json").write_text("the agent's")
    sow(home, SEED)
    assert tree(there) == {"modules": "", "package.json": "the agent's"}


@pytest.mark.parametrize("trap", ["link_above", "link_to_nothing", "link_for_it", "file_above", "file_for_it"])
def test_a_trap_catches_nothing(tmp_path: Path, trap: str, caplog: pytest.LogCaptureFixture) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    above, it = home / ".config", home / ".config/cli"
    if trap.endswith("for_it"):
        above.mkdir()
    if trap == "link_above":
        above.symlink_to(elsewhere)
    elif trap == "link_to_nothing":
        above.symlink_to(elsewhere / "made-by-the-link")
    elif trap == "link_for_it":
        it.symlink_to(elsewhere)
    else:
        (above if trap == "file_above" else it).write_text("a file")
    before = os.listdir("/proc/self/fd")
    with caplog.at_level(logging.WARNING):
        sow(home, SEED)
    assert tree(elsewhere) == {}
    assert ("home not prepared" in caplog.text) is not trap.endswith("for_it")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_home_that_cannot_be_written_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "home").write_text("a file")
    sow(tmp_path / "home", SEED)  # FileExistsError, or a link in its place: the start will say what is wrong
    (tmp_path / "home").unlink()
    (tmp_path / "home").symlink_to(tmp_path)
    sow(tmp_path / "home", SEED)
    assert "home not prepared" in caplog.text
    assert sorted(os.listdir(tmp_path)) == ["home"]
