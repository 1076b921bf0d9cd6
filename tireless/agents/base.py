"""What every agent CLI is to tireless: a command line, a stream of events, and a conclusion. No I/O.

An adapter (claude_code.py, opencode.py) knows one CLI. It builds a `Command`, makes a `Decoder` for the
stream that the CLI prints, and draws a `Conclusion` from what was decoded and how the process ended
(`Ending`). Who starts, watches and ends the process is process.py; who guards it is guard.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from tireless.config import LaneConfig, SupervisorConfig
from tireless.entities import AgentKind, JobKind, Outcome, TirelessError, Usage

RETRY_BACKOFF_SECONDS = 60.0  # after a limit or an overload that names no time of its own


class AgentMissing(TirelessError):
    """The lane's CLI is not installed where tireless looks for it; the text says where that was."""


class AgentNotStarted(TirelessError):
    """The machine refused to start the agent (no memory, no process, no disk); nothing has run."""


class StopReason(StrEnum):
    """Why tireless ended a run. It is written to stop.json before the first signal is sent."""

    CANCELLED = "cancelled"
    DRAIN = "drain"
    CLAIM_LOST = "claim_lost"
    LEASE_UNSURE = "lease_unsure"  # the lease could not be renewed in time
    STALL = "stall"
    WALL_CLOCK = "wall_clock"
    TRANSCRIPT = "transcript"
    DISK = "disk"  # its workspace took the room that the disk has to keep
    AUTH_RETRIES = "auth_retries"
    HUNG = "hung"  # the final event is there, the process stays: no judgement, only a kill


class EventKind(StrEnum):
    INIT = "init"
    TEXT = "text"
    TOOL = "tool"
    TOOL_RESULT = "tool_result"
    RETRY = "retry"
    RATE_LIMIT = "rate_limit"
    STEP = "step"
    ERROR = "error"
    RESULT = "result"
    OTHER = "other"  # a type that says nothing to us


@dataclass(frozen=True, slots=True)
class Event:
    """One JSON object of the stream; other lines are no events. `end` is the offset after its line, in bytes;
    `text` is short and for people."""

    kind: EventKind
    end: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """What one run is to do. `session_id` is a UUID chosen before the start, or, with `resume`, the id of
    the session to go on with."""

    job_id: str
    kind: JobKind
    prompt: str
    workspace: Path
    home: Path
    report_dir: Path
    session_id: str
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Places:
    """The directories of one job. All but the mirror are the agent's to write; the paths are the same
    inside the sandbox as outside, since both CLIs file their sessions under the working directory's path."""

    workspace: Path
    home: Path
    report_dir: Path
    tmp: Path
    mirror: Path | None = None

    @property
    def writable(self) -> tuple[Path, ...]:
        return (self.workspace, self.home, self.report_dir, self.tmp)


@dataclass(frozen=True, slots=True)
class Seed:
    """What a directory of the job's home is to hold where it does not exist yet; `directory` is relative to the home,
    `files` and `directories` are names in it."""

    directory: str
    files: Mapping[str, bytes]
    directories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """`programs` are the files that `argv` needs to be readable: the sandbox shows their installations.
    `env_as_root` is added where the agent will run as root. `seed` is for a directory of the job's home."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes
    programs: tuple[Path, ...] = ()
    env_as_root: Mapping[str, str] = field(default_factory=dict)
    seed: Seed | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and bytes. `linger_seconds` is what a CLI gets to leave after its final event."""

    stall_seconds: float = 900.0
    wall_seconds: float = 7200.0
    transcript_bytes: int = 64 * 1024 * 1024
    grace_seconds: float = 5.0
    linger_seconds: float = 30.0

    @classmethod
    def of(cls, lane: LaneConfig, supervisor: SupervisorConfig) -> Limits:
        return cls(
            stall_seconds=lane.stall_seconds,
            wall_seconds=lane.wall_seconds,
            transcript_bytes=lane.transcript_mb * 1024 * 1024,
            grace_seconds=supervisor.stop_grace_seconds,
        )


@dataclass(frozen=True, slots=True)
class Ending:
    """How the process ended, as far as it is known.

    `code` is the exit code, or minus the signal; None where nobody saw the end (the guard was killed after
    the final event). `overrun` says that the CLI was killed after its final event, so that its code says
    nothing. `error` is why the command could not be started at all.
    """

    code: int | None
    overrun: bool = False
    error: str | None = None
    stderr_tail: str = ""

    @property
    def code_is_good(self) -> bool:
        return self.overrun or self.code in (0, None)


@dataclass(frozen=True, slots=True)
class Conclusion:
    """How one run ended.

    `retry_at` (UTC) is set for a usage limit with a known reset, a minute after it: hold the lane until then;
    `retry_after_seconds` for a shorter backoff. `unknown_session`: the session to resume is not there, start
    afresh. `session_in_use`: the id of the new session is taken, resume it or choose another.
    """

    outcome: Outcome
    detail: str
    retry_at: datetime | None = None
    retry_after_seconds: float | None = None
    session_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    exit_code: int | None = None
    final_text: str | None = None
    unknown_session: bool = False
    session_in_use: bool = False


class Decoder(Protocol):
    """Incremental, pure and total: any bytes in any pieces give the same events, and never an exception."""

    @property
    def usage(self) -> Usage: ...

    @property
    def session_id(self) -> str | None: ...

    @property
    def final_at(self) -> int | None:
        """The offset after the stream's final event, if the stream ends in one so far."""

    @property
    def succeeded(self) -> bool:
        """Whether the stream, as far as it goes, ends in the CLI's own final success."""

    @property
    def hopeless(self) -> StopReason | None:
        """Why waiting for the end is pointless, if it is."""

    @property
    def lines(self) -> int:
        """Complete JSON objects seen: what a stall is measured by."""

    def feed(self, data: bytes) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """The end of the file: the last line may lack its newline."""


class Adapter(Protocol):
    kind: AgentKind

    def command(self, task: Task, lane: LaneConfig, places: Places) -> Command:
        """AgentMissing if the CLI cannot be found."""

    def decoder(self) -> Decoder: ...

    def conclude(self, decoder: Decoder, ending: Ending) -> Conclusion:
        """Of a run that tireless did not stop. What it did stop is never judged by its result."""

    def can_resume(self, session_id: str, places: Places) -> bool:
        """Whether this host has the session on disk, so that a resume makes sense."""


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def clean_text(value: Any, limit: int = 2000) -> str:
    """A string fit for a log line and a Postgres text column: no NUL, no lone surrogate, cut to `limit`."""
    if not isinstance(value, str):
        return ""
    text = value[: limit + 1].encode("utf-8", "replace").decode("utf-8")
    text = _CONTROL.sub(" ", text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def number(value: Any) -> float | None:
    """A finite, non-negative number, or None: streams are written by programs that we do not control."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) and 0 <= result < 1e15 else None


def whole(value: Any) -> int | None:
    result = number(value)
    return None if result is None else int(result)


def dollars(value: Any) -> float | None:
    """An amount of money, to the millionth, so that sums of it read as they were meant."""
    result = number(value)
    return None if result is None else round(result, 6)


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def listing(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def describe_exit(code: int | None) -> str:
    """An exit code in words. Behind bubblewrap a signal shows as 128 plus its number."""
    if code is None:
        return "its end was not seen"
    if code < 0:
        return f"killed by signal {-code}"
    if code > 128:
        return f"exit {code}, killed by signal {code - 128}"
    return f"exit {code}"
