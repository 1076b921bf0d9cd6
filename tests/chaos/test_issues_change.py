"""FAULT 27: the issue changes between poll and start, during the run, and just before delivery.

Five issues at a time, one for each change: closed, unlabelled, edited, transferred, made a pull request.
"""

from __future__ import annotations

import json

import pytest

from tests.chaos.conftest import Make
from tests.support.chaos import HELD, Gate, Step, World
from tests.support.forge.state import Pull
from tireless.entities import AgentKind, Job, JobState, Outcome
from tireless.store import lanes

HOWS = ("closed", "unlabelled", "edited", "transferred", "made a pull request")
GONE = tuple(how for how in HOWS if how != "edited")
QUICKLY: tuple[Step, ...] = (
    {"do": "write", "path": "notes.md", "text": "noted\n"},
    {"do": "done", "summary": "Noted."},
)


@pytest.fixture
def world(make_world: Make) -> World:
    """GitHub, since only there can an issue be transferred; polled when the test says so."""
    world = make_world(kind="github", runners=5)
    world.forge.add_repo("acme/elsewhere")
    world.poll_every(3600)
    world.start()
    return world


def change(world: World, number: int, how: str) -> None:
    match how:
        case "closed":
            world.forge.close_issue(number)
        case "unlabelled":
            world.forge.unlabel(number, "tireless")
        case "edited":
            told = json.dumps({"steps": list(QUICKLY)})
            world.forge.edit_issue(number, title="Edited", body=f"In other words.\n\nscripted-agent: {told}")
        case "transferred":
            world.forge.transfer_issue(number, "acme/elsewhere")
        case _:
            world.forge.issue(number).pull = Pull("main", "main")
            world.forge.touch(world.forge.issue(number))


def ask_five(world: World, *steps: Step) -> dict[str, int]:
    numbers = {how: world.ask(*steps, title=f"To be {how}") for how in HOWS}
    world.poke()
    return numbers


def change_all(world: World, numbers: dict[str, int]) -> None:
    for how, number in numbers.items():
        change(world, number, how)


def assert_tidied(world: World, number: int, how: str, branches: int) -> Job:
    """Ended as withdrawn: nothing was pushed or proposed for it, and the issue wears no state."""
    job = world.wait_job(number)
    assert job.state is JobState.ABANDONED, world.report()
    assert len(world.jobs(number)) == 1
    assert world.agents(job) == []
    assert len(world.forge.git().branches()) == 1 + branches
    if how != "transferred":
        assert [name for name in world.forge.labels(number) if "/state/" in name] == []
        comments = [c.body for c in world.forge.comments(number)]
        assert len(comments) == 1, comments
        assert "withdrawn" in comments[0]
    return job


def test_fault_27_an_issue_that_changes_between_poll_and_start(world: World) -> None:
    with world.connection() as conn:
        lanes.pause(conn, AgentKind.CLAUDE_CODE, "for a moment")
    numbers = ask_five(world, *HELD)
    for number in numbers.values():
        world.wait_job(number, JobState.PENDING)
    world.wait_settled()
    change_all(world, numbers)  # no poll sees it
    with world.connection() as conn:
        lanes.resume(conn, AgentKind.CLAUDE_CODE)
    edited = world.assert_delivered_once(numbers["edited"])
    # The issue as it is, not as it was: that one would still wait.
    assert world.forge.git().read(str(edited.branch), "notes.md") == "noted"
    for how in GONE:
        job = world.wait_job(numbers[how])
        assert world.runs(job) == [], how
        assert world.starts(job) == []
    world.wait_settled()
    for how in GONE:
        # Nothing had been said on the issue, so that the comment is the first.
        assert_tidied(world, numbers[how], how, branches=1)
    world.assert_nothing_held()


def test_fault_27_an_issue_that_changes_during_the_run(world: World) -> None:
    numbers = ask_five(world, *HELD)
    held = {how: world.agent_is_here(number) for how, number in numbers.items()}
    change_all(world, numbers)
    world.poke()
    for how in GONE:
        world.wait_job(numbers[how])
    world.let_agent_go(held["edited"])
    world.assert_delivered_once(numbers["edited"])
    for how in GONE:
        job = assert_tidied(world, numbers[how], how, branches=1)
        assert [run.outcome for run in world.runs(job)] == [Outcome.STOPPED], how
    assert len(world.starts(held["edited"])) == 1  # what it was told at its start is what it does
    world.assert_nothing_held()


def test_fault_27_an_issue_that_changes_just_before_delivery(world: World, database_url: str) -> None:
    with Gate.at_phase(database_url, "push") as gate:
        numbers = ask_five(world, *QUICKLY)
        held = "select count(*) = 5 from pg_stat_activity where wait_event_type = 'Lock' and wait_event = 'advisory'"
        world.until(lambda: world.row(held)[0], what="five agents have ended, nothing is pushed")
        assert len(world.forge.git().branches()) == 1
        change_all(world, numbers)
        gate.open()
        world.assert_delivered_once(numbers["edited"])
        for how in GONE:
            job = world.wait_job(numbers[how])
            assert [run.outcome for run in world.runs(job)] == [Outcome.COMPLETED], how
        world.wait_settled()
    for how in GONE:
        assert_tidied(world, numbers[how], how, branches=1)
    assert [p.title for p in world.forge.pulls() if p.pull is not None and p.pull.head != "main"] == [
        "To be edited"
    ]
    world.assert_nothing_held()
