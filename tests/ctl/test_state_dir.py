"""What doctor says of a state directory that cannot be used: its configured name, the fault, and the way out."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ctl.conftest import Ctl
from tireless.ctl import state_dir

ME = pwd.getpwuid(os.geteuid()).pw_name
ACCOUNTS = "root" if ME == "root" else f"{ME} or as root"


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Close a directory to the account that asks, whatever that may otherwise (root may all)."""
    real = os.access

    def close(place: Path, to: int = os.W_OK) -> None:
        def access(path: Path, mode: int) -> bool:
            return not (path == place and mode & to) and real(path, mode)

        monkeypatch.setattr(os, "access", access)

    return close


@pytest.fixture
def another(monkeypatch: pytest.MonkeyPatch) -> str:
    """Be another account than the one that the files of the test belong to; its name."""
    name = next(entry for entry in pwd.getpwall() if entry.pw_uid != os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: name.pw_uid)
    return name.pw_name


def test_one_that_is_there_and_one_that_can_be_made(tmp_path: Path) -> None:
    assert state_dir.fault(tmp_path) is None
    assert state_dir.fault(tmp_path / "not" / "yet") is None


def test_a_file(ctl: Ctl) -> None:
    ctl.state_dir.write_text("")
    found = {c["name"]: c for c in ctl("doctor", "--json").json["checks"]}["state_dir"]
    said = f"{ctl.state_dir} is no directory; move it away, or set state_dir to another place"
    assert (found["level"], found["detail"]) == ("fail", said)


def test_a_file_on_the_way_to_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "a" / "b"
    said = f"{place} cannot be made, since {tmp_path / 'file'} is no directory; set state_dir to another place"
    assert state_dir.fault(place) == said


def test_a_link_to_nothing(tmp_path: Path) -> None:
    place = tmp_path / "link"
    place.symlink_to(tmp_path / "nothing")
    assert str(state_dir.fault(place)).startswith(f"{place} is a link to nothing")


def test_one_of_another_account(tmp_path: Path, closed: Callable[..., None], another: str) -> None:
    closed(tmp_path)
    said = f"{tmp_path} belongs to {ME} and is not writable for {another}; run as {ACCOUNTS}"
    assert state_dir.fault(tmp_path) == said


def test_ones_own_that_is_not_writable(tmp_path: Path, closed: Callable[..., None]) -> None:
    tmp_path.chmod(0o555)
    closed(tmp_path)
    said = f"{tmp_path} is not writable for its owner (mode 0555); chmod u+rwx {tmp_path}"
    assert state_dir.fault(tmp_path) == said


def test_one_that_cannot_be_made(tmp_path: Path, closed: Callable[..., None], another: str) -> None:
    place = tmp_path / "a" / "b"
    ways = "run as root, or set state_dir to another place"
    closed(tmp_path)
    said = f"{place} cannot be made by {another}, since {tmp_path} belongs to {ME}"
    assert (
        state_dir.fault(place)
        == f"{said}; have it made for {another} (install -d -o {another} {place}), {ways}"
    )
    closed(tmp_path, os.X_OK)
    said = f"{place} cannot be reached by {another}, since {tmp_path} belongs to {ME}"
    assert state_dir.fault(place) == f"{said}; {ways}"
