"""Queue and claims: runners that die, stall, drain, poison, and cancels that come at the worst moment."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.chaos.conftest import Make
from tests.support.chaos import (
    HELD,
    Gate,
    World,
    alive,
    cancel,
    cancel_silently,
    frozen,
    kill,
    wait_dead,
)
from tireless import proctree
from tireless.entities import AgentKind, EventKind, JobState, Outcome, Phase
from tireless.store import claims, lanes

SHORT_LEASE = {"lease": {"seconds": 3.0, "renew_seconds": 0.5, "margin_seconds": 1.0}}
HELPER = {"do": "spawn", "pid_file": "$HOME/helper", "environment": False}


@pytest.mark.parametrize("sandbox", ["auto", "none"])
def test_fault_01_kill_runner_in_agent_run(make_world: Make, database_url: str, sandbox: str) -> None:
    """The agent and its helper, which is deaf to TERM, in a session of its own and without the mark, are dead
    before the slot is free."""
    world = make_world(tables={"sandbox": {"mode": sandbox}})
    world.poll_every(1)
    world.start()
    number = world.ask(HELPER, {"do": "ignore_term"}, *HELD)
    job = world.agent_is_here(number)
    runner = world.holder(job)
    tree = proctree.descendants(runner)
    assert len(tree) >= 3, "guard, agent and helper"
    with Gate(database_url, "old.claimed_by is not null and new.claimed_by is null") as gate:
        kill(runner)
        gate.caught(10)
        assert [pid for pid in tree if alive(pid)] == []
        assert world.job(number).state is JobState.RUNNING  # the slot is not free yet
        gate.open()
        again = world.wait_claimed_anew(job, seq=1, seconds=10)
    assert again.attempts == 2
    world.until(lambda: len(world.starts(job)) == 2, what="a second start")
    world.let_agent_go(job)
    world.assert_delivered_once(number)
    assert world.kinds(job).count(EventKind.RELEASED) == 1
    world.assert_nothing_held()


def test_fault_01_a_write_of_the_dead_does_not_come_back(make_world: Make, database_url: str) -> None:
    """A claim is under way in the database when its runner is killed: it is ended with the runner, and does
    not hold the job for a lease that nobody renews."""
    world = make_world()
    world.poll_every(1)
    with Gate(database_url, "new.state = 'claimed'") as gate:
        world.start()
        number = world.ask()
        backend = gate.caught()
        runner = world.row("select pid from worker where role = 'runner'")[0]
        kill(runner)
        wait_dead(runner)
        world.until(lambda: gate.waiting() not in (backend, None), 10, "the next runner is at the gate")
        gate.open()
        done = world.assert_delivered_once(number)
    assert done.claim_seq == 1
    world.assert_nothing_held()


def test_fault_02_stopped_past_its_lease(make_world: Make) -> None:
    """The first is stopped, its agent is not. The second ends that agent and resumes its session; the first,
    once it runs again, finds every write refused, and touches neither the forge nor the other's agent."""
    world = make_world(runners=2, tables=SHORT_LEASE)
    world.poll_every(1)
    world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    first = world.holder(job)
    with frozen(first):
        again = world.wait_claimed_anew(job, seq=1)
        second = world.holder(again)
        assert second != first
        world.until(lambda: len(world.starts(job)) == 2, what="the session is resumed by the second")
        agents = world.agents(job)
        asked = len(world.forge.requests)
        polls = len(world.forge.asked(r"^GET .*/issues\?"))
    world.until(lambda: EventKind.CLAIM_LOST in world.kinds(job), what="the first has noticed")
    assert world.agents(job) == agents, "the second's agent is untouched"
    assert world.holder(job) == second
    others = len(world.forge.requests) - asked - (len(world.forge.asked(r"^GET .*/issues\?")) - polls)
    assert others == 0, "the forge was asked by the poller alone"
    world.let_agent_go(job)
    done = world.assert_delivered_once(number)
    assert done.claim_seq == 2
    assert [s["resume"] for s in world.starts(job)] == [False, True]
    lost = [e for e in world.events(job) if e.kind == EventKind.CLAIM_LOST]
    assert [e.detail["seq"] for e in lost] == [1]
    assert alive(first), "a lost claim is no reason to die"
    world.assert_nothing_held()


def test_fault_02_stopped_before_it_starts_an_agent(make_world: Make, database_url: str) -> None:
    """The first is stopped between the record of its run and the start of its agent: it starts none."""
    world = make_world(runners=2, tables=SHORT_LEASE)
    world.poll_every(1)
    with Gate(database_url, "true", table="agent_run", event="insert", at_commit=True) as gate:
        world.start()
        number = world.ask(*HELD)
        backend = gate.caught()
        job = world.job(number)
        first = world.holder(job)
        with frozen(first):
            gate.open()  # the record is made; the one who waits for that does not run
            world.until(lambda: world.runs(job), what="the run is on record")
            world.wait_claimed_anew(job, seq=1)
            job = world.agent_is_here(number)
            agents = world.agents(job)
        world.until(lambda: EventKind.CLAIM_LOST in world.kinds(job), what="the first has noticed")
    assert backend
    assert world.agents(job) == agents
    assert len(world.starts(job)) == 1
    world.let_agent_go(job)
    world.assert_delivered_once(number)
    assert len(world.starts(job)) == 1
    world.assert_nothing_held()


def test_fault_05_sweep_meets_a_completion(make_world: Make, database_url: str) -> None:
    """The lease runs out while the completion is under way: it is the completion that counts, and no sweep
    brings a finished job back."""
    world = make_world()
    world.poll_every(1)
    with Gate.at_phase(database_url, Phase.DONE) as gate:
        world.start()
        number = world.ask()
        gate.caught()
        job = world.job(number)
        # The row is locked by the completion, so its lease is taken to have ended by the sweep's own clock.
        with world.connection() as conn:
            conn.execute("set tireless.now = '2999-01-01'")
            assert claims.expire_stale_claims(conn, writes_for=lambda _: []) == []
            gate.open()
            done = world.wait_job(number)
            assert claims.expire_stale_claims(conn, writes_for=lambda _: []) == []
    assert done.state is JobState.DELIVERED
    assert world.assert_delivered_once(number).claim_seq == job.claim_seq
    world.assert_nothing_held()


def test_fault_05_sweep_wins_over_a_completion(make_world: Make, database_url: str) -> None:
    """The sweep was first: the completion matches no row, and the next claimant ends the job once."""
    world = make_world()
    world.poll_every(1)
    with Gate.at_phase(database_url, Phase.ANNOUNCE) as gate:
        world.start()
        number = world.ask()
        backend = gate.caught()
        job = world.job(number)
        with frozen(world.holder(job)):
            gate.roll_back(backend)
            world.row(
                "update job set claim_expires_at = now() - interval '1 s' where id = %s returning 1", job.id
            )
            world.until(lambda: world.job(number).state is JobState.PENDING, what="the sweep took it")
        gate.open()
        done = world.assert_delivered_once(number)
    assert done.claim_seq == 2
    assert len(world.starts(done)) == 1
    assert EventKind.CLAIM_LOST in world.kinds(done)
    world.assert_nothing_held()


def test_fault_05_a_poll_meets_a_completion(make_world: Make, database_url: str) -> None:
    """The poll's list still shows the label, and the completion commits while the list is being recorded: the
    issue gets no second job, though its first is finished by the time that a new one would be inserted."""
    world = make_world()
    repo = world.poll_every(1)
    with Gate(database_url, "new.state = 'delivered'", at_commit=True) as gate:
        world.start()
        number = world.ask()
        gate.caught()
        asked = "select last_polled_at from tracked_repo"
        before = world.row(asked)
        world.forge.comment(number, "a change, so that the list is not the same as before")
        world.row(
            "update tracked_repo set next_poll_at = now(), body_hash = null where id = %s returning 1", repo
        )
        world.until(
            lambda: world.row(asked) != before or lock_waiters(world) > 0, what="a poll is recorded, or waits"
        )
        gate.open()
        world.wait_job(number)
        world.assert_delivered_once(number)
        second = world.ask(title="The next poll")
        world.assert_delivered_once(second)
    assert len(world.jobs(number)) == 1


def test_fault_07_drain_delivers_a_short_run(make_world: Make) -> None:
    world = make_world()
    world.poll_every(1)
    supervisor = world.start()
    number = world.ask(*HELD)
    job = world.agent_is_here(number)
    later = world.ask(title="Too late")
    world.wait_job(later, JobState.PENDING)
    supervisor.send(signal.SIGTERM)
    world.until(lambda: "draining" in supervisor.said(), what="draining")
    world.let_agent_go(job)
    assert supervisor.wait(20) == 0, supervisor.said()
    world.assert_delivered_once(number)
    left = world.job(later)
    assert (left.state, left.claim_seq, left.attempts) == (JobState.PENDING, 0, 0), "no claim after TERM"
    world.assert_nothing_held()


def test_fault_07_drain_limit_requeues_once(make_world: Make) -> None:
    world = make_world(tables={"supervisor": {"drain_seconds": 1.0}})
    world.poll_every(1)
    supervisor = world.start()
    number = world.ask(HELPER, *HELD)
    job = world.agent_is_here(number)
    tree = proctree.descendants(supervisor.pid)
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait(15) == 1, supervisor.said()
    assert [pid for pid in tree if alive(pid)] == []
    left = world.job(number)
    assert (left.state, left.attempts, left.claim_seq) == (JobState.PENDING, 0, 1)
    assert world.kinds(job).count(EventKind.REQUEUED) == 1
    assert EventKind.RELEASED not in world.kinds(job)
    world.assert_nothing_held()
    world.start()
    world.until(lambda: len(world.starts(job)) == 2, what="it goes on after the restart")
    world.let_agent_go(job)
    world.assert_delivered_once(number)
    assert world.starts(job)[1]["resume"] is True


def test_fault_07_second_term_is_fast(make_world: Make) -> None:
    world = make_world()
    world.poll_every(1)
    supervisor = world.start()
    number = world.ask(HELPER, {"do": "ignore_term"}, *HELD)
    world.agent_is_here(number)
    tree = proctree.descendants(supervisor.pid)
    supervisor.send(signal.SIGTERM)
    world.until(lambda: "draining" in supervisor.said(), what="draining")
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait(5.5) == 1, supervisor.said()
    assert [pid for pid in tree if alive(pid)] == []
    left = world.job(number)
    assert (left.state, left.claim_seq) == (JobState.PENDING, 1)
    assert left.attempts == 0, "a stop burns no attempt"
    world.assert_nothing_held()


def test_fault_10_poison_fails_and_others_go_on(make_world: Make) -> None:
    """A job that takes its runner with it each time is given up after its attempts, with the reasons."""
    world = make_world(runners=2, tables={"lease": {"max_attempts": 2}})
    world.poll_every(1)
    world.start()
    poison = world.ask(*HELD, title="Poison")
    job = world.agent_is_here(poison)
    kill(world.holder(job))
    world.until(lambda: len(world.starts(job)) == 2, what="the second attempt")
    good = world.ask(title="Good")
    kill(world.holder(job))
    failed = world.wait_job(poison)
    assert failed.state is JobState.FAILED
    assert failed.attempts == 2
    assert failed.last_error is not None
    assert "gave up after 2 attempts" in failed.last_error
    assert "SIGKILL" in failed.last_error
    world.assert_delivered_once(good)
    world.until(lambda: "tireless/state/failed" in world.forge.labels(poison), what="people are told")
    assert any("gave up after 2 attempts" in c.body for c in world.forge.comments(poison))
    reasons = [e.detail.get("why") for e in world.events(job) if e.kind == EventKind.RELEASED]
    assert reasons == ["killed by SIGKILL"] * 2
    world.assert_nothing_held()


def unknown_row(world: World, column: str, value: str, **more: Any) -> str:
    """A row as a newer program would write it: with a word that this build does not know."""
    with world.connection() as conn:
        conn.execute(f"alter table job drop constraint job_{column}_known".encode())
        columns = {
            "repo_id": world.row("select id from tracked_repo")[0],
            "forge": str(world.forge.kind),
            "host": world.forge.host,
            "owner": "acme",
            "repo": "site",
            "number": 999,
            "kind": "implement",
            "lane": "claude_code",
            "priority": 0,
            column: value,
            **more,
        }
        names, marks = ", ".join(columns), ", ".join(["%s"] * len(columns))
        found = conn.execute(
            f"insert into job ({names}) values ({marks}) returning id".encode(), list(columns.values())
        ).fetchone()
    assert found is not None
    return str(found[0])


@pytest.mark.parametrize("column", ["kind", "phase"])
def test_fault_10_unknown_words_wait_for_a_newer_worker(make_world: Make, column: str) -> None:
    """A row of a newer program stands first in the queue: it is left alone, not thrown away, and nothing
    waits for it, the sweep, the poll and the claims of others least of all."""
    world = make_world(cap=2)
    world.poll_every(1)
    strange = unknown_row(world, column, "review")
    held = unknown_row_held(world)
    supervisor = world.start()
    number = world.ask()
    world.assert_delivered_once(number)
    second = world.ask(title="Another")
    world.assert_delivered_once(second)
    query = "select state, attempts, claim_seq, last_error from job where id = %s"
    assert world.row(query, strange) == ("pending", 0, 0, None)
    assert world.row("select state from job where id = %s", held)[0] == "running", (
        "a newer sweep's to take back"
    )
    assert "ended" not in supervisor.said(), supervisor.said()


def unknown_row_held(world: World) -> str:
    """One that a newer worker of a host that has vanished holds, past its lease."""
    with world.connection() as conn:
        conn.execute("alter table job drop constraint if exists job_kind_known")
        lanes.ensure(conn, AgentKind.CLAUDE_CODE, 2)
        found = conn.execute(
            "insert into job (repo_id, forge, host, owner, repo, number, kind, lane, state, claimed_by, claim_seq,"
            " attempts, claim_expires_at, claimed_lane, slot) select id, forge, host, owner, repo, 998, 'review',"
            " 'claude_code', 'running', 'elsewhere/x/1/1/1', 1, 1, now() - interval '1 hour', 'claude_code', 2"
            " from tracked_repo returning id"
        ).fetchone()
        assert found is not None
        conn.execute("update lane_slot set job_id = %s where lane = 'claude_code' and slot = 2", found)
    return str(found[0])


def test_fault_11_cancel_without_its_notification(make_world: Make) -> None:
    """Seen at the next renewal; the tree is dead within the grace time; repeating it changes nothing."""
    world = make_world(tables={"lease": {"renew_seconds": 1.0}})
    world.poll_every(1)
    world.start()
    number = world.ask(HELPER, {"do": "ignore_term"}, *HELD)
    job = world.agent_is_here(number)
    tree = proctree.descendants(world.holder(job))
    cancel_silently(world, job, "never mind")
    wait_dead(*tree, seconds=1.0 + 2.0 + 5.0)  # renewal, grace, and a machine that is busy
    done = world.wait_job(number)
    assert done.state is JobState.ABANDONED
    world.wait_settled()
    before = world.kinds(job)
    assert cancel(world, job, "again") == []
    assert world.kinds(job) == before
    assert [run.outcome for run in world.runs(job)] == [Outcome.STOPPED]
    assert world.forge.pulls() == []
    assert world.forge.labels(number) == []
    world.assert_nothing_held()


def test_fault_11_cancel_at_the_moment_of_completion(make_world: Make, database_url: str) -> None:
    """The completion holds the row, the cancel waits for it, and then finds a finished job."""
    world = make_world()
    world.poll_every(1)
    with Gate.at_phase(database_url, Phase.DONE) as gate:
        world.start()
        number = world.ask()
        gate.caught()
        job = world.job(number)
        cancelled = in_thread(lambda: cancel(world, job, "too late"))
        world.until(lambda: lock_waiters(world) >= 1, what="the cancel waits for the row")
        gate.open()
        assert cancelled() == []
        done = world.assert_delivered_once(number)
    assert EventKind.CANCEL_REQUESTED not in world.kinds(done)
    assert world.kinds(done).count(EventKind.FINISHED) == 1
    world.assert_nothing_held()


def lock_waiters(world: World) -> int:
    query = (
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        " and wait_event in ('tuple', 'transactionid')"
    )
    return int(world.row(query)[0])


def in_thread(action: Any) -> Any:
    """Starts `action` beside the test; the answer is a function that waits for what it returns."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(action)
    pool.shutdown(wait=False)
    return lambda: future.result(30)
