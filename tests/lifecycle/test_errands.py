"""What is done on the database, seen from the supervisor: prepared first, released in the end, tried again."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import pytest

from tests.lifecycle.conftest import Make
from tests.lifecycle.test_faults import gone, wait_seconds


@pytest.mark.parametrize(
    ("what", "code", "line"),
    [
        ("no_database", 69, "no database within 1 s"),
        ("future_schema", 78, "the schema is from a newer program"),
        ("fail", 70, "a migration does not go through"),
    ],
)
def test_fault_23_a_prepare_that_fails_ends_the_supervisor_with_its_code(
    supervised: Make, what: str, code: int, line: str
) -> None:
    s = supervised()
    s.behave(prepare=what)
    s.start()
    assert s.exit_code() == code
    assert len(s.log_lines(line)) == 1
    assert not s.events("start")
    assert s.events("finish")
    assert s.alive() == []


def test_children_start_when_the_database_is_prepared(supervised: Make) -> None:
    s = supervised()
    s.behave(prepare="wait")
    s.start()
    s.await_event("prepare")
    wait_seconds(0.5)
    assert not s.events("start")
    s.go()
    s.await_log("ready: ")


def test_a_reload_while_preparing_counts_for_what_starts_then(supervised: Make) -> None:
    s = supervised()
    s.behave(prepare="wait")
    s.start()
    s.await_event("prepare")
    s.runners = {"claude_code": 3, "opencode": 0}
    s.caps = {"claude_code": 9}
    s.write_config()
    s.send(signal.SIGHUP)
    s.await_log("configuration read again")
    s.go()
    s.await_log("ready: poller 1/1, claude_code 3/3")
    assert s.await_event("apply_lanes")["now"]["claude_code"] == 9
    assert not s.events("start", who="opencode")


def test_a_release_is_tried_again_until_it_is_done_and_holds_up_nobody(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 0})
    s.behave(release="fail")
    s.start_ready()
    worker = s.events("start", who="claude_code")[0]["worker"]
    os.kill(s.pid_of("claude_code"), signal.SIGKILL)
    s.await_event("start", who="claude_code", count=2)
    s.await_event("release", what="fail", count=3)
    s.behave()
    s.await_event("release", what="ok", worker=worker)
    tries = [e["at"] for e in s.events("release")]
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps[1] > gaps[0] * 1.05, gaps
    s.send(signal.SIGTERM)
    assert s.exit_code() == 0
    assert len(s.events("release", what="ok")) == 1


def test_the_embedded_server_is_no_stray_and_is_stopped_last(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 0})
    s.behave(prepare="embedded", claude_code="agent")
    s.start_ready()
    server = s.await_event("server")["pid"]
    helper = s.await_event("helper")["pid"]
    os.kill(s.pid_of("claude_code"), signal.SIGKILL)
    s.await_event("release")
    assert gone(helper)
    assert not gone(server)
    s.await_event("start", who="claude_code", count=2)
    s.send(signal.SIGQUIT)
    assert s.exit_code() == 1
    assert not gone(server)  # quit leaves it to the next start
    os.kill(server, signal.SIGKILL)


def test_an_embedded_server_that_dies_is_started_again(supervised: Make) -> None:
    s = supervised()
    s.behave(prepare="embedded")
    s.start_ready()
    server = s.await_event("server")["pid"]
    (s.state_dir / "postgres" / "postmaster.pid").unlink()
    os.kill(server, signal.SIGKILL)
    second = s.await_event("server", count=2)["pid"]
    s.await_log("the embedded Postgres has ended and is started again")
    assert server not in {int(p) for p in os.listdir("/proc") if p.isdigit()}  # collected
    assert not gone(second)
    assert len(s.events("start")) == 3  # nobody was restarted for that
    s.send(signal.SIGTERM)
    assert s.exit_code() == 0
    assert gone(second)


def test_a_second_supervisor_on_the_same_state_directory_is_refused(supervised: Make) -> None:
    s = supervised()
    s.start_ready()
    first = s.process
    s.start()
    assert s.exit_code() == 64
    assert f"is in use by another supervisor (pid {first.pid if first else 0})" in s.await_log("in use")
    s.process = first
    s.send(signal.SIGUSR1)
    s.await_log("status: poller is ready")
    s.send(signal.SIGKILL)
    s.exit_code()
    s.start()  # the lock went with its holder
    s.await_log("ready: ", count=2)


def test_a_state_directory_that_cannot_be_made_is_a_configuration_error(supervised: Make) -> None:
    s = supervised()
    s.state_dir.write_text("a file")
    s.start()
    assert s.exit_code() == 78
    s.await_log(f"state_dir {s.state_dir} cannot be used: ")
