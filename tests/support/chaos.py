"""A rig with levers: quick settings, scripted agents held at a known point, writes held just before they happen.

A test waits for what it can see from outside (a row, a file, a process), acts, and looks again. Nothing sleeps.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import psycopg

from tests.support.rig import Rig
from tests.support.wait import wait_until
from tireless import proctree
from tireless.entities import Job, JobState
from tireless.process import parse_worker_id
from tireless.store import jobs, repos
from tireless.store.queries import Connection

T = TypeVar("T")
Step = dict[str, Any]

HERE, GO = "$HOME/here", "$HOME/go"
# An agent that says where it is and goes on when it is told to.
HELD: tuple[Step, ...] = (
    {"do": "append", "path": "notes.md", "text": "first half\n"},
    {"do": "write", "path": HERE, "text": "here"},
    {"do": "wait_for", "path": GO},
    {"do": "append", "path": "notes.md", "text": "second half\n"},
    {"do": "done", "summary": "Both halves are there."},
)


class World(Rig):
    """`settings` are whole tables of the configuration, after the quick ones (which are by table: see `tables`)."""

    def __init__(
        self,
        url: str | None,
        *,
        runners: int = 1,
        cap: int | None = None,
        tables: dict[str, dict[str, object]] | None = None,
        **options: Any,
    ) -> None:
        lane = f"cap = {cap if cap is not None else max(runners, 1)}\nrunners = {runners}"
        super().__init__(url=url, settings=settings_text(tables or {}), claude=lane, **options)

    def reconfigure(
        self,
        host: str | None = None,
        *,
        runners: int = 1,
        cap: int = 1,
        tables: dict[str, dict[str, object]],
        opencode: str | None = None,
    ) -> Path:
        claude = f"cap = {cap}\nrunners = {runners}"
        return self.write_config(host, claude=claude, opencode=opencode, settings=settings_text(tables))

    def poll_every(self, interval: int = 1, repo: str | None = None, **settings: Any) -> int:
        """As `repo add`, with an interval in seconds that only a test may ask for; the row's id."""
        full_name = repo or self.repo
        ref = self.forge.ref(full_name)
        wanted = repos.RepoSettings(f"{self.forge.url}/{full_name}.git", "main", interval, **settings)
        with self.connection() as conn:
            found = repos.add(conn, ref, wanted)
        assert found is not None
        return found.id

    # -- issues and agents --------------------------------------------------------------------------------

    def ask(
        self, *steps: Step, title: str = "Do it", resume: Sequence[Step] | None = None, repo: str | None = None
    ) -> int:
        """Opens an issue with the label on; its agent does the steps (without any: a line in README.md)."""
        script: dict[str, Any] = {"steps": list(steps)}
        if resume is not None:
            script["resume"] = list(resume)
        body = f"scripted-agent: {json.dumps(script)}" if steps else ""
        number = self.forge.open_issue(title, body, labels=["tireless"], repo=repo)
        with contextlib.suppress(psycopg.Error):  # the database may be away just now
            self.poke()
        return number

    def home(self, job: Job, host: str | None = None) -> Path:
        """The agent's $HOME."""
        return self.state_dir(host) / "work" / str(job.id) / "home"

    def agent_is_here(self, number: int, host: str | None = None, seconds: float = 30.0) -> Job:
        """The job, once its agent is at the point where HELD waits."""
        wait_until(
            lambda: self.jobs(number) and (self.home(self.job(number), host) / "here").exists(),
            seconds,
            f"the agent of issue {number} is at its gate\n{self.report()}",
        )
        return self.job(number)

    def let_agent_go(self, job: Job, host: str | None = None) -> None:
        (self.home(job, host) / "go").touch()

    def starts(self, job: Job) -> list[dict[str, Any]]:
        """Each start of an agent for the job, on whatever host, by the agent's own record."""
        found = []
        for path in sorted(self.root.glob(f"state-*/work/{job.id}/home/.scripted/starts.jsonl")):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def agents(self, job: Job) -> list[int]:
        """The processes of the job's agents that live now, their guards included."""
        return proctree.marked(str(job.id))

    # -- processes ----------------------------------------------------------------------------------------

    def holder(self, job: Job) -> int:
        """The pid of who holds the job."""
        held = self.job(job.issue.number)
        assert held.claimed_by is not None, f"nobody holds the job\n{self.report()}"
        worker = parse_worker_id(held.claimed_by)
        assert worker is not None
        return worker.pid

    def wait_claimed_anew(self, job: Job, seq: int, seconds: float = 20.0) -> Job:
        """The job, once it is held by a claim after number `seq`."""

        def look() -> Job | None:
            now = self.job(job.issue.number)
            return now if now.claim_seq > seq and now.state.held else None

        return self.until(look, seconds, f"claimed again after {seq}")

    def until(self, look: Callable[[], T | None], seconds: float = 20.0, what: str = "condition") -> T:
        """wait_until, with the report of the world in its failure."""
        try:
            return wait_until(look, seconds, what)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.report()}") from None

    # -- what must hold in the end ------------------------------------------------------------------------

    def kinds(self, job: Job) -> list[str]:
        return [event.kind for event in self.events(job)]

    def row(self, query: str, *params: object) -> Any:
        """The first row of a query of the test's own."""
        with self.connection() as conn:
            return conn.execute(query.encode(), params or None).fetchone()

    def rows(self, query: str, *params: object) -> list[Any]:
        with self.connection() as conn:
            return conn.execute(query.encode(), params or None).fetchall()

    def assert_delivered_once(self, number: int) -> Job:
        """One job for the issue, delivered; one pull request for it; the issue tidied up."""
        job = self.wait_job(number)
        assert job.state is JobState.DELIVERED, self.report()
        self.wait_settled()
        assert len(self.jobs(number)) == 1, self.report()
        pulls = [p for p in self.forge.pulls() if p.pull is not None and p.pull.head == job.branch]
        assert len(pulls) == 1, self.report()
        comments = [c for c in self.forge.comments(number) if f"tireless:job={job.id}" in c.body]
        assert len(comments) == 1, self.report()
        assert sorted(self.forge.labels(number)) == ["tireless/state/delivered"]
        return self.job(number)

    def assert_nothing_held(self) -> None:
        """No claim, no slot, no open run, no process of an agent."""
        assert self.row("select count(*) from job where claimed_by is not null") == (0,), self.report()
        assert self.row("select count(*) from lane_slot where job_id is not null") == (0,), self.report()
        assert self.row("select count(*) from agent_run where ended_at is null") == (0,), self.report()
        assert self.leftovers() == []

    def leftovers(self) -> list[int]:
        """Processes that belong to an agent of this rig."""
        place = os.fsencode(self.root)
        found = []
        for pid in proctree.marked():
            with contextlib.suppress(OSError):
                if place in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found


QUICK: dict[str, dict[str, object]] = {
    "poller": {"wake_seconds": 0.5},
    "runner": {"wake_seconds": 0.5},
    "supervisor": {"restart_delay_seconds": 0.1, "crash_loop_limit": 50, "stop_grace_seconds": 2.0},
    "lease": {"max_attempts": 9, "backoff_seconds": 0.02},
}


def settings_text(tables: dict[str, dict[str, object]]) -> str:
    lines = []
    for name in [*QUICK, *(t for t in tables if t not in QUICK)]:
        lines.append(f"[{name}]")
        lines += [f"{k} = {json.dumps(v)}" for k, v in {**QUICK.get(name, {}), **tables.get(name, {})}.items()]
    return "\n".join(lines)


# -- agents at their gates ---------------------------------------------------------------------------------


def at_gate(world: World, count: int) -> list[Job] | None:
    found = [job for job in world.jobs() if job.state.held and _here(world, str(job.id))]
    return found if len(found) >= count else None


def _here(world: World, job_id: str) -> list[Path]:
    return [p.parent for p in world.root.glob(f"state-*/work/{job_id}/home/here")]


def open_gates(world: World) -> int:
    """Lets the agents go on that are at their gates; how many there were."""
    homes = [home for job in world.jobs() for home in _here(world, str(job.id))]
    for home in homes:
        (home / "go").touch()
    return len(homes)


def finished(world: World) -> int:
    return sum(1 for job in world.jobs() if job.state.terminal)


# -- processes --------------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    return proctree.start_ticks(pid) is not None


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_dead(*pids: int, seconds: float = 5.0) -> None:
    wait_until(lambda: not any(alive(pid) for pid in pids), seconds, f"dead: {pids}")


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stopped by SIGSTOP inside the block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


# -- the database -----------------------------------------------------------------------------------------


class Gate:
    """Holds whoever is about to write rows of a table in a given way, until it is opened.

    A trigger waits on an advisory lock that this object holds. The held statement has locked its row already.
    `when` is the trigger's condition over `old` and `new`. `at_commit`: held in the commit instead.
    """

    def __init__(
        self, url: str, when: str, *, table: str = "job", event: str = "update", at_commit: bool = False
    ) -> None:
        self._conn: Connection = psycopg.connect(url, autocommit=True)
        self._key = random.getrandbits(30)
        self.name = f"gate_{self._key}"
        self._table = table
        self._conn.execute("select pg_advisory_lock(%s)", (self._key,))
        self._conn.execute(
            f"create function {self.name}() returns trigger language plpgsql as $$ begin "
            f"perform pg_advisory_xact_lock_shared({self._key}); return new; end $$".encode()
        )
        self._conn.execute(
            f"create {'constraint' if at_commit else ''} trigger {self.name} "
            f"{'after' if at_commit else 'before'} {event} on {table} "
            f"{'deferrable initially deferred' if at_commit else ''} for each row "
            f"when ({when}) execute function {self.name}()".encode()
        )

    @classmethod
    def at_phase(cls, url: str, phase: str) -> Gate:
        """Holds the write that makes `phase` the first phase that is not complete."""
        return cls(url, f"old.phase <> new.phase and new.phase = '{phase}'")

    def caught(self, seconds: float = 20.0) -> int:
        """The backend that the gate holds, once it holds one."""
        return wait_until(self.waiting, seconds, f"somebody at the gate {self.name}")

    def waiting(self) -> int | None:
        """A backend that the gate holds now."""
        query = "select pid from pg_locks where locktype = 'advisory' and objid = %s and not granted"
        found = self._conn.execute(query, (self._key,)).fetchone()
        return int(found[0]) if found else None

    def waiters(self) -> int:
        query = "select count(*) from pg_locks where locktype = 'advisory' and objid = %s and not granted"
        found = self._conn.execute(query, (self._key,)).fetchone()
        assert found is not None
        return int(found[0])

    def roll_back(self, backend: int) -> None:
        """The held statement never happened."""
        self._conn.execute("select pg_terminate_backend(%s, 5000)", (backend,))

    def open(self) -> None:
        """Who is held goes on, and nobody is held any more."""
        self._conn.execute("select pg_advisory_unlock(%s)", (self._key,))

    def shut(self) -> None:
        self._conn.execute("select pg_advisory_lock(%s)", (self._key,))

    def close(self) -> None:
        with contextlib.suppress(psycopg.OperationalError):  # the server may have crashed, and the lock with it
            self._conn.execute("select pg_advisory_unlock_all()")
            self._conn.execute(f"drop trigger if exists {self.name} on {self._table}".encode())
        self._conn.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HighWater:
    """The most jobs that were ever in hand at one moment, by looking all the time."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._over = threading.Event()
        self.most = 0

    def _look(self) -> None:
        query = "select count(*) from job where state in ('claimed', 'running')"
        with psycopg.connect(self._url, autocommit=True) as conn:
            while not self._over.wait(0.01):
                found = conn.execute(query).fetchone()
                assert found is not None
                self.most = max(self.most, found[0])

    @contextlib.contextmanager
    def watching(self) -> Iterator[HighWater]:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join(5)


def cancel_silently(world: World, job: Job, why: str) -> None:
    """A cancel whose notification is lost: the column alone."""
    world.row(
        "update job set cancel_requested_at = now(), cancel_reason = %s where id = %s returning id", why, job.id
    )


def cancel(world: World, job: Job, why: str) -> list[Job]:
    """A cancel as an operator's command does it."""
    from tireless.delivery import writes_for_end

    with world.connection() as conn:
        return jobs.cancel(conn, [job.id], why, writes_for=writes_for_end(world.config()), actor="operator")
