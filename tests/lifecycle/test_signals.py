"""The signals table and the exit codes: drain, fast stop, quit, status, and each at an awkward time."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.lifecycle.conftest import Make
from tests.lifecycle.test_faults import gone
from tests.support.lifecycle import Supervised
from tests.support.wait import wait_until


def ends_within(s: Supervised, seconds: float) -> int:
    began = time.monotonic()
    code = s.exit_code()
    took = time.monotonic() - began
    assert took <= seconds, f"took {took:.1f} s; log:\n{s.log()}"
    assert s.alive() == []
    return code


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(supervised: Make, sig: signal.Signals) -> None:
    s = supervised()
    s.behave(claude_code="busy")
    s.start_ready()
    s.send(sig)
    s.await_event("leave", who="opencode", draining=True, stopping=False)
    # The poller goes on while a runner works: it sweeps, and delivers what the runner puts in the outbox.
    assert not s.events("leave", who="poller")
    assert not gone(s.pid_of("poller"))
    s.go()
    assert s.exit_code() == 0
    order = [e["who"] for e in s.events("leave")]
    assert order == ["opencode", "claude_code", "poller"]
    assert s.events()[-1]["event"] == "finish"
    assert not s.events("release")  # who leaves with 0 has given back what it held
    assert s.alive() == []


def test_nothing_is_started_while_draining(supervised: Make) -> None:
    s = supervised()
    s.behave(claude_code="busy")
    s.start_ready()
    s.send(signal.SIGTERM)
    s.await_event("leave", who="opencode")
    os.kill(s.pid_of("poller"), signal.SIGKILL)
    s.await_event("release")
    s.go()
    assert s.exit_code() == 0
    assert len(s.events("start")) == 3


def test_a_runner_that_dies_while_draining_has_had_its_work_cut_off(supervised: Make) -> None:
    s = supervised()
    s.behave(claude_code="busy")
    s.start_ready()
    s.send(signal.SIGTERM)
    s.await_event("leave", who="opencode")
    os.kill(s.pid_of("claude_code"), signal.SIGKILL)
    assert s.exit_code() == 1
    assert [e["worker"] for e in s.events("release")] == [s.events("start", who="claude_code")[0]["worker"]]


def test_a_drain_that_takes_too_long_becomes_a_stop(supervised: Make) -> None:
    s = supervised(drain_seconds=1)
    s.behave(claude_code="busy")
    s.start_ready()
    s.send(signal.SIGTERM)
    assert ends_within(s, 4) == 1
    assert s.events("leave", who="claude_code", stopping=True)
    s.await_log("stopping fast: the time for draining is over")


@pytest.mark.parametrize("behaviour", ["busy", "stubborn", "hang_in_main_loop", "agent"])
def test_the_second_signal_stops_within_five_seconds(supervised: Make, behaviour: str) -> None:
    s = supervised(stop_grace_seconds=5)
    s.behave(claude_code=behaviour, poller="stubborn")
    s.start_ready()
    if behaviour == "agent":
        s.await_event("helper")
    s.send(signal.SIGTERM)
    s.await_event("leave", who="opencode")
    s.send(signal.SIGINT)
    assert ends_within(s, 5) == 1
    stopped = {e["worker"] for e in s.events("start", who="claude_code")}
    killed = behaviour in ("stubborn", "hang_in_main_loop")
    assert bool(stopped & {e["worker"] for e in s.events("release")}) == killed
    assert s.events("finish")


def test_two_signals_at_once_stop(supervised: Make) -> None:
    s = supervised()
    s.behave(claude_code="busy", opencode="busy")
    s.start_ready()
    s.send(signal.SIGTERM)
    s.send(signal.SIGINT)
    assert ends_within(s, 5) == 1
    assert len(s.events("leave", stopping=True)) == 3


def test_a_stop_does_not_wait_for_errands_that_hang(supervised: Make) -> None:
    s = supervised()
    s.behave(claude_code="stubborn", release="hang", finish="hang")
    s.start_ready()
    s.send(signal.SIGTERM)
    s.send(signal.SIGINT)
    assert ends_within(s, 5.2) == 1
    s.await_log("some claims are not released")


@pytest.mark.parametrize("before", [None, signal.SIGTERM])
def test_quit_ends_at_once(supervised: Make, before: signal.Signals | None) -> None:
    s = supervised()
    s.behave(claude_code="agent", opencode="stubborn")
    s.start_ready()
    s.await_event("helper")
    if before is not None:
        s.send(before)
        s.await_log("draining: ")
    s.send(signal.SIGQUIT)
    assert ends_within(s, 2) == 1
    assert not s.events("release")
    assert not s.events("finish")


def test_a_signal_while_the_database_is_prepared(supervised: Make) -> None:
    s = supervised()
    s.behave(prepare="wait")
    s.start()
    s.await_event("prepare")
    s.send(signal.SIGTERM)
    assert ends_within(s, 3) == 0
    assert not s.events("start")
    assert len(s.events("prepare")) == 1


def test_a_second_signal_cuts_the_last_errand_short(supervised: Make) -> None:
    s = supervised()
    s.behave(finish="hang")
    s.start_ready()
    s.send(signal.SIGTERM)
    s.await_event("finish")
    s.send(signal.SIGTERM)
    assert ends_within(s, 5) == 0  # all children had left before: nothing was cut off


def test_a_signal_for_a_child_that_is_just_starting_is_not_lost(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 8, "opencode": 8})
    s.start()
    s.await_log("started runner claude_code 0")
    s.send(signal.SIGTERM)
    assert ends_within(s, 10) == 0


def test_status_is_one_line_a_child(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 2, "opencode": 1})
    s.log_level = "warning"  # it was asked for
    s.write_config()
    s.start()
    s.await_event("start", count=4)
    wait_until(lambda: ready_children(s) == 4, 10, "all are ready")
    wait_until(lambda: len(s.log_lines(" status: ")) == 5, 5, "five lines")
    for who in ("poller", "runner claude_code 0", "runner claude_code 1", "runner opencode 0"):
        s.await_log(f"status: {who} is ready pid=")


def ready_children(s: Supervised) -> int:
    """Asks until they are, so that the lines counted are those of the last time."""
    s.log_path.write_text("")
    s.send(signal.SIGUSR1)
    wait_until(lambda: len(s.log_lines(" status: ")) >= 2, 5, "an answer")
    s.await_log(" status: runner opencode 0 ")
    return len(s.log_lines(" is ready pid="))


def test_usr1_to_a_child_dumps_its_stacks_and_it_lives_on(supervised: Make) -> None:
    s = supervised()
    s.start_ready()
    runner = s.pid_of("claude_code")
    os.kill(runner, signal.SIGUSR1)
    s.await_log("in wait")
    assert not gone(runner)


def test_a_runner_that_leaves_by_itself_is_replaced_at_once(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1}, restart_delay_seconds=0.1)
    s.behave(claude_code="leave")
    s.start_ready()
    s.await_event("start", who="claude_code", count=8)  # more often than the crash loop limit
    assert not s.events("release")
    assert not s.log_lines("tripped: ")
    line = s.log_lines("runner claude_code 0 ended: exit code 0")[0]
    assert "restart_in=0.0s" in line


def test_ctrl_c_in_a_terminal_reaches_the_supervisor_alone(supervised: Make) -> None:
    s = supervised()
    s.behave(claude_code="busy")
    s.start_ready()
    os.killpg(s.pid, signal.SIGINT)  # what a terminal does: to the whole foreground process group
    s.await_event("leave", who="opencode", draining=True, stopping=False)
    s.go()
    assert s.exit_code() == 0
    assert s.events("leave", who="claude_code", stopping=False)
