"""Whether a lane's CLI can be run by the agents of this host, as their sandbox has it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.agent.runs import NO_SANDBOX
from tireless.agents.presence import why_absent
from tireless.agents.sandbox import Account, Sandbox
from tireless.config import LaneConfig, SandboxConfig
from tireless.entities import AgentKind

CC, OC = AgentKind


@pytest.fixture
def cli(tmp_path: Path) -> Path:
    made = tmp_path / "bin/cli"
    made.parent.mkdir()
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    return made


def why(cli: Path | str, sandbox: Sandbox = NO_SANDBOX, kind: AgentKind = CC) -> str | None:
    return why_absent(LaneConfig(command=(str(cli),)), kind, sandbox)


def test_what_is_there(cli: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why(cli) is None
    monkeypatch.setenv("PATH", str(cli.parent))
    assert why(cli.name) is None
    own = LaneConfig(command=(cli.name,), env={"PATH": str(cli.parent)})
    monkeypatch.setenv("PATH", "/usr/bin")
    assert why_absent(own, CC, NO_SANDBOX) is None


@pytest.mark.parametrize("kind", AgentKind)
def test_a_name_that_is_on_no_path(kind: AgentKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere:/usr/bin")
    said = why("no-such-cli", kind=kind)
    assert said is not None
    assert said.startswith("no-such-cli is not on PATH (/nowhere:/usr/bin:/usr/local/sbin:")
    assert said.endswith(f"); install it, or set lane.{kind}.command")


@pytest.mark.parametrize("fault", ["gone", "not executable", "a directory", "a link to nothing"])
def test_a_path_that_is_no_program(cli: Path, fault: str) -> None:
    if fault == "not executable":
        cli.chmod(0o644)
    else:
        cli.unlink()
    if fault == "a directory":
        cli.mkdir()
    elif fault == "a link to nothing":
        cli.symlink_to(cli.parent / "nothing")
    assert why(cli) == f"{cli} is not an executable file; install it, or set lane.claude_code.command"


def test_what_the_sandbox_hides(cli: Path) -> None:
    """A state directory that a shown directory holds is covered, and the program in it; elsewhere nothing is."""
    root, config = cli.parents[1], SandboxConfig(read_only=(cli.parents[1],))
    covered = Sandbox(config, bwrap=Path("/usr/bin/bwrap"), hidden=(root,))
    said = why(cli, covered)
    assert (
        said
        == f"{cli} lies in {root}, which agents cannot see; install it elsewhere, or set lane.claude_code.command"
    )
    link = cli.parents[2] / f"link-{os.getpid()}"
    link.symlink_to(cli)
    try:
        assert str(why(link, covered)).startswith(f"{link} lies in {root}, which agents cannot see; ")
    finally:
        link.unlink()
    assert why(cli, Sandbox(SandboxConfig(), bwrap=Path("/usr/bin/bwrap"), hidden=(root,))) is None
    assert why(cli, Sandbox(config, bwrap=Path("/usr/bin/bwrap"), hidden=(root / "state",))) is None


@pytest.fixture
def nobody(tmp_path: Path) -> Sandbox:
    """As root alone one can look as another account; the way to the test's own directory is opened to it."""
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o001)
    tmp_path.chmod(0o755)
    return Sandbox(SandboxConfig(), account=Account.named("nobody"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run an agent as another account")
def test_what_the_agents_account_may_not_run(cli: Path, nobody: Sandbox) -> None:
    lane = LaneConfig(command=(str(cli), str(cli.parent / "script")))
    (cli.parent / "script").write_text("")
    assert why_absent(lane, CC, nobody) is None
    (cli.parent / "script").chmod(0o600)
    assert str(why_absent(lane, CC, nobody)).startswith("the account nobody (sandbox.user) may not use ")
    (cli.parent / "script").unlink()
    assert why_absent(lane, CC, nobody) is None  # an argument that is no file
    for path, mode in ((cli, 0o744), (cli.parent, 0o700)):
        was = path.stat().st_mode
        path.chmod(mode)
        assert why(cli, nobody) == (
            f"the account nobody (sandbox.user) may not use {cli}; install it elsewhere, or set "
            "lane.claude_code.command"
        )
        path.chmod(was)
    assert why(cli, nobody) is None
