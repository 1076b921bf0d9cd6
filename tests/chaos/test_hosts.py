"""Several hosts on one database: caps, clocks that are wrong, a host that was suspended, pollers that meet."""

from __future__ import annotations

from tests.chaos.conftest import Make
from tests.support.chaos import (
    HELD,
    Gate,
    HighWater,
    World,
    alive,
    at_gate,
    finished,
    frozen,
    kill,
    open_gates,
)
from tests.support.rig import CHECKOUT
from tireless import proctree
from tireless.entities import AgentKind, EventKind, JobState
from tireless.store import lanes

LEASE: dict[str, dict[str, object]] = {"lease": {"seconds": 3.0, "renew_seconds": 0.5, "margin_seconds": 1.0}}
A, B = "host-a", "host-b"


def test_fault_06_the_cap_holds_over_all_hosts(make_world: Make, database_url: str) -> None:
    """Six claimers on two hosts, a cap of two; a holder is killed, the cap goes down and up again."""
    world = make_world(runners=3, cap=2)
    world.reconfigure(B, runners=3, cap=2, tables={})
    world.poll_every(1)
    with HighWater(database_url).watching() as water:
        world.start(A)
        world.start(B)
        numbers = [world.ask(*HELD, title=f"Job {i}") for i in range(4)]
        held = world.until(lambda: at_gate(world, 2), 30, "two agents at their gates")
        kill(world.holder(held[0]))
        claims = "select sum(claim_seq) >= 3 from job"
        world.until(lambda: world.row(claims)[0], what="the slot of the dead is used again, by whatever job")
        with world.connection() as conn:
            lanes.set_cap(conn, AgentKind.CLAUDE_CODE, 1)
            world.until(lambda: open_gates(world) >= 2 and finished(world) >= 2, 40, "two are through")
            lanes.set_cap(conn, AgentKind.CLAUDE_CODE, 2)
        world.until(lambda: open_gates(world) == 4 and finished(world) == 4, 60, "all are through")
    assert water.most == 2
    for number in numbers:
        world.assert_delivered_once(number)
    world.assert_nothing_held()


def shifted(world: World, host: str, seconds: float) -> dict[str, str]:
    """The environment of a host whose wall clock is off; `shift` changes it later."""
    shift(world, host, seconds)
    path = f"{CHECKOUT / 'tests/support/shifted_clock'}:{CHECKOUT}"
    return {"PYTHONPATH": path, "SHIFTED_CLOCK": str(world.root / f"clock-{host}")}


def shift(world: World, host: str, seconds: float) -> None:
    (world.root / f"clock-{host}").write_text(str(seconds))


def test_fault_08_wrong_and_stepping_clocks(make_world: Make) -> None:
    """One host ten minutes ahead, the other ten behind, then the other way round: nobody takes a job early."""
    world = make_world(tables=LEASE)
    world.reconfigure(B, tables=LEASE)
    world.poll_every(1)
    world.start(A, env=shifted(world, A, 600))
    number = world.ask(*HELD)
    job = world.agent_is_here(number, A)
    world.start(B, env=shifted(world, B, -600))
    outlive_a_lease(world, number)
    shift(world, A, -600)
    shift(world, B, 600)
    outlive_a_lease(world, number)
    world.let_agent_go(job, A)
    done = world.assert_delivered_once(number)
    assert done.claim_seq == 1
    assert len(world.starts(done)) == 1
    world.assert_nothing_held()


def outlive_a_lease(world: World, number: int) -> None:
    """Until the job's lease has been renewed beyond twice its length."""
    before = world.job(number).claim_expires_at
    assert before is not None
    query = "select claim_expires_at > %s + interval '3 seconds' from job where number = %s"
    world.until(lambda: world.row(query, before, number)[0], what="a whole lease later")


def test_fault_08_a_suspended_host(make_world: Make) -> None:
    """Everything of a host stops for longer than its lease: the other host takes the job back, and the first,
    when it runs again, kills its agent before it goes on in the same session."""
    world = make_world(tables=LEASE)
    world.reconfigure(B, tables=LEASE)
    world.poll_every(1)
    supervisor = world.start(A)
    number = world.ask(*HELD)
    job = world.agent_is_here(number, A)
    agents = world.agents(job)
    world.start(B)
    tree = [supervisor.pid, *proctree.descendants(supervisor.pid)]
    with frozen(*tree):
        world.wait_job(number, JobState.PENDING)
    world.until(lambda: len(world.starts(job)) == 2, 30, "it goes on")
    assert [pid for pid in agents if alive(pid)] == []
    world.let_agent_go(job, A)
    done = world.assert_delivered_once(number)
    assert [s["resume"] for s in world.starts(job)] == [False, True]
    assert EventKind.LEASE_EXPIRED in world.kinds(done)
    world.assert_nothing_held()


def test_fault_12_two_pollers_see_one_issue(make_world: Make, database_url: str) -> None:
    """Both have listed it, and both are about to record it: one job. Off and on again: one more, after it."""
    world = make_world(runners=0)
    world.reconfigure(B, runners=0, tables={})
    repo = world.poll_every(1)
    with Gate(database_url, "true", event="insert") as gate:
        world.start(A)
        number = world.ask()
        first = gate.caught()
        world.start(B)

        def both() -> bool:
            world.row("update tracked_repo set next_poll_at = now() where id = %s returning 1", repo)
            return gate.waiters() >= 2

        world.until(both, what="both pollers are at the gate")
        assert first
        gate.open()
        job = world.wait_job(number, JobState.PENDING)
    assert len(world.jobs(number)) == 1
    world.forge.unlabel(number, "tireless")
    assert world.wait_job(number).state is JobState.ABANDONED
    world.wait_settled()
    world.forge.label(number, "tireless")
    again = world.wait_job(number, JobState.PENDING)
    assert again.id != job.id
    assert len(world.jobs(number)) == 2


def test_fault_12_a_poller_dies_between_answer_and_commit(make_world: Make, database_url: str) -> None:
    """Nothing of the poll is stored, the validators least of all: the next poll sees the same answer."""
    world = make_world(kind="github", runners=0)
    repo = world.poll_every(1)
    with Gate(database_url, "true", event="insert") as gate:
        world.start(A)
        world.until(lambda: world.row("select last_etag from tracked_repo")[0], what="a first poll is stored")
        number = world.ask()
        gate.caught()
        before = world.row("select last_etag, body_hash, poll_result from tracked_repo")
        poller = world.row("select pid from worker where role = 'poller'")[0]
        kill(poller)
        world.until(lambda: gate.waiters() == 0, what="its session has ended with it")
        assert world.row("select last_etag, body_hash, poll_result from tracked_repo") == before
        assert world.jobs(number) == []
        gate.open()
        world.row("update tracked_repo set next_poll_at = now() where id = %s returning 1", repo)
        world.wait_job(number, JobState.PENDING)
    after = world.until(lambda: etag_after(world, before), what="the validators come with the job")
    assert after
    assert len(world.jobs(number)) == 1


def etag_after(world: World, before: object) -> object:
    now = world.row("select last_etag, body_hash, poll_result from tracked_repo")
    return now if now != before else None
