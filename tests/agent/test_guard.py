"""No process outlives its job, and no finished run is forgotten: the guard, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.runs import REPOSITORY, Job, bubblewrap, follow, scripted_lane
from tests.support.wait import wait_until
from tireless import proctree
from tireless.agents import runfiles
from tireless.agents.base import StopReason
from tireless.agents.conclusion import conclude_from
from tireless.entities import Outcome

HELPER = {"do": "spawn", "pid_file": "$TMPDIR/helper"}
UNMARKED_HELPER = {**HELPER, "environment": False}
DEAF = {"do": "ignore_term"}
HANG = {"do": "hang"}
TOOL = {"do": "shell", "command": "echo $$ > $TMPDIR/tool; exec sleep 300"}


def pid_in(path: Path) -> int:
    return int(wait_until(lambda: path.read_text().strip() if path.exists() else "", what=f"a pid in {path}"))


def gone(*pids: int) -> bool:
    return all(proctree.start_ticks(pid) is None for pid in pids)


@pytest.mark.parametrize("helper", [HELPER, UNMARKED_HELPER], ids=["marked", "unmarked"])
def test_a_helper_that_escaped_ends_with_the_agent(job: Job, helper: dict[str, Any]) -> None:
    """Forked twice, in a session of its own, deaf to TERM, without the job's mark."""
    conclusion = job.run(scripted_lane(helper, {"do": "done"}))
    assert conclusion.outcome is Outcome.COMPLETED
    assert gone(pid_in(job.places.tmp / "helper"))
    assert job.alive() == []


@pytest.mark.parametrize("steps", [[HELPER, DEAF, HANG], [UNMARKED_HELPER, TOOL]], ids=["deaf", "tool"])
def test_a_stop_ends_all_of_it(job: Job, steps: list[dict[str, Any]]) -> None:
    with job.start(scripted_lane(*steps)) as agent:
        helper = pid_in(job.places.tmp / "helper")
        agent.stop(StopReason.CANCELLED)
        follow(agent, 10)
        assert agent.conclude().outcome is Outcome.STOPPED
    assert gone(helper)
    assert job.alive() == []
    left = runfiles.read_exit(job.run_dir)
    assert left is not None
    assert left.stopped


def test_false_success_after_a_stop_is_not_believed(job: Job) -> None:
    """On TERM in a tool claude prints a success and exits with 0; so does the scripted agent."""
    with job.start(scripted_lane(TOOL)) as agent:
        pid_in(job.places.tmp / "tool")
        agent.turn(0.5)
        agent.stop(StopReason.DRAIN)
        follow(agent, 10)
        conclusion = agent.conclude()
    left = runfiles.read_exit(job.run_dir)
    assert left is not None
    assert left.code == 0
    assert b'"is_error": false' in (job.run_dir / runfiles.EVENTS).read_bytes()
    assert conclusion.outcome is Outcome.STOPPED
    assert conclusion.session_id == job.session


@pytest.mark.skipif(bubblewrap() is None, reason="bubblewrap does not work on this machine")
def test_the_agent_behind_bubblewrap_is_asked_before_it_is_killed(job: Job) -> None:
    """A TERM to bubblewrap itself would KILL what is inside; the agent is to hear it and close its session."""
    sandbox = bubblewrap()
    assert sandbox is not None
    job.sandbox = sandbox
    with job.start(scripted_lane(UNMARKED_HELPER, TOOL)) as agent:
        wait_until(lambda: (job.places.tmp / "tool").exists(), what="the tool")
        tree = proctree.descendants(agent.guard_pid)
        agent.stop(StopReason.DRAIN)
        follow(agent, 10)
        assert agent.conclude().outcome is Outcome.STOPPED
    left = runfiles.read_exit(job.run_dir)
    assert left is not None
    assert left.code == 0  # its own end, through bubblewrap
    assert gone(*tree)


def test_an_agent_that_ended_by_itself_before_the_stop_has_ended(job: Job) -> None:
    with job.start(scripted_lane({"do": "done"})) as agent:
        wait_until(lambda: runfiles.read_exit(job.run_dir), what="exit.json")
        agent.stop(StopReason.DRAIN)
        follow(agent, 10)
        assert agent.conclude().outcome is Outcome.COMPLETED
    assert conclude_from(job.run_dir, job.adapter) is not None


def test_exit_code_and_signal_are_recorded(job: Job) -> None:
    assert job.run(scripted_lane({"do": "exit", "code": 7})).exit_code == 7
    job.session = str(uuid.uuid4())
    assert job.run(scripted_lane({"do": "signal", "signal": 9})).exit_code == -9


def test_what_cannot_be_started_says_why(job: Job) -> None:
    broken = job.root / "broken"
    broken.write_bytes(b"\x7fELF and no more")
    broken.chmod(0o755)
    lane = scripted_lane()
    conclusion = job.run(type(lane)(command=(str(broken),)))
    assert conclusion.outcome is Outcome.CRASHED
    assert "could not be started: Exec format error" in conclusion.detail


def test_a_guard_that_is_killed_takes_the_agent_with_it(job: Job) -> None:
    with job.start(scripted_lane(HELPER, DEAF, HANG)) as agent:
        helper = pid_in(job.places.tmp / "helper")
        main = [pid for pid in job.alive() if pid not in (agent.guard_pid, helper)]
        os.kill(agent.guard_pid, signal.SIGKILL)
        follow(agent, 10)
        wait_until(lambda: gone(*main), what="the agent's end")
        assert agent.conclude().outcome is Outcome.CRASHED
    assert gone(helper)  # found by its mark


def test_a_guard_that_is_stopped_is_killed_in_the_end(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tireless.agents.process._FORCE_AFTER_SECONDS", 0.5)
    job.with_limits(grace_seconds=0.1)
    with job.start(scripted_lane(UNMARKED_HELPER, HANG)) as agent:
        helper = pid_in(job.places.tmp / "helper")
        os.kill(agent.guard_pid, signal.SIGSTOP)
        agent.stop(StopReason.CANCELLED)
        follow(agent, 10)
        assert agent.conclude().outcome is Outcome.STOPPED
    assert gone(helper)
    assert job.alive() == []


def test_leaving_the_block_ends_the_run(job: Job) -> None:
    with contextlib.suppress(KeyError), job.start(scripted_lane(UNMARKED_HELPER, HANG)):
        helper = pid_in(job.places.tmp / "helper")
        raise KeyError("a bug in the runner")
    assert gone(helper)
    assert job.alive() == []


def test_a_start_kills_what_an_earlier_run_of_the_job_left(job: Job) -> None:
    stray = subprocess.Popen(["sleep", "300"], env={"TIRELESS_JOB": job.id, "PATH": os.environ["PATH"]})
    wait_until(lambda: job.alive() == [stray.pid], what="the stray")
    with job.start(scripted_lane(HANG)):
        assert stray.wait(5) == -9


@pytest.fixture
def runner(job: Job) -> Iterator[Runner]:
    runner = Runner(job)
    yield runner
    runner.kill()


class Runner:
    """A small process that runs one agent as a runner does, so that it can be killed."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *steps: dict[str, Any], mode: str = "none") -> int:
        """Start it; the guard's pid, once the agent has printed something."""
        script = json.dumps({"steps": list(steps)})
        module = "tests.support.agent.tiny_runner"
        argv = [sys.executable, "-m", module, str(self.job.root), self.job.id, script, mode]
        self.process = subprocess.Popen(argv, cwd=REPOSITORY)
        self.job.runs = 1
        return pid_in(self.job.root / "started")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def modes() -> list[Any]:
    why = "bubblewrap does not work on this machine"
    return ["none", pytest.param("bwrap", marks=pytest.mark.skipif(bubblewrap() is None, reason=why))]


@pytest.mark.parametrize("mode", modes())
def test_the_agent_dies_with_its_runner(job: Job, runner: Runner, mode: str) -> None:
    guard = runner.start({"do": "say", "text": "hi"}, UNMARKED_HELPER, DEAF, HANG, mode=mode)
    wait_until(lambda: (job.places.tmp / "helper").exists(), what="the helper")
    tree = [guard, *proctree.descendants(guard)]
    assert len(tree) >= 3
    runner.kill()
    wait_until(lambda: gone(*tree), timeout=5, what="the end of the whole tree")
    assert runfiles.read_exit(job.run_dir) is None
    assert conclude_from(job.run_dir, job.adapter) is None  # cut off half-way: to be resumed
    assert b'"hi"' in (job.run_dir / runfiles.EVENTS).read_bytes()


def test_killed_and_not_asked_nicely(job: Job, runner: Runner) -> None:
    """TERM would make claude print a false success, which nobody could tell from a true one later."""
    runner.start(TOOL)
    tool = pid_in(job.places.tmp / "tool")
    runner.kill()
    wait_until(lambda: gone(tool), timeout=5, what="the tool's end")
    wait_until(lambda: job.alive() == [], timeout=5, what="the agent's end")
    assert b'"result"' not in (job.run_dir / runfiles.EVENTS).read_bytes()


def test_work_done_before_the_runner_died_is_concluded_afterwards(job: Job, runner: Runner) -> None:
    """The final event is printed, the CLI has not left yet, and the runner dies: nobody pays twice."""
    guard = runner.start({"do": "done"}, {"do": "linger"})
    wait_until(lambda: b'"result"' in (job.run_dir / runfiles.EVENTS).read_bytes(), what="the result")
    runner.kill()
    conclusion = conclude_from(job.run_dir, job.adapter)
    assert job.alive() == []
    wait_until(lambda: gone(guard), what="the guard's own end")
    assert conclusion is not None
    assert conclusion.outcome is Outcome.COMPLETED
    assert runfiles.read_exit(job.run_dir) is None


def test_a_runner_killed_at_any_moment_leaves_nothing_or_an_end(job: Job, runner: Runner) -> None:
    """The agent ends by itself while the runner dies: either way the files say what happened."""
    gate = job.places.tmp / "gate"
    runner.start({"do": "say", "text": "hi"}, {"do": "wait_for", "path": str(gate)}, {"do": "done"})
    gate.touch()
    runner.kill()
    conclusion = conclude_from(job.run_dir, job.adapter)
    assert conclusion is None or conclusion.outcome is Outcome.COMPLETED
    assert job.alive() == []
