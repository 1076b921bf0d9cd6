"""The poller and the runners: who should be there, who is, and when the next one is started.

A place (`Slot`) is filled by one child after another. It goes round in one order:

    due -> live -> cleaning (what the child left is being killed) -> releasing (its claims) -> due
"""

from __future__ import annotations

import logging
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from tireless.config import Config, SupervisorConfig
from tireless.entities import AgentKind, WorkerRole
from tireless.supervisor.children import Child
from tireless.supervisor.restarts import Restarts

log = logging.getLogger(__name__)

NO_PROCESS_DELAY_SECONDS = 5.0  # after a fork that failed: the machine is full, which is no fault of the child


class State(Enum):
    DUE = "due"
    LIVE = "live"
    CLEANING = "cleaning"
    RELEASING = "releasing"


@dataclass(eq=False, slots=True)
class Slot:
    role: WorkerRole
    lane: AgentKind | None = None
    index: int = 0
    state: State = State.DUE
    child: Child | None = None
    due: float = 0.0  # monotonic; not started before
    retired: bool = False  # not filled again: the configuration has fewer runners now
    restarts: Restarts = field(default_factory=Restarts)
    last_worker: str = ""
    last_end: str | None = None  # how the last one ended, if its claims are to be released

    @property
    def name(self) -> str:
        return f"runner {self.lane} {self.index}" if self.lane is not None else str(self.role)


class Fleet:
    """`spawn` forks the child of a slot; `release` has a dead worker's claims released (worker, why, what to
    call after the first try)."""

    def __init__(
        self,
        spawn: Callable[[Slot], Child],
        release: Callable[[str, str, Callable[[], None]], None],
    ) -> None:
        self._spawn = spawn
        self._release = release
        self.slots: list[Slot] = []
        self.closing = False  # nothing is started any more
        self.cut = False  # a runner was cut off, or ended in the middle, while closing
        self.tripped: set[AgentKind] = set()
        self.poller_tripped = False

    # -- who is there -------------------------------------------------------------------------------------

    def children(self, role: WorkerRole | None = None) -> Iterator[Child]:
        for slot in self.slots:
            if slot.child is not None and role in (None, slot.role):
                yield slot.child

    @property
    def empty(self) -> bool:
        """No child lives, and nothing of a dead one is left to kill."""
        return not any(slot.state in (State.LIVE, State.CLEANING) for slot in self.slots)

    @property
    def without_runners(self) -> bool:
        return not any(
            slot.role is WorkerRole.RUNNER and slot.state in (State.LIVE, State.CLEANING) for slot in self.slots
        )

    @property
    def cleaning(self) -> bool:
        return any(slot.state is State.CLEANING for slot in self.slots)

    @property
    def ready(self) -> bool:
        """The poller is ready, and each runner of each lane that has not tripped."""
        wanted = [slot for slot in self.slots if not slot.retired and slot.lane not in self.tripped]
        return bool(wanted) and all(slot.child is not None and slot.child.ready for slot in wanted)

    def summary(self) -> str:
        """One line for people."""
        parts = []
        for lane in (None, *AgentKind):
            slots = [slot for slot in self.slots if slot.lane == lane and not slot.retired]
            if slots:
                ready = sum(1 for slot in slots if slot.child is not None and slot.child.ready)
                trip = " tripped" if lane in self.tripped else ""
                parts.append(f"{lane or 'poller'} {ready}/{len(slots)}{trip}")
        return ", ".join(parts)

    def report(self, now: float, level: int) -> None:
        """One log line a place."""
        for slot in self.slots:
            child = slot.child
            if child is None:
                log.log(level, "status: %s is not running state=%s", slot.name, slot.state.value)
                continue
            word = "leaving" if child.leaving else "ready" if child.ready else "starting"
            log.log(
                level,
                "status: %s is %s pid=%d up=%.0fs beat=%.1fs_ago quick_deaths=%d",
                slot.name,
                word,
                child.pid,
                now - child.born,
                now - child.last_beat,
                slot.restarts.quick,
            )

    # -- who should be there ------------------------------------------------------------------------------

    def fit(self, config: Config, now: float) -> None:
        """One poller, `processes` runners a lane. Tripped lanes get another try."""
        self.tripped.clear()
        for slot in self.slots:
            slot.restarts.quick = 0
            if slot.state is State.DUE:
                slot.due = now
        if not any(slot.role is WorkerRole.POLLER for slot in self.slots):
            self.slots.append(Slot(WorkerRole.POLLER))
        for lane, settings in config.lane.items():
            self._fit_lane(lane, settings.processes, config.supervisor, now)

    def _fit_lane(self, lane: AgentKind, wanted: int, policy: SupervisorConfig, now: float) -> None:
        there = [slot for slot in self.slots if slot.lane is lane]
        active = sorted((slot for slot in there if not slot.retired), key=lambda slot: slot.index)
        for slot in active[wanted:]:
            slot.retired = True
            if slot.child is not None:
                slot.child.drain(now, policy.drain_seconds)
        taken = {slot.index for slot in there}
        free = (index for index in range(len(there) + wanted) if index not in taken)
        for _ in range(wanted - len(active)):
            self.slots.append(Slot(WorkerRole.RUNNER, lane, next(free)))
        self._drop_retired()

    def _drop_retired(self) -> None:
        self.slots = [slot for slot in self.slots if not (slot.retired and slot.state is State.DUE)]

    def start_due(self, now: float) -> None:
        if self.closing:
            return
        for slot in self.slots:
            if self._may_start(slot) and slot.due <= now:
                try:
                    slot.child = self._spawn(slot)
                except OSError as e:
                    log.error("no process for %s: %s", slot.name, e.strerror)
                    slot.due = now + NO_PROCESS_DELAY_SECONDS
                    continue
                slot.state = State.LIVE
                log.info("started %s pid=%d", slot.name, slot.child.pid)

    def _may_start(self, slot: Slot) -> bool:
        return slot.state is State.DUE and not slot.retired and slot.lane not in self.tripped

    # -- what becomes of them -----------------------------------------------------------------------------

    def listen(self, now: float) -> None:
        for child in self.children():
            child.listen(now)

    def judge(self, now: float, policy: SupervisorConfig) -> None:
        """Abort who hangs, kill who does not get ready, keep the word given to those who were told to leave."""
        for child in self.children():
            child.keep_word(now, policy.stop_grace_seconds)
            if not child.ready:
                if now - child.born > policy.ready_seconds and not child.leaving:
                    self._log_kill(child, f"not ready within {policy.ready_seconds:g} s")
                    child.kill(f"not ready within {policy.ready_seconds:g} s")
            elif now - child.last_beat > policy.beat_seconds and not child.why:
                why = f"no beat for {policy.beat_seconds:g} s"
                self._log_kill(child, why)
                child.abort(now, why)

    def _log_kill(self, child: Child, why: str) -> None:
        if not child.why:
            log.error("%s hangs and is killed: %s pid=%d", child.name, why, child.pid)

    def forgive(self, seconds: float) -> None:
        for child in self.children():
            child.forgive(seconds)

    def ended(self, pid: int, status: int, now: float, policy: SupervisorConfig) -> bool:
        """Whether `pid` was one of ours; if so, what is to be done about its end is noted."""
        slot = next((s for s in self.slots if s.child is not None and s.child.pid == pid), None)
        if slot is None or slot.child is None:
            return False
        child, slot.child = slot.child, None
        child.listen(now)
        child.close()
        code = os.waitstatus_to_exitcode(status)
        why = child.describe_end(status)
        slot.state = State.CLEANING
        slot.last_worker = child.worker
        slot.last_end = why if code != 0 else None  # one that left with 0 has given back what it held
        if self.closing and slot.role is WorkerRole.RUNNER:
            self.cut = self.cut or code != 0 or child.was_stopped
        if child.leaving or self.closing:
            log.info("%s has left: %s pid=%d", slot.name, why, pid)
        else:
            self._plan_restart(slot, child, why, code, now, policy)
        return True

    def _plan_restart(
        self, slot: Slot, child: Child, why: str, code: int, now: float, policy: SupervisorConfig
    ) -> None:
        lived = now - child.born
        delay = slot.restarts.ended(lived, code == 0 and child.ready, policy)
        slot.due = now + delay * random.uniform(0.8, 1.2)
        log.log(
            logging.INFO if code == 0 else logging.WARNING,
            "%s ended: %s pid=%d lived=%.1fs restart_in=%.1fs",
            slot.name,
            why,
            child.pid,
            lived,
            slot.due - now,
        )
        if slot.restarts.tripped(policy):
            self._trip(slot, why, now, policy)

    def _trip(self, slot: Slot, why: str, now: float, policy: SupervisorConfig) -> None:
        if slot.lane is None:
            self.poller_tripped = True
            log.error(
                "the poller crash-loops: %d quick deaths in a row, the last: %s", slot.restarts.quick, why
            )
        elif slot.lane not in self.tripped and not self._lives_well(slot.lane, now, policy):
            self.tripped.add(slot.lane)
            log.error(
                "lane %s tripped: %d quick deaths in a row, the last: %s; HUP tries again",
                slot.lane,
                slot.restarts.quick,
                why,
            )

    def _lives_well(self, lane: AgentKind, now: float, policy: SupervisorConfig) -> bool:
        """Whether some runner of the lane does live: then it is not the lane that is broken."""
        return any(
            slot.lane is lane and slot.child is not None and now - slot.child.born >= policy.healthy_seconds
            for slot in self.slots
        )

    def cleaned(self) -> None:
        """Nothing is left of those that have ended: their claims can be released."""
        for slot in self.slots:
            if slot.state is not State.CLEANING:
                continue
            if slot.last_end is None:
                slot.state = State.DUE
            else:
                slot.state = State.RELEASING
                self._release(slot.last_worker, slot.last_end, partial(self._released, slot))
        self._drop_retired()

    def _released(self, slot: Slot) -> None:
        if slot.state is State.RELEASING:
            slot.state = State.DUE
            self._drop_retired()

    # -- taking them down ---------------------------------------------------------------------------------

    def drain(self, role: WorkerRole, now: float, seconds: float) -> None:
        for child in self.children(role):
            child.drain(now, seconds)

    def stop(self, now: float, grace: float) -> None:
        for child in self.children():
            child.stop(now, grace)

    def kill(self, why: str) -> None:
        for child in self.children():
            child.kill(why)

    def reload(self, now: float) -> None:
        """Each reads its configuration again, and counts as heard: it has kept to what the old one asked of it."""
        for child in self.children():
            if not child.leaving:
                child.last_beat = now
                child.send(signal.SIGHUP)

    def deadlines(self) -> list[float]:
        """When something is to be done next."""
        times = [when for child in self.children() for when in child.deadlines()]
        if not self.closing:
            times += [slot.due for slot in self.slots if self._may_start(slot)]
        return times
