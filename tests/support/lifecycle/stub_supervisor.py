"""The real supervisor with children and errands that do what a test asks for and record what happens to them.

    python -m tests.support.lifecycle.stub_supervisor --config PATH      with STUB_DIR in the environment

STUB_DIR/behaviour.json maps who ("poller", "claude_code", "prepare", …) to what (a name below). It is read by
each child when it starts. STUB_DIR/events.jsonl gets a line an event. STUB_DIR/go is what some wait for.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tireless import proctree
from tireless.config import Config
from tireless.process import ChildContext, Leave
from tireless.supervisor import Errands, main
from tireless.supervisor.strays import embedded_servers

DIR = Path(os.environ["STUB_DIR"])


def record(event: str, **detail: Any) -> None:
    line = json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **detail}) + "\n"
    fd = os.open(DIR / "events.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


def behaviour(who: str, default: str) -> str:
    try:
        return str(json.loads((DIR / "behaviour.json").read_text()).get(who, default))
    except FileNotFoundError:
        return default


def go() -> bool:
    return (DIR / "go").exists()


def pause(seconds: float) -> None:
    select.select([], [], [], seconds)


# -- children ---------------------------------------------------------------------------------------------


def child(ctx: ChildContext) -> int:
    who = str(ctx.lane or ctx.role)
    what = behaviour(who, "work")
    record(
        "start",
        who=who,
        index=ctx.index,
        worker=ctx.worker,
        what=what,
        log_level=ctx.config.log_level,
        fds=open_fds(),
        stdin=os.readlink("/proc/self/fd/0"),
        environ=sorted(os.environ),
        sid=os.getsid(0),
        threads=len(os.listdir("/proc/self/task")),
    )
    code = CHILDREN[what](ctx)
    record("leave", who=who, index=ctx.index, draining=ctx.draining, stopping=ctx.stopping)
    return code


def open_fds() -> list[str]:
    """What is open, but for the listing itself and the context's own wake pipe (both ends are ours)."""
    found = []
    for entry in os.listdir("/proc/self/fd"):
        try:
            found.append(f"{entry} {os.readlink(f'/proc/self/fd/{entry}')}")
        except OSError:
            continue
    return found


def work(ctx: ChildContext) -> int:
    """Idle, as it should be. Says so when its configuration changes."""
    ctx.ready()
    level = ctx.config.log_level
    while ctx.turn():
        ctx.wait(60)
        if ctx.config.log_level != level:
            level = ctx.config.log_level
            record("reloaded", who=str(ctx.lane or ctx.role), log_level=level)
    return 0


def busy(ctx: ChildContext) -> int:
    """Has an agent in hand, which ends when `go` is there. INT cuts it off."""
    ctx.ready()
    record("busy", who=str(ctx.lane or ctx.role))
    while not go() and not ctx.stopping:
        ctx.turn()
        ctx.wait(0.05)
    return 0


def stubborn(ctx: ChildContext) -> int:
    """Beats, and never leaves."""
    ctx.ready()
    while True:
        ctx.turn()
        ctx.wait(1)


def crash(ctx: ChildContext) -> int:
    ctx.ready()
    return 3


def crash_when_told(ctx: ChildContext) -> int:
    ctx.ready()
    while not go():
        ctx.turn()
        ctx.wait(0.02)
    return 3


def leave(ctx: ChildContext) -> int:
    ctx.ready()
    ctx.wait(0.2)
    return 0


def leave_when_told(ctx: ChildContext) -> int:
    ctx.ready()
    while not go():
        ctx.turn()
        ctx.wait(0.02)
    return 0


def never_ready(ctx: ChildContext) -> int:
    """Beats, but does not get ready."""
    while ctx.turn():
        ctx.wait(0.05)
    return 0


def hang_in_main_loop(ctx: ChildContext) -> int:
    ctx.ready()
    ctx.turn()
    while True:
        pause(3600)


def hang_deaf(ctx: ChildContext) -> int:
    """As above, and ABRT does not end it."""
    signal.signal(signal.SIGABRT, signal.SIG_IGN)
    return hang_in_main_loop(ctx)


def agent(ctx: ChildContext) -> int:
    """Runs an agent that has daemonised a helper which ignores TERM; both carry the mark."""
    ctx.ready()
    worker = ctx.worker
    started = subprocess.Popen([sys.executable, __file__, "agent", str(DIR)], env=agent_environment(worker))
    while not ctx.stopping:
        ctx.turn()
        ctx.wait(0.05)
    started.kill()
    return 0


def fail(_ctx: ChildContext) -> int:
    raise RuntimeError("first-line\nsecond line")


CHILDREN: dict[str, Callable[[ChildContext], int]] = {
    f.__name__: f
    for f in (
        work,
        busy,
        stubborn,
        crash,
        crash_when_told,
        leave,
        leave_when_told,
        never_ready,
        hang_in_main_loop,
        hang_deaf,
        agent,
        fail,
    )
}


def agent_environment(worker: str) -> dict[str, str]:
    return {
        "STUB_DIR": str(DIR),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        proctree.MARK: worker,
        "HOME": str(DIR / "state" / "home"),
    }


def be_agent() -> NoReturn:
    """The agent's main process: daemonises a helper twice over, both deaf to TERM, and works on."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        record("helper")
        while True:
            pause(3600)
    os.wait()
    record("agent")
    while True:
        pause(3600)


# -- errands ----------------------------------------------------------------------------------------------


def prepare(config: Config) -> None:
    what = behaviour("prepare", "ok")
    record("prepare", what=what, threads=len(os.listdir("/proc/self/task")))
    if what == "no_database":
        raise Leave(69, "no database within 1 s")
    if what == "future_schema":
        raise Leave(78, "the schema is from a newer program")
    if what == "fail":
        raise RuntimeError("a migration does not go through")
    if what == "wait":
        while not go():
            pause(0.02)
    if what == "embedded":
        start_server(config)


def start_server(config: Config) -> None:
    """What pg_ctl does: a daemon that leaves its pid in the data directory."""
    data = config.state_dir / "postgres"
    data.mkdir(exist_ok=True)
    file = data / "postmaster.pid"
    if os.fork() == 0:
        os.setsid()
        pid = os.fork()
        if pid == 0:
            os.chdir(data)
            file.write_text(f"{os.getpid()}\n{data}\n")
            record("server")
            while True:
                pause(3600)
        os._exit(0)
    os.wait()
    while not file.exists() or not file.read_text().strip():
        pause(0.01)


def release(config: Config, worker: str, why: str) -> None:
    what = behaviour("release", "ok")
    record("release", worker=worker, why=why, what=what, alive=proctree.marked(worker))
    if what == "fail":
        raise RuntimeError("no connection")
    if what == "hang":
        pause(3600)


def apply_lanes(config: Config, previous: Config) -> None:
    what = behaviour("apply_lanes", "ok")
    record(
        "apply_lanes",
        what=what,
        now={str(k): v.cap for k, v in config.lane.items()},
        before={str(k): v.cap for k, v in previous.lane.items()},
    )
    if what == "fail":
        raise RuntimeError("no connection")


def finish(config: Config) -> None:
    what = behaviour("finish", "ok")
    record("finish", what=what)
    if what == "hang":
        pause(3600)
    for pid in embedded_servers(config):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        be_agent()
    sys.exit(main(errands=Errands(prepare, release, apply_lanes, finish), poller=child, runner=child))
