"""The limits that a run is held to, sessions, and what a later runner reads from the files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.runs import Job, follow, scripted_lane
from tests.support.wait import wait_until
from tireless.agents import adapter_for, runfiles
from tireless.agents.base import AgentMissing, EventKind, Limits, StopReason
from tireless.agents.conclusion import StillRunning, conclude_from, session_of
from tireless.agents.runfiles import StopRecord
from tireless.config import LaneConfig, SupervisorConfig
from tireless.entities import AgentKind, Outcome

HANG = {"do": "hang"}
RETRY = {
    "do": "emit",
    "line": {"type": "system", "subtype": "api_retry", "error_status": 401, "error": "authentication_failed"},
}


def kind_cases(what: str, outcome: Outcome) -> Any:
    return pytest.param(what, outcome, id=what)


FAILURES = [
    kind_cases("usage_limit", Outcome.RATE_LIMITED),
    kind_cases("rate_limit", Outcome.RATE_LIMITED),
    kind_cases("overloaded", Outcome.OVERLOADED),
    kind_cases("not_authenticated", Outcome.NOT_AUTHENTICATED),
    kind_cases("out_of_credit", Outcome.OUT_OF_CREDIT),
]


@pytest.mark.parametrize(("what", "outcome"), FAILURES)
@pytest.mark.parametrize("kind", AgentKind)
def test_failures_of_the_scripted_agent(job: Job, kind: AgentKind, what: str, outcome: Outcome) -> None:
    job.kind = kind
    assert job.run(scripted_lane({"do": "fail", "as": what})).outcome is outcome


@pytest.mark.parametrize(
    ("what", "outcome"),
    [
        ("turn_limit", Outcome.TURN_LIMIT),
        ("budget_limit", Outcome.BUDGET_LIMIT),
        ("unknown_model", Outcome.REFUSED),
    ],
)
def test_failures_that_only_claude_tells_apart(job: Job, what: str, outcome: Outcome) -> None:
    assert job.run(scripted_lane({"do": "fail", "as": what})).outcome is outcome


@pytest.mark.parametrize("kind", AgentKind)
def test_a_run_that_does_its_work(job: Job, kind: AgentKind) -> None:
    job.kind = kind
    conclusion = job.run(scripted_lane())
    assert conclusion.outcome is Outcome.COMPLETED
    assert "A thing to do" in (job.places.workspace / "README.md").read_text()
    assert (job.places.report_dir / "outcome.json").exists()
    assert conclusion.session_id is not None


def test_events_arrive_while_the_agent_works(job: Job) -> None:
    gate = job.places.tmp / "gate"
    wait = {"do": "wait_for", "path": str(gate)}
    with job.start(scripted_lane({"do": "say", "text": "one"}, wait, {"do": "say", "text": "two"})) as agent:
        seen: list[str] = []
        while "one" not in seen:
            seen += [e.text for e in agent.turn(10) if e.kind is EventKind.TEXT]
        assert not agent.ended
        assert agent.session_id == job.session
        assert agent.usage.output_tokens == 10
        gate.touch()
        assert [e.text for e in follow(agent) if e.kind is EventKind.TEXT] == ["two", "Done."]


def test_turn_waits_no_longer_than_told(job: Job) -> None:
    with job.start(scripted_lane(HANG)) as agent:
        while agent.turn(1):
            pass
        assert agent.turn(0) == []
        assert not agent.ended


@pytest.mark.parametrize("kind", AgentKind)
def test_silence_is_a_stall(job: Job, kind: AgentKind) -> None:
    job.kind = kind
    conclusion = job.with_limits(stall_seconds=0.5).run(scripted_lane(HANG), timeout=20)
    assert conclusion.outcome is Outcome.STALLED
    assert conclusion.session_id is not None


def test_bytes_without_a_line_are_silence(job: Job) -> None:
    drip: list[dict[str, Any]] = [{"do": "raw", "text": "x"}, {"do": "sleep", "seconds": 0.1}]
    conclusion = job.with_limits(stall_seconds=0.6).run(scripted_lane(*(drip * 40), HANG), timeout=3.5)
    assert conclusion.outcome is Outcome.STALLED


def test_events_put_a_stall_off(job: Job) -> None:
    steps: list[dict[str, Any]] = [{"do": "say", "text": "still here"}, {"do": "sleep", "seconds": 0.4}] * 4
    assert job.with_limits(stall_seconds=1.2).run(scripted_lane(*steps)).outcome is Outcome.COMPLETED


def test_wall_clock(job: Job) -> None:
    steps: list[dict[str, Any]] = [{"do": "say", "text": "still here"}, {"do": "sleep", "seconds": 0.05}] * 400
    conclusion = job.with_limits(wall_seconds=0.7).run(scripted_lane(*steps), timeout=10)
    assert conclusion.outcome is Outcome.TIMED_OUT


@pytest.mark.parametrize("text", ["x", "x\n"], ids=["no newline", "lines"])
def test_an_agent_that_prints_a_gigabyte(job: Job, text: str) -> None:
    flood = {"do": "raw", "text": text * 1000, "times": 1_000_000}
    job.with_limits(transcript_bytes=1_000_000, stall_seconds=30)
    with job.start(scripted_lane(flood, HANG)) as agent:
        follow(agent, 30)
        conclusion = agent.conclude()
    assert conclusion.outcome is Outcome.CRASHED
    assert "more than the transcript may hold" in conclusion.detail
    assert runfiles.events_size(job.run_dir) < 1_000_000_000
    (job.run_dir / runfiles.EVENTS).unlink()


def test_a_refused_key_is_not_tried_ten_times(job: Job) -> None:
    job.with_limits(stall_seconds=30)
    assert job.run(scripted_lane(RETRY, RETRY, RETRY, HANG), timeout=10).outcome is Outcome.NOT_AUTHENTICATED


def test_two_refusals_and_then_an_answer(job: Job) -> None:
    steps: list[dict[str, Any]] = [RETRY, RETRY, {"do": "say", "text": "in"}, RETRY, {"do": "done"}]
    assert job.run(scripted_lane(*steps)).outcome is Outcome.COMPLETED


@pytest.mark.parametrize("kind", AgentKind)
def test_a_cli_that_hangs_after_its_last_event_has_done_its_work(job: Job, kind: AgentKind) -> None:
    job.kind = kind
    job.with_limits(linger_seconds=0.3)
    conclusion = job.run(scripted_lane({"do": "ignore_term"}, {"do": "linger"}), timeout=15)
    assert conclusion.outcome is Outcome.COMPLETED
    assert conclude_from(job.run_dir, job.adapter) == conclusion


def test_the_first_reason_of_a_stop_stands(job: Job) -> None:
    with job.start(scripted_lane({"do": "ignore_term"}, HANG)) as agent:
        agent.turn(5)
        agent.stop(StopReason.CLAIM_LOST)
        agent.stop(StopReason.CANCELLED)
        assert runfiles.read_stop(job.run_dir) is not None
        follow(agent, 10)
        assert "claim" in agent.conclude().detail


def test_kill_is_at_once(job: Job) -> None:
    job.with_limits(grace_seconds=60)
    with job.start(scripted_lane({"do": "ignore_term"}, HANG)) as agent:
        agent.turn(5)
        agent.kill(StopReason.CLAIM_LOST)
        assert agent.ended
        assert job.alive() == []
        assert agent.conclude().outcome is Outcome.STOPPED


def test_stderr_is_in_the_detail_of_a_crash(job: Job) -> None:
    steps: list[dict[str, Any]] = [{"do": "stderr", "text": "out of cheese"}, {"do": "exit", "code": 5}]
    conclusion = job.run(scripted_lane(*steps))
    assert conclusion.outcome is Outcome.CRASHED
    assert "exit 5: out of cheese" in conclusion.detail


def test_resume_goes_on_where_the_run_was_cut_off(job: Job) -> None:
    gate = job.places.tmp / "gate"
    first = {"do": "append", "path": "log.txt", "text": "first\n"}
    steps: list[dict[str, Any]] = [
        first,
        {"do": "wait_for", "path": str(gate)},
        {"do": "append", "path": "log.txt", "text": "second\n"},
    ]
    with job.start(scripted_lane(*steps)) as agent:
        wait_until(lambda: (job.places.workspace / "log.txt").exists(), what="the first step")
        wait_until(lambda: agent.turn(0.1) and agent.session_id, what="the session")
        agent.kill(StopReason.DRAIN)
    assert session_of(job.run_dir, job.adapter) == job.session
    assert job.adapter.can_resume(job.session, job.places)
    gate.touch()
    conclusion = job.run(scripted_lane(*steps), resume=True)
    assert (conclusion.outcome, conclusion.session_id) == (Outcome.COMPLETED, job.session)
    assert (job.places.workspace / "log.txt").read_text() == "first\nsecond\n"


def test_resume_of_a_session_that_is_not_there(job: Job) -> None:
    assert not job.adapter.can_resume(job.session, job.places)
    conclusion = job.run(scripted_lane(), resume=True)
    assert (conclusion.outcome, conclusion.unknown_session) == (Outcome.REFUSED, True)


def test_session_id_that_is_taken(job: Job) -> None:
    job.run(scripted_lane())
    conclusion = job.run(scripted_lane())
    assert (conclusion.outcome, conclusion.session_in_use) == (Outcome.REFUSED, True)


@pytest.mark.parametrize("kind", AgentKind)
def test_a_cli_that_is_not_installed(job: Job, kind: AgentKind, monkeypatch: pytest.MonkeyPatch) -> None:
    job.kind = kind
    with pytest.raises(
        AgentMissing, match=rf"^no-such-cli is not on PATH \(.*:/bin\); install it, or set lane.{kind}.command$"
    ):
        job.start(LaneConfig(command=("no-such-cli",)))
    with pytest.raises(AgentMissing, match="is not an executable file"):
        job.start(LaneConfig(command=("/no/such/cli",)))


def test_the_conclusion_needs_an_end(job: Job) -> None:
    with job.start(scripted_lane(HANG)) as agent, pytest.raises(RuntimeError, match="before the run has ended"):
        agent.conclude()


def test_only_the_main_thread_starts_agents(job: Job) -> None:
    """The parent-death signal belongs to the thread: a lease thread that ends would end the agent."""
    caught: list[BaseException] = []

    def start() -> None:
        try:
            job.start(scripted_lane())
        except RuntimeError as e:
            caught.append(e)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_limits_come_from_the_configuration() -> None:
    lane = LaneConfig(stall_seconds=1, wall_seconds=2, transcript_mb=3)
    limits = Limits.of(lane, SupervisorConfig(stop_grace_seconds=4))
    assert (limits.stall_seconds, limits.wall_seconds, limits.grace_seconds) == (1, 2, 4)
    assert limits.transcript_bytes == 3 * 1024 * 1024


def test_run_files_are_private(job: Job) -> None:
    job.run(scripted_lane({"do": "stderr", "text": "x"}))
    assert job.run_dir.stat().st_mode & 0o777 == 0o700
    assert {p.name: p.stat().st_mode & 0o077 for p in job.run_dir.iterdir()} == dict.fromkeys(
        ("prompt.txt", "guard.json", "guard.log", "events.jsonl", "stderr.log", "exit.json"), 0
    )
    for place in job.places.writable:
        assert place.stat().st_mode & 0o777 == 0o700


SUCCESS = (Path(__file__).with_name("transcripts") / "claude_ok.jsonl").read_bytes()
HALF = SUCCESS.splitlines(keepends=True)[0]
EXIT_0 = {"code": 0, "stopped": False}
TERMED = {"code": 0, "stopped": True}


@pytest.mark.parametrize(
    ("stream", "exit_row", "stop", "outcome"),
    [
        pytest.param(None, None, None, None, id="killed before the agent began"),
        pytest.param(HALF, None, None, None, id="cut off half-way"),
        pytest.param(HALF + SUCCESS[:-400], None, None, None, id="cut off inside the result"),
        pytest.param(SUCCESS, None, None, Outcome.COMPLETED, id="result printed, exit not seen"),
        pytest.param(SUCCESS[:-1], None, None, Outcome.COMPLETED, id="result printed but for its newline"),
        pytest.param(SUCCESS, EXIT_0, None, Outcome.COMPLETED, id="ended"),
        pytest.param(HALF, {"code": 1}, None, Outcome.CRASHED, id="crashed"),
        pytest.param(b"", {"code": None, "error": "no"}, None, Outcome.CRASHED, id="never started"),
        pytest.param(SUCCESS, TERMED, StopRecord(StopReason.DRAIN, 0), Outcome.STOPPED, id="false success"),
        pytest.param(
            SUCCESS,
            TERMED,
            StopRecord(StopReason.DRAIN, len(SUCCESS)),
            Outcome.COMPLETED,
            id="done before the stop",
        ),
        pytest.param(
            SUCCESS, EXIT_0, StopRecord(StopReason.DRAIN, 0), Outcome.COMPLETED, id="left before the stop came"
        ),
        pytest.param(SUCCESS, None, StopRecord(StopReason.DRAIN, 0), None, id="stop recorded, then all killed"),
        pytest.param(
            SUCCESS,
            None,
            StopRecord(StopReason.DRAIN, len(SUCCESS)),
            Outcome.COMPLETED,
            id="done, stop recorded, all killed",
        ),
        pytest.param(
            SUCCESS,
            None,
            StopRecord(StopReason.HUNG, len(SUCCESS)),
            Outcome.COMPLETED,
            id="hung, then all killed",
        ),
        pytest.param(HALF, TERMED, StopRecord(StopReason.STALL, len(HALF)), Outcome.STALLED, id="stalled"),
    ],
)
def test_conclusion_from_the_files_alone(
    tmp_path: Path,
    stream: bytes | None,
    exit_row: dict[str, Any] | None,
    stop: StopRecord | None,
    outcome: Outcome | None,
) -> None:
    """After a crash of the runner at each point: what has ended is concluded, what was cut off is resumed."""
    if stream is not None:
        (tmp_path / runfiles.EVENTS).write_bytes(stream)
    if exit_row is not None:
        runfiles.write_json(tmp_path / runfiles.EXIT, exit_row)
    if stop is not None:
        runfiles.write_stop(tmp_path, stop)
    conclusion = conclude_from(tmp_path, adapter_for(AgentKind.CLAUDE_CODE))
    assert (conclusion.outcome if conclusion else None) == outcome


def test_no_conclusion_while_the_guard_lives(job: Job) -> None:
    with job.start(scripted_lane({"do": "say", "text": "hi"}, HANG)) as agent:
        agent.turn(10)
        with pytest.raises(StillRunning):
            conclude_from(job.run_dir, job.adapter, wait_seconds=0.1)
