"""FAULT 22: the whole of tireless under a real runsv with svlogd, with a job in hand."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.conftest import Make
from tests.support.chaos import HELD, World, alive, wait_dead
from tests.support.rig import CHECKOUT
from tests.support.wait import wait_until
from tireless import proctree
from tireless.entities import JobState, Outcome

pytestmark = pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("runsv", "sv", "svlogd", "chpst")),
    reason="runit (runsv, sv, svlogd, chpst) is not installed",
)

LINE = re.compile(
    r"^\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\.\d{5} ((DEBUG|INFO|WARNING|ERROR) [a-z_ 0-9]+\[\d+\] [a-z._]+: |finish: )"
)


class Service:
    """etc/runit/tireless, copied, under a runsv of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.place = world.root / "service"
        self.log_dir = world.root / "logs"
        self.log_dir.mkdir()
        shutil.copytree(CHECKOUT / "etc" / "runit" / "tireless", self.place)
        program = world.root / "program"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tireless.supervisor "$@"\n')
        program.chmod(0o755)
        wanted = ("TIRELESS_RIG_TOKEN", "TIRELESS_DATABASE_URL", "PYTHONUNBUFFERED")
        environ = {
            **{name: world.environ()[name] for name in wanted},
            "TIRELESS_PROGRAM": str(program),
            "TIRELESS_CONFIG": str(world.config_path),
            "TIRELESS_USER": getpass.getuser(),
            "TIRELESS_HOME": str(world.root),
            "TIRELESS_LOG_DIR": str(self.log_dir),
            "PYTHONPATH": str(CHECKOUT),
        }
        (self.place / "env").mkdir()
        for name, value in environ.items():
            (self.place / "env" / name).write_text(value + "\n")
        null = subprocess.DEVNULL
        self.runsv = subprocess.Popen(["runsv", str(self.place)], stdin=null, stdout=null, stderr=null)

    def sv(self, verb: str, *options: str) -> str:
        argv = ["sv", *options, verb, str(self.place)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def lines(self, text: str = "") -> list[str]:
        current = self.log_dir / "current"
        every = current.read_text().splitlines() if current.exists() else []
        return [line for line in every if text in line]

    def await_line(self, text: str, count: int = 1) -> None:
        wait_until(lambda: len(self.lines(text)) >= count, 20, f"{count} of {text!r} in {self.lines()[-30:]}")

    @property
    def pid(self) -> int:
        return int((self.place / "supervise" / "pid").read_text() or 0)

    def close(self) -> None:
        if (self.place / "supervise" / "pid").exists() and self.pid:
            tree = [self.pid, *proctree.descendants(self.pid)]
            self.sv("down")
            self.sv("quit")
            wait_dead(*tree, seconds=10)
        self.sv("exit", "-w", "10")
        self.runsv.terminate()
        self.runsv.wait(10)


@pytest.fixture
def service(make_world: Make) -> Iterator[Service]:
    world = make_world()
    world.poll_every(1)
    made = Service(world)
    yield made
    made.close()
    assert world.leftovers() == []


def test_fault_22_under_runsv_a_job_in_hand_outlives_hup_term_and_a_crash(service: Service) -> None:
    world = service.world
    service.await_line("ready: poller 1/1, claude_code 1/1")
    assert service.sv("status").startswith("run: ")
    first = service.pid

    # HUP: the new cap is in the row, the agent goes on.
    number = world.ask(*HELD, title="Through HUP and TERM")
    job = world.agent_is_here(number)
    world.reconfigure(runners=1, cap=3, tables={})
    service.sv("hup")
    service.await_line("cap written lane=claude_code cap=3 was=1")

    # TERM drains: what is in hand is delivered, and only then the service begins anew.
    service.sv("term")
    service.await_line("draining: SIGTERM")
    assert service.pid == first
    assert world.job(number).state is JobState.RUNNING
    world.let_agent_go(job)
    done = world.assert_delivered_once(number)
    assert done.attempts == 1
    service.await_line("supervisor ends exit=0")
    service.await_line("supervisor starts", count=2)
    second = service.pid
    assert second != first

    # A crash: everything of it dies, and the next one, which runsv starts, takes the job back at once.
    number = world.ask(*HELD, title="Through a crash")
    job = world.agent_is_here(number)
    tree = [second, *proctree.descendants(second)]
    os.kill(second, signal.SIGKILL)
    wait_dead(*tree, seconds=5)
    world.wait_claimed_anew(job, job.claim_seq)
    world.until(lambda: len(world.starts(job)) == 2, what="a second start")
    world.let_agent_go(job)
    done = world.assert_delivered_once(number)
    assert [run.outcome for run in world.runs(done)] == [Outcome.CRASHED, Outcome.COMPLETED]

    service.sv("down")
    service.await_line("supervisor ends exit=0", count=2)
    wait_until(lambda: service.sv("status").startswith("down: "), 5, "down")
    assert not alive(service.pid) if service.pid else True
    # Each event is one line, with svlogd's time before it and none of ours.
    odd = [line for line in service.lines() if not LINE.match(line)]
    assert odd == []
    token = world.environ()["TIRELESS_RIG_TOKEN"]
    assert not service.lines(token)
    assert Path(service.log_dir / "current").stat().st_size > 0
