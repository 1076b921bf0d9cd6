"""Every recorded stream leads to its own outcome (AGENT_CLIS.md's tables, FAULTS.md 29)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tireless.agents import adapter_for, runfiles
from tireless.agents.base import Conclusion, EventKind, StopReason
from tireless.agents.conclusion import conclude, decode_file
from tireless.agents.runfiles import StopRecord
from tireless.entities import AgentKind, Outcome

TRANSCRIPTS = Path(__file__).with_name("transcripts")


@dataclass(frozen=True)
class Case:
    name: str
    code: int | None
    outcome: Outcome
    says: str
    stop: StopReason | None = None
    stop_at: int = 0  # offset in the stream

    @property
    def kind(self) -> AgentKind:
        return AgentKind.CLAUDE_CODE if self.name.startswith("claude") else AgentKind.OPENCODE


CASES = [
    Case("claude_ok", 0, Outcome.COMPLETED, "after 2 turns"),
    Case("claude_ok_subscription", 0, Outcome.COMPLETED, "after 2 turns"),
    Case("claude_rate_limit_allowed", 0, Outcome.COMPLETED, "after 1 turns"),
    Case("claude_tool_denied", 0, Outcome.COMPLETED, "1 tool calls were denied"),
    Case("claude_tool_blocked_but_success", 0, Outcome.COMPLETED, "1 tool calls were denied"),
    Case("claude_max_turns", 1, Outcome.TURN_LIMIT, "turn limit after 2 turns"),
    Case("claude_max_budget", 1, Outcome.BUDGET_LIMIT, "budget"),
    Case("claude_session_limit_rejected", 1, Outcome.RATE_LIMITED, "usage limit (five_hour)"),
    Case("claude_rate_limited_api_key", 1, Outcome.RATE_LIMITED, "(429)"),
    Case("claude_overloaded", 1, Outcome.OVERLOADED, "(529)"),
    Case("claude_bad_model", 1, Outcome.REFUSED, "model is unknown"),
    Case("claude_billing_error", 1, Outcome.OUT_OF_CREDIT, "out of credit"),
    Case("claude_not_logged_in", 1, Outcome.NOT_AUTHENTICATED, "not logged in"),
    Case("claude_prompt_too_long", 1, Outcome.REFUSED, "prompt is too long"),
    Case("claude_resume_unknown", 1, Outcome.REFUSED, "does not know the session"),
    Case("claude_sigint_in_tool", 1, Outcome.CRASHED, "interrupted from outside"),
    Case("claude_sigkill_in_tool", -9, Outcome.CRASHED, "killed by signal 9"),
    Case("claude_sigterm_waiting_on_api", 143, Outcome.CRASHED, "killed by signal 15"),
    Case("claude_sigterm_in_tool_false_success", 0, Outcome.STOPPED, "shutting down", StopReason.DRAIN),
    Case("claude_sigterm_waiting_on_api", 143, Outcome.STOPPED, "cancelled", StopReason.CANCELLED),
    Case("claude_sigint_in_tool", 1, Outcome.STOPPED, "claim", StopReason.CLAIM_LOST),
    Case("claude_sigkill_in_tool", -9, Outcome.STALLED, "no event", StopReason.STALL),
    Case("claude_sigkill_in_tool", -9, Outcome.TIMED_OUT, "wall-clock", StopReason.WALL_CLOCK),
    Case("claude_sigkill_in_tool", -9, Outcome.CRASHED, "transcript", StopReason.TRANSCRIPT),
    Case("claude_auth_retrying", 143, Outcome.NOT_AUTHENTICATED, "again and again", StopReason.AUTH_RETRIES),
    Case("claude_auth_retrying", -9, Outcome.NOT_AUTHENTICATED, "again and again"),
    # The success was there before the stop was asked for: the work is done, and it is not done twice.
    Case("claude_ok", 143, Outcome.COMPLETED, "after 2 turns", StopReason.DRAIN, stop_at=10**9),
    Case("claude_ok", -9, Outcome.COMPLETED, "after 2 turns", StopReason.HUNG, stop_at=10**9),
    Case("claude_ok", 1, Outcome.CRASHED, "reported success, but exit 1"),
    Case("opencode_ok", 0, Outcome.COMPLETED, "after 2 steps"),
    Case("opencode_auth_error", 1, Outcome.NOT_AUTHENTICATED, "(401)"),
    Case("opencode_billing_error", 1, Outcome.OUT_OF_CREDIT, "out of credit"),
    Case("opencode_bad_model", 1, Outcome.REFUSED, "model that it does not know"),
    Case("opencode_rate_limited", 1, Outcome.RATE_LIMITED, "(429)"),
    Case("opencode_permission_rejected_false_success", 0, Outcome.CRASHED, "tool call was rejected"),
    Case("opencode_sigterm_in_tool", -15, Outcome.CRASHED, "killed by signal 15"),
    Case("opencode_sigterm_in_tool", -15, Outcome.STOPPED, "shutting down", StopReason.DRAIN),
    Case("opencode_sigterm_in_tool", 143, Outcome.STALLED, "no event", StopReason.STALL),
    Case("opencode_ok", -9, Outcome.COMPLETED, "after 2 steps", StopReason.HUNG, stop_at=10**9),
]


def judged(tmp_path: Path, case: Case, stderr: str = "") -> Conclusion:
    """The conclusion of a run whose files are made from the recording."""
    stream = (TRANSCRIPTS / f"{case.name}.jsonl").read_bytes()
    (tmp_path / runfiles.EVENTS).write_bytes(stream)
    (tmp_path / runfiles.STDERR).write_text(stderr)
    stopped = case.stop is not None
    runfiles.write_json(tmp_path / runfiles.EXIT, {"code": case.code, "stopped": stopped})
    stop = StopRecord(case.stop, min(case.stop_at, len(stream))) if case.stop is not None else None
    return conclude(tmp_path, adapter_for(case.kind), stop)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-{c.code}-{c.stop or 'ran'}-{c.stop_at}")
def test_recorded_stream(tmp_path: Path, case: Case) -> None:
    conclusion = judged(tmp_path, case)
    assert (conclusion.outcome, conclusion.exit_code) == (case.outcome, case.code)
    assert case.says in conclusion.detail


def test_every_recording_is_in_the_table() -> None:
    assert {c.name for c in CASES} == {p.stem for p in TRANSCRIPTS.glob("*.jsonl")}


def test_usage_limit_holds_the_lane_until_a_minute_after_its_reset(tmp_path: Path) -> None:
    case = Case("claude_session_limit_rejected", 1, Outcome.RATE_LIMITED, "")
    assert judged(tmp_path, case).retry_at == datetime.fromtimestamp(1796029492 + 60, UTC)


@pytest.mark.parametrize("resets", ["1796029492", "1796029492000"])
def test_reset_time_in_seconds_or_milliseconds(tmp_path: Path, resets: str) -> None:
    stream = (TRANSCRIPTS / "claude_session_limit_rejected.jsonl").read_text().replace("1796029492", resets)
    (tmp_path / runfiles.EVENTS).write_text(stream)
    runfiles.write_json(tmp_path / runfiles.EXIT, {"code": 1})
    conclusion = conclude(tmp_path, adapter_for(AgentKind.CLAUDE_CODE), None)
    assert conclusion.retry_at == datetime.fromtimestamp(1796029492 + 60, UTC)


def test_rate_limits_without_a_reset_are_a_short_backoff(tmp_path: Path) -> None:
    for name in ("claude_rate_limited_api_key", "claude_overloaded", "opencode_rate_limited"):
        conclusion = judged(tmp_path, Case(name, 1, Outcome.RATE_LIMITED, ""))
        assert (conclusion.retry_at, conclusion.retry_after_seconds) == (None, 60)


def test_unknown_session_is_told_from_other_refusals(tmp_path: Path) -> None:
    flags = {
        case.name: judged(tmp_path, case).unknown_session
        for case in CASES
        if case.outcome is Outcome.REFUSED and case.stop is None
    }
    assert [name for name, flag in flags.items() if flag] == ["claude_resume_unknown"]


@pytest.mark.parametrize(
    ("stderr", "in_use"),
    [
        ("Error: Session ID 69ce5168-70ed-431a-b372-466d7e216544 is already in use.\n", True),
        ("error: unknown option '--bogus'\n", False),
        ("--dangerously-skip-permissions cannot be used with root/sudo privileges\n", False),
    ],
)
def test_a_start_that_is_refused_says_why(tmp_path: Path, stderr: str, in_use: bool) -> None:
    (tmp_path / runfiles.STDERR).write_text(stderr)
    runfiles.write_json(tmp_path / runfiles.EXIT, {"code": 1})
    conclusion = conclude(tmp_path, adapter_for(AgentKind.CLAUDE_CODE), None)
    assert (conclusion.outcome, conclusion.session_in_use) == (Outcome.REFUSED, in_use)
    assert stderr.strip() in conclusion.detail


def test_a_stall_quotes_the_log(tmp_path: Path) -> None:
    """Opencode says nowhere else that it is limited."""
    case = Case("opencode_sigterm_in_tool", 143, Outcome.STALLED, "no event", StopReason.STALL)
    conclusion = judged(
        tmp_path, case, 'level=ERROR message="stream error"\nlevel=ERROR error="AI_APICallError"\n'
    )
    assert conclusion.outcome is Outcome.STALLED
    assert conclusion.detail.endswith('and was stopped; its log ends: level=ERROR error="AI_APICallError"')


def test_what_a_run_used(tmp_path: Path) -> None:
    claude = judged(tmp_path, Case("claude_ok", 0, Outcome.COMPLETED, "")).usage
    assert (claude.cost_usd, claude.input_tokens, claude.output_tokens, claude.turns) == (0.0141, 2400, 84, 2)
    budget = judged(tmp_path, Case("claude_max_budget", 1, Outcome.BUDGET_LIMIT, "")).usage
    assert (budget.input_tokens, budget.output_tokens) == (1200, 42)  # `usage` itself says 0
    opencode = judged(tmp_path, Case("opencode_ok", 0, Outcome.COMPLETED, "")).usage
    assert (opencode.cost_usd, opencode.input_tokens, opencode.output_tokens) == (0.00846, 2400, 84)


def test_events_of_a_run(tmp_path: Path) -> None:
    decoder = adapter_for(AgentKind.CLAUDE_CODE).decoder()
    events = decoder.feed((TRANSCRIPTS / "claude_ok.jsonl").read_bytes())
    kinds = [EventKind.INIT, EventKind.TOOL, EventKind.TOOL_RESULT, EventKind.TEXT, EventKind.RESULT]
    assert [e.kind for e in events] == kinds
    assert events[1].text == "Bash: echo hello > hello.txt"


def test_result_in_another_place_than_the_end_is_not_the_end(tmp_path: Path) -> None:
    """A turn that goes on after a result (a background task reported) has not ended."""
    stream = (TRANSCRIPTS / "claude_ok.jsonl").read_bytes()
    turn = stream.splitlines(keepends=True)[1]
    (tmp_path / runfiles.EVENTS).write_bytes(stream + turn)
    decoder = decode_file(tmp_path, adapter_for(AgentKind.CLAUDE_CODE))
    assert (decoder.succeeded, decoder.final_at) == (False, None)


def test_a_limit_that_extra_usage_got_over_is_none(tmp_path: Path) -> None:
    """Rejected, then the model answers after all, then the API fails in another way: that way counts."""
    rejected = (TRANSCRIPTS / "claude_session_limit_rejected.jsonl").read_bytes().splitlines(keepends=True)[:2]
    answer = (TRANSCRIPTS / "claude_ok.jsonl").read_bytes().splitlines(keepends=True)[1]
    overloaded = (TRANSCRIPTS / "claude_overloaded.jsonl").read_bytes().splitlines(keepends=True)[-2:]
    (tmp_path / runfiles.EVENTS).write_bytes(b"".join([*rejected, answer, *overloaded]))
    runfiles.write_json(tmp_path / runfiles.EXIT, {"code": 1})
    conclusion = conclude(tmp_path, adapter_for(AgentKind.CLAUDE_CODE), None)
    assert (conclusion.outcome, conclusion.retry_at) == (Outcome.OVERLOADED, None)
