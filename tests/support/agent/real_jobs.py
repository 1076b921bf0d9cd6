"""The real CLIs through whole jobs: label, queue, supervisor, runner, sandbox, agent, git, forge.

A stand-in for the model's API on loopback says what they do; an issue's title tells their conversations apart, so
that many of them run at once in one supervisor. Each end of a run leads to its own outcome, with its own text in
the row, in the events and in what people are told.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.agent.model_api import ModelApi, run_command
from tests.support.agent.real import cli_of, opencode_environment
from tests.support.agent.runs import bubblewrap
from tests.support.rig import Rig
from tests.support.wait import wait_until
from tireless import proctree
from tireless.entities import AgentKind, Job, JobState, Lane, Outcome
from tireless.store import lanes

CC, OC = AgentKind.CLAUDE_CODE, AgentKind.OPENCODE
WAIT = 120.0  # seconds, for what takes a real CLI; opencode needs ten for itself on an idle machine
SETTINGS = """
[poller]
wake_seconds = 3
[runner]
wake_seconds = 3
[lease]
max_attempts = 2
backoff_seconds = 0.1
[supervisor]
stop_grace_seconds = 3
drain_seconds = 1
[delivery]
plan_children = "propose"
"""
KEY = {"ANTHROPIC_API_KEY": "not-a-key"}
LOGIN = {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-not-a-token"}

COMMIT = "git add -A && git -c user.name=A -c user.email=a@b commit -qm 'By the agent'"
DONE = """echo '{"status": "done", "summary": "Wrote it."}' > $TIRELESS_REPORT/outcome.json"""
LEFT_BEHIND = "(setsid sleep 1000 </dev/null >/dev/null 2>&1 &)"
WORK = run_command(f"echo one > one.txt && {COMMIT} && echo two > two.txt && {LEFT_BEHIND}; {DONE}")
TOOL = run_command("touch $TMPDIR/tool; sleep 1000; true")

NewRig = Callable[..., Rig]


def table(values: dict[str, Any]) -> str:
    """Keys of a lane, as TOML."""
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items() if key != "env") + (
        "\nenv = { " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in values.get("env", {}).items()) + " }"
    )


@contextlib.contextmanager
def real_rigs(url: str) -> Iterator[NewRig]:
    """Makes running rigs with the real CLIs against the given API. `claude` and `opencode`: further keys of their
    lanes; without, opencode has none."""
    with contextlib.ExitStack() as stack:

        def make(
            api: ModelApi,
            claude: dict[str, Any],
            opencode: dict[str, Any] | None = None,
            settings: str = SETTINGS,
        ) -> Rig:
            cc = cli_of(CC)
            env = {"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_MAX_RETRIES": "1", **claude.pop("env", KEY)}
            lane = table({"cap": 2, "runners": 2, **claude, "env": env})
            other = "enabled = false"
            if opencode is not None:
                env = opencode_environment(api)
                keys = {"cap": 2, "runners": 2, "model": "anthropic/claude-sonnet-4-5"}
                other = table({**keys, "command": [str(cli_of(OC))], **opencode, "env": env})
            rig = Rig(url=url, settings=settings, agent=[str(cc)], claude=lane, opencode=other)
            stack.enter_context(rig)
            rig.start()
            rig.track()
            return rig

        yield make


def ask(rig: Rig, word: str, lane: AgentKind = CC, *labels: str) -> int:
    agent = "tireless/agent:cc" if lane is CC else "tireless/agent:oc"
    return rig.open_issue(f"Please: {word}", labels=["tireless", agent, *labels])


def told(rig: Rig, number: int) -> str:
    return "\n".join(comment.body for comment in rig.forge.comments(number))


def ended_as(rig: Rig, job: Job) -> list[tuple[Outcome | None, str]]:
    """How its runs ended, by the rows, after a look that the events say the same."""
    found = [(run.outcome, run.detail or "") for run in rig.runs(job)]
    events = [e.detail for e in rig.events(job) if e.kind == "agent_ended"]
    assert [(d["outcome"], d["detail"]) for d in events] == found, rig.report()
    return found


def until(rig: Rig, look: Callable[[], Any], what: str, seconds: float = WAIT) -> Any:
    try:
        return wait_until(look, seconds, what, every=0.1)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{rig.report()}") from None


def lane_of(rig: Rig, kind: AgentKind) -> Lane:
    with rig.connection() as conn:
        return next(lane for lane in lanes.all_lanes(conn) if lane.lane is kind)


def in_its_tool(rig: Rig, number: int) -> Job:
    """The job, once its agent waits for the command TOOL. Asked again, for the next time."""

    def tool() -> Path | None:
        found = rig.jobs(number)
        path = rig.state_dir() / "work" / str(found[0].id) / "tmp" / "tool" if found else None
        return path if path is not None and path.exists() else None

    until(rig, tool, f"the agent of issue {number} is in its tool").unlink()
    return rig.job(number)


def assert_delivered(rig: Rig, job: Job, lane: AgentKind) -> None:
    """Its last run did WORK and said so, behind bubblewrap where that works, and left nothing behind."""
    number = job.issue.number
    assert job.state is JobState.DELIVERED, rig.report()
    run = rig.runs(job)[-1]
    walls = "bubblewrap" if bubblewrap() is not None else "none"
    assert walls in next(line for line in rig.said().splitlines() if f"agent started job={job.id}" in line)
    assert (run.agent, run.outcome) == (lane, Outcome.COMPLETED)
    assert (run.usage.input_tokens, run.usage.output_tokens) == (200, 40)
    branch = f"tireless/issue-{number}"
    git = rig.forge.git()
    assert (git.read(branch, "one.txt"), git.read(branch, "two.txt")) == ("one", "two")
    [pull] = [p for p in rig.forge.pulls() if p.pull is not None and p.pull.head == branch]
    assert "Wrote it." in pull.body
    assert f"delivered in #{pull.number}" in told(rig, number)
    assert rig.forge.labels(number) == [
        "tireless/agent:" + ("cc" if lane is CC else "oc"),
        "tireless/state/delivered",
    ]
    assert proctree.marked(str(job.id)) == []
    transcript = rig.state_dir() / "work" / str(job.id) / "run" / str(run.id) / "transcript.jsonl"
    assert "All is written." in transcript.read_text()
