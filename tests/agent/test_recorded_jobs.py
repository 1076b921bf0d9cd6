"""Whole jobs whose agent prints what a real CLI has printed and ends as it did: how it ended is told in the row, in the
events and on the issue. The ends that a real CLI can be brought to with little are in test_real_*.py."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.rig import QUICK, SCRIPTED_AGENT, Rig
from tests.support.wait import wait_until
from tireless.entities import AgentKind, JobState, Outcome
from tireless.store import lanes

TRANSCRIPTS = Path(__file__).with_name("transcripts")
CC, OC = AgentKind.CLAUDE_CODE, AgentKind.OPENCODE
NOTHING = "The agent reported success but changed nothing"


@dataclass(frozen=True)
class Row:
    """`said` is in the run's row and event; `why`, if it is another, in the job's row and in the comment."""

    name: str
    recorded: str | None
    end: dict[str, Any]  # the scripted agent's last step
    outcome: Outcome
    said: str
    why: str | None = None
    stderr: str = ""
    runs: int = 1

    @property
    def lane(self) -> AgentKind:
        return OC if self.name.startswith("opencode") else CC

    @property
    def steps(self) -> list[dict[str, Any]]:
        lines = (TRANSCRIPTS / f"{self.recorded}.jsonl").read_text().splitlines() if self.recorded else []
        printed = [{"do": "emit", "line": json.loads(line)} for line in lines]
        return [*printed, *([{"do": "stderr", "text": self.stderr}] if self.stderr else []), self.end]


def left(code: int) -> dict[str, Any]:
    return {"do": "exit", "code": code}


def died(number: int) -> dict[str, Any]:
    return {"do": "signal", "signal": number}


DONE, REFUSED, CRASHED = Outcome.COMPLETED, Outcome.REFUSED, Outcome.CRASHED
ROWS = [
    Row("tool denied", "claude_tool_denied", left(0), DONE, "1 tool calls were denied", NOTHING),
    Row("a success that is none", "claude_sigterm_in_tool_false_success", left(0), DONE, "turns", NOTHING),
    Row("prompt too long", "claude_prompt_too_long", left(1), REFUSED, "the prompt is too long for the model"),
    Row("unknown session", "claude_resume_unknown", left(1), REFUSED, "does not know the session", runs=2),
    Row("session in use", None, left(1), REFUSED, "would not start: Error: Session", runs=2,
        stderr="Error: Session ID 69ce5168-70ed-431a-b372-466d7e216544 is already in use."),
    Row("bad option", None, left(1), REFUSED, "would not start: error: unknown", stderr="error: unknown option '--x'"),
    Row("INT in a tool", "claude_sigint_in_tool", left(1), CRASHED, "was interrupted from outside (aborted_tools)"),
    Row("INT while waiting", "claude_sigterm_waiting_on_api", left(0), CRASHED, "without a result, with exit code 0"),
    Row("TERM while waiting", "claude_sigterm_waiting_on_api", left(143), CRASHED, "exit 143, killed by signal 15"),
    Row("KILL in a tool", "claude_sigkill_in_tool", died(9), CRASHED, "killed by signal 9"),
    Row("opencode limited", "opencode_rate_limited", left(1), Outcome.RATE_LIMITED, "the rate of requests (429)"),
    Row("opencode rejected", "opencode_permission_rejected_false_success", left(0), CRASHED, "call was rejected"),
    Row("opencode TERM", "opencode_sigterm_in_tool", died(15), CRASHED, "killed by signal 15"),
    Row("opencode INT", "opencode_sigterm_in_tool", died(2), CRASHED, "killed by signal 2"),
    Row("opencode KILL", "opencode_sigterm_in_tool", died(9), CRASHED, "killed by signal 9"),
]  # fmt: skip
NO_LOGIN = Row(
    "not logged in",
    "claude_not_logged_in",
    left(1),
    Outcome.NOT_AUTHENTICATED,
    "is not logged in: Not logged in",
)


@pytest.mark.timeout(120)
def test_how_a_run_ended_is_told_everywhere(database_url: str) -> None:
    """Each in the only attempt of its job; a lost login holds the lane instead, and costs no attempt."""
    settings = QUICK.replace("[lease]", "[lease]\nmax_attempts = 1")
    scripted = f'command = ["{sys.executable}", "{SCRIPTED_AGENT}"]'
    lane = "cap = 2\nrunners = 2"
    with Rig(url=database_url, settings=settings, claude=lane, opencode=f"{lane}\n{scripted}") as rig:
        rig.start()
        rig.track()
        asked = [(row, opened(rig, row)) for row in ROWS]
        for _, number in asked:
            rig.wait_job(number, seconds=90)
        rig.wait_settled()
        for row, number in asked:
            assert_told(rig, row, number)
        held = opened(rig, NO_LOGIN)
        wait_until(lambda: rig.jobs(held) and rig.job(held).last_error, 45, "the run has ended")
        assert_held(rig, held)


def opened(rig: Rig, row: Row) -> int:
    agent = "tireless/agent:oc" if row.lane is OC else "tireless/agent:cc"
    return rig.open_issue(row.name, *row.steps, labels=["tireless", agent], init=False)


def assert_told(rig: Rig, row: Row, number: int) -> None:
    job = rig.job(number)
    runs = rig.runs(job)
    ended = [e.detail for e in rig.events(job) if e.kind == "agent_ended"]
    assert [(run.agent, run.outcome) for run in runs] == [(row.lane, row.outcome)] * row.runs, rig.report()
    assert [(e["outcome"], e["detail"]) for e in ended] == [(run.outcome, run.detail) for run in runs]
    assert row.said in (runs[-1].detail or ""), row.name
    assert (job.state, job.attempts) == (JobState.FAILED, 1), row.name
    comments = "\n".join(comment.body for comment in rig.forge.comments(number))
    for text in (job.last_error, comments):
        assert (row.why or row.said.removeprefix("the ")) in (text or ""), (row.name, text)


def assert_held(rig: Rig, number: int) -> None:
    job = rig.job(number)
    assert (job.state, job.attempts) == (JobState.PENDING, 0), rig.report()
    [run] = rig.runs(job)
    with rig.connection() as conn:
        lane = next(lane for lane in lanes.all_lanes(conn) if lane.lane is CC)
    assert (run.outcome, lane.held, lane.held_until) == (NO_LOGIN.outcome, True, None)
    for text in (run.detail, job.last_error, lane.hold_reason):
        assert NO_LOGIN.said in (text or "")
