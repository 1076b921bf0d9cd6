"""Agent time is paid once: whoever dies, and wherever, the job goes on to the same single pull request.

At each boundary between two phases a runner dies twice: just before the boundary is written to the row (the
phase is done over), and just after (the next claimant begins with the next phase). A supervisor dies just before.
"""

from __future__ import annotations

import signal

import pytest

from tests.chaos.conftest import Make
from tests.support.chaos import HELD, Gate, Step, alive, frozen, kill, wait_dead
from tireless.agents import runfiles
from tireless.entities import EventKind, JobState, Outcome, Phase

BOUNDARIES = [Phase.AGENT, Phase.VERIFY, Phase.PUSH, Phase.ANNOUNCE, Phase.DONE]


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_paid_once_when_a_runner_is_killed_at_a_boundary(
    make_world: Make, database_url: str, boundary: Phase
) -> None:
    world = make_world()
    world.poll_every(1)
    with Gate.at_phase(database_url, boundary) as gate:
        world.start()
        number = world.ask()
        backend = gate.caught()
        job = world.job(number)
        kill(world.holder(job))
        gate.roll_back(backend)  # it died before the row said so
        backend = gate.caught()
        again = world.job(number)
        assert again.claim_seq > job.claim_seq
        kill(world.holder(again))
        gate.open()  # it died after the row said so, or with the row saying so
        done = world.assert_delivered_once(number)
    assert len(world.starts(done)) == 1
    assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    world.assert_nothing_held()


def test_paid_once_when_the_supervisor_is_killed_at_each_boundary(make_world: Make, database_url: str) -> None:
    """One job, and a supervisor that is killed at each of its boundaries in turn; its children go with it."""
    world = make_world()
    world.poll_every(1)
    number = world.ask()
    for boundary in BOUNDARIES:
        with Gate.at_phase(database_url, boundary) as gate:
            supervisor = world.start()
            backend = gate.caught()
            runner = world.holder(world.job(number))
            supervisor.send(signal.SIGKILL)
            wait_dead(supervisor.pid, runner)
            gate.roll_back(backend)
    world.start()
    done = world.assert_delivered_once(number)
    assert done.claim_seq == len(BOUNDARIES) + 1
    assert len(world.starts(done)) == 1
    assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    world.assert_nothing_held()


def test_paid_once_when_a_runner_is_killed_in_the_agent_run(make_world: Make) -> None:
    """The agent is cut off half-way: its own session is resumed, and does the half that is left."""
    world = make_world()
    world.poll_every(1)
    world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    kill(world.holder(job))
    world.until(lambda: len(world.starts(job)) == 2, what="a second start")
    world.let_agent_go(job)
    done = world.assert_delivered_once(number)
    first, second = world.starts(done)
    assert (first["resume"], second["resume"]) == (False, True)
    assert first["session"] == second["session"]
    notes = world.forge.git().git("show", f"{done.branch}:notes.md")
    assert notes.split("\n") == ["first half", "second half"]
    assert [run.outcome for run in world.runs(done)] == [Outcome.CRASHED, Outcome.COMPLETED]
    world.assert_nothing_held()


def test_paid_once_when_the_supervisor_is_killed_in_the_agent_run(make_world: Make) -> None:
    world = make_world()
    world.poll_every(1)
    supervisor = world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    agents = world.agents(job)
    assert agents
    supervisor.send(signal.SIGKILL)
    wait_dead(supervisor.pid, *agents)
    world.start()
    world.until(lambda: len(world.starts(job)) == 2, what="a second start")
    world.let_agent_go(job)
    done = world.assert_delivered_once(number)
    first, second = world.starts(done)
    assert (second["resume"], second["session"]) == (True, first["session"])
    assert [run.outcome for run in world.runs(done)] == [Outcome.CRASHED, Outcome.COMPLETED]
    assert EventKind.RELEASED in world.kinds(done)
    world.assert_nothing_held()


def test_paid_once_when_the_agent_ends_while_nobody_watches(make_world: Make, database_url: str) -> None:
    """The agent finishes in the moment in which its runner dies: its conclusion is read from its files."""
    world = make_world()
    world.poll_every(1)
    world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    runner = world.holder(job)
    with Gate(database_url, "new.ended_at is not null", table="agent_run") as gate:
        world.let_agent_go(job)
        backend = gate.caught()
        kill(runner)
        gate.roll_back(backend)
        gate.open()
        done = world.assert_delivered_once(number)
    assert not alive(runner)
    assert len(world.starts(done)) == 1
    assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    world.assert_nothing_held()


def test_paid_once_when_the_claim_is_lost_behind_an_agent_that_has_ended_its_work(make_world: Make) -> None:
    """It has said its last word, and not left yet, when its runner is stopped for longer than the lease: what that
    finds when it goes on is not its to record, and whoever has the job next concludes the run."""
    lease: dict[str, object] = {"seconds": 3.0, "renew_seconds": 0.5, "margin_seconds": 1.0}
    world = make_world(tables={"lease": lease})
    world.poll_every(1)
    world.start()
    write: Step = {"do": "write", "path": "a.txt", "text": "a\n"}
    number = world.ask(write, {"do": "done", "summary": "Done."}, {"do": "linger"})
    job = world.wait_job(number, JobState.RUNNING)
    streams = f"work/{job.id}/run/*/{runfiles.EVENTS}"
    said = "its last word"
    world.until(lambda: any(b'"result"' in p.read_bytes() for p in world.state_dir().glob(streams)), 30, said)
    with frozen(world.holder(world.job(number))):
        world.wait_job(number, JobState.PENDING)
    done = world.assert_delivered_once(number)
    assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    assert len(world.starts(done)) == 1
    world.assert_nothing_held()
