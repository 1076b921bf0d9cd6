"""etc/systemd and etc/runit agree with the program and with the tools that read them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.lifecycle import ROOT
from tireless.config import Config
from tireless.process import Exit
from tireless.supervisor import loop

UNIT = ROOT / "etc" / "systemd" / "tireless.service"


def settings() -> dict[str, str]:
    pairs = (
        line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line and line[0] not in "#["
    )
    return dict(pairs)


def test_the_unit_gives_a_drain_the_time_it_may_take() -> None:
    unit = settings()
    drain = Config().supervisor.drain_seconds
    after = loop.POLLER_LEAVE_SECONDS + loop.RELEASE_SECONDS + loop.FINISH_SECONDS + loop.STOP_ALL_SECONDS
    assert unit["TimeoutStopSec"] == "65min"
    assert drain + after < 65 * 60
    assert unit["KillMode"] == "mixed"
    assert unit["TimeoutStartSec"] == "20min"
    start = Config().database.start_timeout_seconds + loop.MIGRATION_SECONDS
    assert start + Config().supervisor.ready_seconds < 20 * 60
    assert float(unit["WatchdogSec"]) > 2 * loop.LEFTOVER_SECONDS  # the longest that a boot blocks


def test_the_unit_knows_the_exit_codes() -> None:
    unit = settings()
    assert unit["SuccessExitStatus"] == str(int(Exit.CUT_OFF))
    assert unit["RestartPreventExitStatus"] == f"{Exit.USAGE:d} {Exit.CONFIG:d}"
    assert unit["StateDirectory"] == Config().state_dir.name


def test_the_unit_leaves_bubblewrap_what_it_needs() -> None:
    unit = settings()
    for mounts_over_proc in ("ProtectKernelTunables", "ProtectKernelLogs", "ProtectHostname", "ProcSubset"):
        assert mounts_over_proc not in unit
    assert set(unit["RestrictNamespaces"].split()) >= {"user", "mnt", "pid", "ipc", "uts", "net"}
    assert {"@mount", "sethostname"} <= set(unit["SystemCallFilter"].split())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = str(ROOT / "bin" / "tireless-supervisor")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/tireless/bin/tireless-supervisor", program))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=35", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout


@pytest.mark.parametrize("script", ["run", "finish", "log/run"])
def test_the_service_directory_is_fit_for_runsv(script: str) -> None:
    path = ROOT / "etc" / "runit" / "tireless" / script
    assert os.access(path, os.X_OK)
    subprocess.run(["sh", "-n", str(path)], check=True)
