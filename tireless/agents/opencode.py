"""OpenCode: command line, event stream, conclusion. Facts: npm opencode-ai 1.18.33, run against a stand-in for
the model's API; the recorded streams are tests/agent/transcripts/opencode_*.jsonl.

    (step_start, (text | tool_use)*, step_finish)* | error        no first line, no last one

Success: exit 0, no `error` event, and the last event is a step_finish whose reason is `stop`. A rejected
permission ends with exit 0 too, after a step_finish with reason `tool-calls`. Cost and tokens come a step and
are added up. The session's id is chosen by the CLI and read from the events.

At its start it installs its plugin package from npm's registry into each directory of configuration that it finds,
beside its work, and has no switch for that. Into the fresh home of a job it put 64 MB in 3,900 files over three
connections; a job's processor time was 14 to 17 s, and is 7 to 9 s without (two busy cores, a job of half a minute). So
the home is sown with what it looks for (SEED): then it neither asks the registry nor installs. Should it come to want
more than that, it installs as it would have. Not done: `npm_config_offline`, or a registry that is none, would stop it
too, but every tool that the agent runs inherits them; a directory that jobs share is one that an agent could write into
for the next; one that cannot be written is left alone, but other files of its own go there.
A checkout's own `.opencode` is not touched: tools in there may import the package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    Seed,
    StopReason,
    Task,
    clean_text,
    describe_exit,
    dollars,
    mapping,
    number,
    whole,
)
from tireless.agents.environment import base_environment, lane_environment, lane_program
from tireless.agents.lines import Line, LineSplitter, parse_object
from tireless.config import LaneConfig
from tireless.entities import AgentKind, Outcome, Usage

SWITCHES: Mapping[str, str] = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_TERMINAL_TITLE": "1",
    "OPENCODE_DISABLE_SHARE": "1",
}

# A permission left at "ask" hangs for ever; a question waits for a person.
CONFIG: Mapping[str, Any] = {
    "permission": {"*": "allow", "question": "deny", "plan_enter": "deny", "plan_exit": "deny"},
    "autoupdate": False,
    "share": "disabled",
}
# What the CLI looks for before it installs: node_modules, and its package among the lock's direct dependencies. Of the
# version it asks nothing.
_WANTED = {"dependencies": {"@opencode-ai/plugin": "*"}}
_LOCK = {"name": "opencode", "lockfileVersion": 3, "requires": True, "packages": {"": _WANTED}}
SEED = Seed(
    ".config/opencode",
    files={"package.json": json.dumps(_WANTED).encode(), "package-lock.json": json.dumps(_LOCK).encode()},
    directories=("node_modules",),
)
_LONGEST_WAIT = 6 * 3600.0


@dataclass(slots=True)
class Failure:
    """The first `error` event."""

    name: str
    message: str
    status: int | None
    retry_after: float | None
    error_type: str  # of the API's own error body


class OpenCodeDecoder:
    def __init__(self) -> None:
        self._splitter = LineSplitter()
        self._usage = Usage()
        self.session: str | None = None
        self.lines = 0
        self.steps = 0
        self.failure: Failure | None = None
        self.reason = ""  # of the last step_finish, if that was the last event
        self.last_end = 0
        self.text = ""  # the last text, which is the answer
        self.rejected = 0  # tool calls that ended in an error

    @property
    def usage(self) -> Usage:
        return self._usage

    @property
    def session_id(self) -> str | None:
        return self.session

    @property
    def final_at(self) -> int | None:
        return self.last_end if self.reason == "stop" or self.failure is not None else None

    @property
    def succeeded(self) -> bool:
        return self.failure is None and self.reason == "stop"

    @property
    def hopeless(self) -> StopReason | None:
        return None

    def feed(self, data: bytes) -> list[Event]:
        return self._events(self._splitter.feed(data))

    def finish(self) -> list[Event]:
        return self._events(self._splitter.finish())

    def _events(self, lines: list[Line]) -> list[Event]:
        rows = ((parse_object(line.data), line.end) for line in lines)
        return [self._event(row, end) for row, end in rows if row is not None]

    def _event(self, row: Mapping[str, Any], end: int) -> Event:
        self.lines += 1
        self.session = clean_text(row.get("sessionID"), 100) or self.session
        handle = {
            "step_start": self._step_start,
            "step_finish": self._step_finish,
            "text": self._text,
            "tool_use": self._tool_use,
            "error": self._error,
        }.get(clean_text(row.get("type"), 40))
        if handle is None:
            return Event(EventKind.OTHER, end)
        self.reason = ""
        self.last_end = end
        kind, text = handle(row)
        return Event(kind, end, text)

    def _step_start(self, row: Mapping[str, Any]) -> tuple[EventKind, str]:
        self.steps += 1
        return EventKind.INIT if self.steps == 1 else EventKind.STEP, ""

    def _step_finish(self, row: Mapping[str, Any]) -> tuple[EventKind, str]:
        part = mapping(row.get("part"))
        self.reason = clean_text(part.get("reason"), 40)
        tokens = mapping(part.get("tokens"))
        cache = mapping(tokens.get("cache"))
        read = sum(whole(n) or 0 for n in (tokens.get("input"), cache.get("read"), cache.get("write")))
        written = sum(whole(n) or 0 for n in (tokens.get("output"), tokens.get("reasoning")))
        self._usage = replace(
            self._usage,
            cost_usd=dollars((self._usage.cost_usd or 0.0) + (dollars(part.get("cost")) or 0.0)),
            input_tokens=(self._usage.input_tokens or 0) + read,
            output_tokens=(self._usage.output_tokens or 0) + written,
            turns=(self._usage.turns or 0) + 1,
        )
        return EventKind.RESULT if self.reason == "stop" else EventKind.STEP, f"reason={self.reason}"

    def _text(self, row: Mapping[str, Any]) -> tuple[EventKind, str]:
        self.text = clean_text(mapping(row.get("part")).get("text"), 20_000)
        return EventKind.TEXT, clean_text(self.text, 500)

    def _tool_use(self, row: Mapping[str, Any]) -> tuple[EventKind, str]:
        part = mapping(row.get("part"))
        state = mapping(part.get("state"))
        given = mapping(state.get("input"))
        shown = next((given[k] for k in ("command", "filePath", "pattern", "url") if k in given), "")
        failed = state.get("status") == "error"
        self.rejected += failed
        word = "error: " if failed else ""
        return EventKind.TOOL, f"{word}{clean_text(part.get('tool'), 80)}: {clean_text(shown, 300)}"

    def _error(self, row: Mapping[str, Any]) -> tuple[EventKind, str]:
        error = mapping(row.get("error"))
        data = mapping(error.get("data"))
        headers = {str(k).lower(): v for k, v in mapping(data.get("responseHeaders")).items()}
        body = parse_object(_bytes(data.get("responseBody"))) or {}
        failure = Failure(
            name=clean_text(error.get("name"), 80),
            message=clean_text(data.get("message"), 500),
            status=whole(data.get("statusCode")),
            retry_after=_seconds(headers.get("retry-after")),
            error_type=clean_text(mapping(body.get("error")).get("type"), 80),
        )
        self.failure = self.failure or failure
        return EventKind.ERROR, f"{failure.name} {failure.status or ''}: {failure.message}"


def _bytes(value: Any) -> bytes | None:
    return value[:100_000].encode("utf-8", "replace") if isinstance(value, str) else None


def _seconds(value: Any) -> float | None:
    """Retry-After in seconds. The other form, a date, is not worth a clock here: the usual backoff serves."""
    try:
        seconds = number(float(value)) if isinstance(value, str) else number(value)
    except ValueError:
        return None
    return None if seconds is None else min(seconds, _LONGEST_WAIT)


class OpenCode:
    kind = AgentKind.OPENCODE

    def command(self, task: Task, lane: LaneConfig, places: Places) -> Command:
        """The prompt goes by standard input, which the CLI reads when it is no terminal: an argument could
        be seen by every process of the machine, and holds 128 KiB at most."""
        own = lane_environment(lane)
        program = lane_program(lane, self.kind)
        argv = [*program.argv, "run", "--format=json", "--auto", f"--dir={places.workspace}"]
        argv += ["--print-logs", "--log-level=ERROR"]
        if lane.model is not None:
            argv.append(f"--model={lane.model}")
        if task.resume:
            argv.append(f"--session={task.session_id}")
        env = base_environment(task, places, program, SWITCHES, own)
        env["OPENCODE_CONFIG_CONTENT"] = json.dumps(_configuration(own.get("OPENCODE_CONFIG_CONTENT")))
        # One a job: concurrent runs on one have been reported to lock its database.
        env["XDG_DATA_HOME"] = str(places.home / ".local/share")
        env["XDG_CONFIG_HOME"] = str(places.home / ".config")
        env["XDG_CACHE_HOME"] = str(places.home / ".cache")
        env["XDG_STATE_HOME"] = str(places.home / ".local/state")
        prompt = task.prompt if lane.append_prompt is None else f"{task.prompt}\n\n{lane.append_prompt}"
        return Command(
            argv=tuple(argv),
            env=env,
            stdin=prompt.encode("utf-8", "replace"),
            programs=program.files,
            seed=SEED,
        )

    def decoder(self) -> OpenCodeDecoder:
        return OpenCodeDecoder()

    def can_resume(self, session_id: str, places: Places) -> bool:
        """Sessions lie in a database under XDG_DATA_HOME, which is the job's own."""
        data = places.home / ".local/share/opencode"
        return session_id.startswith("ses") and data.is_dir()

    def conclude(self, decoder: Decoder, ending: Ending) -> Conclusion:
        assert isinstance(decoder, OpenCodeDecoder)
        if decoder.failure is not None:
            conclusion = _failed(decoder, decoder.failure, ending)
        else:
            conclusion = _ended(decoder, ending)
        return replace(
            conclusion,
            session_id=decoder.session_id,
            usage=decoder.usage,
            exit_code=ending.code,
            final_text=decoder.text or None,
        )


def _configuration(own: str | None) -> dict[str, Any]:
    """The operator's configuration with our few keys over it. One that is no JSON object is left out: the
    CLI would refuse it, and ours must hold in any case."""
    theirs = parse_object(own.encode()) if own is not None else None
    return {**(theirs or {}), **CONFIG}


def _failed(seen: OpenCodeDecoder, failure: Failure, ending: Ending) -> Conclusion:
    words, status = failure.message or failure.name, failure.status
    if status in (401, 403) or failure.name == "ProviderAuthError":
        return Conclusion(Outcome.NOT_AUTHENTICATED, f"the model's API refuses the key ({status}): {words}")
    # The API answers 400 here and names no type of its own; the message is the API's, not an issue's.
    if status == 402 or (status == 400 and "credit balance is too low" in failure.message.lower()):
        return Conclusion(Outcome.OUT_OF_CREDIT, f"the account is out of credit: {words}")
    if status == 429 or failure.error_type == "rate_limit_error":
        return Conclusion(
            Outcome.RATE_LIMITED,
            f"the model's API limits the rate of requests (429): {words}",
            retry_after_seconds=max(failure.retry_after or 0.0, RETRY_BACKOFF_SECONDS),
        )
    if status is not None and (status >= 500 or status == 408):
        return Conclusion(
            Outcome.OVERLOADED,
            f"the model's API is overloaded or out of reach ({status}): {words}",
            retry_after_seconds=max(failure.retry_after or 0.0, RETRY_BACKOFF_SECONDS),
        )
    if status is not None and 400 <= status < 500:
        return Conclusion(Outcome.REFUSED, f"the model's API refuses the request ({status}): {words}")
    if failure.name in ("ContextOverflowError", "ProviderModelNotFoundError"):
        return Conclusion(Outcome.REFUSED, f"the task does not fit the model ({failure.name}): {words}")
    if seen.steps == 0:
        tail = f"; its log: {ending.stderr_tail}" if ending.stderr_tail else ""
        return Conclusion(
            Outcome.REFUSED, f"would not start, as with a model that it does not know: {words}{tail}"
        )
    return Conclusion(Outcome.CRASHED, f"failed while it worked ({failure.name}): {words}")


def _ended(seen: OpenCodeDecoder, ending: Ending) -> Conclusion:
    said = f": {ending.stderr_tail}" if ending.stderr_tail else ""
    if seen.succeeded:
        if not ending.code_is_good:
            return Conclusion(
                Outcome.CRASHED, f"reported its last step, but {describe_exit(ending.code)}{said}"
            )
        failed = f"; {seen.rejected} tool calls failed" if seen.rejected else ""
        return Conclusion(Outcome.COMPLETED, f"ended its work after {seen.steps} steps{failed}")
    if seen.reason == "length":
        return Conclusion(Outcome.TURN_LIMIT, "the model's answer was cut at its length limit")
    if ending.code == 0 and seen.rejected:
        return Conclusion(Outcome.CRASHED, "ended in the middle: a tool call was rejected")
    if ending.code == 0:
        return Conclusion(Outcome.CRASHED, f"ended in the middle, with exit code 0{said}")
    if seen.lines == 0 and ending.code == 1:
        unknown = "Session not found" in ending.stderr_tail  # said before the stream begins, on standard error
        return Conclusion(Outcome.REFUSED, f"would not start{said}", unknown_session=unknown)
    return Conclusion(Outcome.CRASHED, f"was cut off: {describe_exit(ending.code)}{said}")
