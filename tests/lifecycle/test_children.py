"""What a child is given, and what it is not; and that the supervisor itself stays single-threaded."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import tireless
from tests.lifecycle.conftest import Make
from tests.support.wait import wait_until
from tireless import process


def test_a_child_inherits_no_descriptor_but_its_own(supervised: Make, tmp_path: Path) -> None:
    s = supervised(runners={"claude_code": 3, "opencode": 3})
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    os.set_inheritable(listening.fileno(), True)
    s.start(pass_fds=(listening.fileno(),))  # one that the supervisor itself was started with
    s.await_log("ready: ")
    assert f"{listening.fileno()}" in os.listdir(f"/proc/{s.pid}/fd")
    listening.close()
    pipes: dict[str, int] = {}
    for start in s.events("start"):
        fds = dict(entry.split(" ", 1) for entry in start["fds"])
        others = {number: what for number, what in fds.items() if int(number) > 2}
        assert fds["0"] == "/dev/null"
        assert all(what.startswith("pipe:") for what in others.values()), others
        assert len(others) == 3, others  # both ends of its wake pipe, one of its beat pipe
        for what in set(others.values()):
            pipes[what] = pipes.get(what, 0) + 1
    assert set(pipes.values()) == {1}, "no pipe is known to two children"


def test_a_child_has_a_session_of_its_own_and_no_variables_of_the_service_manager(supervised: Make) -> None:
    s = supervised()
    given = dict.fromkeys(process.SUPERVISOR_ONLY, "1") | {"NOTIFY_SOCKET": str(s.directory / "nobody")}
    s.start(environ=given)
    s.await_log("ready: ")
    starts = s.events("start")
    assert len({start["sid"] for start in starts}) == len(starts)
    for start in starts:
        assert start["sid"] == start["pid"]
        assert start["stdin"] == "/dev/null"
        assert not set(start["environ"]) & set(process.SUPERVISOR_ONLY)


def test_the_supervisor_is_single_threaded_and_its_children_start_so(supervised: Make) -> None:
    s = supervised()
    s.start_ready()
    assert os.listdir(f"/proc/{s.pid}/task") == [str(s.pid)]
    os.kill(s.pid_of("claude_code"), signal.SIGKILL)
    s.await_event("start", who="claude_code", count=2)
    assert os.listdir(f"/proc/{s.pid}/task") == [str(s.pid)]
    assert {e["threads"] for e in s.events("start")} == {1}
    assert s.events("prepare")[0]["threads"] == 1


def test_the_supervisor_holds_no_connection(supervised: Make) -> None:
    s = supervised()
    s.start_ready()
    held = [os.readlink(entry) for entry in Path(f"/proc/{s.pid}/fd").iterdir()]
    assert held
    assert not [what for what in held if what.startswith("socket:")]


def test_children_run_what_was_loaded_before_the_fork() -> None:
    """What is installed over it meanwhile is for the next start: no child has anything left to load."""
    code = "import sys, tireless.supervisor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    root = Path(tireless.__file__).parent
    paths = [path.relative_to(root.parent).with_suffix("") for path in root.rglob("*.py")]
    names = {".".join(path.parts).removesuffix(".__init__") for path in paths if path.name != "__main__"}
    apart = {
        "tireless.agents.guard",
        "tireless.store.sql",
        "tireless.ctl",
    }  # a program of its own, texts, a command
    left = {name for name in names - set(done.stdout.split()) if not name.startswith(tuple(apart))}
    assert left == set()


def test_a_child_says_its_name_to_ps_and_in_the_log(supervised: Make) -> None:
    s = supervised()
    s.behave(claude_code="fail")
    s.start()
    s.await_log("ERROR runner claude_code 0[")
    assert Path(f"/proc/{s.pid_of('poller')}/comm").read_text() == "tireless:poller\n"


def test_the_parent_knows_a_child_by_the_name_that_the_child_gives_itself(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 0})
    s.start_ready()
    start = s.events("start", who="claude_code")[0]
    assert process.worker_id("here", start["pid"]) == start["worker"]
    os.kill(start["pid"], signal.SIGKILL)
    assert (
        s.await_event("release") | {"worker": start["worker"], "why": "killed by SIGKILL"}
        == s.events("release")[0]
    )


def test_what_a_dead_runner_left_is_gone_before_its_claim_is_released(supervised: Make) -> None:
    s = supervised(runners={"claude_code": 1, "opencode": 1})
    s.behave(claude_code="agent")
    s.start_ready()
    helper, agent = s.await_event("helper")["pid"], s.await_event("agent")["pid"]
    other = s.pid_of("opencode")
    os.kill(s.pid_of("claude_code"), signal.SIGKILL)
    assert s.await_event("release")["alive"] == []
    left = set(os.listdir("/proc")) & {str(helper), str(agent)}
    assert left == set()
    assert s.pid_of("opencode") == other
    s.await_event("start", who="claude_code", count=2)


def test_an_orphan_that_ends_by_itself_is_collected(supervised: Make) -> None:
    """A poller is no subreaper: what it leaves falls to the supervisor, which collects it."""
    s = supervised(runners={"claude_code": 1, "opencode": 0})
    s.behave(poller="agent")
    s.start_ready()
    helper = s.await_event("helper")["pid"]
    parent = wait_until(
        lambda: (stat(helper) or [""])[1] == str(s.pid), 5, "the orphan falls to the supervisor"
    )
    assert parent
    os.kill(helper, signal.SIGKILL)
    wait_until(lambda: stat(helper) is None, 5, "the orphan is collected")


def stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
