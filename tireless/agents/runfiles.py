"""The files of one run: what the runner, the guard and a later runner tell each other about it.

    prompt.txt     what the agent reads on standard input
    guard.json     what the guard is to start; no secret in it
    events.jsonl   what the agent printed, appended by the agent itself
    stderr.log     the same for standard error; guard.log for the guard's own
    stop.json      why, and at which offset of events.jsonl, tireless asked the run to stop; written before the
                   first signal
    exit.json      how the agent's main process ended; written by the guard, once, when it has ended
    transcript.jsonl   what is kept of events.jsonl, masked and bounded (transcript.py)

Files are 0600 in a directory of 0700. Nothing here is written by the agent but the two streams.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tireless.agents.base import StopReason, clean_text, whole

PROMPT = "prompt.txt"
GUARD = "guard.json"
GUARD_LOG = "guard.log"
EVENTS = "events.jsonl"
STDERR = "stderr.log"
STOP = "stop.json"
EXIT = "exit.json"
TRANSCRIPT = "transcript.jsonl"

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """`stopped`: the guard had been asked to stop before the agent's main process ended."""

    code: int | None
    stopped: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StopRecord:
    """`offset`: how much of events.jsonl was there when the stop was decided, in bytes."""

    reason: StopReason
    offset: int


def write_file(path: Path, data: bytes) -> None:
    """Atomically, and 0600 from the first byte on."""
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_json(path: Path, value: dict[str, Any]) -> None:
    write_file(path, json.dumps(value).encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """None if it is not there, or not whole."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_exit(run_dir: Path) -> ExitRecord | None:
    row = read_json(run_dir / EXIT)
    if row is None:
        return None
    code = row.get("code")
    return ExitRecord(
        code=code if isinstance(code, int) else None,
        stopped=row.get("stopped") is True,
        error=clean_text(row.get("error"), 500) or None,
    )


def write_stop(run_dir: Path, record: StopRecord) -> None:
    """The first reason stands: a cancel after a stall was found does not rewrite why the run ended."""
    if not (run_dir / STOP).exists():
        at = datetime.now(UTC).isoformat()
        write_json(run_dir / STOP, {"reason": record.reason.value, "offset": record.offset, "at": at})


def read_stop(run_dir: Path) -> StopRecord | None:
    row = read_json(run_dir / STOP)
    if row is None:
        return None
    try:
        reason = StopReason(str(row.get("reason")))
    except ValueError:  # written by a newer program
        reason = StopReason.DRAIN
    return StopRecord(reason, whole(row.get("offset")) or 0)


def events_size(run_dir: Path) -> int:
    try:
        return os.stat(run_dir / EVENTS).st_size
    except OSError:
        return 0


def tail_of(path: Path, size: int = 4096) -> str:
    """The last line of a log that says something, cut; "" if there is none."""
    try:
        with open(path, "rb") as f:
            f.seek(max(0, os.fstat(f.fileno()).st_size - size))
            text = f.read(size).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line.strip() for line in _COLOUR.sub("", text).splitlines() if line.strip()]
    return clean_text(lines[-1], 500) if lines else ""
