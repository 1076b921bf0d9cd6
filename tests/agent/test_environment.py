"""Nothing of tireless's environment reaches an agent but what its lane's configuration names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.agent.runs import Job, scripted_lane
from tireless.agents.base import AgentMissing, Places
from tireless.agents.environment import find_program
from tireless.config import LaneConfig
from tireless.entities import AgentKind

CANARIES = {
    "TIRELESS_DATABASE_URL": "postgres://canary",
    "GITHUB_TOKEN": "canary",
    "ANTHROPIC_API_KEY": "canary",
    "ANTHROPIC_AUTH_TOKEN": "canary",
    "PGPASSWORD": "canary",
    "PYTHONPATH": "/canary",
    "SSH_AUTH_SOCK": "/canary",
    "NODE_OPTIONS": "--canary",
    "GIT_DIR": "/canary",
}


def given(job: Job, lane: LaneConfig) -> dict[str, str]:
    """The environment that the agent's tools have."""
    script = {"steps": [{"do": "environment", "path": "env.json"}]}
    lane = replace(
        lane, command=scripted_lane().command, env={**lane.env, "SCRIPTED_AGENT": json.dumps(script)}
    )
    job.run(lane)
    seen: dict[str, str] = json.loads((job.places.workspace / "env.json").read_text())
    return seen


@pytest.mark.parametrize("kind", AgentKind)
def test_canaries(job: Job, monkeypatch: pytest.MonkeyPatch, kind: AgentKind) -> None:
    for name, value in CANARIES.items():
        monkeypatch.setenv(name, value)
    job.kind = kind
    seen = given(job, LaneConfig())
    assert [name for name, value in seen.items() if "canary" in value] == []
    assert not set(CANARIES) & set(seen)


def test_what_the_lane_names_is_passed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "metered")
    monkeypatch.setenv("CLAUDE_CODE_OAUTH_TOKEN", "subscription")
    seen = given(job, LaneConfig(env={"EXTRA": "1"}, env_from=("CLAUDE_CODE_OAUTH_TOKEN", "NOT_SET")))
    assert (seen["CLAUDE_CODE_OAUTH_TOKEN"], seen["EXTRA"]) == ("subscription", "1")
    assert "ANTHROPIC_API_KEY" not in seen
    assert "NOT_SET" not in seen


def test_the_jobs_own_values_cannot_be_overridden(job: Job) -> None:
    theirs = {"HOME": "/x", "TMPDIR": "/x", "TIRELESS_JOB": "x", "TIRELESS_REPORT": "/x", "LANG": "de_DE.UTF-8"}
    seen = given(job, LaneConfig(env=theirs))
    assert seen["HOME"] == str(job.places.home)
    assert seen["TMPDIR"] == str(job.places.tmp)
    assert seen["TIRELESS_JOB"] == job.id
    assert seen["TIRELESS_REPORT"] == str(job.places.report_dir)
    assert (seen["LANG"], seen["TERM"]) == ("de_DE.UTF-8", "dumb")


def test_the_clis_directory_is_on_path_and_the_systems_order_stays(job: Job, tmp_path: Path) -> None:
    cli = tmp_path / "somewhere" / "cli"
    cli.parent.mkdir()
    cli.write_text("#!/usr/bin/env sh\n")
    cli.chmod(0o755)
    env = job.adapter.command(job.task(), LaneConfig(command=(str(cli),)), job.places).env
    path = env["PATH"].split(":")
    assert path[0] == str(cli.parent)
    assert path[-6:] == ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]


def test_a_scripts_interpreter_is_part_of_the_program(tmp_path: Path) -> None:
    folder = tmp_path / "node" / "bin"
    folder.mkdir(parents=True)
    (folder / "node").write_text("#!/bin/sh\n")
    (folder / "cli").write_text("#!/usr/bin/env -S node --flag\n")
    for name in ("node", "cli"):
        (folder / name).chmod(0o755)
    program = find_program(("cli", "--more"), {"PATH": str(folder)}, AgentKind.OPENCODE)
    assert program.argv == (str(folder / "cli"), "--more")
    assert folder / "node" in program.files
    assert Path("/bin/sh") in program.files or Path("/usr/bin/sh") in program.files


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("#!/usr/bin/env no-such-node", "needs no-such-node, and no-such-node is not on PATH (/"),
        ("#!/no/such/node --flag", "needs /no/such/node, and /no/such/node is not an executable file"),
        ("#!/usr/bin/env -S no-such-node --flag", None),
        ("#!/usr/bin/env -i", None),
        ("#!", None),
    ],
)
def test_a_script_whose_interpreter_is_not_there_is_not_there(
    tmp_path: Path, line: str, said: str | None
) -> None:
    """A CLI of npm's without node: known before an attempt is burnt. What cannot be told is tried."""
    cli = tmp_path / "cli"
    cli.write_text(f"{line}\n")
    cli.chmod(0o755)
    if said is None:
        assert find_program((str(cli),), {}, AgentKind.CLAUDE_CODE).files == (cli,)
    else:
        with pytest.raises(AgentMissing) as caught:
            find_program((str(cli),), {}, AgentKind.CLAUDE_CODE)
        assert said in str(caught.value)
        assert str(caught.value).endswith("; install it, or set lane.claude_code.command")
    assert cli in find_program(("/bin/sh", str(cli)), {}, AgentKind.CLAUDE_CODE).files


@pytest.mark.parametrize("resume", [False, True])
def test_claude_command_line(job: Job, tmp_path: Path, resume: bool) -> None:
    lane = replace(scripted_lane(), model="m", max_turns=7, max_budget_usd=1.5, append_prompt="Be brief.")
    command = job.adapter.command(job.task(resume), lane, job.places)
    words = command.argv[2:]
    assert words[:4] == (
        "-p",
        "--output-format=stream-json",
        "--verbose",
        "--permission-mode=bypassPermissions",
    )
    assert (f"--resume={job.session}" in words, f"--session-id={job.session}" in words) == (resume, not resume)
    for word in ("--strict-mcp-config", "--model=m", "--max-turns=7", "--max-budget-usd=1.5"):
        assert word in words
    assert "--append-system-prompt=Be brief." in words
    [disallowed] = [w for w in words if w.startswith("--disallowedTools=")]
    assert {"AskUserQuestion", "ExitPlanMode", "CronCreate"} <= set(disallowed.partition("=")[2].split(","))
    assert command.stdin == job.prompt.encode()
    assert job.prompt.strip() not in " ".join(command.argv)


def test_opencode_command_line(job: Job) -> None:
    job.kind = AgentKind.OPENCODE
    theirs = {"provider": {"x": {}}, "permission": "ask", "share": "auto"}
    lane = scripted_lane()
    lane = replace(lane, model="p/m", env={**lane.env, "OPENCODE_CONFIG_CONTENT": json.dumps(theirs)})
    job.session = "ses_1"
    command = job.adapter.command(job.task(resume=True), lane, job.places)
    for word in (
        "run",
        "--format=json",
        "--auto",
        f"--dir={job.places.workspace}",
        "--model=p/m",
        "--session=ses_1",
    ):
        assert word in command.argv
    config = json.loads(command.env["OPENCODE_CONFIG_CONTENT"])
    assert config["provider"] == {"x": {}}
    assert "ask" not in json.dumps(config["permission"])
    assert (config["share"], config["autoupdate"]) == ("disabled", False)
    assert command.env["XDG_DATA_HOME"].startswith(str(job.places.home))
    assert command.stdin == job.prompt.encode()


def test_opencode_configuration_that_is_no_json_is_left_out(job: Job) -> None:
    job.kind = AgentKind.OPENCODE
    lane = replace(scripted_lane(), env={"OPENCODE_CONFIG_CONTENT": "{"})
    config = json.loads(job.adapter.command(job.task(), lane, job.places).env["OPENCODE_CONFIG_CONTENT"])
    assert config["permission"]["*"] == "allow"


def test_places_of_a_job(tmp_path: Path) -> None:
    places = Places(tmp_path / "w", tmp_path / "h", tmp_path / "r", tmp_path / "t", tmp_path / "m")
    assert tmp_path / "m" not in places.writable
