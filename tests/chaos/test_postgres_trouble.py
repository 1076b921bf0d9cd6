"""Postgres in trouble: every backend terminated, out of connections, read-only, slow. Processes stay, say so
once, try again at a bounded rate, and go on by themselves."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from itertools import pairwise

import psycopg
import pytest

from tests.chaos.conftest import Make
from tests.support import postgres
from tests.support.chaos import HELD, World
from tests.support.proxy import Proxy
from tests.support.wait import wait_until
from tireless.entities import JobState, Outcome
from tireless.store.queries import Connection

COMPLAINT = re.compile(r"^(?:WARNING|ERROR) [a-z_ 0-9]+\[(\d+)\] ")


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Server]:
    """A server of one's own: what is done to it here is done to all of it."""
    with postgres.embedded() as url:
        found = postgres.Server(url)
        found.make_template()
        yield found


@pytest.fixture
def url(server: postgres.Server) -> Iterator[str]:
    with server.database() as url:
        yield url


def complaints(world: World, since: int) -> dict[str, int]:
    """Warnings about the database since that offset of the log, by the process that gave them."""
    found: dict[str, int] = {}
    for line in world.supervisors[0].said()[since:].splitlines():
        said = COMPLAINT.match(line)
        if said and ("listening connection lost" in line or "database unreachable" in line or "pool" in line):
            found[said[1]] = found.get(said[1], 0) + 1
    return found


def children_that_ended(world: World) -> list[str]:
    return [line for line in world.supervisors[0].said().splitlines() if " ended: " in line]


def test_postgres_every_backend_terminated_again_and_again(make_world: Make, url: str) -> None:
    world = make_world(url, runners=2)
    world.poll_every(1)
    supervisor = world.start()
    numbers = [world.ask(*HELD), world.ask(*HELD)]
    held = [world.agent_is_here(number) for number in numbers]
    ours = "from pg_stat_activity where application_name like 'tireless%'"
    cut = f"select count(pg_terminate_backend(pid, 2000)) {ours}"
    back = f"select count(distinct application_name) >= 3 {ours}"
    for _ in range(3):
        world.until(lambda: world.row(back)[0], 20, "connections are back")
        assert world.row(cut)[0] > 0
    for job in held:
        world.let_agent_go(job)
    for number in numbers:
        done = world.assert_delivered_once(number)
        assert (done.attempts, done.claim_seq) == (1, 1)
        assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    assert children_that_ended(world) == []
    assert supervisor.process.poll() is None
    world.assert_nothing_held()


def test_postgres_away_is_knocked_at_seldom_and_said_once(make_world: Make, url: str) -> None:
    with Proxy(url) as proxy:
        world = make_world(proxy.url, runners=2)
        world.poll_every(1)
        world.start()
        job = world.agent_is_here(world.ask(*HELD))
        since = len(world.supervisors[0].said())
        proxy.refusing = True
        proxy.knocks.clear()
        proxy.cut()
        wait_until(
            lambda: proxy.knocks and proxy.knocks[-1] - proxy.knocks[0] > 4, 20, "four seconds of knocking"
        )
        knocks = sorted(proxy.knocks)
        spoken = complaints(world, since)
        proxy.refusing = False
        world.let_agent_go(job)
        done = world.assert_delivered_once(job.issue.number)
        assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    # The poller's listener, its pool and its threads; two runners and a lease: not one of them in a tight loop, and
    # not all of them in step.
    assert len(knocks) < 6 * 4 * 3, len(knocks)
    gaps = [b - a for a, b in pairwise(knocks)]
    assert sum(gap > 0.01 for gap in gaps) > len(gaps) / 2
    assert spoken
    assert max(spoken.values()) <= 2, world.supervisors[0].said()[since:]
    assert children_that_ended(world) == []


@contextlib.contextmanager
def all_connections(url: str, mine: Connection) -> Iterator[None]:
    """Every connection of the server is taken, tireless's own too."""
    ours = "from pg_stat_activity where application_name like 'tireless%'"
    with contextlib.ExitStack() as stack:

        def squeeze() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                while True:
                    stack.enter_context(contextlib.closing(psycopg.connect(url, autocommit=True)))
            mine.execute(f"select pg_terminate_backend(pid, 2000) {ours}".encode())
            return mine.execute(f"select count(*) {ours}".encode()).fetchone() == (0,)

        wait_until(squeeze, 20, "nothing is left for tireless")
        yield


def test_postgres_out_of_connections(make_world: Make, url: str) -> None:
    world = make_world(url, runners=1)
    world.poll_every(1)
    supervisor = world.start()
    job = world.agent_is_here(world.ask(*HELD))
    before = len(supervisor.said())
    with psycopg.connect(url, autocommit=True) as mine, all_connections(url, mine):
        wait_until(lambda: len(complaints(world, before)) >= 2, 20, "poller and runner say it")
        since = len(
            supervisor.said()
        )  # each connection that came back and was cut again was an outage of its own
        world.let_agent_go(job)
        wait_until(lambda: not world.agents(job), 20, "the agent has ended")
    done = world.assert_delivered_once(job.issue.number)
    assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    assert (done.attempts, done.claim_seq) == (1, 1)
    assert children_that_ended(world) == []
    assert max(complaints(world, since).values(), default=0) <= 2, supervisor.said()[since:]
    later = world.ask()
    world.assert_delivered_once(later)


def set_read_only(conn: Connection, on: bool) -> None:
    """As after a failover to a node that only follows: who is connected gets 25006 for each write."""
    conn.execute(f"alter system set default_transaction_read_only = {'on' if on else 'off'}".encode())
    conn.execute("select pg_reload_conf()")
    wait_until(lambda: conn.execute("show default_transaction_read_only").fetchone() == (["off", "on"][on],), 5)


def test_postgres_read_only_for_a_while(make_world: Make, url: str) -> None:
    world = make_world(url, runners=1)
    world.poll_every(1)
    supervisor = world.start()
    job = world.agent_is_here(world.ask(*HELD))
    since = len(supervisor.said())
    with psycopg.connect(url, autocommit=True) as conn:
        set_read_only(conn, True)
        try:
            waiting = world.ask()
            world.let_agent_go(job)
            said = "cannot execute"
            wait_until(
                lambda: len(re.findall(said, supervisor.said()[since:])) >= 2, 20, "poller and runner say why"
            )
            assert world.job(job.issue.number).state is JobState.RUNNING
        finally:
            set_read_only(conn, False)
    for number in (job.issue.number, waiting):
        done = world.assert_delivered_once(number)
        assert (done.attempts, done.claim_seq) == (1, 1)
    assert children_that_ended(world) == []
    assert max(complaints(world, since).values()) <= 3, supervisor.said()[since:]


def test_postgres_two_hundred_milliseconds_away(make_world: Make, url: str) -> None:
    with Proxy(url) as proxy:
        world = make_world(proxy.url)
        world.poll_every(1)
        world.start()
        proxy.round_trip = 0.2
        number = world.ask()
        seen = "select state from job"
        with psycopg.connect(url, autocommit=True) as near:
            wait_until(lambda: near.execute(seen).fetchone() == ("delivered",), 40, "delivered all the same")
            waiting = "select count(*) from forge_write where state = 'waiting'"
            wait_until(lambda: near.execute(waiting).fetchone() == (0,), 20, "the forge knows")
        proxy.round_trip = 0
        done = world.assert_delivered_once(number)
        assert (done.attempts, done.claim_seq) == (1, 1)
        assert children_that_ended(world) == []
        assert not complaints(world, 0)
