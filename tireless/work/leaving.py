"""Why the work on a job ends before its time. Each reason has its own way to leave the row behind (ends.py)."""

from __future__ import annotations

import errno
from pathlib import Path

from tireless.agents.base import AgentMissing, AgentNotStarted, StopReason
from tireless.config import ConfigError
from tireless.forge import ForgeError, Limited
from tireless.who import Judgement
from tireless.workspace import DiskFull, RemoteUnreachable

PASSING_SECONDS = 60.0  # before a job is tried again after a fault that is not its own
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Leave(Exception):
    """The work ends here; `stop` is what its agent is told."""

    stop = StopReason.DRAIN

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class ClaimGone(Leave):
    """Somebody else has the job, or nobody."""

    stop = StopReason.CLAIM_LOST


class Unsure(Leave):
    """The lease could not be renewed in time: somebody else may have the job soon."""

    stop = StopReason.LEASE_UNSURE


class Stopped(Leave):
    """tireless itself is stopping."""


class CancelAsked(Leave):
    """An operator's word, or the poller's on an issue that was withdrawn."""

    stop = StopReason.CANCELLED


class Withdrawn(Leave):
    """Seen at the forge: the issue is closed, unlabelled, moved, gone, or a pull request."""

    stop = StopReason.CANCELLED


class NotEntitled(Leave):
    """Who set the label may not start work."""

    stop = StopReason.CANCELLED

    def __init__(self, judgement: Judgement) -> None:
        self.judgement = judgement
        super().__init__(judgement.why)


class Passing(Leave):
    """A fault that is not the job's and goes by itself."""

    def __init__(self, why: str, seconds: float = PASSING_SECONDS) -> None:
        self.seconds = seconds
        super().__init__(why)


class Requeued(Leave):
    """Back to pending by the governor's word; already in the row."""


def passing(error: Exception, state_dir: Path) -> Passing | None:
    """A fault that is not the job's own; None for any other."""
    if isinstance(error, Limited):
        return Passing(str(error), max(error.retry_after_seconds, PASSING_SECONDS))
    if isinstance(error, ForgeError) and error.retryable:
        return Passing(str(error))
    if isinstance(error, RemoteUnreachable | DiskFull | AgentMissing | AgentNotStarted | ConfigError):
        return Passing(str(error))
    if isinstance(error, OSError) and error.errno in DISK:
        return Passing(f"the disk under {state_dir}: {error}")
    return None
