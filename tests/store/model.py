"""The queue as a state machine, driven at random against a real Postgres.

    python -m tests.store.model --schedules 10000 --seed 1

Several workers, which keep all the claims that they ever had and go on writing with the stale ones; operators
who hold, pause, cancel and change caps; labels that change; a clock that jumps forth and back. After each step
the rows before and after it are compared with what that step may do:

- an issue has at most one live job; a job that has ended never changes again; a pending one holds no claim
- `claim_seq` only grows, by one at each claim
- a write of a stale holder changes nothing at all
- slots are unique, `lane_slot` and `job` agree, and a claim is only had while fewer than the cap are in hand;
  a repository's own limit likewise
- the claim takes the first of the queue that may start, and finds none only if there is none
- whatever changed a job's state, lane, kind or cancel left an event
- nothing is stuck: at the end everything drains to a terminal state
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from psycopg.rows import dict_row

from tests.support import postgres
from tests.support.store import BOTH, LABELS, NOON, REPO, ROUTING, enqueue, issue, no_writes, set_clock, track
from tireless import entities
from tireless.entities import (
    AgentKind,
    Claim,
    ClaimLost,
    Forge,
    IllegalTransition,
    JobState,
    RepoRef,
    TrackedRepo,
)
from tireless.store import claims, intake, jobs, lanes, repos
from tireless.store.connection import connect
from tireless.store.queries import Connection

LEASE = 600.0
WORKERS = ("w1", "w2")
HOSTS = (None, "h1", "h2")
TERMINAL = {str(s) for s in JobState if s.terminal}
HELD = {"claimed", "running"}
LIVE = HELD | {"pending"}
LIMITED = RepoRef(Forge.GITEA, REPO.host, "acme", "limited")
_STEPS = 60
_CHUNK = 250

Row = dict[str, Any]

lane_kinds = st.sampled_from(BOTH)
numbers = st.integers(1, 4)


@dataclass(frozen=True)
class World:
    """All that the machine looks at, at one moment."""

    jobs: dict[UUID, Row]
    lanes: dict[str, Row]
    slots: dict[UUID, tuple[str, int, bool]]  # job -> lane, slot, open
    events: dict[UUID, int]

    def held(self, lane: str) -> int:
        return sum(j["claimed_lane"] == lane for j in self.jobs.values())


class Queue(RuleBasedStateMachine):
    """Set `conn` before it is run. It owns the database and leaves it empty of jobs."""

    conn: Connection
    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.jumps_back = self.went_back = False
        self.had: list[Claim] = []
        self.repos: list[TrackedRepo] = []
        self.last: World | None = None

    @initialize(target=claims, cap=st.integers(1, 3), jumps_back=st.booleans())
    def begin(self, cap: int, jumps_back: bool) -> Any:
        self.jumps_back = jumps_back
        set_clock(self.conn, self.now)
        empty(self.conn)
        for lane in BOTH:
            lanes.ensure(self.conn, lane, cap)
            lanes.resume(self.conn, lane)
            lanes.set_cap(self.conn, lane, cap)
        self.conn.execute("update lane_floor set run_at = null")
        self.repos = [track(self.conn), track(self.conn, LIMITED, max_running=1)]
        enqueue(self.conn, [issue(n) for n in (1, 2, 3)], self.repos[0], max_attempts=2)
        self.last = self.look()
        return self.claimed("w1", list(BOTH), None)

    # What may happen

    @rule(number=numbers, limited=st.booleans(), opencode=st.booleans(), attempts=st.integers(1, 3))
    def enqueue(self, number: int, limited: bool, opencode: bool, attempts: int) -> None:
        self.ask_for(number, opencode, limited=limited, attempts=attempts)

    def ask_for(self, number: int, opencode: bool, *, limited: bool = False, attempts: int = 3) -> None:
        repo = self.repos[limited]
        number += 10 * limited  # no two jobs have the same place in the queue
        found = issue(number, *(["tireless/agent:oc"] if opencode else []), repo=repo.ref)
        with self.step() as before:
            verdict = enqueue(self.conn, [found], repo, max_attempts=attempts)[number]
        live = any(
            (j["repo"], j["number"]) == (repo.ref.repo, number) and j["state"] in LIVE
            for j in before.jobs.values()
        )
        assert verdict == (intake.Verdict.LIVE if live else intake.Verdict.ENQUEUED)

    @rule(target=claims, worker=st.sampled_from(WORKERS))
    def claim_any(self, worker: str) -> Any:
        return self.claimed(worker, list(BOTH), None)

    @rule(target=claims, worker=st.sampled_from(WORKERS), host=st.sampled_from(HOSTS))
    def claim_all(self, worker: str, host: str | None) -> Any:
        """Until there is nothing more to be had."""
        return multiple(*self.all_claimed(worker, host))

    def all_claimed(self, worker: str, host: str | None) -> list[Claim]:
        return list(iter(lambda: self.try_claim(worker, list(BOTH), host), None))

    @rule(
        target=claims,
        worker=st.sampled_from(WORKERS),
        host=st.sampled_from(HOSTS),
        asked=st.lists(lane_kinds, unique=True),
    )
    def claim(self, worker: str, host: str | None, asked: list[AgentKind]) -> Any:
        return self.claimed(worker, asked, host)

    def claimed(self, worker: str, asked: list[AgentKind], host: str | None) -> Any:
        found = self.try_claim(worker, asked, host)
        return multiple() if found is None else found

    def try_claim(self, worker: str, asked: list[AgentKind], host: str | None) -> Claim | None:
        with self.step() as before:
            found = claims.claim_next(self.conn, worker, asked, lease_seconds=LEASE, host=host)
        can = self.claimable(before, asked, host)
        if found is None:
            assert not can, f"{can[0]['number']} could have been had"
            return None
        mine = next((j for j in can if j["id"] == found.job.id), None)
        assert mine is not None, "it could not be had"
        lane = str(found.job.claimed_lane)
        assert before.held(lane) < before.lanes[lane]["cap"]
        assert found.job.slot is not None
        assert found.job.slot <= before.lanes[lane]["cap"]
        assert found.seq == before.jobs[found.job.id]["claim_seq"] + 1
        with self.step():
            claims.mark_floors(self.conn)
        if not self.went_back:
            assert place(mine) == place(can[0]), "not the first of the queue"
        self.had.append(found)
        return found

    def one_of(self, claim: Claim, stale: bool) -> Claim:
        """This claim, most likely a lost one, or one that still holds if there is any."""
        assert self.last is not None
        good = [c for c in self.had if self.holds(self.last, c)]
        return claim if stale or not good else good[claim.seq % len(good)]

    # Situations that chance alone brings about too seldom; each is a few of the steps above in a row

    @rule(target=claims, claim=claims, what=st.sampled_from(["start", "advance", "renew"]))
    def have_it_twice(self, claim: Claim, what: str) -> Any:
        """A worker gets the same job again, and goes on with the first claim, which has its own name in it."""
        first = self.one_of(claim, stale=False)
        assert self.last is not None
        if not self.holds(self.last, first):
            return multiple()
        host = self.last.jobs[first.job.id]["work_host"]
        self.put_back(first, keep=True, delay=0.0)
        found = self.all_claimed(first.worker, host)
        self.do(first, what, host)
        return multiple(*found)

    @rule(target=claims, lane=lane_kinds, worker=st.sampled_from(WORKERS))
    def squeeze(self, lane: AgentKind, worker: str) -> Any:
        """A cap is lowered below what is in hand, and then one of those jobs ends."""
        assert self.last is not None
        found = []
        if self.last.held(lane) < 2:
            self.recap(lane, 2)
            for number in (1, 2, 3, 4):
                self.ask_for(number, lane is AgentKind.OPENCODE)
            found = self.all_claimed(worker, None)
        held = self.last.held(lane)
        if held >= 2:
            self.recap(lane, held - 1)
            # Whichever slot it has: that depends on what the schedules before this one left, and must decide nothing.
            there = [c for c in self.had if self.holds(self.last, c) and c.job.claimed_lane is lane]
            ending = min(there, key=lambda c: c.job.issue.number)
            self.end(ending, JobState.DELIVERED)
            found += self.all_claimed(worker, None)
        return multiple(*found)

    @rule(
        target=claims,
        claim=claims,
        worker=st.sampled_from(WORKERS),
        host=st.sampled_from(HOSTS[1:]),
        other=st.sampled_from(HOSTS),
        wait=st.sampled_from([0, 0, 3599, 3601]),
    )
    def change_hosts(self, claim: Claim, worker: str, host: str, other: str | None, wait: int) -> Any:
        """A job begun on one host comes back, and the next that asks is on another."""
        claim = self.one_of(claim, stale=False)
        self.do(claim, "advance", host)
        self.put_back(claim, keep=True, delay=0.0)
        self.turn(wait)
        return multiple(*self.all_claimed(worker, other))

    @rule(target=claims, worker=st.sampled_from(WORKERS))
    def crowd(self, worker: str) -> Any:
        """More jobs of the repository with a limit than it may run at once, and slots for all of them."""
        for lane in BOTH:
            self.recap(lane, 3)
        for number in (1, 2):
            self.ask_for(number, opencode=number == 2, limited=True)
        return multiple(*self.all_claimed(worker, None))

    # The steps

    @rule(
        claim=claims,
        stale=st.booleans(),
        host=st.sampled_from(HOSTS),
        what=st.sampled_from(["start", "advance", "renew"]),
    )
    def go_on(self, claim: Claim, stale: bool, host: str | None, what: str) -> None:
        self.do(self.one_of(claim, stale), what, host)

    def do(self, claim: Claim, what: str, host: str | None) -> None:
        if what == "renew":
            self.renew(claim)
        elif what == "start":
            self.write(claim, JobState.RUNNING, lambda: claims.transition(self.conn, claim, JobState.RUNNING))
        else:
            verify = entities.Phase.VERIFY
            self.write(claim, None, lambda: claims.advance(self.conn, claim, verify, work_host=host))

    @rule(claim=claims, stale=st.booleans(), to=st.sampled_from(sorted(TERMINAL)))
    def finish(self, claim: Claim, stale: bool, to: str) -> None:
        self.end(self.one_of(claim, stale), JobState(to))

    def end(self, claim: Claim, state: JobState) -> None:
        told = [entities.NewWrite(entities.WriteOp.COMMENT)]

        def finish() -> None:
            claims.finish(self.conn, claim, state, told)
            assert self.conn.execute("delete from forge_write").rowcount == 1

        self.write(claim, state, finish)

    @rule(
        claim=claims, stale=st.booleans(), keep=st.booleans(), delay=st.sampled_from([0.0, 0.0, 30.0, 3600.0])
    )
    def requeue(self, claim: Claim, stale: bool, keep: bool, delay: float) -> None:
        self.put_back(self.one_of(claim, stale), keep, delay)

    def put_back(self, claim: Claim, keep: bool, delay: float) -> None:
        def put_back() -> object:
            return claims.transition(
                self.conn, claim, JobState.PENDING, keep_attempt=keep, delay_seconds=delay, writes_for=no_writes
            )

        self.write(claim, JobState.PENDING, put_back)

    def renew(self, claim: Claim) -> None:
        with self.step() as before:
            renewal = claims.renew_claim(self.conn, claim, lease_seconds=LEASE)
        assert (renewal is not None) == self.holds(before, claim)
        if renewal is None:
            assert self.last == before, "a stale holder changed something"
        else:
            assert renewal.cancel_requested == (before.jobs[claim.job.id]["cancel_requested_at"] is not None)

    @rule(number=numbers)
    def cancel(self, number: int) -> None:
        assert self.last is not None
        meant = [i for i, j in self.last.jobs.items() if j["number"] % 10 == number]
        with self.step() as before:
            changed = jobs.cancel(self.conn, meant, "not wanted", writes_for=no_writes, actor="ctl")
        wanted = {
            i
            for i in meant
            if before.jobs[i]["state"] in LIVE and before.jobs[i]["cancel_requested_at"] is None
        }
        assert {j.id for j in changed} == wanted
        for job in changed:
            was = before.jobs[job.id]["state"]
            assert job.state == ("abandoned" if was == "pending" else was)

    @rule(
        lane=lane_kinds,
        what=st.sampled_from(
            ["hold", "hold", "hold for ever", "pause", "resume", "resume", "resume", "resume"]
        ),
    )
    def govern(self, lane: AgentKind, what: str) -> None:
        with self.step():
            if what == "pause":
                lanes.pause(self.conn, lane, "why")
            elif what == "resume":
                lanes.resume(self.conn, lane)
            else:
                lanes.hold(self.conn, lane, "why", seconds=60.0 if what == "hold" else None)

    @rule(lane=lane_kinds, cap=st.sampled_from([0, 1, 1, 2, 2, 2, 3, 3, 3]))
    def set_cap(self, lane: AgentKind, cap: int) -> None:
        self.recap(lane, cap)

    def recap(self, lane: AgentKind, cap: int) -> None:
        with self.step():
            lanes.set_cap(self.conn, lane, cap)

    @rule(number=numbers, opencode=st.booleans(), plan=st.booleans())
    def relabel(self, number: int, opencode: bool, plan: bool) -> None:
        labels = (["tireless/agent:oc"] if opencode else []) + (["tireless/plan"] if plan else [])
        repo = self.repos[0]
        with self.step() as before:
            live = intake.live_jobs_of_repo(self.conn, repo)
            found = [issue(number, *labels, repo=repo.ref)]
            intake.refresh_lanes(self.conn, live, found, labels=LABELS, routing=ROUTING)
        assert {j.id for j in live} == {
            i for i, j in before.jobs.items() if j["repo_id"] == repo.id and j["state"] in LIVE
        }

    @rule()
    def sweep(self) -> None:
        with self.step() as before:
            swept = claims.expire_stale_claims(self.conn, writes_for=no_writes)
        due = {i for i, j in before.jobs.items() if j["state"] in HELD and j["claim_expires_at"] < self.now}
        assert {j.id for j in swept} == due
        self.taken_back(before, swept)

    @rule(worker=st.sampled_from(WORKERS))
    def crash(self, worker: str) -> None:
        with self.step() as before:
            back = claims.release_claims(self.conn, [worker], "crashed", writes_for=no_writes)
        assert {j.id for j in back} == {i for i, j in before.jobs.items() if j["claimed_by"] == worker}
        self.taken_back(before, back)

    @rule(seconds=st.sampled_from([1, 1, 29, 61, 601, 4000, -1, -300, -4000]))
    def clock(self, seconds: int) -> None:
        if seconds >= 0 or self.jumps_back:
            self.turn(seconds)

    def turn(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        self.went_back |= seconds < 0
        set_clock(self.conn, self.now)

    # What must hold

    @invariant()
    def one_live_job_an_issue(self) -> None:
        if self.last is None:
            return
        live = [(j["repo"], j["number"]) for j in self.last.jobs.values() if j["state"] in LIVE]
        assert len(live) == len(set(live))

    @invariant()
    def slots_and_jobs_agree(self) -> None:
        if self.last is None:
            return
        held = {i: (j["claimed_lane"], j["slot"]) for i, j in self.last.jobs.items() if j["state"] in HELD}
        assert {i: (lane, slot) for i, (lane, slot, _) in self.last.slots.items()} == held
        for i, (lane, slot, is_open) in self.last.slots.items():
            assert is_open == (slot <= self.last.lanes[lane]["cap"]), i

    @invariant()
    def a_repositorys_limit_holds(self) -> None:
        if self.last is None:
            return
        slots = [
            j["repo_slot"] for j in self.last.jobs.values() if j["state"] in HELD and j["repo"] == LIMITED.repo
        ]
        assert slots in ([], [1])

    def teardown(self) -> None:
        if self.last is None:
            return
        for lane in BOTH:
            lanes.resume(self.conn, lane)
            lanes.set_cap(self.conn, lane, 2)
        for _ in range(50):
            self.now += timedelta(hours=2)
            set_clock(self.conn, self.now)
            claims.expire_stale_claims(self.conn, writes_for=no_writes)
            while claim := claims.claim_next(self.conn, "last", BOTH, lease_seconds=LEASE):
                claims.finish(self.conn, claim, JobState.DELIVERED, [])
            if all(j["state"] in TERMINAL for j in self.look().jobs.values()):
                break
        stuck = [j for j in self.look().jobs.values() if j["state"] not in TERMINAL]
        assert not stuck, f"stuck: {stuck}"
        assert not self.look().slots

    # Means

    def look(self) -> World:
        with self.conn.cursor(row_factory=dict_row) as cur:
            found = {
                j["id"]: j
                for j in cur.execute(
                    "select *, (select count(*) from job_event e where e.job_id = job.id) as events from job"
                ).fetchall()
            }
            lane_rows = {
                x["lane"]: x
                for x in cur.execute(
                    "select *, (select count(*) from forge_write) as writes from lane"
                ).fetchall()
            }
            slots = cur.execute("select * from lane_slot where job_id is not null").fetchall()
        assert len({s["job_id"] for s in slots}) == len(slots)
        assert not any(lane["writes"] for lane in lane_rows.values()), "told, though nothing was done"
        return World(
            found,
            lane_rows,
            {s["job_id"]: (s["lane"], s["slot"], s["open"]) for s in slots},
            {i: j.pop("events") for i, j in found.items()},
        )

    @contextmanager
    def step(self) -> Iterator[World]:
        before = self.last
        assert before is not None
        yield before
        self.last = self.look()
        for i, was in before.jobs.items():
            now = self.last.jobs[i]
            assert now["claim_seq"] >= was["claim_seq"], "claim_seq only grows"
            if was["state"] in TERMINAL:
                assert now == was, "a job that has ended changed"
            told = ("state", "claim_seq", "lane", "kind", "cancel_requested_at", "phase", "attempts")
            if any(now[c] != was[c] for c in told):
                assert self.last.events[i] > before.events[i], "a change left no event"
        for i, now in self.last.jobs.items():
            if now["state"] == "pending":
                claim = ("claimed_by", "claim_expires_at", "claimed_lane", "slot", "repo_slot")
                assert [now[c] for c in claim] == [None] * 5
                assert now["cancel_requested_at"] is None, "nobody wants it, and it is queued"
            if i not in before.jobs:
                assert self.last.events[i] == 1
        for lane in before.lanes:
            cap = self.last.lanes[lane]["cap"]
            assert self.last.held(lane) <= max(cap, before.held(lane)), "over the cap"

    @staticmethod
    def holds(world: World, claim: Claim) -> bool:
        job = world.jobs[claim.job.id]
        return (job["claimed_by"], job["claim_seq"]) == (claim.worker, claim.seq)

    def claimable(self, world: World, asked: list[AgentKind], host: str | None) -> list[Row]:
        """What a claim may take, in the order in which it must."""
        limited_busy = any(j["repo_slot"] is not None for j in world.jobs.values())
        ready = set()
        for kind in asked:
            lane = world.lanes[kind]
            held = lane["hold_reason"] is not None and (
                lane["held_until"] is None or lane["held_until"] > self.now
            )
            if not (lane["paused"] or held) and world.held(kind) < lane["cap"]:
                ready.add(str(kind))
        can = [
            j
            for j in world.jobs.values()
            if j["state"] == "pending"
            and j["lane"] in ready
            and j["run_at"] <= self.now
            and (j["work_host"] in (None, host) or j["updated_at"] < self.now - timedelta(hours=1))
            and not (j["repo"] == LIMITED.repo and limited_busy)
        ]
        return sorted(can, key=place)

    def write(self, claim: Claim, to: JobState | None, action: Any) -> None:
        """A write under the fence: by who holds the claim it is done, by anybody else it changes nothing."""
        with self.step() as before:
            refusal: Exception | None = None
            try:
                action()
            except (ClaimLost, IllegalTransition) as e:
                refusal = e
        assert (refusal is None) == self.holds(before, claim)
        assert self.last is not None
        if refusal is not None:
            assert self.last == before, "a stale holder changed something"
            ended = before.jobs[claim.job.id]["state"] in TERMINAL
            assert type(refusal) is (IllegalTransition if ended else ClaimLost)
        elif to is not None:
            unwanted = before.jobs[claim.job.id]["cancel_requested_at"] is not None
            expected = "abandoned" if to is JobState.PENDING and unwanted else str(to)
            assert self.last.jobs[claim.job.id]["state"] == expected

    def taken_back(self, before: World, back: list[entities.Job]) -> None:
        for job in back:
            was = before.jobs[job.id]
            if was["cancel_requested_at"] is not None:
                expected = "abandoned"
            else:
                expected = "failed" if was["attempts"] >= was["max_attempts"] else "pending"
            assert job.state == expected
            assert job.attempts == was["attempts"]


def place(job: Row) -> tuple[Any, ...]:
    """Its place in the queue."""
    return job["priority"], job["run_at"], job["number"]


def empty(conn: Connection) -> None:
    """No jobs, no repositories, all slots free; lanes stay."""
    for table in ("forge_write", "job", "tracked_repo"):
        conn.execute(f"delete from {table}".encode())
    conn.execute("update lane_slot set job_id = null where job_id is not null")
    conn.execute("vacuum job, job_event, lane, lane_slot, lane_floor, tracked_repo, forge_write")


def drive(conn: Connection, schedules: int, with_seed: int) -> None:
    """Run so many schedules. The one that fails is made small and raised."""
    machine: Any = type("SeededQueue", (Queue,), {"conn": conn})
    limits = settings(
        max_examples=schedules,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink)
        if os.environ.get("TIRELESS_TEST_SHRINK", "1") == "1"
        else (Phase.generate,),
    )
    run_state_machine_as_test(seed(with_seed)(machine), settings=limits)


def chunks(schedules: int, first_seed: int) -> Iterator[tuple[int, int]]:
    """(schedules, seed) of each part of a long run. Hypothesis remembers all that it drew, and slows down with it."""
    for n, begun in enumerate(range(0, schedules, _CHUNK)):
        yield min(_CHUNK, schedules - begun), (first_seed + n) % 2**32


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.store.model", description=__doc__.split("\n")[0])
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args(argv)
    first_seed = args.seed if args.seed is not None else random.randrange(2**32)
    print(f"seed {first_seed}, {args.schedules} schedules of up to {_STEPS} steps", flush=True)
    begun, done = time.monotonic(), 0
    with postgres.server() as server, server.database() as url, connect(url) as conn:
        for schedules, with_seed in chunks(args.schedules, first_seed):
            drive(conn, schedules, with_seed)
            done += schedules
            print(
                f"{done} held ({time.monotonic() - begun:.0f} s; last --schedules {schedules} --seed {with_seed})",
                flush=True,
            )
    print("every schedule held")
    return 0


def schedules_of_the_suite() -> int:
    return int(os.environ.get("TIRELESS_TEST_SCHEDULES", "200"))


__all__ = ["Queue", "drive", "main", "repos", "schedules_of_the_suite"]

if __name__ == "__main__":
    sys.exit(main())
