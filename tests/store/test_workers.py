"""Who is there, and which host drains: by what the processes say of themselves in their rows."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from uuid import UUID

from tests.support.store import CC, NOON, clock_at, no_writes, queued, running, set_clock
from tireless.entities import WorkerRole
from tireless.store import claims, workers
from tireless.store.queries import Connection
from tireless.store.workers import Draining, Worker

JOB = UUID(int=1)


def test_a_worker_drains_since_it_first_said_so(conn: Connection) -> None:
    set_clock(conn, NOON)
    for name in ("w1", "w2"):
        workers.register(conn, name, "here", WorkerRole.RUNNER, CC, 1)
    queued(conn, 1)
    claim = running(conn)
    clock_at(conn, NOON, seconds=10)
    workers.say_draining(conn, claim.worker)
    clock_at(conn, NOON, seconds=20)
    workers.say_draining(conn, claim.worker)
    workers.say_draining(conn, "nobody")
    found = {w.id: w.draining_since for w in workers.of_host(conn)}
    assert found == {claim.worker: NOON + timedelta(seconds=10), "w2": None}
    assert workers.draining(workers.of_host(conn)) == [Draining("here", NOON + timedelta(seconds=10), 1)]


def test_who_leaves_is_forgotten_unless_it_still_holds_a_job(conn: Connection) -> None:
    for name in ("w1", "w2"):
        workers.register(conn, name, "here", WorkerRole.RUNNER, CC, 1)
    queued(conn, 1)
    claim = running(conn)
    workers.leave(conn, "w2")
    workers.leave(conn, claim.worker)
    assert [w.id for w in workers.of_host(conn)] == [claim.worker]
    assert claims.release_claims(conn, [claim.worker], "it left", writes_for=no_writes)
    workers.leave(conn, claim.worker)
    assert workers.of_host(conn) == []


def test_a_host_drains_while_one_of_its_runners_says_so_and_has_a_job() -> None:
    idle = Worker("i", "here", WorkerRole.RUNNER, CC, 1, "1", NOON, NOON, None)
    busy = dataclasses.replace(idle, job_id=JOB)
    early, late = (dataclasses.replace(busy, draining_since=NOON + timedelta(seconds=s)) for s in (1, 2))
    there = dataclasses.replace(late, host="there")
    assert workers.draining([idle, busy]) == []
    assert workers.draining([dataclasses.replace(late, job_id=None), busy]) == [], (
        "what has left waits for nothing"
    )
    # One that is about to say so is waited for as well.
    assert workers.draining([there, late, busy, early, idle]) == [
        Draining("here", NOON + timedelta(seconds=1), 3),
        Draining("there", NOON + timedelta(seconds=2), 1),
    ]
