"""The command line and its log lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lifecycle.conftest import Make
from tests.support.lifecycle import ROOT
from tireless import __version__


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TIRELESS_")}
    command = [str(ROOT / "bin" / "tireless-supervisor"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environ, timeout=60, check=False
    )


def test_help_teaches() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("HUP", "QUIT", "exit codes", "69", "--check-config", "examples"):
        assert word in done.stdout


def test_version() -> None:
    assert run("--version").stdout == f"tireless {__version__}\n"


@pytest.mark.parametrize("arguments", [["--bogus"], ["extra"], ["--config"]])
def test_a_bad_command_line_is_64(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 64
    assert "try --help" in done.stderr


def test_check_config(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('host = "here"\n')
    bad.write_text("[lane.claude_code]\ncapp = 3\n")
    done = run("--config", str(good), "--check-config")
    assert (done.returncode, done.stdout) == (0, f"{good}: good\n")
    for arguments in (["--check-config"], []):  # the same without being asked
        done = run("--config", str(bad), *arguments)
        assert done.returncode == 78
        assert "unknown key lane.claude_code.capp; did you mean cap?" in done.stderr
    bad.write_text("colour = 1\n[lane.claude_code]\nrunners = -1\n")
    done = run("--config", str(bad), "--check-config")
    first, second = done.stderr.splitlines()
    assert first.startswith(f"tireless-supervisor: {bad}: unknown key colour; ")
    assert second == f"tireless-supervisor: {bad}: lane.claude_code.runners is -1; set it to 0 or more"
    assert run("--config", str(tmp_path / "none.toml")).returncode == 78


def test_what_a_lane_passes_on_and_is_not_set_is_a_warning(supervised: Make, tmp_path: Path) -> None:
    absent = "NO_SUCH_KEY_OF_AN_AGENT"
    said = f"lane.opencode.env_from names ${absent}, which is not set: the lane's agents go without"
    good = tmp_path / "good.toml"
    good.write_text(f'[lane.opencode]\nenv_from = ["PATH", "{absent}"]\n')
    done = run("--config", str(good), "--check-config")
    assert (done.returncode, done.stderr) == (0, f"tireless-supervisor: {said}\n")
    good.write_text(f'[lane.opencode]\nenabled = false\nenv_from = ["{absent}"]\n')
    assert run("--config", str(good), "--check-config").stderr == ""
    s = supervised()
    text = s.config.read_text()
    assert "[lane.opencode]\n" in text
    s.config.write_text(text.replace("[lane.opencode]\n", f'[lane.opencode]\nenv_from = ["{absent}"]\n'))
    s.start_ready()
    assert "WARNING" in s.await_log(said)


def test_the_working_directory_is_no_place_to_import_from(tmp_path: Path) -> None:
    (tmp_path / "tireless").mkdir()
    (tmp_path / "tireless" / "__init__.py").write_text("raise SystemExit(99)")
    assert run("--version", cwd=tmp_path).returncode == 0


def test_the_command_works_through_a_link_and_replaces_itself_by_python(tmp_path: Path) -> None:
    link = tmp_path / "supervisor"
    link.symlink_to(ROOT / "bin" / "tireless-supervisor")
    done = subprocess.run([str(link), "--version"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == f"tireless {__version__}\n"
    assert re.search(r"^exec \"\$python\" ", link.read_text(), re.MULTILINE)


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "


def test_the_time_is_written_when_asked_for(supervised: Make) -> None:
    s = supervised()
    s.start(["--log-timestamps"])
    assert re.match(STAMP + r"INFO supervisor\[\d+\] ", s.await_log("ready: "))
    other = supervised("other")
    other.start_ready()
    assert re.match(r"INFO supervisor\[\d+\] ", other.await_log("ready: "))


def test_the_time_is_written_on_a_terminal(supervised: Make) -> None:
    s = supervised()
    s.write_config()
    primary, terminal = os.openpty()
    s.process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.lifecycle.stub_supervisor", "--config", str(s.config)],
        cwd=ROOT,
        env=s.environment(),
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    assert re.match(STAMP + r"(INFO|WARNING) supervisor", os.read(primary, 4096).decode())
    s.close()
    os.close(primary)


def test_secrets_of_the_configuration_are_masked(supervised: Make, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first-line")  # what the stub's error says
    s = supervised()
    s.behave(claude_code="fail")
    with s.config.open("a") as f:
        f.write(f'[[forge]]\nkind = "gitea"\nhost = "h"\ntoken_file = "{token}"\n')
    s.start()
    s.await_log("[redacted] | second line")
    assert "first-line" not in s.log()
