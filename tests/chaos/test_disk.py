"""FAULT 23's other half: the disk under the state directory is full; and what keeps it from filling up."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import Make
from tests.support.chaos import HELD, Gate, Step, World, alive, frozen, kill
from tests.support.rig import CHECKOUT, Supervisor
from tests.support.wait import wait_until
from tireless.entities import Job, JobState, Outcome, Phase

SIZE_MB, LEAST_MB = 24, 4


def may_mount() -> bool:
    """Whether a small file system can be had, in a mount namespace that nobody else sees."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    done = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True)
    return done.returncode == 0


small_disk = pytest.mark.skipif(not may_mount(), reason="it takes root, and mounts, to have a small disk")


class SmallDisk(World):
    """A world whose state directory is a file system of SIZE_MB, which only its supervisor's processes see."""

    def start_on_it(self) -> Supervisor:
        state = self.state_dir()
        state.mkdir(exist_ok=True)
        mount = f'mount -t tmpfs -o size={SIZE_MB}m,mode=755 tmpfs {state} && exec "$0" "$@"'
        program = [sys.executable, "-m", "tireless.supervisor", "--config", str(self.config_path)]
        argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", mount, *program]
        found = Supervisor(argv, {**self.environ(), "PYTHONPATH": str(CHECKOUT)}, self.root / "supervisor.log")
        self.supervisors.append(found)
        wait_until(lambda: "ready: " in found.said() or found.process.poll() is not None, 60, "ready")
        assert found.process.poll() is None, found.said()
        return found

    @property
    def disk(self) -> Path:
        """The file system, by way of a process that sees it."""
        return Path(f"/proc/{self.supervisors[-1].pid}/root{self.state_dir()}")

    def home(self, job: Job, host: str | None = None) -> Path:
        return self.disk / "work" / str(job.id) / "home"

    def fill(self) -> None:
        with contextlib.suppress(OSError), open(self.disk / "filler", "wb", buffering=0) as f:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        f.write(b"\1" * size)

    def make_room(self) -> None:
        (self.disk / "filler").unlink()

    def hurry(self) -> None:
        """Time passes: what waits for a later try is due now."""
        self.row("with j as (update job set run_at = now() where state = 'pending') select 1")


@pytest.fixture
def disk(database_url: str) -> Iterator[SmallDisk]:
    with SmallDisk(database_url, tables={"runner": {"min_free_mb": LEAST_MB}}) as world:
        world.poll_every(1)
        world.start_on_it()
        yield world
        world.supervisors[0].end()
        assert world.leftovers() == []


def starts(world: SmallDisk, job: Job) -> int:
    return len((world.home(job) / ".scripted" / "starts.jsonl").read_text().splitlines())


def assert_waits_for_room(world: SmallDisk, number: int, phase: Phase) -> Job:
    """No attempt burnt, the phase kept, the reason in words; every process lives."""

    def look() -> Job | None:
        job = next(iter(world.jobs(number)), None)
        return job if job and job.state is JobState.PENDING and job.last_error else None

    job = world.until(look, 20, "the job waits")
    assert (job.attempts, job.phase) == (0, phase), world.report()
    said = str(job.last_error)
    assert any(w in said for w in ("No space left on device", "is full", "has too little room")), said
    assert " ended: " not in world.supervisors[0].said()
    return job


@small_disk
def test_fault_23_a_disk_that_is_full_before_the_work_begins(disk: SmallDisk) -> None:
    """Nobody takes the job, so that another host may; once there is room it is begun without a word from anybody."""
    disk.fill()
    number = disk.ask()
    disk.wait_job(number, JobState.PENDING)
    waiting = "select waits_for from worker where waits_for is not null limit 1"
    said = disk.until(lambda: disk.rows(waiting), 30, "the runner says what it waits for")
    assert "has too little room: work begins with" in said[0][0]
    assert disk.job(number).claim_seq == 0
    disk.make_room()
    done = disk.wait_job(number)
    assert done.state is JobState.DELIVERED, disk.report()
    assert starts(disk, done) == 1


@small_disk
def test_fault_23_a_disk_that_fills_up_under_an_agent(disk: SmallDisk) -> None:
    """The agent cannot go on, and neither can what it printed be kept: its attempt is not burnt for that."""
    number = disk.ask(*HELD)
    job = disk.agent_is_here(number)
    disk.fill()
    disk.let_agent_go(job)
    waiting = assert_waits_for_room(disk, number, Phase.AGENT)
    assert disk.agents(job) == []
    assert [run.outcome for run in disk.runs(waiting)] in ([Outcome.CRASHED], [Outcome.STOPPED])
    disk.make_room()
    disk.let_agent_go(job)
    disk.hurry()
    done = disk.wait_job(number)
    assert done.state is JobState.DELIVERED, disk.report()


@small_disk
def test_fault_23_a_disk_that_fills_up_behind_an_agent(disk: SmallDisk, database_url: str) -> None:
    """The agent has ended and is paid for; taking its work out of the workspace waits for room."""
    big: Step = {"do": "shell", "command": "head -c 300000 /dev/urandom > big.bin"}
    with Gate.at_phase(database_url, "verify") as gate:
        number = disk.ask(big, {"do": "done", "summary": "Big."})
        gate.caught()
        disk.fill()
        gate.open()
        job = assert_waits_for_room(disk, number, Phase.VERIFY)
    disk.make_room()
    disk.hurry()
    done = disk.wait_job(number)
    assert done.state is JobState.DELIVERED, disk.report()
    assert starts(disk, job) == 1
    assert "big.bin" in disk.forge.git().files(str(done.branch))


# -- an agent that fills it by itself -------------------------------------------------------------------------

EATS: Step = {"do": "shell", "command": f"head -c {(SIZE_MB - LEAST_MB) << 20} /dev/zero > ../home/eaten.bin"}


def assert_blocked_by_the_disk(disk: SmallDisk, number: int) -> Job:
    """Its agent is paid for once, the issue is told why, and the room is there again for the next job."""
    ended = disk.wait_job(number)
    assert ended.state is JobState.BLOCKED, disk.report()
    assert "runner.min_free_mb" in str(ended.last_error)
    told = disk.until(lambda: [c.body for c in disk.forge.comments(number) if "blocked" in c.body.lower()])
    assert "runner.min_free_mb" in told[-1]
    disk.until(lambda: not disk.home(ended).exists(), 40, "its workspace has gone, though it is young")
    following = disk.ask(title="The next")
    assert disk.wait_job(following).state is JobState.DELIVERED, disk.report()
    return ended


@small_disk
def test_fault_23_an_agent_that_fills_the_disk_is_stopped_and_its_work_saved(disk: SmallDisk) -> None:
    kept: Step = {"do": "write", "path": "kept.txt", "text": "Worth keeping.\n"}
    number = disk.ask(kept, EATS, *HELD)
    ended = assert_blocked_by_the_disk(disk, number)
    assert [run.outcome for run in disk.runs(ended)] == [Outcome.BUDGET_LIMIT]
    assert "kept.txt" in disk.forge.git().files(str(ended.branch))


@small_disk
def test_fault_23_an_agent_that_filled_the_disk_before_its_runner_died_is_not_run_again(
    disk: SmallDisk,
) -> None:
    number = disk.ask(*HELD, resume=[{"do": "fail"}])
    job = disk.agent_is_here(number)
    runner = disk.holder(job)
    with frozen(runner):
        subprocess.run(["sh", "-c", str(EATS["command"])], cwd=disk.home(job), check=True)
        kill(runner)
    ended = assert_blocked_by_the_disk(disk, number)
    assert len(disk.runs(ended)) == 1


# -- what keeps it from filling up ---------------------------------------------------------------------------


def workspaces(world: World) -> set[str]:
    return {path.name for path in (world.state_dir() / "work").iterdir()}


def tidy(world: World) -> None:
    """The poller tidies up when it starts, and every few minutes."""
    said = world.supervisors[-1].said()
    poller = int(said.rpartition("started poller pid=")[2].split()[0])
    kill(poller)
    world.until(lambda: not alive(poller), 10, "the poller is gone")


def aged(world: World, number: int, hours: float) -> str:
    """The issue's workspace, last used so long ago."""
    job = world.job(number)
    record = world.state_dir() / "work" / str(job.id) / "checkout.json"
    then = record.stat().st_mtime - hours * 3600
    os.utime(record, (then, then))
    return str(job.id)


def test_workspaces_of_finished_jobs_go_by_age_and_by_size_and_never_one_in_use(make_world: Make) -> None:
    world = make_world(runners=4, tables={"runner": {"keep_workspace_days": 3, "workspace_disk_mb": 9}})
    world.poll_every(1)
    world.start()
    fat: Step = {"do": "shell", "command": "head -c 4000000 /dev/urandom > fat.bin"}
    done: Step = {"do": "done", "summary": "Done."}
    finished = [world.ask(fat, done, title=title) for title in ("Aged", "Old", "Young")]
    held = world.agent_is_here(world.ask(fat, *HELD, title="In use, and the oldest of all"))
    for number in finished:
        world.wait_job(number, JobState.DELIVERED)
    names = [aged(world, n, hours) for n, hours in zip(finished, (80, 20, 0), strict=True)]
    in_use = aged(world, held.issue.number, 1000)
    assert workspaces(world) == {*names, in_use}
    unused = world.state_dir() / "mirrors/gitea/forge.test/acme/not-tracked-any-more.git"
    unused.mkdir(parents=True)
    unused.with_suffix(".lock").touch()
    os.utime(unused.with_suffix(".lock"), (0, 0))

    tidy(world)
    # By age the first; by size, of which the one in use takes its part, the older of the others.
    kept = {names[2], in_use}
    world.until(lambda: workspaces(world) == kept, 20, f"kept {kept}, there are {workspaces(world)}")
    world.until(lambda: "workspaces removed count=2" in world.supervisors[-1].said(), 5, "said in a line")
    world.until(lambda: not unused.exists(), 10, "the mirror of a repository that is not tracked is gone")
    world.let_agent_go(held)
    world.assert_delivered_once(held.issue.number)
