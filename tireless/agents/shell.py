"""A plain shell command run the way an agent is: guarded, contained, within limits. For the verify command.

It prints no events: any output counts as life, its end is its exit code, and its tail is what people get to see.
"""

from __future__ import annotations

from pathlib import Path

from tireless.agents.base import (
    Command,
    Conclusion,
    Decoder,
    Ending,
    Event,
    Places,
    StopReason,
    Task,
    describe_exit,
)
from tireless.agents.environment import SYSTEM_PATH
from tireless.config import LaneConfig
from tireless.entities import AgentKind, Outcome, Usage
from tireless.proctree import MARK

_TAIL_BYTES = 6000


class ShellOutput:
    """Any bytes; keeps the last few thousand."""

    usage = Usage()
    session_id: str | None = None
    final_at: int | None = None
    succeeded = False
    hopeless: StopReason | None = None

    def __init__(self) -> None:
        self.lines = 0
        self.tail = b""

    def feed(self, data: bytes) -> list[Event]:
        self.lines += len(data)
        self.tail = (self.tail + data)[-_TAIL_BYTES:]
        return []

    def finish(self) -> list[Event]:
        return []


class Shell:
    """An adapter whose `command` is given, not built."""

    kind = AgentKind.CLAUDE_CODE  # of no meaning here; the protocol asks for one

    def command(self, task: Task, lane: LaneConfig, places: Places) -> Command:
        raise NotImplementedError("a shell command is not made from a task")

    def decoder(self) -> Decoder:
        return ShellOutput()

    def conclude(self, decoder: Decoder, ending: Ending) -> Conclusion:
        assert isinstance(decoder, ShellOutput)
        text = decoder.tail.decode("utf-8", "replace").replace("\0", "")
        outcome = Outcome.COMPLETED if ending.code == 0 else Outcome.CRASHED
        return Conclusion(outcome, describe_exit(ending.code), exit_code=ending.code, final_text=text)

    def can_resume(self, session_id: str, places: Places) -> bool:
        return False


def shell_command(text: str, places: Places, job_id: str) -> Command:
    """`sh -c`, both outputs in one stream, in the order in which they were written. Its environment is built from
    nothing and holds no key of the agent's either."""
    env = {
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PATH": SYSTEM_PATH,
        "HOME": str(places.home),
        "PWD": str(places.workspace),
        "TMPDIR": str(places.tmp),
        "GIT_TERMINAL_PROMPT": "0",
        "CI": "true",
        MARK: job_id,
    }
    return Command(("/bin/sh", "-c", f"exec 2>&1\n{text}"), env, b"", programs=(Path("/bin/sh"),))
