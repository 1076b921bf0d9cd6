"""The real CLIs, driven through AgentProcess against a stand-in for the model's API on loopback.

They are found on PATH or where bin/test installs them; without them these tests are skipped and say so.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.model_api import ModelApi, Turn, failure, run_command, say, waiting
from tests.support.agent.runs import NO_SANDBOX, Job, bubblewrap, find_cli, follow
from tests.support.wait import wait_until
from tireless import proctree
from tireless.agents import runfiles
from tireless.agents.base import Conclusion, EventKind, Limits, StopReason
from tireless.agents.conclusion import conclude_from
from tireless.config import LaneConfig
from tireless.entities import AgentKind, Outcome

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(180)]

NAMES = {AgentKind.CLAUDE_CODE: "claude", AgentKind.OPENCODE: "opencode"}
TOOL = "echo $$ > $TMPDIR/tool; sleep 300; true"


def cli_of(kind: AgentKind) -> Path:
    cli = find_cli(NAMES[kind])
    if cli is None:
        pytest.skip(f"{NAMES[kind]} is not installed, neither on PATH nor by bin/test")
    return cli


@pytest.fixture(params=AgentKind)
def real(request: pytest.FixtureRequest, job: Job) -> Job:
    return realistic(job, request.param)


@pytest.fixture
def claude(job: Job) -> Job:
    return realistic(job, AgentKind.CLAUDE_CODE)


@pytest.fixture
def opencode(job: Job) -> Job:
    return realistic(job, AgentKind.OPENCODE)


def realistic(job: Job, kind: AgentKind) -> Job:
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
        provider = {"anthropic": {"options": {"baseURL": f"{api.url}/v1", "apiKey": "not-a-key"}}}
        env, model = (
            {"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": provider})},
            "anthropic/claude-sonnet-4-5",
        )
    return replace(LaneConfig(command=(str(cli_of(job.kind)),), env=env, model=model), **options)


def against(job: Job, *script: Turn, resume: bool = False, **options: Any) -> Conclusion:
    with ModelApi(script) as api:
        return job.run(lane_for(job, api, **options), resume=resume, timeout=120)


def tool_pid(job: Job) -> int:
    path = job.places.tmp / "tool"
    return int(wait_until(lambda: path.read_text().strip() if path.exists() else "", 60, "the tool's pid"))


def gone(pid: int) -> bool:
    return proctree.start_ticks(pid) is None


@pytest.mark.parametrize("walls", ["bwrap", "none"])
def test_a_run_that_edits_and_commits(real: Job, walls: str) -> None:
    sandbox = bubblewrap() if walls == "bwrap" else NO_SANDBOX
    if sandbox is None:
        pytest.skip("bubblewrap does not work on this machine")
    real.sandbox = sandbox
    command = (
        "echo hello > hello.txt && git add -A && git -c user.name=A -c user.email=a@b commit -qm hello && "
        """echo '{"status": "done", "summary": "S"}' > $TIRELESS_REPORT/outcome.json"""
    )
    conclusion = against(real, run_command(command), say("Wrote hello.txt."))
    assert conclusion.outcome is Outcome.COMPLETED
    assert conclusion.final_text == "Wrote hello.txt."
    assert (conclusion.usage.input_tokens, conclusion.usage.output_tokens) == (200, 40)
    assert (real.places.workspace / "hello.txt").read_text() == "hello\n"
    log = ["git", "-C", str(real.places.workspace), "log", "--format=%s"]
    assert subprocess.run(log, capture_output=True, text=True, check=True).stdout == "hello\n"
    assert (real.places.report_dir / "outcome.json").exists()
    assert real.alive() == []


def test_the_prompt_arrives_whole_and_in_no_argument(real: Job) -> None:
    real.prompt = "Start.\n" + "word " * 30_000 + "\nThe end of the prompt: ünïcödé."
    with ModelApi([say("Done.")]) as api:
        conclusion = real.run(lane_for(real, api), timeout=120)
        sent = json.dumps(api.bodies[0]["messages"], ensure_ascii=False)
    assert conclusion.outcome is Outcome.COMPLETED
    assert "The end of the prompt: ünïcödé." in sent
    assert sent.count("word ") >= 30_000


def test_a_cut_off_run_is_resumed_in_its_session(real: Job) -> None:
    with ModelApi([run_command(TOOL)]) as api, real.start(lane_for(real, api)) as agent:
        tool = tool_pid(real)
        wait_until(lambda: (agent.turn(0.1) and False) or agent.session_id, 60, "the session's id")
        os.kill(agent.guard_pid, signal.SIGKILL)
        follow(agent, 20)
        real.session = agent.session_id or ""
        assert agent.conclude().outcome is Outcome.CRASHED
    assert gone(tool)
    assert conclude_from(real.run_dir, real.adapter) is None
    assert real.adapter.can_resume(real.session, real.places)
    real.prompt = "Go on, please."
    with ModelApi([run_command("echo more > more.txt"), say("Done.")]) as api:
        conclusion = real.run(lane_for(real, api), resume=True, timeout=120)
        sent = json.dumps(api.bodies[0]["messages"])
    assert (conclusion.outcome, conclusion.session_id) == (Outcome.COMPLETED, real.session)
    assert "Please write hello.txt." in sent  # the conversation of the first run
    assert "Go on, please." in sent
    assert (real.places.workspace / "more.txt").exists()


def test_resuming_costs_only_what_it_uses_itself(real: Job) -> None:
    """The running totals of a run are its own: a resumed session does not count the first run again."""
    first = against(real, run_command("true"), say("One."))
    real.session = first.session_id or ""
    second = against(real, say("Two."), resume=True)
    assert second.outcome is Outcome.COMPLETED
    assert second.usage.input_tokens == 100


def test_a_tool_left_behind(real: Job) -> None:
    """Both leave a running tool alive when they are killed; it runs in a session of its own."""
    with ModelApi([run_command(TOOL)]) as api, real.start(lane_for(real, api)) as agent:
        tool = tool_pid(real)
        assert os.getsid(tool) != os.getsid(agent.guard_pid)
        [main] = [p for p in proctree.descendants(agent.guard_pid) if _parent(p) == agent.guard_pid]
        os.kill(main, signal.SIGKILL)
        follow(agent, 30)
        conclusion = agent.conclude()
    assert (conclusion.outcome, conclusion.exit_code) == (Outcome.CRASHED, -9)
    assert gone(tool)


def _parent(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def test_stop_inside_a_tool(real: Job) -> None:
    with ModelApi([run_command(TOOL), say("Done.")]) as api, real.start(lane_for(real, api)) as agent:
        tool = tool_pid(real)
        agent.turn(0.5)
        began = time.monotonic()
        agent.stop(StopReason.DRAIN)
        follow(agent, 20)
        assert time.monotonic() - began < 8
        assert agent.conclude().outcome is Outcome.STOPPED
    assert gone(tool)
    assert real.alive() == []
    if real.kind is AgentKind.CLAUDE_CODE:
        # What makes the recorded intent necessary: the CLI itself says that all is well, or nothing at all.
        left = runfiles.read_exit(real.run_dir)
        assert left is not None
        assert left.stopped


def test_stop_while_the_model_thinks(real: Job) -> None:
    hold = threading.Event()
    with ModelApi([waiting(hold)]) as api, real.start(lane_for(real, api)) as agent:
        wait_until(lambda: (agent.turn(0.1) and False) or api.turns, 60, "the request")
        agent.stop(StopReason.CANCELLED)
        follow(agent, 20)
        assert agent.conclude().outcome is Outcome.STOPPED


def test_a_model_that_says_nothing_is_a_stall(real: Job) -> None:
    real.with_limits(stall_seconds=8)
    assert against(real, waiting(threading.Event())).outcome is Outcome.STALLED


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.OUT_OF_CREDIT),
        (401, Outcome.NOT_AUTHENTICATED),
    ],
)
def test_failures_of_the_api(real: Job, status: int, outcome: Outcome) -> None:
    conclusion = against(real, failure(status))
    assert conclusion.outcome is outcome, conclusion


def test_a_refused_key_is_given_up_early(claude: Job) -> None:
    """Left alone it would try ten times, over minutes."""
    began = time.monotonic()
    with ModelApi([failure(401)]) as api:
        lane = lane_for(claude, api)
        conclusion = claude.run(replace(lane, env={**lane.env, "CLAUDE_CODE_MAX_RETRIES": "10"}), timeout=60)
    assert conclusion.outcome is Outcome.NOT_AUTHENTICATED
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(404, Outcome.REFUSED), (429, Outcome.RATE_LIMITED), (529, Outcome.OVERLOADED)],
)
def test_failures_of_the_api_that_claude_ends_at(claude: Job, status: int, outcome: Outcome) -> None:
    assert against(claude, failure(status)).outcome is outcome


def test_opencode_gives_up_a_rate_limit_that_names_its_time(opencode: Job) -> None:
    conclusion = against(opencode, failure(429, {"retry-after": "3"}))
    assert conclusion.outcome is Outcome.RATE_LIMITED
    assert conclusion.retry_after_seconds == 60


def test_opencode_with_a_model_that_it_does_not_know(opencode: Job) -> None:
    conclusion = against(opencode, say("never"), model="anthropic/no-such-model")
    assert conclusion.outcome is Outcome.REFUSED, conclusion


def test_the_api_is_out_of_reach(claude: Job) -> None:
    with ModelApi([]) as api:
        lane = lane_for(claude, api)
    assert claude.run(lane, timeout=60).outcome is Outcome.OVERLOADED


def test_usage_limit_of_a_subscription(claude: Job) -> None:
    resets = int(time.time()) + 3600
    headers = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(resets),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    with ModelApi([failure(429, headers)]) as api:
        env = {"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-not-a-token"}
        conclusion = claude.run(replace(lane_for(claude, api), env=env), timeout=60)
    assert conclusion.outcome is Outcome.RATE_LIMITED
    assert conclusion.retry_at == datetime.fromtimestamp(resets + 60, UTC)


def test_turn_limit_and_budget(claude: Job) -> None:
    again = run_command("true")
    assert against(claude, again, max_turns=2).outcome is Outcome.TURN_LIMIT
    claude.session = str(uuid.uuid4())
    assert against(claude, again, max_budget_usd=0.0001).outcome is Outcome.BUDGET_LIMIT


def test_sessions_that_are_taken_or_unknown(claude: Job) -> None:
    assert against(claude, say("Done.")).outcome is Outcome.COMPLETED
    taken = against(claude, say("Done."))
    assert (taken.outcome, taken.session_in_use) == (Outcome.REFUSED, True)
    claude.session = str(uuid.uuid4())
    unknown = against(claude, say("Done."), resume=True)
    assert (unknown.outcome, unknown.unknown_session) == (Outcome.REFUSED, True)


def test_an_unknown_session_of_opencode(opencode: Job) -> None:
    opencode.session = "ses_dd4bb2d51ffejz2m4Zc94zBV8d"
    conclusion = against(opencode, say("Done."), resume=True)
    assert (conclusion.outcome, conclusion.unknown_session) == (Outcome.REFUSED, True), conclusion


def test_tools_that_wait_for_somebody_are_not_offered(real: Job) -> None:
    with ModelApi([say("Done.")]) as api:
        real.run(lane_for(real, api), timeout=120)
        offered = {str(tool["name"]).lower() for tool in api.bodies[0]["tools"]}
    assert "bash" in offered
    waits = {
        "askuserquestion",
        "exitplanmode",
        "croncreate",
        "schedulewakeup",
        "question",
        "plan_exit",
        "monitor",
    }
    assert not offered & waits


def test_servers_and_permissions_of_the_checkout_do_not_hang_it(real: Job) -> None:
    """A checkout may configure a CLI; it cannot make it ask somebody, nor start a server of its own in claude."""
    workspace = real.places.workspace
    touch = str(workspace / "mcp-ran")
    server = {"command": shutil.which("touch"), "args": [touch]}
    (workspace / ".mcp.json").write_text(json.dumps({"mcpServers": {"x": server}}))
    (workspace / "opencode.json").write_text(json.dumps({"permission": {"bash": "ask", "*": "ask"}}))
    conclusion = against(real, run_command("echo hi > hi.txt"), say("Done."))
    assert conclusion.outcome is Outcome.COMPLETED
    assert (workspace / "hi.txt").exists()
    assert not Path(touch).exists()


def test_events_come_while_it_works(claude: Job) -> None:
    with ModelApi([run_command(TOOL)]) as api, claude.start(lane_for(claude, api)) as agent:
        kinds: list[EventKind] = []
        deadline = time.monotonic() + 60
        while EventKind.TOOL not in kinds and time.monotonic() < deadline:
            kinds += [e.kind for e in agent.turn(1)]
        assert kinds[:2] == [EventKind.INIT, EventKind.TOOL]
