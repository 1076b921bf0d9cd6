"""The real CLIs, driven through AgentProcess against a stand-in for the model's API on loopback.

They are found on PATH or where bin/test installs them; without them their tests are skipped and say so.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.model_api import ModelApi, Turn
from tests.support.agent.runs import Job, find_cli
from tests.support.wait import wait_until
from tireless import proctree
from tireless.agents.base import Conclusion, Limits
from tireless.config import LaneConfig
from tireless.entities import AgentKind

NAMES = {AgentKind.CLAUDE_CODE: "claude", AgentKind.OPENCODE: "opencode"}
TOOL = "echo $$ > $TMPDIR/tool; sleep 300; true"


def cli_of(kind: AgentKind) -> Path:
    cli = find_cli(NAMES[kind])
    if cli is None:
        pytest.skip(f"{NAMES[kind]} is not installed, neither on PATH nor by bin/test")
    return cli


def realistic(job: Job, kind: AgentKind) -> Job:
    """The job, made one of the real CLI, in a checkout of its own."""
    cli_of(kind)
    job.kind = kind
    job.limits = Limits(stall_seconds=100, wall_seconds=150, grace_seconds=3, linger_seconds=20)
    job.prompt = "Please write hello.txt."
    job.places.workspace.mkdir()
    subprocess.run(["git", "init", "-q", str(job.places.workspace)], check=True)
    return job


def lane_for(job: Job, api: ModelApi, **options: Any) -> LaneConfig:
    if job.kind is AgentKind.CLAUDE_CODE:
        env = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "not-a-key", "CLAUDE_CODE_MAX_RETRIES": "1"}
        model = None
    else:
        env = opencode_environment(api)
        model = "anthropic/claude-sonnet-4-5"
    return replace(LaneConfig(command=(str(cli_of(job.kind)),), env=env, model=model), **options)


def opencode_environment(api: ModelApi) -> dict[str, str]:
    """What it would install from npm's registry, it asks the stand-in for, which has none of it."""
    provider = {"anthropic": {"options": {"baseURL": f"{api.url}/v1", "apiKey": "not-a-key"}}}
    config = json.dumps({"provider": provider})
    return {"OPENCODE_CONFIG_CONTENT": config, "npm_config_registry": f"{api.url}/npm/"}


def against(job: Job, *script: Turn, resume: bool = False, **options: Any) -> Conclusion:
    with ModelApi(script) as api:
        return job.run(lane_for(job, api, **options), resume=resume, timeout=120)


def tool_pid(job: Job) -> int:
    """Of the command TOOL, once it runs. Asked again, of the next one."""
    path = job.places.tmp / "tool"
    pid = int(wait_until(lambda: path.read_text().strip() if path.exists() else "", 60, "the tool's pid"))
    path.unlink()
    return pid


def gone(pid: int) -> bool:
    return proctree.start_ticks(pid) is None
