"""FAULTS 26 and 28: a forge that is away from the push on, and one whose answers are broken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.conftest import Make
from tests.support import forge as fakes
from tests.support import postgres
from tests.support.chaos import Gate, World
from tireless.entities import JobState, Outcome, Phase

TOLD = r"^(POST|PATCH|PUT|DELETE) .*/(pulls|issues/\d+/(comments|labels)|issues/comments)"


def told(world: World) -> list[str]:
    """What the forge was told with success, in order: the last word of the path says which kind of thing."""
    words = []
    for asked in world.forge.asked(TOLD):
        if asked.status is not None and asked.status < 300:
            parts = asked.path.split("/")
            last = next(word for word in reversed(parts) if word in ("pulls", "comments", "labels"))
            words.append(f"{asked.method} {last}")
    return words


def hurry(world: World) -> None:
    """Time passes: what waits for a later try is due now."""
    world.row("with j as (update job set run_at = now() where state = 'pending') select 1")
    world.row("with w as (update forge_write set next_try_at = now() where state = 'waiting') select 1")
    world.poke()


@pytest.mark.parametrize(("gone_before", "kind"), [(Phase.PUSH, "gitea"), (Phase.ANNOUNCE, "github")])
def test_fault_26_a_forge_that_is_down_gets_everything_once_and_in_order_when_it_is_back(
    make_world: Make, database_url: str, gone_before: Phase, kind: str
) -> None:
    world = make_world(kind=kind)
    world.poll_every(1)
    with Gate.at_phase(database_url, gone_before) as gate:
        supervisor = world.start()
        number = world.ask()
        gate.caught()
        started = told(world)
        world.forge.down()
        gate.open()
        if gone_before is Phase.PUSH:
            job = world.wait_job(number, JobState.PENDING)
            assert (job.phase, job.attempts) == (Phase.PUSH, 0)
            assert job.last_error is not None
            assert "cannot be reached" in job.last_error
        else:
            job = world.wait_job(number, JobState.DELIVERED)
            waiting = "select count(*) from forge_write where state = 'waiting' and last_error is not null"
            world.until(lambda: world.row(waiting) == (1,), what="the first write is tried, and delayed")
        # The issue still wears its label. Polls that fail start nothing, nor does the first one that succeeds.
        failing = "select poll_failures from tracked_repo"
        world.until(lambda: world.row(failing)[0] > 0, what="polls fail")
        world.forge.up()
        hurry(world)
        done = world.assert_delivered_once(number)
    polled = "select 1 from tracked_repo where poll_failures = 0 and last_polled_at > %s"
    world.poke()
    world.until(lambda: world.row(polled, done.finished_at), what="a poll after the end")
    assert len(world.jobs(number)) == 1
    assert len(world.starts(done)) == 1
    assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    assert done.branch in world.forge.git().branches()
    after = told(world)[len(started) :]
    order = [word.split()[1] for word in after]
    assert order[:2] == ["pulls", "comments"], after
    assert set(order[2:]) == {"labels"}, after
    assert after[-1] == "DELETE labels"
    assert supervisor.process.poll() is None
    world.assert_nothing_held()


# -- broken answers -----------------------------------------------------------------------------------------

BROKEN: dict[str, dict[str, object]] = {
    "HTML": {"status": 200, "body": b"<html><body>Please log in</body></html>"},
    "an error page": {"status": 404, "body": b"<html>nothing here</html>"},
    "truncated JSON": {"status": 200, "body": b'[{"number": 1, "title": "x'},
    "null rows": {"status": 200, "body": b"[null, null]"},
    "another shape": {"status": 200, "body": b'{"message": "what?"}'},
    "rows without numbers": {"status": 200, "body": b'[{"title": "x", "labels": null}]'},
    "too long": {"status": 200, "body": b"[" + b" " * (11 * 1024 * 1024) + b"]"},
    "a length that is none": {"headers": {"Content-Length": "7"}},
    "another origin": {"status": 302, "headers": {"Location": "ELSEWHERE"}},
}


@pytest.fixture(scope="module")
def polled(pg_server: postgres.Server) -> Iterator[World]:
    """A poller with two repositories of one forge: acme/site, and acme/other beside it."""
    with pg_server.database() as url, World(url, runners=0, cap=0) as world:
        world.forge.add_repo("acme/other")
        world.poll_every(3600)
        world.poll_every(3600, "acme/other")
        world.start()
        yield world


def result_of(world: World, repo: str = "site") -> tuple[str, int, str]:
    found: tuple[str, int, str] = world.row(
        "select poll_result, poll_failures, poll_detail from tracked_repo where repo = %s", repo
    )
    return found


@pytest.mark.parametrize("how", BROKEN)
def test_fault_28_a_broken_answer_is_that_repositorys_trouble_alone_and_passes(polled: World, how: str) -> None:
    world = polled
    with fakes.start("gitea") as elsewhere:
        order = dict(BROKEN[how])
        if how == "another origin":
            order["headers"] = {"Location": f"{elsewhere.api_url}/repos/acme/site/issues"}
        world.forge.fail(None, match="repos/acme/site/issues", **order)
        waiting = world.forge.open_issue("Behind the broken answer", labels=["tireless"], repo="acme/site")
        other = world.forge.open_issue("Elsewhere", labels=["tireless"], repo="acme/other")
        world.poke()
        world.until(lambda: result_of(world)[0] == "broken", 15, f"recorded as broken: {how}")
        assert result_of(world)[2]
        query = "select 1 from job where repo = 'other' and number = %s"
        world.until(lambda: world.row(query, other), 10, "the other repository goes on")
        assert world.row("select count(*) from job where repo = 'site' and number = %s", waiting) == (0,)
        assert elsewhere.requests == []
    world.forge.clear_faults()
    world.poke()
    world.until(lambda: result_of(world)[:2] == ("changed", 0), 10, "it recovers")
    assert world.row("select count(*) from job where repo = 'site' and number = %s", waiting) == (1,)
    assert world.row("select count(*) from forge_write where state = 'refused'") == (0,)
    assert children_that_ended(world) == []


def test_fault_28_a_list_that_lacks_an_issue_withdraws_nobody(polled: World) -> None:
    """Rows move between the pages of a list while it is read; an issue that is missing there is asked itself."""
    world = polled
    number = world.forge.open_issue("Here all the time", labels=["tireless"], repo="acme/site")
    world.poke()
    world.until(lambda: world.row("select 1 from job where repo = 'site' and number = %s", number))
    asked = rf"GET .*acme/site/issues/{number}$"
    world.forge.fail(1, match=r"GET .*acme/site/issues\?", status=200, body=b"[]")
    world.poke()
    world.until(lambda: world.forge.asked(asked), what="the issue itself is looked at")
    world.poke()
    world.until(lambda: result_of(world)[:2] == ("changed", 0), 10, "the whole list again")
    states = world.row("select array_agg(state) from job where repo = 'site' and number = %s", number)
    assert states == (["pending"],)
    world.forge.unlabel(number, "tireless", repo="acme/site")
    world.poke()
    world.until(lambda: world.row("select 1 from job where number = %s and state = 'abandoned'", number))


def children_that_ended(world: World) -> list[str]:
    return [line for line in world.supervisors[-1].said().splitlines() if " ended: " in line]


def test_fault_28_slow_bytes_hold_up_no_other_repository(polled: World) -> None:
    world = polled
    world.forge.fail(None, match="repos/acme/site/issues", slow=1.0)
    world.forge.open_issue("Drop by drop", labels=["tireless"], repo="acme/site")
    before = len(world.forge.asked("repos/acme/other/issues"))
    world.poke()
    world.until(
        lambda: (
            len(world.forge.asked("repos/acme/site/issues")) and len(world.forge.asked("other/issues")) > before
        ),
        10,
        "the other one is polled meanwhile",
    )
    world.forge.clear_faults()
    world.forge.down()  # cuts what still drips
    world.forge.up()
