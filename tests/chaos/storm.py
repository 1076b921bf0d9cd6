"""The long mode: random faults under load, from a seed, ending with balanced books.

    python -m tests.chaos.storm --minutes 5 --seed 1

Two hosts share one Postgres. Issues keep coming; meanwhile runners, pollers, supervisors, agents and database sessions
are killed, runners are stopped past their lease, the server crashes, and the forge goes away. Which fault comes when
is drawn from the seed (what the machine makes of it is not). Then the faults end, the world calms down, and:

    every issue has exactly one delivered job and one pull request, and no job is live
    every claim of a job is explained: it was released, expired, requeued, or it finished the job
    agent time was paid once: no agent was started after one of the same job had ended its work, and there are not more
    starts (by the agents' own record) than rows of agent_run
    no lease, no slot, no open run, no waiting forge write, no process of an agent is left

Exit code 0 if the books balance; else 1, with what does not and the seed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

import psycopg

from tests.support.chaos import Step, World, alive
from tests.support.database import OwnServer, own_server
from tests.support.rig import Supervisor
from tests.support.wait import wait_until
from tireless import proctree
from tireless.entities import EventKind, Job, JobState, Outcome

A, B = "host-a", "host-b"
TABLES: dict[str, dict[str, object]] = {
    "lease": {
        "seconds": 8.0,
        "renew_seconds": 1.0,
        "margin_seconds": 3.0,
        "max_attempts": 1000,
        "backoff_seconds": 0.02,
    },
    "database": {"connect_timeout_seconds": 2},
}
CALM_SECONDS = 240.0


class Storm:
    def __init__(self, server: OwnServer, world: World, seed: int) -> None:
        self._server = server
        self._world = world
        self._dice = random.Random(seed)
        self._supervisors: dict[str, Supervisor] = {}
        self._stopped: list[tuple[float, int]] = []  # (when it goes on, pid)
        self._issues: list[int] = []
        self._back_at: float | None = None  # the forge's return
        self.done: Counter[str] = Counter()

    # -- the weather ------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        for host in (A, B):
            self._supervisors[host] = self._world.start(host)
        over = time.monotonic() + seconds
        faults: list[tuple[Callable[[], None], int]] = [
            (self._kill_runner, 6),
            (self._kill_agent, 3),
            (self._kill_session, 5),
            (self._kill_poller, 2),
            (self._kill_supervisor, 1),
            (self._stop_runner, 2),
            (self._crash_server, 1),
            (self._forge_away, 2),
        ]
        acts, weights = zip(*faults, strict=True)
        while time.monotonic() < over:
            self._keep_up()
            if self._dice.random() < 0.6 and self._live() < 6:
                self._issues.append(self._world.ask(*self._script()))
            act = self._dice.choices(acts, weights)[0]
            with contextlib.suppress(psycopg.Error, ProcessLookupError):
                act()
            _wait(self._dice.uniform(0.2, 1.2))

    def calm(self) -> None:
        """No more faults: everything is up, and what is open comes to its end."""
        self._server.start()
        self._come_back()
        for _, pid in self._stopped:
            _send(pid, signal.SIGCONT)
        self._stopped.clear()
        deadline = time.monotonic() + CALM_SECONDS

        def settled() -> bool:
            self._keep_up()
            with contextlib.suppress(psycopg.Error):
                return self._live() == 0 and self._world.row(
                    "select count(*) from forge_write where state = 'waiting'"
                ) == (0,)
            return False

        wait_until(settled, deadline - time.monotonic(), "the world is calm")

    def _script(self) -> Sequence[Step]:
        steps: list[Step] = [{"do": "append", "path": "notes.md", "text": "begun\n"}]
        for i in range(self._dice.randint(0, 3)):
            steps.append({"do": "sleep", "seconds": round(self._dice.uniform(0.1, 1.5), 2)})
            steps.append({"do": "append", "path": "notes.md", "text": f"part {i}\n"})
        return [*steps, {"do": "done", "summary": "Done in the storm."}]

    def _keep_up(self) -> None:
        """What an operator's service manager does, and what the faults' own time brings back."""
        for host, supervisor in self._supervisors.items():
            if supervisor.process.poll() is not None:
                self._supervisors[host] = self._world.start(host, wait=False)
        now = time.monotonic()
        for entry in [e for e in self._stopped if e[0] <= now]:
            self._stopped.remove(entry)
            _send(entry[1], signal.SIGCONT)
        if self._back_at is not None and now >= self._back_at:
            self._come_back()

    def _live(self) -> int:
        try:
            found = self._world.row("select count(*) from job where state in ('pending', 'claimed', 'running')")
            delivered = self._world.row("select count(distinct number) from job where state = 'delivered'")
        except psycopg.Error:
            return 1000
        return max(int(found[0]), len(self._issues) - int(delivered[0]))

    # -- faults -----------------------------------------------------------------------------------------

    def _workers(self, role: str) -> list[int]:
        rows = self._world.rows("select pid from worker where role = %s", role)
        return [pid for (pid,) in rows if alive(pid)]

    def _kill_one(self, pids: Sequence[int], what: str) -> None:
        if pids:
            self.done[what] += 1
            _send(self._dice.choice(sorted(pids)), signal.SIGKILL)

    def _kill_runner(self) -> None:
        self._kill_one(self._workers("runner"), "runner killed")

    def _kill_poller(self) -> None:
        self._kill_one(self._workers("poller"), "poller killed")

    def _kill_agent(self) -> None:
        self._kill_one(self._world.leftovers(), "process of an agent killed")

    def _kill_supervisor(self) -> None:
        self._kill_one([s.pid for s in self._supervisors.values()], "supervisor killed")

    def _kill_session(self) -> None:
        self.done["database session ended"] += 1
        self._world.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'tireless%%'"
            " and random() < 0.3 and pid <> %s",
            0,
        )

    def _stop_runner(self) -> None:
        pids = self._workers("runner")
        if pids and len(self._stopped) < 2:
            pid = self._dice.choice(sorted(pids))
            self.done["runner stopped"] += 1
            _send(pid, signal.SIGSTOP)
            self._stopped.append((time.monotonic() + self._dice.uniform(1, 12), pid))

    def _crash_server(self) -> None:
        self.done["server crashed"] += 1
        self._server.crash()
        _wait(self._dice.uniform(0, 3))
        self._server.start()

    def _forge_away(self) -> None:
        if self._back_at is None:
            self.done["forge away"] += 1
            self._world.forge.down()
            self._back_at = time.monotonic() + self._dice.uniform(0.5, 4)

    def _come_back(self) -> None:
        if self._back_at is not None:
            self._world.forge.up()
            self._back_at = None

    # -- the books --------------------------------------------------------------------------------------

    def books(self) -> list[str]:
        """What does not balance."""
        wrong = []
        jobs = self._world.jobs()
        for number in self._issues:
            mine = [job for job in jobs if job.issue.number == number]
            if [job.state for job in mine] != [JobState.DELIVERED]:
                wrong.append(f"issue {number}: jobs are {[str(job.state) for job in mine]}")
            heads = [p.pull.head for p in self._world.forge.pulls() if p.pull is not None]
            if mine and heads.count(str(mine[0].branch)) != 1:
                wrong.append(f"issue {number}: {heads.count(str(mine[0].branch))} pull requests")
            for job in mine:
                wrong += self._claims(job) + self._runs(job)
        for what, query in LEFT.items():
            count = self._world.row(f"select count(*) from {query}")[0]
            if count:
                wrong.append(f"{count} {what}")
        return wrong

    def _claims(self, job: Job) -> list[str]:
        """Each claim ends in one way, in the events' own order."""
        ends = (EventKind.RELEASED, EventKind.LEASE_EXPIRED, EventKind.REQUEUED, EventKind.FINISHED)
        kinds = [e.kind for e in self._world.events(job) if e.kind in (*ends, EventKind.CLAIMED)]
        good = all((kind == EventKind.CLAIMED) == (i % 2 == 0) for i, kind in enumerate(kinds))
        if good and kinds and kinds[-1] == EventKind.FINISHED and len(kinds) == 2 * job.claim_seq:
            return []
        return [
            f"issue {job.issue.number}: claims do not add up, seq={job.claim_seq}: {[str(k) for k in kinds]}"
        ]

    def _runs(self, job: Job) -> list[str]:
        runs, starts = self._world.runs(job), self._world.starts(job)
        wrong = []
        completed = [i for i, run in enumerate(runs) if run.outcome is Outcome.COMPLETED]
        if completed != [len(runs) - 1]:
            wrong.append(f"issue {job.issue.number}: runs ended as {[str(r.outcome) for r in runs]}")
        if len(starts) > len(runs):
            wrong.append(f"issue {job.issue.number}: {len(starts)} starts, {len(runs)} runs on record")
        return wrong


LEFT = {
    "claims are left": "job where claimed_by is not null",
    "slots are left": "lane_slot where job_id is not null",
    "runs are open": "agent_run where ended_at is null",
    "forge writes wait": "forge_write where state = 'waiting'",
    "forge writes were refused": "forge_write where state = 'refused'",
}


def _send(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


def _wait(seconds: float) -> None:
    """The pause between two faults, which is part of the weather and waits for nothing."""
    signal.sigtimedwait([], seconds)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.storm", description="Random faults under load."
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    args = parser.parse_args(argv)
    print(f"seed {args.seed}, {args.minutes:g} minutes", flush=True)
    with own_server() as server, server.database() as url:
        with World(url, runners=2, cap=3, tables=TABLES) as world:
            world.reconfigure(B, runners=2, cap=3, tables=TABLES)
            world.poll_every(1)
            storm = Storm(server, world, args.seed)
            storm.run(args.minutes * 60)
            wrong = finish(storm, world)
            print(f"{len(world.jobs())} jobs; {', '.join(f'{n} {what}' for what, n in storm.done.items())}")
            if wrong:
                print(world.report(), file=sys.stderr)
        if world.leftovers():
            wrong.append(f"processes are left: {world.leftovers()}")
    for line in wrong:
        print(f"WRONG: {line}")
    print("the books balance" if not wrong else f"the books do not balance; seed {args.seed}")
    return 1 if wrong else 0


def finish(storm: Storm, world: World) -> list[str]:
    try:
        storm.calm()
    except AssertionError as e:
        return [str(e), *storm.books()]
    wrong = storm.books()
    tree = [p for s in world.supervisors if s.process.poll() is None for p in proctree.descendants(s.pid)]
    for supervisor in world.supervisors:
        if supervisor.process.poll() is None:
            supervisor.send(signal.SIGTERM)
            code = supervisor.wait(40)
            if code != 0:
                wrong.append(f"a drained supervisor of idle runners left with {code}")
    left = [pid for pid in tree if alive(pid)]
    if left:
        wrong.append(f"processes of a drained supervisor are left: {left}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
