"""Runs of the real CLIs, whole and cut off, resumed in their session. See tests/support/agent/real.py.

A start of OpenCode costs seconds of a processor, so that one run proves what it can.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.support.agent.model_api import ModelApi, run_command, say, waiting
from tests.support.agent.real import TOOL, gone, lane_for, realistic, tool_pid
from tests.support.agent.runs import Job, follow
from tests.support.wait import wait_until
from tireless import proctree
from tireless.agents import runfiles
from tireless.agents.base import EventKind, StopReason
from tireless.agents.conclusion import conclude_from
from tireless.agents.opencode import SEED
from tireless.entities import AgentKind, Outcome

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(240)]

COMMAND = (
    "echo hello > hello.txt && git add -A && git -c user.name=A -c user.email=a@b commit -qm hello && "
    """echo '{"status": "done", "summary": "S"}' > $TIRELESS_REPORT/outcome.json"""
)
END = "The end of the prompt: ünïcödé."
# Tools that wait for somebody, or for a time of day.
WAITS = {"askuserquestion", "exitplanmode", "croncreate", "schedulewakeup", "question", "plan_exit", "monitor"}


@pytest.fixture(params=AgentKind)
def real(request: pytest.FixtureRequest, job: Job) -> Job:
    return realistic(job, request.param)


@pytest.fixture
def claude(job: Job) -> Job:
    return realistic(job, AgentKind.CLAUDE_CODE)


def test_a_run_that_is_killed_stopped_and_ended_in_one_session(real: Job) -> None:
    """Both CLIs leave a running tool alive when they are killed, OpenCode when it is stopped too: it has a session of
    processes of its own. The third run knows what went before, and counts only what it uses itself.

    A checkout may configure the CLI, but cannot make it ask somebody, nor start a server of its own. And OpenCode has
    nothing to install into the home of a job."""
    ran = hostile_configuration(real.places.workspace)
    killed_in_its_tool(real)
    real.prompt = "Go on, please."
    stopped_in_its_tool(real)
    real.prompt = "And once more."
    with ModelApi([run_command(COMMAND), say("Wrote hello.txt.")]) as api:
        conclusion = real.run(lane_for(real, api), resume=True, timeout=120)
    assert (conclusion.outcome, conclusion.session_id) == (Outcome.COMPLETED, real.session)
    assert conclusion.final_text == "Wrote hello.txt."
    assert (conclusion.usage.input_tokens, conclusion.usage.output_tokens) == (200, 40)
    assert (real.places.workspace / "hello.txt").read_text() == "hello\n"
    log = ["git", "-C", str(real.places.workspace), "log", "--format=%s"]
    assert subprocess.run(log, capture_output=True, text=True, check=True).stdout == "hello\n"
    assert (real.places.report_dir / "outcome.json").exists()
    assert real.alive() == []
    sent = json.dumps(api.bodies[0]["messages"], ensure_ascii=False)
    for said in (END, "Go on, please.", "And once more."):
        assert said in sent
    assert not ran.exists()
    assert_nothing_installed(real, api)


def assert_nothing_installed(real: Job, api: ModelApi) -> None:
    """The registry was not asked (without the seed that is the first thing that OpenCode does), and its directory is as
    it was sown. What it writes beside that is its own business."""
    assert [path for path in api.fetched if path.startswith("/npm/")] == []
    if real.kind is AgentKind.OPENCODE:
        there = real.places.home / SEED.directory
        assert {name: (there / name).read_bytes() for name in SEED.files} == SEED.files
        assert list((there / "node_modules").iterdir()) == []


def hostile_configuration(workspace: Path) -> Path:
    """The file that a server of the checkout's configuration would make."""
    ran = workspace.parent / "mcp-ran"
    server = {"command": shutil.which("touch"), "args": [str(ran)]}
    (workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": server}}))
    (workspace / "opencode.json").write_text(json.dumps({"permission": {"bash": "ask", "*": "ask"}}))
    return ran


def killed_in_its_tool(real: Job) -> None:
    """Its first run. The prompt arrives whole, and tools that wait for somebody are not offered."""
    real.prompt = "Start.\n" + "word " * 30_000 + "\n" + END
    with ModelApi([run_command(TOOL)]) as api, real.start(lane_for(real, api)) as agent:
        tool = tool_pid(real)
        wait_until(lambda: (agent.turn(0.1) and False) or agent.session_id, 60, "the session's id")
        assert os.getsid(tool) != os.getsid(agent.guard_pid)
        assert tool in real.alive()  # by the mark in its environment
        [main] = [p for p in proctree.descendants(agent.guard_pid) if _parent(p) == agent.guard_pid]
        os.kill(main, signal.SIGKILL)
        follow(agent, 30)
        killed = agent.conclude()
        real.session = agent.session_id or ""
    assert (killed.outcome, killed.exit_code) == (Outcome.CRASHED, -9)
    assert gone(tool)
    assert_nothing_installed(real, api)
    assert real.adapter.can_resume(real.session, real.places)
    sent = json.dumps(api.bodies[0]["messages"], ensure_ascii=False)
    assert END in sent
    assert sent.count("word ") >= 30_000
    offered = {str(tool["name"]).lower() for tool in api.bodies[0]["tools"]}
    assert "bash" in offered
    assert not offered & WAITS


def stopped_in_its_tool(real: Job) -> None:
    with (
        ModelApi([run_command(TOOL), say("Done.")]) as api,
        real.start(lane_for(real, api), resume=True) as agent,
    ):
        tool = tool_pid(real)
        agent.turn(0.5)
        began = time.monotonic()
        agent.stop(StopReason.DRAIN)
        follow(agent, 20)
        assert time.monotonic() - began < 8
        stopped = agent.conclude()
    assert (stopped.outcome, stopped.session_id) == (Outcome.STOPPED, real.session)
    assert gone(tool)
    assert real.alive() == []
    # What makes the recorded intent necessary: claude says itself that all is well, or nothing at all.
    left = runfiles.read_exit(real.run_dir)
    assert left is not None
    assert left.stopped


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def test_a_killed_guard_leaves_nothing_and_no_conclusion(claude: Job) -> None:
    """Events come while it works. The whole job, with both CLIs, is in test_real_cuts.py."""
    kinds: list[EventKind] = []
    deadline = time.monotonic() + 60
    with ModelApi([run_command(TOOL)]) as api, claude.start(lane_for(claude, api)) as agent:
        while EventKind.TOOL not in kinds and time.monotonic() < deadline:
            kinds += [e.kind for e in agent.turn(1)]
        assert kinds[:2] == [EventKind.INIT, EventKind.TOOL]
        tool = tool_pid(claude)
        os.kill(agent.guard_pid, signal.SIGKILL)
        follow(agent, 20)
        assert agent.conclude().outcome is Outcome.CRASHED
        session = agent.session_id or ""
    assert gone(tool)
    assert conclude_from(claude.run_dir, claude.adapter) is None
    assert claude.adapter.can_resume(session, claude.places)


def test_stop_while_the_model_thinks(claude: Job) -> None:
    """OpenCode is stopped so in test_real_ends.py."""
    hold = threading.Event()
    with ModelApi([waiting(hold)]) as api, claude.start(lane_for(claude, api)) as agent:
        wait_until(lambda: (agent.turn(0.1) and False) or api.turns, 60, "the request")
        agent.stop(StopReason.CANCELLED)
        follow(agent, 20)
        assert agent.conclude().outcome is Outcome.STOPPED
