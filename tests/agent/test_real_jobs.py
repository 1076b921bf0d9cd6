"""The real CLIs through whole jobs: label, queue, supervisor, runner, sandbox, agent, git, forge.

A stand-in for the model's API on loopback says what they do; an issue's title tells their conversations apart, so
that many of them run at once in one supervisor. Each end of a run leads to its own outcome, with its own text in
the row, in the events and in what people are told.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.agent.model_api import ModelApi, Turn, failure, run_command, say, waiting
from tests.support.agent.runs import find_cli
from tests.support.rig import Rig
from tests.support.wait import wait_until
from tireless import proctree
from tireless.entities import AgentKind, Job, JobKind, JobState, Lane, Outcome
from tireless.process import parse_worker_id
from tireless.store import lanes, writes

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(240)]

CC, OC = AgentKind.CLAUDE_CODE, AgentKind.OPENCODE
WAIT = 120.0  # seconds, for what takes a real CLI; opencode needs ten for itself on an idle machine
SETTINGS = """
[poller]
wake_seconds = 1
[runner]
wake_seconds = 1
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
PLAN = {
    "summary": "Two parts.",
    "children": [
        {"key": "base", "title": "Lay the base", "body": "First.", "depends_on": []},
        {"key": "roof", "title": "Put on the roof", "body": "Then.", "depends_on": ["base"]},
    ],
}
TOOL = run_command("touch $TMPDIR/tool; sleep 1000; true")

NewRig = Callable[..., Rig]


def table(values: dict[str, Any]) -> str:
    """Keys of a lane, as TOML."""
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items() if key != "env") + (
        "\nenv = { " + ", ".join(f"{k} = {json.dumps(v)}" for k, v in values.get("env", {}).items()) + " }"
    )


@pytest.fixture
def new_rig(database_url: str) -> Iterator[NewRig]:
    """A running rig with the real CLIs against the given API. `claude` and `opencode`: further keys of their lanes; no
    lane of opencode without."""
    made: list[Rig] = []

    def make(
        api: ModelApi, claude: dict[str, Any], opencode: dict[str, Any] | None = None, settings: str = ""
    ) -> Rig:
        cc, oc = find_cli("claude"), find_cli("opencode")
        for name, found in (("claude", cc), ("opencode", oc)):
            if found is None and (name == "claude" or opencode is not None):
                pytest.skip(f"{name} is not installed, neither on PATH nor by bin/test")
        env = {"ANTHROPIC_BASE_URL": api.url, "CLAUDE_CODE_MAX_RETRIES": "1", **claude.pop("env", KEY)}
        lane = table({"cap": 2, "runners": 2, **claude, "env": env})
        other = "enabled = false"
        if opencode is not None:
            provider = {"anthropic": {"options": {"baseURL": f"{api.url}/v1", "apiKey": "not-a-key"}}}
            env = {"OPENCODE_CONFIG_CONTENT": json.dumps({"provider": provider})}
            keys = {"cap": 2, "runners": 2, "command": [str(oc)], "model": "anthropic/claude-sonnet-4-5"}
            other = table({**keys, **opencode, "env": env})
        rig = Rig(url=database_url, settings=SETTINGS + settings, agent=[str(cc)], claude=lane, opencode=other)
        made.append(rig)
        rig.start()
        rig.track()
        return rig

    yield make
    for rig in made:
        rig.close()


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
        return wait_until(look, seconds, what)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{rig.report()}") from None


def lane_of(rig: Rig, kind: AgentKind) -> Lane:
    with rig.connection() as conn:
        return next(lane for lane in lanes.all_lanes(conn) if lane.lane is kind)


def in_its_tool(rig: Rig, number: int) -> Job:
    """The job, once its agent waits for the command TOOL."""

    def look() -> bool:
        found = rig.jobs(number)
        return bool(found) and (rig.state_dir() / "work" / str(found[0].id) / "tmp" / "tool").exists()

    until(rig, look, f"the agent of issue {number} is in its tool")
    return rig.job(number)


# -- ends that are judged ---------------------------------------------------------------------------------


def test_work_plans_and_questions(new_rig: NewRig) -> None:
    """Both CLIs side by side; a tool that they leave behind does not outlive the job."""
    question = json.dumps({"status": "blocked", "question": "Which colour?"})
    asking = run_command(f"echo half > half.txt; echo '{question}' > $TIRELESS_REPORT/outcome.json")
    planning = run_command(f"echo '{json.dumps(PLAN)}' > $TIRELESS_REPORT/plan.json")
    script = {
        "work-cc": [WORK, say("All is written.")],
        "work-oc": [WORK, say("All is written.")],
        "plan-cc": [planning, say("Planned.")],
        "ask-cc": [asking, say("I wait.")],
        "ask-oc": [asking, say("I wait.")],
    }
    with ModelApi(script) as api:
        rig = new_rig(api, {"cap": 3, "runners": 3}, {})
        work = {lane: ask(rig, f"work-{word}", lane) for lane, word in ((OC, "oc"), (CC, "cc"))}
        asked = {lane: ask(rig, f"ask-{word}", lane) for lane, word in ((OC, "oc"), (CC, "cc"))}
        plan = ask(rig, "plan-cc", CC, "tireless/plan")
        ended = {
            number: rig.wait_job(number, seconds=WAIT) for number in (*work.values(), *asked.values(), plan)
        }
        rig.wait_settled()
    for lane, number in work.items():
        assert_delivered(rig, ended[number], lane)
    for lane, number in asked.items():
        job = ended[number]
        assert (job.state, [r.agent for r in rig.runs(job)]) == (JobState.BLOCKED, [lane]), rig.report()
        assert "Which colour?" in told(rig, number)
        assert rig.forge.git().read(f"tireless/issue-{number}", "half.txt") == "half"
    assert (ended[plan].state, ended[plan].kind) == (JobState.DELIVERED, JobKind.PLAN), rig.report()
    with rig.connection() as conn:
        children = writes.children_of(conn, ended[plan].id)
    assert rig.forge.issue(children["base"][0].number).title == "Lay the base"
    assert f"Depends on #{children['base'][0].number}" in rig.forge.issue(children["roof"][0].number).body


def assert_delivered(rig: Rig, job: Job, lane: AgentKind) -> None:
    number = job.issue.number
    assert job.state is JobState.DELIVERED, rig.report()
    [run] = rig.runs(job)
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


# -- ends that are the job's own --------------------------------------------------------------------------

LIMITS = {"cap": 6, "runners": 6, "max_turns": 4, "max_budget_usd": 2.0, "stall_seconds": 15}

#   word, its agent's script, the outcome of each run, the state of the job, what is said
FAILURES: list[tuple[str, list[Turn], Outcome, JobState, str]] = [
    ("limit-429", [failure(429)], Outcome.RATE_LIMITED, JobState.FAILED, "limits the rate of requests (429)"),
    ("busy-529", [failure(529)], Outcome.OVERLOADED, JobState.FAILED, "overloaded or out of reach (529)"),
    (
        "no-answer",
        [waiting(threading.Event())],
        Outcome.STALLED,
        JobState.FAILED,
        "printed no event for too long",
    ),
    (
        "many-turns",
        [run_command("echo more >> more.txt")],
        Outcome.TURN_LIMIT,
        JobState.BLOCKED,
        "the turn limit after",
    ),
    (
        "much-money",
        [Turn(run_command("echo more >> more.txt").blocks, output_tokens=1_000_000)],
        Outcome.BUDGET_LIMIT,
        JobState.BLOCKED,
        "the budget of one run",
    ),
    (
        "model-404",
        [failure(404)],
        Outcome.REFUSED,
        JobState.FAILED,
        "model is unknown or not allowed (404)",
    ),
]


def test_failures_that_are_the_jobs_own(new_rig: NewRig) -> None:
    """Twice where trying again may help, once where it cannot; what was done until a limit is saved."""
    with ModelApi({word: script for word, script, *_ in FAILURES}) as api:
        rig = new_rig(api, dict(LIMITS), {"cap": 1, "runners": 1, "model": "anthropic/no-such-model"})
        unknown = ask(rig, "unknown to opencode", OC)
        numbers = {word: ask(rig, word) for word, *_ in FAILURES}
        for word in ("limit-429", "busy-529"):
            bring_forward(rig, numbers[word])
        rows = [(numbers[word], outcome, state, said) for word, _, outcome, state, said in FAILURES]
        rows.append((unknown, Outcome.REFUSED, JobState.FAILED, "would not start, as with a model"))
        for number, *_ in rows:
            rig.wait_job(number, seconds=WAIT)
        rig.wait_settled()
    for number, outcome, state, said in rows:
        job = rig.job(number)
        twice = outcome in (Outcome.RATE_LIMITED, Outcome.OVERLOADED, Outcome.STALLED)
        runs = ended_as(rig, job)
        assert (job.state, [o for o, _ in runs]) == (state, [outcome] * (2 if twice else 1)), rig.report()
        for text in (runs[-1][1], job.last_error, told(rig, number)):
            assert said in (text or ""), rig.report()
        assert ("Gave up after 2 attempts" in told(rig, number)) is twice
        assert rig.forge.pulls() == []
    saved = rig.forge.git().read(f"tireless/issue-{numbers['many-turns']}", "more.txt")
    assert set((saved or "").split()) == {"more"}
    assert not [lane for lane in (lane_of(rig, CC), lane_of(rig, OC)) if lane.held]


def bring_forward(rig: Rig, number: int) -> None:
    """The second attempt, now: after the first it waits, with the reason on record."""

    def waits() -> bool:
        return any(j.state is JobState.PENDING and j.last_error is not None for j in rig.jobs(number))

    until(rig, waits, f"issue {number} waits for its second attempt")
    job = rig.job(number)
    assert job.attempts == 1
    assert timedelta(seconds=30) < job.run_at - job.updated_at <= timedelta(seconds=60)
    assert [e.detail["why"] for e in rig.events(job) if e.kind == "requeued"] == [job.last_error]
    with rig.connection() as conn:
        conn.execute("update job set run_at = now() where id = %s and state = 'pending'", (job.id,))


# -- ends that are the account's --------------------------------------------------------------------------


def test_no_login_no_credit_and_a_usage_limit_hold_the_lane(new_rig: NewRig) -> None:
    """One job after another, the same one: none of it costs an attempt, and in the end it is delivered."""
    resets = int(time.time()) + 3600
    rejected = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(resets),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    hold = threading.Event()
    slowly = Turn(WORK.blocks, hold=hold)
    refused = [failure(401)]
    script = {"first-cc": refused, "second-cc": [WORK, say("Done.")], "first-oc": refused}
    with ModelApi(script) as api:
        rig = new_rig(api, {"env": LOGIN}, {"cap": 1, "runners": 1})
        oc = ask(rig, "first-oc", OC)
        number = ask(rig, "first-cc")
        assert_held(rig, number, Outcome.NOT_AUTHENTICATED, "refuses the key", None)
        api.answer("first-cc", [failure(400)])
        rig.ctl("lane", "resume", "cc")
        assert_held(rig, number, Outcome.OUT_OF_CREDIT, "the account is out of credit", None)
        api.answer("first-cc", [failure(429, rejected)])
        rig.ctl("lane", "resume", "cc")
        until_reset = datetime.fromtimestamp(resets, UTC) + timedelta(minutes=1)
        assert_held(rig, number, Outcome.RATE_LIMITED, "usage limit (five_hour)", until_reset)

        api.answer("first-cc", [slowly, say("Done.")])
        other = ask(rig, "second-cc")
        rig.wait_job(other, JobState.PENDING)
        with rig.connection() as conn:  # the hold ends, as it would in an hour
            conn.execute("update lane set held_until = now() where lane = 'claude_code'")
        until(rig, lambda: api.asked["first-cc"] > 0, "the probe asks the model")
        assert rig.job(other).state is JobState.PENDING  # though the lane has room for two
        assert lane_of(rig, CC).probing
        hold.set()
        for each in (number, other):
            assert rig.wait_job(each, seconds=WAIT).state is JobState.DELIVERED, rig.report()
        assert not lane_of(rig, CC).probing
        assert rig.job(number).attempts == 1

        assert_held(rig, oc, Outcome.NOT_AUTHENTICATED, "refuses the key (401)", None, lane=OC)
        api.answer("first-oc", [failure(400)])
        rig.ctl("lane", "resume", "oc")
        assert_held(rig, oc, Outcome.OUT_OF_CREDIT, "the account is out of credit", None, lane=OC)


def assert_held(
    rig: Rig, number: int, outcome: Outcome, said: str, end: datetime | None, lane: AgentKind = CC
) -> None:
    """The newest run ended so, its job waits with no attempt burnt, and its lane starts nothing."""

    def look() -> bool:
        found = rig.jobs(number)
        runs = rig.runs(found[0]) if found else []
        return bool(runs) and runs[-1].outcome is outcome

    until(rig, look, f"a run of issue {number} ended as {outcome}")
    job = rig.wait_job(number, JobState.PENDING)
    assert job.attempts == 0
    row = lane_of(rig, lane)
    assert (row.held, row.held_until) == (True, end)
    assert said in ended_as(rig, job)[-1][1]
    for text in (row.hold_reason, job.last_error, rig.ctl("explain", str(job.id)).stdout):
        assert said.removeprefix("the ") in (text or "")


# -- cut off ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "agents"), [("killed", (OC, CC)), ("drained", (CC,))])
def test_a_run_that_is_cut_off_in_a_tool_goes_on_in_its_session(
    new_rig: NewRig, how: str, agents: Sequence[AgentKind]
) -> None:
    """KILL to the runners, or a TERM whose patience is over: no process stays, and the work is paid for once."""
    script = {f"cut-{word}": [TOOL, WORK, say("Done.")] for word in ("cc", "oc")}
    with ModelApi(script) as api:
        rig = new_rig(api, {"cap": 1, "runners": 1}, {"cap": 1, "runners": 1} if OC in agents else None)
        numbers = {lane: ask(rig, "cut-oc" if lane is OC else "cut-cc", lane) for lane in agents}
        cut = {lane: in_its_tool(rig, number) for lane, number in numbers.items()}
        if how == "killed":
            for job in cut.values():
                holder = parse_worker_id(rig.job(job.issue.number).claimed_by or "")
                assert holder is not None
                os.kill(holder.pid, signal.SIGKILL)
        else:
            assert_cut_off_by_a_drain(rig, list(cut.values()))
            rig.start()
        for lane, number in numbers.items():
            job = rig.wait_job(number, seconds=WAIT)
            rig.wait_settled()
            first, second = rig.runs(job)
            assert (job.state, second.outcome) == (JobState.DELIVERED, Outcome.COMPLETED), rig.report()
            assert first.outcome is (Outcome.CRASHED if how == "killed" else Outcome.STOPPED)
            assert (first.resumed, second.resumed) == (False, True)
            assert first.session_id == second.session_id
            assert job.attempts == (2 if how == "killed" else 1)
            assert api.asked["cut-cc" if lane is CC else "cut-oc"] == 3  # nothing was asked twice
            assert len([p for p in rig.forge.pulls() if p.pull and p.pull.head == job.branch]) == 1
            assert proctree.marked(str(job.id)) == []


def assert_cut_off_by_a_drain(rig: Rig, jobs: list[Job]) -> None:
    [supervisor] = rig.supervisors
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait(30) == 1
    for job in jobs:
        now = rig.job(job.issue.number)
        assert (now.state, now.attempts) == (JobState.PENDING, 0), rig.report()
        assert ended_as(rig, now) == [(Outcome.STOPPED, "was stopped: tireless is shutting down")]
        assert "tireless is stopping" in (now.last_error or "")
        assert proctree.marked(str(job.id)) == []
