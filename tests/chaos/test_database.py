"""The database crashes, freezes, falls silent, becomes read-only, or belongs to another version."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from tests.chaos.conftest import Make
from tests.support.chaos import HELD, Gate, World, alive, frozen, wait_dead
from tests.support.database import OwnServer, Pooler, own_server
from tireless.entities import AgentKind, EventKind, JobState, Outcome
from tireless.store import lanes, workers

QUICK_DATABASE = {"database": {"connect_timeout_seconds": 2}}


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with own_server() as found:
        yield found


@pytest.fixture
def own_url(server: OwnServer) -> Iterator[str]:
    server.start()
    with server.database() as url:
        yield url
        server.start()


def database_of(url: str) -> str:
    return url.split("/")[3].split("?")[0]


def pids(world: World) -> dict[str, int]:
    """Poller and runners, by what they are called."""
    rows = world.rows("select role || coalesce(lane, ''), pid from worker where role in ('poller', 'runner')")
    return dict(rows)


def test_fault_03_a_crash_with_a_run_in_flight(make_world: Make, server: OwnServer, own_url: str) -> None:
    """The agent lives on, nobody dies, and the job goes on under the claim that it had."""
    world = make_world(own_url)
    world.poll_every(1)
    supervisor = world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    before, agents = pids(world), world.agents(job)
    server.crash()
    world.until(lambda: "listening connection lost" in supervisor.said(), what="it is noticed")
    world.let_agent_go(job)
    world.until(lambda: "database unreachable" in supervisor.said(), what="the end of the run is waited with")
    server.start()
    done = world.assert_delivered_once(number)
    assert (done.claim_seq, done.attempts) == (1, 1)
    assert len(world.starts(done)) == 1
    assert agents
    assert {name: alive(pid) for name, pid in before.items()} == dict.fromkeys(before, True)
    assert supervisor.said().count("listening again") >= 1
    world.assert_nothing_held()


def test_fault_03_a_crash_during_a_sweep(make_world: Make, server: OwnServer, own_url: str) -> None:
    """The sweep is cut off before it commits; the next one takes the job back, once."""
    world = make_world(own_url)
    world.poll_every(1)
    with world.connection() as conn:
        lanes.ensure(conn, AgentKind.CLAUDE_CODE, 0)
    world.start()
    number = world.ask()
    job = world.wait_job(number, JobState.PENDING)
    with Gate(own_url, "old.state = 'claimed' and new.state = 'pending'") as gate:
        with world.connection() as conn, conn.transaction():
            lanes.set_cap(conn, AgentKind.CLAUDE_CODE, 1)
            # Somebody of another host, who has vanished, holds it past its lease.
            conn.execute(
                "update job set state = 'claimed', claimed_by = 'elsewhere/x/1/1/1', claim_seq = 1, attempts = 1,"
                " claim_expires_at = now() - interval '1 hour', claimed_lane = 'claude_code', slot = 1"
                " where id = %s",
                (job.id,),
            )
            conn.execute("update lane_slot set job_id = %s where lane = 'claude_code' and slot = 1", (job.id,))
        gate.caught()
        server.crash()
        server.start()
    with world.connection() as conn:  # the gate went with its session; its trigger did not
        conn.execute(f"drop trigger if exists {gate.name} on job".encode())
    done = world.assert_delivered_once(number)
    assert world.kinds(done).count(EventKind.LEASE_EXPIRED) == 1
    assert done.claim_seq == 2
    assert len(world.starts(done)) == 1
    world.assert_nothing_held()


def test_fault_03_an_outage_longer_than_the_trust(make_world: Make, server: OwnServer, own_url: str) -> None:
    """The agent is killed while the lease still holds; once the database is back, the job goes on in its
    session, and no attempt is burnt."""
    world = make_world(own_url, tables={"lease": {"seconds": 4.0, "renew_seconds": 0.5, "margin_seconds": 2.0}})
    world.poll_every(1)
    world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    agents = world.agents(job)
    server.crash()
    wait_dead(*agents, seconds=4.0)  # of the lease: who is killed later may work beside another claimant
    server.start()
    world.until(lambda: len(world.starts(job)) == 2, what="it goes on")
    world.let_agent_go(job)
    done = world.assert_delivered_once(number)
    assert [s["resume"] for s in world.starts(job)] == [False, True]
    assert done.attempts == 1
    world.assert_nothing_held()


def test_fault_04_a_silent_listening_connection(make_world: Make, server: OwnServer, own_url: str) -> None:
    """The session that listens does not answer any more, though its socket is open: noticed within 15 s, said
    once, and the queue is looked at right after the reconnect."""
    world = make_world(own_url, tables={"runner": {"wake_seconds": 600.0}, **QUICK_DATABASE})
    world.poll_every(1)
    supervisor = world.start()
    runner = world.until(lambda: pids(world).get("runnerclaude_code"), what="the runner is registered")
    backend = listening_backend(world)
    with frozen(backend):
        number = world.ask()
        job = world.wait_job(number, JobState.PENDING)
        os.kill(runner, signal.SIGCHLD)  # wakes it, as any signal does: it looks, and gets no answer
        done = world.assert_delivered_once(number)
    assert done.id == job.id
    assert alive(runner)
    lost = [line for line in supervisor.said().splitlines() if "connection lost" in line and "runner" in line]
    assert len(lost) == 1, supervisor.said()


def listening_backend(world: World) -> int:
    worker = world.row("select id from worker where role = 'runner'")[0]
    name = workers.session_name(worker, "runner claude_code")
    return int(world.row("select pid from pg_stat_activity where application_name = %s", name)[0])


@pytest.mark.parametrize("how", ["deaf", "refuses_listen"])
def test_fault_04_notifications_do_not_arrive(
    make_world: Make, server: OwnServer, own_url: str, how: str
) -> None:
    """Behind a pooler: said once a process, and the queue is polled."""
    with Pooler(server.socket_path) as proxy:
        setattr(proxy, how, True)
        world = make_world(proxy.url(database_of(own_url)), tables=QUICK_DATABASE)
        world.poll_every(1)
        supervisor = world.start()
        world.assert_delivered_once(world.ask())
        runner = [line for line in supervisor.said().splitlines() if " runner " in line]
        warned = [line for line in runner if "notifications do not arrive" in line and "store.listen" in line]
        by_process = {line.split("[")[1].split("]")[0] for line in warned}
        assert by_process, supervisor.said()
        # A keeper has a listener of its own for each job; the runner's is said once.
        assert len(warned) <= 1 + 1, warned


def test_fault_04_a_claim_without_an_answer(make_world: Make, server: OwnServer, own_url: str) -> None:
    """The claim comes about and its answer does not: it is taken up, not left to stand until its lease ends."""
    with Pooler(server.socket_path) as proxy:
        world = make_world(proxy.url(database_of(own_url)), tables=QUICK_DATABASE)
        world.poll_every(1)
        direct = psycopg.connect(own_url, autocommit=True)
        lanes.ensure(direct, AgentKind.CLAUDE_CODE, 0)
        supervisor = world.start()
        number = world.ask()
        world.wait_job(number, JobState.PENDING)
        with Gate(own_url, "new.state = 'claimed'") as gate:
            lanes.set_cap(direct, AgentKind.CLAUDE_CODE, 1)
            gate.caught()
            proxy.muted = True
            gate.open()
            world.until(
                lambda: direct.execute("select from job where state = 'claimed'").fetchone() is not None,
                what="the claim has come about",
            )
            proxy.cut()
            proxy.muted = False
        direct.close()
        done = world.wait_job(number)
        assert done.state is JobState.DELIVERED
        assert (done.claim_seq, done.attempts) == (1, 1)
        assert "claimed without an answer" in supervisor.said()


def test_fault_13_failover_to_a_read_only_node(make_world: Make, server: OwnServer, own_url: str) -> None:
    """Every write is refused with 25006 for a while: that is an outage, no fault of any job."""
    world = make_world(own_url)
    world.poll_every(1)
    supervisor = world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    before = pids(world)
    with read_only(server):
        world.let_agent_go(job)
        world.until(lambda: "read-only transaction" in supervisor.said(), what="its result is refused")
    done = world.assert_delivered_once(number)
    assert (done.claim_seq, done.attempts) == (1, 1)
    assert [run.outcome for run in world.runs(done)] == [Outcome.COMPLETED]
    assert pids(world) == before, "nobody died of it"
    world.assert_nothing_held()


@contextlib.contextmanager
def read_only(server: OwnServer) -> Iterator[None]:
    """What a session sees whose server has become a standby: SQLSTATE 25006 for each write."""
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("alter system set default_transaction_read_only = on")
        admin.execute("select pg_reload_conf()")
        try:
            yield
        finally:
            admin.execute("set default_transaction_read_only = off")
            admin.execute("alter system reset default_transaction_read_only")
            admin.execute("select pg_reload_conf()")


@pytest.mark.parametrize("breaking", [True, False])
def test_fault_14_an_older_program_on_a_newer_schema(make_world: Make, breaking: bool) -> None:
    """Refused with 78 if the newer schema breaks older programs; worked with if it does not."""
    world = make_world()
    world.poll_every(1)
    world.row(
        "insert into schema_migration (version, name, checksum, breaking) values (9999, 'newer', 'x', %s)"
        " returning version",
        breaking,
    )
    supervisor = world.start(wait=False)
    number = world.ask()
    if breaking:
        assert supervisor.wait(30) == 78
        assert "9999" in supervisor.said()
        assert world.jobs() == []
    else:
        world.assert_delivered_once(number)
