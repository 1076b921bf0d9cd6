"""FAULT 22: the service directory of etc/runit under a real runsv and svlogd."""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.lifecycle.conftest import Make
from tests.lifecycle.test_faults import wait_seconds
from tests.support.lifecycle import ROOT, STUB, Supervised
from tests.support.wait import wait_until

pytestmark = pytest.mark.skipif(
    any(shutil.which(program) is None for program in ("runsv", "sv", "svlogd", "chpst")),
    reason="runit (runsv, sv, svlogd, chpst) is not installed",
)

LINE = re.compile(
    r"^\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d\.\d{5} (DEBUG|INFO|WARNING|ERROR) [a-z_ 0-9]+\[\d+\] [a-z._]+: "
)


class Service:
    """etc/runit/tireless, copied, with the stub for its program, under a runsv of its own."""

    def __init__(self, s: Supervised) -> None:
        self.s = s
        self.place = s.directory / "service"
        self.log_dir = s.directory / "logs"
        self.log_dir.mkdir()
        shutil.copytree(ROOT / "etc" / "runit" / "tireless", self.place)
        program = s.directory / "program"
        program.write_text(f'#!/bin/sh\ncd "{ROOT}" && exec "{sys.executable}" -m {STUB} "$@"\n')
        program.chmod(0o755)
        environ = {
            "TIRELESS_PROGRAM": str(program),
            "TIRELESS_CONFIG": str(s.config),
            "TIRELESS_USER": getpass.getuser(),
            "TIRELESS_LOG_DIR": str(self.log_dir),
            "STUB_DIR": str(s.directory),
            "PYTHONPATH": str(ROOT),
        }
        (self.place / "env").mkdir()
        for name, value in environ.items():
            (self.place / "env" / name).write_text(value + "\n")
        self.runsv = subprocess.Popen(
            ["runsv", str(self.place)],
            env={**os.environ, "TIRELESS_RESTART_SECONDS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def sv(self, *command: str) -> str:
        *options, verb = command
        done = subprocess.run(
            ["sv", *options, verb, str(self.place)], capture_output=True, text=True, timeout=60, check=False
        )
        return done.stdout + done.stderr

    def lines(self, text: str = "") -> list[str]:
        current = self.log_dir / "current"
        every = current.read_text().splitlines() if current.exists() else []
        return [line for line in every if text in line]

    def await_line(self, text: str, count: int = 1) -> str:
        wait_until(lambda: len(self.lines(text)) >= count, 20, f"{count} of {text!r} in {self.lines()}")
        return self.lines(text)[count - 1]

    @property
    def pid(self) -> int:
        return int((self.place / "supervise" / "pid").read_text() or 0)

    def close(self) -> None:
        self.sv("-w", "10", "exit")
        self.runsv.terminate()
        try:
            self.runsv.wait(10)
        except subprocess.TimeoutExpired:
            self.runsv.kill()
            self.runsv.wait()


@pytest.fixture
def service(supervised: Make) -> Iterator[Service]:
    s = supervised()
    made = Service(s)
    yield made
    for pid in s.alive():
        os.kill(pid, signal.SIGQUIT)
    made.close()


def test_fault_22_up_hup_status_term(service: Service) -> None:
    s = service.s
    service.await_line("ready: poller 1/1, claude_code 1/1, opencode 1/1")
    assert service.sv("status").startswith("run: ")

    s.caps = {"opencode": 4}
    s.write_config()
    service.sv("hup")
    service.await_line("configuration read again")
    s.await_event("apply_lanes")
    service.sv("1")
    service.await_line("status: runner opencode 0 is ready")

    first = service.pid
    service.sv("term")  # drains and, since the service is to be up, begins anew
    service.await_line("supervisor ends exit=0")
    service.await_line("ready: ", count=3)  # the second one was the reload's
    assert service.pid != first

    # Each event is one line, with svlogd's time before it and none of ours.
    assert all(LINE.match(line) for line in service.lines()), service.lines()


def test_fault_22_a_crash_is_followed_by_a_restart(service: Service) -> None:
    service.await_line("ready: ")
    os.kill(service.pid, signal.SIGKILL)
    service.await_line("ready: ", count=2)
    assert len(service.lines("supervisor starts")) == 2


def test_fault_22_down_drains_and_term_meanwhile_stops(supervised: Make) -> None:
    s = supervised()
    s.behave(claude_code="busy")
    service = Service(s)
    try:
        service.await_line("ready: ")
        assert "timeout" in service.sv("-w", "1", "down")  # sv gives up; the drain goes on
        s.await_event("leave", who="opencode")
        assert not s.events("leave", who="claude_code")
        service.sv("term")
        service.await_line("supervisor ends exit=1")
        wait_until(lambda: service.sv("status").startswith("down: "), 5, "down")
        assert s.events("leave", who="claude_code", stopping=True)
    finally:
        service.close()


def test_fault_22_what_wants_a_person_is_not_started_again(supervised: Make) -> None:
    s = supervised()
    s.config.write_text("nonsense")
    service = Service(s)
    try:
        wait_until(lambda: service.lines("exit code 78 wants a person"), 10, "finish speaks")
        wait_until(lambda: service.sv("status").startswith("down: "), 5, "down")
        said = len(service.lines())
        wait_seconds(2.5)
        assert len(service.lines()) == said
        s.write_config()
        service.sv("up")
        service.await_line("ready: ")
    finally:
        service.close()


def test_fault_22_no_database_is_tried_again(supervised: Make) -> None:
    s = supervised()
    s.behave(prepare="no_database")
    service = Service(s)
    try:
        service.await_line("supervisor ends exit=69")
        service.await_line("exit code 69, started again in 1 s")
        s.behave()
        service.await_line("ready: ")
    finally:
        service.close()
