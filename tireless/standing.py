"""Whether a lane starts jobs, and if it does not, why: one judgement for tireless-ctl and the status page.

Pure, but for the look at the processes of this machine. What it judges is a protocol, since the page reads other rows
than tireless-ctl does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeVar
from uuid import UUID

from tireless import process
from tireless.config import Config
from tireless.entities import WorkerRole

# A worker says that it is there once a minute (poller.py, runner.py).
SEEN_SECONDS = 180.0


class Process(Protocol):
    """A worker's row, however it was read."""

    @property
    def id(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def lane(self) -> str | None: ...
    @property
    def seen_at(self) -> datetime: ...
    @property
    def job_id(self) -> UUID | None: ...
    @property
    def waits_for(self) -> str | None: ...
    @property
    def draining_since(self) -> datetime | None: ...


class LaneRow(Protocol):
    """A lane's row, however it was read."""

    @property
    def lane(self) -> str: ...
    @property
    def cap(self) -> int: ...
    @property
    def paused(self) -> bool: ...
    @property
    def pause_reason(self) -> str | None: ...
    @property
    def hold_reason(self) -> str | None: ...
    @property
    def held_until(self) -> datetime | None: ...


P = TypeVar("P", bound=Process)


class State(StrEnum):
    """Why a lane starts nothing, in a word."""

    PAUSED = "paused"
    HELD = "held"
    CLOSED = "closed"  # its cap is 0
    DRAINING = "draining"  # all its runners leave
    NO_RUNNER = "no runner"  # that could begin a job


@dataclass(frozen=True, slots=True)
class Stop:
    """One of the reasons for which a lane starts nothing."""

    state: State
    why: str
    until: datetime | None = None  # the end of a hold; None: until an operator resumes it
    code: str = ""  # of those about runners, for programs


def is_alive(worker: Process, here: str, now: datetime) -> bool:
    """Whether a process is there: for sure on this host, `here`, and by when it was seen on others, or by the job that
    it holds: a runner says that it is there between jobs, and while it works the lease of its job says it."""
    dead = process.is_dead(worker.id, here)
    if dead is not None:
        return not dead
    return worker.job_id is not None or (now - worker.seen_at).total_seconds() < SEEN_SECONDS


def lane_off_in(config: Config, lane: str) -> str | None:
    """The configuration of this host, if it gives the lane no runner."""
    if any(kind == lane and settings.processes > 0 for kind, settings in config.lane.items()):
        return None
    return str(config.path) if config.path is not None else "the defaults"


def stops(lane: LaneRow, alive: Sequence[Process], now: datetime, off_in: str | None) -> list[Stop]:
    """Why a lane starts nothing at `now`, the one to act on first; empty if it starts jobs (as long as it is not full).
    `alive`: the processes that are there, of all hosts; `off_in` as `lane_off_in` has it."""
    found = []
    if lane.paused:
        found.append(Stop(State.PAUSED, lane.pause_reason or "no reason given"))
    if lane.hold_reason is not None and (lane.held_until is None or lane.held_until > now):
        found.append(Stop(State.HELD, lane.hold_reason, lane.held_until))
    if lane.cap == 0:
        found.append(Stop(State.CLOSED, "its cap is 0"))
    lacking = no_taker(lane.lane, alive, off_in)
    return [*found, lacking] if lacking is not None else found


def runners(lane: str, alive: Iterable[P]) -> list[P]:
    return [w for w in alive if w.role == WorkerRole.RUNNER and w.lane == lane]


def takers(lane: str, alive: Iterable[P], *, needs_agent: bool = True) -> list[P]:
    """The runners that take another job: not those that leave after the one in hand, and of those whose agent's program
    is not there only what an agent has ended."""
    there = runners(lane, alive)
    return [w for w in there if w.draining_since is None and (w.waits_for is None or not needs_agent)]


def no_taker(
    lane: str,
    alive: Sequence[Process],
    off_in: str | None,
    *,
    needs_agent: bool = True,
    named: bool = False,
) -> Stop | None:
    """Why nobody takes a job of the lane, if nobody does; with `named` the text tells which lane it is about."""
    if takers(lane, alive, needs_agent=needs_agent):
        return None
    there = runners(lane, alive)
    of_it = f" of lane {lane}" if named else ""
    if leaving := sorted({w.host for w in there if w.draining_since is not None}):
        return Stop(State.DRAINING, _draining(leaving, of_it, off_in), code="draining")
    if there:
        lacking = {w.host: w.waits_for for w in there}
        whys = "; ".join(f"on {host} {why}" for host, why in lacking.items())
        text = f"no runner{of_it} can start its agent: {whys}"
        return Stop(State.NO_RUNNER, text, code="agent_missing")
    if off_in is not None:
        text = f"not enabled in {off_in} of this host, and no runner of it is alive on another"
        return Stop(State.NO_RUNNER, f"lane {lane} is {text}" if named else text, code="lane_off")
    text = f"no runner{of_it} is alive on any host; start tireless-supervisor"
    if alive:
        hosts = ", ".join(sorted({w.host for w in alive}))
        text = f"no runner{of_it} is alive, though tireless runs on {hosts}; see that lane's log"
    return Stop(State.NO_RUNNER, text, code="no_runner")


def _draining(hosts: Sequence[str], of_it: str, off_in: str | None) -> str:
    enabled = f", with the lane enabled in {off_in}" if off_in is not None else ""
    return (
        f"every runner{of_it} drains (on {', '.join(hosts)}): it finishes what it has, takes nothing new and leaves; "
        f"nothing starts until tireless-supervisor is started again{enabled}"
    )
