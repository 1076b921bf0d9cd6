"""FAULT 21: systemd's protocol, against a socket that records."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lifecycle.conftest import Make
from tests.lifecycle.test_faults import wait_seconds
from tests.support.wait import wait_until
from tireless.notify import Notifier


class Recorder:
    """What systemd would hear: (monotonic time, message) in order."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self._heard: list[tuple[float, str]] = []

    def heard(self) -> list[str]:
        while True:
            try:
                self._heard.append((time.monotonic(), self.socket.recv(65536).decode()))
            except BlockingIOError:
                return [message for _, message in self._heard]

    def others(self) -> list[str]:
        """Without STATUS and WATCHDOG."""
        return [m for m in self.heard() if not m.startswith(("STATUS=", "WATCHDOG="))]

    def await_message(self, start: str, count: int = 1, timeout: float = 15.0) -> None:
        wait_until(
            lambda: sum(m.startswith(start) for m in self.heard()) >= count,
            timeout,
            f"{count} of {start}; heard {self._heard}",
        )


@pytest.fixture(params=["path", "abstract"])
def recorder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(str(tmp_path / "notify") if request.param == "path" else f"@tireless-test-{os.getpid()}")
    yield made
    made.socket.close()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Recorder]:
    made = Recorder(str(tmp_path / "notify"))
    yield made
    made.socket.close()


def test_fault_21_ready_reloading_stopping(supervised: Make, recorder: Recorder) -> None:
    s = supervised()
    s.start(environ={"NOTIFY_SOCKET": recorder.address})
    recorder.await_message("READY=1")
    s.send(signal.SIGHUP)
    recorder.await_message("READY=1", 2)
    s.send(signal.SIGTERM)
    assert s.exit_code() == 0
    ready, reloading, ready_again, stopping = recorder.others()
    assert (ready, ready_again, stopping) == ("READY=1", "READY=1", "STOPPING=1")
    kind, stamp = reloading.split("\n")
    assert kind == "RELOADING=1"
    microseconds = int(stamp.removeprefix("MONOTONIC_USEC="))
    assert 0 < time.monotonic() - microseconds / 1e6 < 60


def test_fault_21_ready_only_when_poller_and_lanes_are(supervised: Make, systemd: Recorder) -> None:
    s = supervised(runners={"claude_code": 2, "opencode": 1})
    s.behave(opencode="never_ready")
    s.start(environ={"NOTIFY_SOCKET": systemd.address})
    s.await_event("start", count=4)
    systemd.await_message("STATUS=running: poller 1/1, claude_code 2/2, opencode 0/1")
    wait_seconds(0.5)
    assert systemd.others() == []
    s.behave()
    os.kill(s.pid_of("opencode"), signal.SIGKILL)
    systemd.await_message("READY=1")


def test_fault_21_stopping_is_said_before_anybody_is_told(supervised: Make, systemd: Recorder) -> None:
    s = supervised()
    s.start(environ={"NOTIFY_SOCKET": systemd.address})
    systemd.await_message("READY=1")
    systemd.socket.setblocking(True)  # the sender is not blocked by that: it is our end
    systemd.socket.settimeout(5)
    s.send(signal.SIGTERM)
    message = ""
    while message != "STOPPING=1":
        message = systemd.socket.recv(65536).decode()
        at = time.monotonic()
    assert all(e["at"] > at - 0.2 for e in s.events("leave"))
    assert s.exit_code() == 0


def test_fault_21_a_refused_reload_ends_too(supervised: Make, systemd: Recorder) -> None:
    s = supervised()
    s.start(environ={"NOTIFY_SOCKET": systemd.address})
    systemd.await_message("READY=1")
    s.config.write_text("nonsense")
    s.send(signal.SIGHUP)
    systemd.await_message("READY=1", 2)
    assert [m.split("\n")[0] for m in systemd.others()] == ["READY=1", "RELOADING=1", "READY=1"]


def test_fault_21_a_reload_whose_lanes_cannot_be_written_ends_too(supervised: Make, systemd: Recorder) -> None:
    s = supervised()
    s.behave(apply_lanes="fail")
    s.start(environ={"NOTIFY_SOCKET": systemd.address})
    systemd.await_message("READY=1")
    s.send(signal.SIGHUP)
    systemd.await_message("READY=1", 2)


def test_fault_21_watchdog_only_while_the_main_loop_turns(supervised: Make, systemd: Recorder) -> None:
    s = supervised()
    s.start(environ={"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "600000"})
    systemd.await_message("WATCHDOG=1", 6)
    times = [at for at, m in systemd._heard if m == "WATCHDOG=1"]
    assert times[-1] - times[0] < 6 * 0.6
    os.kill(s.pid, signal.SIGSTOP)
    wait_until(lambda: "T (stopped)" in Path(f"/proc/{s.pid}/status").read_text(), 5, "stopped")
    before = len(systemd.heard())
    wait_seconds(1)
    assert len(systemd.heard()) == before
    os.kill(s.pid, signal.SIGCONT)
    wait_until(lambda: len(systemd.heard()) > before, 5, "it goes on")


def test_fault_21_status_is_for_people(supervised: Make, systemd: Recorder) -> None:
    s = supervised()
    s.start(environ={"NOTIFY_SOCKET": systemd.address})
    systemd.await_message("STATUS=preparing the database")
    systemd.await_message("STATUS=running: poller 1/1, claude_code 1/1, opencode 1/1")
    wait_seconds(2.5)
    statuses = [m for m in systemd.heard() if m.startswith("STATUS=")]
    assert len(statuses) == len(set(statuses))  # said when it changes


def test_fault_21_nothing_is_said_when_nobody_asks(supervised: Make, systemd: Recorder) -> None:
    s = supervised()
    s.start_ready()
    s.send(signal.SIGTERM)
    assert s.exit_code() == 0
    assert systemd.heard() == []


def test_a_socket_that_is_gone_is_one_warning(supervised: Make, tmp_path: Path) -> None:
    s = supervised()
    s.start_ready(NOTIFY_SOCKET=str(tmp_path / "gone"))
    s.send(signal.SIGTERM)
    assert s.exit_code() == 0
    assert len(s.log_lines("notification socket does not take messages")) == 1


def test_the_watchdog_of_another_process_is_not_ours(tmp_path: Path) -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1", "OTHER": "stays"}
    assert Notifier.from_environ(environ).watchdog_every is None
    assert environ == {"OTHER": "stays"}
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    assert Notifier.from_environ(environ).watchdog_every == 1.0
    assert Notifier.from_environ({"WATCHDOG_USEC": "3000000"}).watchdog_every is None


def test_an_address_of_another_family_sends_nothing() -> None:
    Notifier.from_environ({"NOTIFY_SOCKET": "vsock:2:1234"}).ready()
