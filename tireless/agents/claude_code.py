"""Claude Code: command line, event stream, conclusion. Facts: npm @anthropic-ai/claude-code 2.1.197, run
against a stand-in for the model's API; the recorded streams are tests/agent/transcripts/claude_*.jsonl.

    system/init, system/api_retry*, (assistant | user | rate_limit_event | system/task_*)*, result

What counts as success, and what each failure looks like, is structure: subtype, is_error, api_error_status,
terminal_reason, the `error` of a synthetic assistant message, a rate_limit_event. Prose is quoted for
people and decides nothing, since issue texts quote limit messages. Two things have no structure, because the
CLI says them on standard error before its stream begins: an id that is in use, and why it would not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tireless.agents.base import (
    RETRY_BACKOFF_SECONDS,
    Command,
    Conclusion,
    Decoder,
    Ending,
    Event,
    EventKind,
    Places,
    StopReason,
    Task,
    clean_text,
    describe_exit,
    dollars,
    listing,
    mapping,
    number,
    whole,
)
from tireless.agents.environment import base_environment, lane_environment, lane_program
from tireless.agents.lines import Line, LineSplitter, parse_object
from tireless.config import LaneConfig
from tireless.entities import AgentKind, Outcome, Usage

# Tools that wait for a person, for a time of day or for another session. A headless turn ends without them.
DISALLOWED_TOOLS = (
    "AskUserQuestion",
    "EnterPlanMode",
    "ExitPlanMode",
    "CronCreate",
    "CronDelete",
    "CronList",
    "EnterWorktree",
    "ExitWorktree",
    "Monitor",
    "PushNotification",
    "RemoteTrigger",
    "ScheduleWakeup",
    "SendMessage",
    "Workflow",
)

SWITCHES: Mapping[str, str] = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",  # they are dropped at the end of a headless turn
    "CLAUDE_CODE_DISABLE_CRON": "1",
    "CLAUDE_CODE_DISABLE_WORKFLOWS": "1",
    "CLAUDE_CODE_DISABLE_TERMINAL_TITLE": "1",
    "DISABLE_AUTOUPDATER": "1",
}

AUTH_RETRIES = 3  # of ten that the CLI would make on a 401, over minutes
LIMIT_MARGIN = timedelta(seconds=60)
UNKNOWN_LIMIT_SECONDS = 900.0  # a usage limit that names no reset


@dataclass(slots=True)
class Result:
    """The `result` line, as far as it decides anything."""

    subtype: str
    is_error: bool
    status: int | None
    terminal_reason: str
    turns: int
    denials: int
    text: str
    errors: str
    end: int


class ClaudeDecoder:
    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._spent: dict[str, tuple[int, int]] = {}
        self._usage = Usage()
        self.result: Result | None = None
        self.session: str | None = None
        self.saw_init = False
        self.lines = 0
        self.limit_rejected = False
        self.limit_resets_at: datetime | None = None
        self.limit_type = ""
        self.api_error = ""  # the `error` of the last assistant message
        self.auth_retries = 0
        self.last_retry = ""

    @property
    def usage(self) -> Usage:
        return self._usage

    @property
    def session_id(self) -> str | None:
        return self.session

    @property
    def final_at(self) -> int | None:
        return None if self.result is None else self.result.end

    @property
    def succeeded(self) -> bool:
        return self.result is not None and self.result.subtype == "success" and not self.result.is_error

    @property
    def hopeless(self) -> StopReason | None:
        return StopReason.AUTH_RETRIES if self.auth_retries >= AUTH_RETRIES else None

    def feed(self, data: bytes) -> list[Event]:
        return self._events(self._splitter.feed(data))

    def finish(self) -> list[Event]:
        return self._events(self._splitter.finish())

    def _events(self, lines: list[Line]) -> list[Event]:
        rows = ((parse_object(line.data), line.end) for line in lines)
        return [self._event(row, end) for row, end in rows if row is not None]

    def _event(self, row: Mapping[str, Any], end: int) -> Event:
        self.lines += 1
        session = clean_text(row.get("session_id"), 100)
        self.session = session or self.session
        handle = {
            "system": self._system,
            "assistant": self._assistant,
            "user": self._user,
            "rate_limit_event": self._rate_limit,
            "result": self._result,
        }.get(clean_text(row.get("type"), 40))
        if handle is None:
            return Event(EventKind.OTHER, end)
        kind, text = handle(row, end)
        return Event(kind, end, text)

    def _system(self, row: Mapping[str, Any], end: int) -> tuple[EventKind, str]:
        subtype = row.get("subtype")
        if subtype == "init":
            self.saw_init = True
            self._usage = replace(self._usage, model=clean_text(row.get("model"), 100) or None)
            return EventKind.INIT, f"model={self._usage.model}"
        if subtype == "api_retry":
            status = whole(row.get("error_status"))
            error = clean_text(row.get("error"), 80)
            refused = error == "authentication_failed" or status == 401
            self.auth_retries = self.auth_retries + 1 if refused else 0
            self.last_retry = error or str(status)
            return EventKind.RETRY, f"attempt={whole(row.get('attempt'))} error={error} status={status}"
        return EventKind.OTHER, clean_text(subtype, 80)

    def _assistant(self, row: Mapping[str, Any], end: int) -> tuple[EventKind, str]:
        message = mapping(row.get("message"))
        self.result = None  # the turn goes on: an earlier result was not the last word
        self.api_error = clean_text(row.get("error"), 80)
        if not self.api_error:
            self.auth_retries = 0
            self.limit_rejected = False  # the model answers, on extra usage for instance
        self._count(message)
        texts: list[str] = []
        kind = EventKind.OTHER
        for block in listing(message.get("content")):
            part = mapping(block)
            if part.get("type") == "text":
                kind = EventKind.TEXT if kind is EventKind.OTHER else kind
                texts.append(clean_text(part.get("text"), 500))
            elif part.get("type") == "tool_use":
                kind = EventKind.TOOL
                texts.append(_tool_line(part))
        return kind, clean_text(" ".join(texts), 500)

    def _count(self, message: Mapping[str, Any]) -> None:
        """Running totals: a message comes once a content block, each time with the usage known by then."""
        used = mapping(message.get("usage"))
        spent = (_input_tokens(used), whole(used.get("output_tokens")) or 0)
        key = clean_text(message.get("id"), 100)
        known = self._spent.get(key, (0, 0))
        self._spent[key] = (max(known[0], spent[0]), max(known[1], spent[1]))
        self._usage = replace(
            self._usage,
            input_tokens=(self._usage.input_tokens or 0) + self._spent[key][0] - known[0],
            output_tokens=(self._usage.output_tokens or 0) + self._spent[key][1] - known[1],
            turns=len(self._spent),
        )

    def _user(self, row: Mapping[str, Any], end: int) -> tuple[EventKind, str]:
        self.result = None
        for block in listing(mapping(row.get("message")).get("content")):
            part = mapping(block)
            if part.get("type") == "tool_result":
                content = part.get("content")
                if isinstance(content, list):
                    content = next((mapping(c).get("text") for c in content if mapping(c).get("text")), "")
                word = "error: " if part.get("is_error") is True else ""
                return EventKind.TOOL_RESULT, word + clean_text(content, 500)
        return EventKind.OTHER, ""

    def _rate_limit(self, row: Mapping[str, Any], end: int) -> tuple[EventKind, str]:
        info = mapping(row.get("rate_limit_info"))
        self.limit_rejected = info.get("status") == "rejected"
        self.limit_resets_at = moment(info.get("resetsAt")) if self.limit_rejected else None
        self.limit_type = clean_text(info.get("rateLimitType"), 40)
        return EventKind.RATE_LIMIT, f"status={clean_text(info.get('status'), 40)} type={self.limit_type}"

    def _result(self, row: Mapping[str, Any], end: int) -> tuple[EventKind, str]:
        errors = "; ".join(clean_text(e, 300) for e in listing(row.get("errors"))[:3])
        self.result = Result(
            subtype=clean_text(row.get("subtype"), 80),
            is_error=row.get("is_error") is not False,
            status=whole(row.get("api_error_status")),
            terminal_reason=clean_text(row.get("terminal_reason"), 80),
            turns=whole(row.get("num_turns")) or 0,
            denials=len(listing(row.get("permission_denials"))),
            text=clean_text(row.get("result"), 20_000),
            errors=errors,
            end=end,
        )
        self._usage = _final_usage(row, self._usage)
        return EventKind.RESULT, clean_text(self.result.text or errors or self.result.subtype, 500)


def _tool_line(part: Mapping[str, Any]) -> str:
    given = mapping(part.get("input"))
    shown = next((given[k] for k in ("command", "file_path", "pattern", "url", "prompt") if k in given), "")
    return f"{clean_text(part.get('name'), 80)}: {clean_text(shown, 300)}"


def _input_tokens(used: Mapping[str, Any]) -> int:
    """What the model read, from the cache or not."""
    keys = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(whole(used.get(key)) or 0 for key in keys)


def _final_usage(row: Mapping[str, Any], running: Usage) -> Usage:
    """The result's own totals. `modelUsage` is complete where `usage` is not (a budget limit zeroes it)."""
    models = [(name, mapping(used)) for name, used in mapping(row.get("modelUsage")).items()]
    read = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    if models:
        tokens_in = sum(whole(used.get(key)) or 0 for _, used in models for key in read)
        tokens_out = sum(whole(used.get("outputTokens")) or 0 for _, used in models)
    else:
        used = mapping(row.get("usage"))
        tokens_in, tokens_out = _input_tokens(used), whole(used.get("output_tokens")) or 0
    model = running.model or (clean_text(models[0][0], 100) if models else None)
    return Usage(
        cost_usd=dollars(row.get("total_cost_usd")),
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        turns=whole(row.get("num_turns")),
        model=model,
    )


def moment(value: Any) -> datetime | None:
    """A time given in seconds or milliseconds since 1970, UTC."""
    seconds = number(value)
    if seconds is None or seconds == 0:
        return None
    if seconds > 1e11:  # as seconds that would be the year 5138
        seconds /= 1000
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None


class ClaudeCode:
    kind = AgentKind.CLAUDE_CODE

    def command(self, task: Task, lane: LaneConfig, places: Places) -> Command:
        own = lane_environment(lane)
        program = lane_program(lane, self.kind)
        argv = [
            *program.argv,
            "-p",
            "--output-format=stream-json",
            "--verbose",  # without it the CLI refuses stream-json
            "--permission-mode=bypassPermissions",
            "--strict-mcp-config",
            f"--disallowedTools={','.join(DISALLOWED_TOOLS)}",
            f"--resume={task.session_id}" if task.resume else f"--session-id={task.session_id}",
        ]
        if lane.model is not None:
            argv.append(f"--model={lane.model}")
        if lane.max_turns is not None:
            argv.append(f"--max-turns={lane.max_turns}")
        if lane.max_budget_usd is not None:
            argv.append(f"--max-budget-usd={lane.max_budget_usd}")
        if lane.append_prompt is not None:
            argv.append(f"--append-system-prompt={lane.append_prompt}")
        env = base_environment(task, places, program, SWITCHES, own)
        return Command(
            argv=tuple(argv),
            env=env,
            stdin=task.prompt.encode("utf-8", "replace"),
            programs=program.files,
            env_as_root={"IS_SANDBOX": "1"},  # as root it refuses bypassPermissions without it
        )

    def decoder(self) -> ClaudeDecoder:
        return ClaudeDecoder()

    def can_resume(self, session_id: str, places: Places) -> bool:
        """Sessions lie in $HOME/.claude/projects/<cwd>/<id>.jsonl."""
        projects = places.home / ".claude" / "projects"
        try:
            return any((entry / f"{session_id}.jsonl").is_file() for entry in projects.iterdir())
        except OSError:
            return False

    def conclude(self, decoder: Decoder, ending: Ending) -> Conclusion:
        assert isinstance(decoder, ClaudeDecoder)
        if decoder.result is None:
            conclusion = _without_result(decoder, ending)
        else:
            conclusion = _with_result(decoder, decoder.result, ending)
        return replace(
            conclusion,
            session_id=decoder.session_id,
            usage=decoder.usage,
            exit_code=ending.code,
            final_text=(decoder.result.text or None) if decoder.result is not None else None,
        )


def _with_result(seen: ClaudeDecoder, result: Result, ending: Ending) -> Conclusion:
    if result.subtype == "error_max_turns":
        return Conclusion(Outcome.TURN_LIMIT, f"reached the turn limit after {result.turns} turns")
    if result.subtype == "error_max_budget_usd":
        return Conclusion(Outcome.BUDGET_LIMIT, f"reached the budget of one run: {result.errors}")
    if result.subtype == "error_during_execution":
        return _during_execution(seen, result, ending)
    if result.is_error:
        return _api_failure(seen, result)
    if result.subtype != "success":
        return Conclusion(Outcome.CRASHED, f"ended with an unknown result {result.subtype!r}")
    if not ending.code_is_good:
        return Conclusion(Outcome.CRASHED, f"reported success, but {describe_exit(ending.code)}")
    denied = f"; {result.denials} tool calls were denied" if result.denials else ""
    return Conclusion(Outcome.COMPLETED, f"ended its work after {result.turns} turns{denied}")


def _during_execution(seen: ClaudeDecoder, result: Result, ending: Ending) -> Conclusion:
    if not seen.saw_init and result.turns == 0:  # the only line of the stream
        return Conclusion(
            Outcome.REFUSED, f"does not know the session to resume: {result.errors}", unknown_session=True
        )
    if result.terminal_reason.startswith("aborted"):
        return Conclusion(Outcome.CRASHED, f"was interrupted from outside ({result.terminal_reason})")
    return Conclusion(Outcome.CRASHED, f"failed while it worked: {result.errors or describe_exit(ending.code)}")


def _api_failure(seen: ClaudeDecoder, result: Result) -> Conclusion:
    """`subtype: success` with `is_error: true`: the normal shape of a failure of the model's API."""
    words = clean_text(result.text, 300)
    status, error = result.status, seen.api_error
    if seen.limit_rejected:
        return _usage_limit(seen, words)
    if error == "billing_error" or status == 402:
        return Conclusion(Outcome.OUT_OF_CREDIT, f"the account is out of credit: {words}")
    if status == 429 or (status is None and error == "rate_limit"):
        return Conclusion(
            Outcome.RATE_LIMITED,
            f"the model's API limits the rate of requests (429): {words}",
            retry_after_seconds=RETRY_BACKOFF_SECONDS,
        )
    if status in (401, 403):
        return Conclusion(Outcome.NOT_AUTHENTICATED, f"the model's API refuses the key ({status}): {words}")
    if status is None and error == "authentication_failed":
        return Conclusion(Outcome.NOT_AUTHENTICATED, f"is not logged in: {words}")
    if result.terminal_reason == "prompt_too_long":
        return Conclusion(Outcome.REFUSED, f"the prompt is too long for the model: {words}")
    if status == 404:
        return Conclusion(Outcome.REFUSED, f"the model is unknown or not allowed (404): {words}")
    if status is not None and 400 <= status < 500 and status != 408:
        return Conclusion(Outcome.REFUSED, f"the model's API refuses the request ({status}): {words}")
    if status is not None or error == "server_error":
        return Conclusion(
            Outcome.OVERLOADED,
            f"the model's API is overloaded or out of reach ({status or 'no answer'}): {words}",
            retry_after_seconds=RETRY_BACKOFF_SECONDS,
        )
    return Conclusion(Outcome.CRASHED, f"ended with an error of its own: {words or error or 'no reason given'}")


def _usage_limit(seen: ClaudeDecoder, words: str) -> Conclusion:
    """The subscription's limit. The lane is to be held until the later of both times."""
    named = f" ({seen.limit_type})" if seen.limit_type else ""
    resets = seen.limit_resets_at
    return Conclusion(
        Outcome.RATE_LIMITED,
        f"the subscription's usage limit{named} is reached: {words}",
        retry_at=None if resets is None else resets + LIMIT_MARGIN,
        retry_after_seconds=UNKNOWN_LIMIT_SECONDS if resets is None else RETRY_BACKOFF_SECONDS,
    )


def _without_result(seen: ClaudeDecoder, ending: Ending) -> Conclusion:
    said = ending.stderr_tail
    if seen.limit_rejected:
        return _usage_limit(seen, describe_exit(ending.code))
    if seen.auth_retries >= AUTH_RETRIES:
        return Conclusion(Outcome.NOT_AUTHENTICATED, "the model's API refuses the key (401), again and again")
    if seen.lines == 0 and ending.code == 1:
        taken = "already in use" in said
        return Conclusion(
            Outcome.REFUSED, f"would not start: {said or 'it gave no reason'}", session_in_use=taken
        )
    tail = f": {said}" if said else ""
    if ending.code == 0:
        return Conclusion(Outcome.CRASHED, f"ended without a result, with exit code 0{tail}")
    waiting = f" while the API answered {seen.last_retry}" if seen.last_retry else ""
    return Conclusion(Outcome.CRASHED, f"was cut off{waiting}: {describe_exit(ending.code)}{tail}")
