"""From the files of a run to its conclusion, for the runner that watched it and for one that comes after.

Rules, in this order:

* exit.json with an error: the agent never ran.
* A stop was asked for, and what had been printed before that (up to the offset in stop.json) ends in the CLI's
  final success: the work was done before anybody asked; it is concluded as a success. What comes after
  the offset is never believed: on TERM claude prints a success that is none.
* A stop because the CLI hung after its final event: that event is judged, whatever it says.
* A stop was asked for and took effect: the outcome follows from the reason alone.
* Else the adapter concludes, from stream and exit code.
* No exit.json, no stop, no final success: the run was cut off half-way and has no conclusion. Resume it.
"""

from __future__ import annotations

import fcntl
import select
import time
from pathlib import Path

from tireless.agents import runfiles
from tireless.agents.base import Adapter, Conclusion, Decoder, Ending, StopReason
from tireless.agents.runfiles import StopRecord
from tireless.entities import Outcome, TirelessError

_CHUNK = 1024 * 1024

STOPPED_AS: dict[StopReason, tuple[Outcome, str]] = {
    StopReason.CANCELLED: (Outcome.STOPPED, "was stopped: the job was cancelled"),
    StopReason.DRAIN: (Outcome.STOPPED, "was stopped: tireless is shutting down"),
    StopReason.CLAIM_LOST: (Outcome.STOPPED, "was stopped: the claim on the job was lost"),
    StopReason.LEASE_UNSURE: (Outcome.STOPPED, "was stopped: the lease could not be renewed in time"),
    StopReason.STALL: (Outcome.STALLED, "printed no event for too long and was stopped"),
    StopReason.WALL_CLOCK: (Outcome.TIMED_OUT, "reached the wall-clock limit and was stopped"),
    StopReason.TRANSCRIPT: (Outcome.CRASHED, "printed more than the transcript may hold and was stopped"),
    StopReason.DISK: (
        Outcome.BUDGET_LIMIT,
        "took the room that the disk has to keep free (runner.min_free_mb), and was stopped",
    ),
    StopReason.AUTH_RETRIES: (
        Outcome.NOT_AUTHENTICATED,
        "the model's API refuses the key (401), again and again",
    ),
    StopReason.HUNG: (Outcome.STALLED, "did not leave after its final event"),  # only if that is no success
}


class StillRunning(TirelessError):
    """The guard of an earlier run of this job is alive; its agent must not be doubled."""


def conclude(run_dir: Path, adapter: Adapter, stop: StopRecord | None) -> Conclusion:
    """The conclusion of a run that has ended. `stop` is the stop that was asked for, if one was."""
    left = runfiles.read_exit(run_dir)
    code = left.code if left is not None else None
    if left is not None and left.error is not None:
        return Conclusion(Outcome.CRASHED, f"never ran: {left.error}", exit_code=code)
    tail = runfiles.tail_of(run_dir / runfiles.STDERR)
    if stop is None or (left is not None and not left.stopped):
        return adapter.conclude(decode_file(run_dir, adapter), Ending(code, stderr_tail=tail))
    before = decode_file(run_dir, adapter, stop.offset)
    if before.succeeded or (stop.reason is StopReason.HUNG and before.final_at is not None):
        return adapter.conclude(before, Ending(code, overrun=True, stderr_tail=tail))
    outcome, detail = STOPPED_AS[stop.reason]
    if stop.reason is StopReason.STALL and tail:  # where opencode says what it waits for
        detail = f"{detail}; its log ends: {tail}"
    # What was used and how the session is called is true to the last line, whatever the result says.
    seen = before if stop.reason is StopReason.TRANSCRIPT else decode_file(run_dir, adapter)
    return Conclusion(outcome, detail, session_id=seen.session_id, usage=seen.usage, exit_code=code)


def conclude_from(run_dir: Path, adapter: Adapter, wait_seconds: float = 15.0) -> Conclusion | None:
    """Conclude a run from its files alone, or None: it was cut off half-way, or never began.

    Waits until the run's guard is gone, since it kills the agent first; StillRunning after `wait_seconds`.
    """
    await_guard(run_dir, wait_seconds)
    stop = runfiles.read_stop(run_dir)
    if runfiles.read_exit(run_dir) is None:
        before = decode_file(run_dir, adapter, None if stop is None else stop.offset)
        hung = stop is not None and stop.reason is StopReason.HUNG and before.final_at is not None
        if not (before.succeeded or hung):
            return None
    return conclude(run_dir, adapter, stop)


def session_of(run_dir: Path, adapter: Adapter) -> str | None:
    """The session that the run's stream names: opencode chooses its own, and it is needed to resume."""
    return decode_file(run_dir, adapter).session_id


def decode_file(run_dir: Path, adapter: Adapter, size: int | None = None) -> Decoder:
    """The stream, decoded: all of it, or its first `size` bytes."""
    decoder = adapter.decoder()
    left = size
    try:
        with open(run_dir / runfiles.EVENTS, "rb") as f:
            while data := f.read(_CHUNK if left is None else min(_CHUNK, left)):
                left = None if left is None else left - len(data)
                decoder.feed(data)
    except FileNotFoundError:
        return decoder
    decoder.finish()
    return decoder


def await_guard(run_dir: Path, seconds: float) -> None:
    """Until no guard holds the run's lock. The kernel lets go of it when the guard dies, however it dies."""
    try:
        f = open(run_dir / runfiles.GUARD, "rb")  # noqa: SIM115  closed below; opening may fail on its own
    except FileNotFoundError:
        return
    with f:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StillRunning(f"the guard of the run in {run_dir} is still alive") from None
            select.select([], [], [], 0.05)
