"""What doctor runs outside of any job leaves nothing behind, however doctor ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import Ctl
from tests.support.agent.real import cli_of
from tests.support.rig import CHECKOUT
from tests.support.wait import wait_until
from tireless import proctree
from tireless.ctl import versions
from tireless.entities import AgentKind

LITTERS = f"""#!{sys.executable}
import os, pathlib
for name in ("HOME", "TMPDIR"):
    pathlib.Path(os.environ[name], ".library.so").write_text("x")
print("9.9.9")
"""
# Writes on while it is watched, has a child of its own, and hears no signal.
HANGS = """#!/bin/sh
trap '' INT TERM HUP
(while :; do echo x > "$TMPDIR/more"; sleep 0.05; done) &
echo $$ $! > PIDS.new && mv PIDS.new PIDS
wait
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's place for temporary files, as doctor sees it."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    return place


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """Where HANGS notes its processes; whatever a test finds, none of them outlives it."""
    place = tmp_path / "pids"
    yield place
    for pid in map(int, place.read_text().split() if place.exists() else []):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def with_agent(ctl: Ctl, command: Path) -> None:
    ctl.lines = [f'[lane.claude_code]\nenabled = false\n[lane.opencode]\ncommand = ["{command}"]']
    ctl.write()


def program(root: Path, text: str) -> Path:
    made = root / "agent"
    made.write_text(text)
    made.chmod(0o755)
    return made


@contextlib.contextmanager
def doctor(ctl: Ctl) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-m", "tireless.ctl", "--config", str(ctl.path), "doctor"]
    with subprocess.Popen(argv, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        try:
            yield ran
        finally:
            ran.kill()


def end(ran: subprocess.Popen[str]) -> str:
    out, err = ran.communicate(timeout=60)
    return out + err


def test_temporary_files_of_a_cli_are_removed(ctl: Ctl, temporary: Path, tmp_path: Path) -> None:
    with_agent(ctl, program(tmp_path, LITTERS))
    with doctor(ctl) as ran:
        assert "9.9.9" in end(ran)
    assert list(temporary.iterdir()) == []


@pytest.mark.real_cli
@pytest.mark.parametrize("kind", AgentKind)
def test_the_real_ones_leave_nothing(ctl: Ctl, temporary: Path, kind: AgentKind) -> None:
    """They do tell their version in such a home."""
    cli = cli_of(kind)
    with_agent(ctl, cli)
    with doctor(ctl) as ran:
        said = end(ran)
    assert "does not tell its version" not in said
    assert cli.name in said
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=str
)
def test_a_doctor_that_is_sent_away(
    ctl: Ctl, temporary: Path, tmp_path: Path, pids: Path, sent: signal.Signals, code: int
) -> None:
    with_agent(ctl, program(tmp_path, HANGS.replace("PIDS", str(pids))))
    with doctor(ctl) as ran:
        wait_until(pids.exists, 30, "the CLI runs")
        assert [path.name.startswith("tireless-doctor-") for path in temporary.iterdir()] == [True]
        ran.send_signal(sent)
        said = end(ran)
    assert ran.returncode == code, said
    assert "Traceback" not in said
    assert list(temporary.iterdir()) == []
    ran_by_it = [int(pid) for pid in pids.read_text().split()]
    wait_until(
        lambda: [p for p in ran_by_it if proctree.start_ticks(p) is not None] == [], 5, "all of it is gone"
    )


def test_a_signal_that_is_ignored_stays_so(ctl: Ctl, temporary: Path, tmp_path: Path, pids: Path) -> None:
    """nohup: the terminal may go."""
    with_agent(ctl, program(tmp_path, HANGS.replace("PIDS", str(pids)).replace("wait\n", "")))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited by what is started
    try:
        with doctor(ctl) as ran:
            wait_until(pids.exists, 30, "the CLI runs")
            ran.send_signal(signal.SIGHUP)
            os.kill(int(pids.read_text().split()[1]), signal.SIGKILL)
            assert "does not tell its version" in end(ran)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("moment", ["made", "removed"])
def test_a_signal_in_the_very_moment(temporary: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Just after its home was made, and just before it is removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    mkdtemp, rmtree = tempfile.mkdtemp, tempfile.TemporaryDirectory._rmtree  # type: ignore[attr-defined]

    def make(*args: Any, **options: Any) -> str:
        made: str = mkdtemp(*args, **options)
        if moment == "made":
            signal.raise_signal(signal.SIGINT)
        return made

    def remove(*args: Any, **options: Any) -> None:
        if moment == "removed":
            signal.raise_signal(signal.SIGINT)
        rmtree(*args, **options)

    monkeypatch.setattr(tempfile, "mkdtemp", make)
    monkeypatch.setattr(tempfile.TemporaryDirectory, "_rmtree", staticmethod(remove))
    with pytest.raises(KeyboardInterrupt):
        versions.version_of(["true"])
    assert list(temporary.iterdir()) == []


def test_a_doctor_that_is_sent_away_while_a_forge_is_asked(ctl: Ctl, temporary: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        with_agent(ctl, program(tmp_path, LITTERS))
        token = tmp_path / "token"
        token.write_text("x")
        forge = f'kind = "gitea"\nhost = "forge.test"\napi_url = "http://127.0.0.1:{silent.getsockname()[1]}/api/v1"'
        ctl.write(f'[[forge]]\n{forge}\ntoken_file = "{token}"')
        with doctor(ctl) as ran:
            connection, _ = silent.accept()
            with connection:
                ran.send_signal(signal.SIGINT)
                said = end(ran)
    assert ran.returncode == 130, said
    assert "Traceback" not in said
    assert list(temporary.iterdir()) == []
