"""Names of workers, exit codes, and the child's context without a supervisor."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wait import wait_until
from tireless import process
from tireless.config import Config, ConfigError, DatabaseConfig, SupervisorConfig
from tireless.entities import AgentKind, WorkerRole
from tireless.process import ChildContext, Leave, WorkerId, exit_code_of, is_dead, parse_worker_id, worker_id
from tireless.proctree import boot_id


@given(
    st.text(min_size=1),
    st.text(min_size=1).filter(lambda t: "/" not in t),
    st.integers(0),
    st.integers(1),
    st.integers(0),
)
def test_a_name_says_what_it_is_made_of(host: str, boot: str, namespace: int, pid: int, ticks: int) -> None:
    made = WorkerId(host, boot, namespace, pid, ticks)
    assert parse_worker_id(str(made)) == made


@pytest.mark.parametrize("text", ["", "host", "a/b/c/d", "/b/1/2/3", "a//1/2/3", "a/b/x/2/3", "a/b/1/2/"])
def test_what_is_no_name_is_none(text: str) -> None:
    assert parse_worker_id(text) is None
    assert is_dead(text, "a") is None


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "600"])
    yield started
    started.kill()
    started.wait()


def test_a_live_process_lives_and_a_dead_one_is_dead(other: subprocess.Popen[bytes]) -> None:
    name = worker_id("a/b", other.pid)
    assert is_dead(name, "a/b") is False
    other.kill()
    wait_until(lambda: is_dead(name, "a/b"), 5, "dead, though nobody has collected it")
    assert worker_id("a/b", other.pid) == name  # its parent can still name it
    other.wait()
    assert is_dead(name, "a/b") is True
    with pytest.raises(ProcessLookupError):
        worker_id("a/b", other.pid)


def test_another_process_with_the_same_number_is_another(other: subprocess.Popen[bytes]) -> None:
    name = parse_worker_id(worker_id("here", other.pid))
    assert name is not None
    assert is_dead(str(replace(name, start_ticks=name.start_ticks - 1)), "here") is True


def test_what_cannot_be_told_is_not_told(other: subprocess.Popen[bytes]) -> None:
    name = parse_worker_id(worker_id("here", other.pid))
    assert name is not None
    assert is_dead(str(name), "there") is None
    assert is_dead(str(replace(name, pid_namespace=1)), "here") is None
    assert is_dead(str(replace(name, boot_id="another boot")), "here") is True
    assert is_dead(str(replace(name, boot_id="another boot")), "there") is None
    assert name.boot_id == boot_id()


def test_exit_codes_of_errors() -> None:
    assert exit_code_of(Leave(69, "no database")) == 69
    assert exit_code_of(ConfigError("bad")) == 78
    assert exit_code_of(SystemExit(5)) == 5
    assert exit_code_of(SystemExit()) == 0
    assert exit_code_of(SystemExit("text")) == 1
    assert exit_code_of(ValueError()) == 70


def test_what_a_reload_may_not_change(tmp_path: Path) -> None:
    old = Config(host="a", state_dir=tmp_path)
    assert process.check_reload(old, replace(old, log_level="debug")).log_level == "debug"
    for new in (
        replace(old, host="b"),
        replace(old, state_dir=Path("/elsewhere")),
        replace(old, database=DatabaseConfig(url="postgresql://user:hunter2@host/db")),
        replace(old, database=DatabaseConfig(postgres_version=16)),
    ):
        with pytest.raises(ConfigError, match="takes a restart") as raised:
            process.check_reload(old, new)
        assert "hunter2" not in str(raised.value)


# -- the context ------------------------------------------------------------------------------------------


def context(**keywords: object) -> ChildContext:
    return ChildContext(Config(host="here"), WorkerRole.RUNNER, AgentKind.OPENCODE, 2, **keywords)  # type: ignore[arg-type]


def test_a_context_by_itself() -> None:
    ctx = context()
    assert ctx.worker == worker_id("here", os.getpid())
    assert (ctx.role, ctx.lane, ctx.index) == (WorkerRole.RUNNER, AgentKind.OPENCODE, 2)
    ctx.ready()
    assert ctx.turn()
    assert not ctx.draining
    assert not ctx.stopping


@pytest.mark.parametrize(("sig", "stopping"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_signals_end_the_main_loop(sig: int, stopping: bool) -> None:
    ctx = context()
    ctx.on_signal(sig)
    assert ctx.draining
    assert ctx.stopping is stopping
    assert not ctx.stop_event.is_set()  # the loop does that, not the handler
    assert not ctx.turn()
    assert ctx.stop_event.is_set()


def test_wait_ends_at_a_signal_at_once_and_only_once() -> None:
    ctx = context()
    threading.Timer(0.1, ctx.on_signal, [signal.SIGTERM]).start()
    began = time.monotonic()
    assert ctx.wait(30) == []
    assert time.monotonic() - began < 5
    assert ctx.stop_event.is_set()
    began = time.monotonic()
    ctx.wait(0.3)  # a draining child may wait for its agent without spinning
    assert time.monotonic() - began >= 0.3


def test_wait_ends_at_a_readable_descriptor() -> None:
    ctx = context()
    read, write = os.pipe()
    quiet, quiet_write = os.pipe()
    threading.Timer(0.1, os.write, [write, b"x"]).start()
    assert ctx.wait(30, [read, quiet]) == [read]
    os.close(write)
    os.read(read, 1)
    assert ctx.wait(30, [read, quiet]) == [read]  # closed counts
    for fd in (read, quiet, quiet_write):
        os.close(fd)


def test_wait_beats_on_the_way_and_beats_are_rare() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    often = Config(host="here", supervisor=SupervisorConfig(beat_seconds=12))
    assert process.beat_interval(often.supervisor) == 1
    assert process.beat_interval(Config(host="here").supervisor) == 10
    ctx = ChildContext(often, WorkerRole.RUNNER, AgentKind.OPENCODE, beat_fd=write)
    ctx.ready()
    ctx.ready()
    for _ in range(1000):
        ctx.turn()
    assert os.read(read, 100) == b"rb"
    ctx.wait(4.5)
    assert os.read(read, 100) in (b"bb", b"bbb"), "it wakes for every other, and beats when it leaves"
    os.close(read)
    ctx.wait(1.1)  # the parent is gone: no error
    os.close(write)


def test_a_full_pipe_does_not_stop_the_loop() -> None:
    read, write = os.pipe2(os.O_NONBLOCK)
    while select.select([], [write], [], 0)[1]:
        os.write(write, b"b" * 4096)
    ctx = context(beat_fd=write)
    assert ctx.turn()
    os.close(read)
    os.close(write)


def test_hup_replaces_the_configuration_in_the_loop_and_a_bad_one_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Config | ConfigError] = [
        Config(host="here", log_level="debug"),
        ConfigError("lane.opencode.cap is -1"),
    ]

    def reload(current: Config) -> Config:
        answer = answers.pop(0)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    ctx = context(reload=reload)
    ctx.on_signal(signal.SIGHUP)
    assert ctx.config.log_level == "info"
    assert ctx.turn()
    assert ctx.config.log_level == "debug"
    ctx.on_signal(signal.SIGHUP)
    ctx.wait(30)
    assert ctx.config.log_level == "debug"
    assert "lane.opencode.cap is -1" in caplog.text


def test_a_signal_that_interrupts_the_event_does_not_deadlock() -> None:
    """The handler runs in the main thread, which may hold the event's lock: thousands of signals while the
    main thread sets, clears and waits."""
    code = """
import os, signal, threading
from tireless.config import Config
from tireless.entities import WorkerRole
from tireless.process import ChildContext
ctx = ChildContext(Config(host="here"), WorkerRole.POLLER)
ctx.listen()
pid = os.getpid()
threading.Thread(target=lambda: [os.kill(pid, signal.SIGTERM) for _ in range(20000)], daemon=True).start()
for _ in range(20000):
    ctx.turn()
    ctx.stop_event.clear()
    ctx.stop_event.wait(0)
print("through")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"through\n"
