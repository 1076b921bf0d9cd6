"""FAULTS 15, 20 and 23 with the real poller, runners, agents and database (tests/lifecycle has stubs for them)."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.chaos.conftest import Make
from tests.support.chaos import HELD, Step, World, alive, frozen, kill, wait_dead
from tests.support.proxy import Proxy
from tireless import proctree
from tireless.entities import AgentKind, EventKind, JobState, Outcome
from tireless.process import Exit
from tireless.store import lanes

# Deaf to TERM, with a helper of its own session that is deaf too, and one that has wiped the job's mark besides.
STUBBORN: tuple[Step, ...] = (
    {"do": "ignore_term"},
    {"do": "spawn", "seconds": 300, "pid_file": "$HOME/helper"},
    {"do": "spawn", "seconds": 300, "pid_file": "$HOME/unmarked", "environment": False},
    *HELD,
)


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_fault_15_a_killed_supervisor_takes_agents_and_helpers_along_and_the_next_one_goes_on(
    make_world: Make, sandbox: str
) -> None:
    world = make_world(runners=2, tables={"sandbox": {"mode": sandbox}})
    world.poll_every(1)
    first = world.start()
    numbers = [world.ask(*STUBBORN), world.ask(*STUBBORN)]
    held = [world.agent_is_here(number) for number in numbers]
    tree = [first.pid, *proctree.descendants(first.pid)]
    assert len(tree) >= 4 + 2 * 4  # supervisor, poller, runners; guard, agent and helpers of each

    first.send(signal.SIGKILL)
    wait_dead(*tree, seconds=5)

    second = world.start(wait=False)
    world.until(lambda: "supervisor starts" in second.said(), 30, "Python has come up")
    began = time.monotonic()
    for job in held:
        again = world.wait_claimed_anew(job, job.claim_seq, seconds=20)
        assert again.attempts == 2
    assert time.monotonic() - began < 5 * slowness(), "claims were not taken back at once"
    for job in held:
        world.until(lambda job=job: len(world.starts(job)) == 2, what="a second start")  # type: ignore[misc]
        world.let_agent_go(job)
    for number in numbers:
        done = world.assert_delivered_once(number)
        assert EventKind.RELEASED in world.kinds(done)
        assert [run.outcome for run in world.runs(done)] == [Outcome.CRASHED, Outcome.COMPLETED]
    world.assert_nothing_held()


def test_fault_15_what_even_the_guard_did_not_end_is_dead_before_its_job_is_claimed(make_world: Make) -> None:
    """Supervisor, runner and guard are killed in one moment; a helper with the job's mark is left on the machine."""
    world = make_world(tables={"sandbox": {"mode": "none"}})
    world.poll_every(1)
    first = world.start()
    number = world.ask(STUBBORN[1], *HELD)
    job = world.agent_is_here(number)
    helper = int((world.home(job) / "helper").read_text())
    tree = [first.pid, *proctree.descendants(first.pid)]
    with frozen(*tree):
        for pid in tree:
            if pid != helper:
                kill(pid)
    wait_dead(*(pid for pid in tree if pid != helper))
    assert alive(helper)

    second = world.start(wait=False)
    world.wait_claimed_anew(job, job.claim_seq)
    assert not alive(helper)
    assert "ending what a dead supervisor's agents left running count=1" in second.said()
    world.until(lambda: len(world.starts(job)) == 2, what="a second start")
    world.let_agent_go(job)
    world.assert_delivered_once(number)


def slowness() -> float:
    """How much later things happen here than on a machine that has nothing else to do; a bound counts in its time."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def children(world: World) -> set[int]:
    """The supervisor's own: poller and runners."""
    parent = world.supervisors[-1].pid
    found = set()
    for pid in proctree.descendants(parent):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as f:
            if int(f.read().rpartition(")")[2].split()[1]) == parent:
                found.add(pid)
    return found


def cap_of(world: World) -> int:
    with world.connection() as conn:
        return next(lane.cap for lane in lanes.all_lanes(conn) if lane.lane is AgentKind.CLAUDE_CODE)


def test_fault_20_a_reload_changes_caps_in_rows_and_processes_and_agents_stay(make_world: Make) -> None:
    world = make_world(runners=2, cap=1)
    world.poll_every(1)
    supervisor = world.start()
    before = children(world)
    assert len(before) == 3
    first = world.agent_is_here(world.ask(*HELD))
    second = world.ask(*HELD)
    world.wait_job(second, JobState.PENDING)
    running = set(world.agents(first))

    config = world.reconfigure(runners=2, cap=2, tables={})
    supervisor.send(signal.SIGHUP)
    world.agent_is_here(second)  # the other runner may have it now
    assert cap_of(world) == 2

    config.write_text(config.read_text().replace("cap = 2", "cap = -4"))
    supervisor.send(signal.SIGHUP)
    refused = "configuration refused, the old one stays: "
    world.until(lambda: refused in supervisor.said(), 10, "the bad file is refused")
    assert "cap is -4" in supervisor.said()
    assert cap_of(world) == 2

    world.reconfigure(runners=2, cap=1, tables={})
    supervisor.send(signal.SIGHUP)
    world.until(lambda: cap_of(world) == 1, 10, "a good file again")
    world.until(lambda: supervisor.said().count("configuration read again") == 2, 10, "read twice")
    world.until(lambda: children(world) == before, 10, "the errand has left, and all others are who they were")
    assert set(world.agents(first)) == running
    for number in (first.issue.number, second):  # over the cap now, but nobody is cut off
        world.let_agent_go(world.job(number))
        assert world.assert_delivered_once(number).attempts == 1
    assert [line for line in supervisor.said().splitlines() if " ERROR " in line and refused not in line] == []


@pytest.fixture
def absent(database_url: str) -> Iterator[Proxy]:
    """The database, not yet there."""
    with Proxy(database_url, up=False) as proxy:
        yield proxy


def test_fault_23_postgres_down_at_the_start_is_waited_for_and_then_69(make_world: Make, absent: Proxy) -> None:
    world = make_world(absent.url, tables={"database": {"start_timeout_seconds": 2}})
    supervisor = world.start(wait=False)
    began = time.monotonic()
    assert supervisor.wait(15) == Exit.NO_DATABASE
    assert time.monotonic() - began > 2
    said = [line for line in supervisor.said().splitlines() if "database" in line]
    assert len([line for line in said if "database unreachable, trying again" in line]) == 1, said
    assert not (world.state_dir() / "work").exists()


def test_fault_23_postgres_that_comes_up_in_time_is_used(make_world: Make, absent: Proxy) -> None:
    world = make_world(absent.url, tables={"database": {"start_timeout_seconds": 30}})
    supervisor = world.start(wait=False)
    world.until(lambda: "database unreachable, trying again" in supervisor.said(), 15, "it waits")
    absent.up()
    world.until(lambda: "ready: " in supervisor.said(), 15, "it goes on")
    world.poll_every(1)
    world.assert_delivered_once(world.ask())
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait() == Exit.DRAINED
