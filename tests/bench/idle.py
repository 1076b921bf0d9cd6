"""What an idle tireless costs: a supervisor, its poller and four runners a lane, one repository polled each minute.

    python -m tests.bench idle [--json] [--seconds N]

Queries are the statements that the server logs over the time, those of the measurement left out; CPU time is the
kernel's count in nanoseconds over the whole process tree; a runner's memory is what is private to it.
"""

from __future__ import annotations

import argparse
import json
import threading
from pathlib import Path

import psycopg

from tests.support import postgres
from tests.support.rig import Rig
from tests.support.store import scalar
from tests.support.wait import wait_until
from tireless import proctree
from tireless.store.queries import Connection

_LANE = "cap = 4\nrunners = 4"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench idle")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=int, default=120)
    options = parser.parse_args(argv)
    with postgres.server() as server, server.database() as url:
        figures = measure(url, options.seconds)
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"processes          {figures['processes']:8.0f}")
        print(f"queries            {figures['queries_minute']:8.1f} a minute")
        print(f"CPU                {figures['cpu_percent']:8.3f} % of a core")
        print(f"memory of a runner {figures['runner_mb']:8.1f} MB, private")
        print(f"memory of all      {figures['memory_mb']:8.1f} MB, what is shared counted once")
    return 0


def measure(url: str, seconds: int) -> dict[str, float]:
    rig = Rig(url=url, claude=_LANE, opencode=_LANE + '\ncommand = ["true"]')
    try:
        rig.track(interval_seconds=60)
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("alter database " + conn.info.dbname + " set log_statement = 'all'")
            supervisor = rig.start()
            polled = "select count(*) from tracked_repo where last_polled_at is not null"
            wait_until(lambda: scalar(conn, polled) == 1, 30, "the first poll")
            wait_until(lambda: scalar(conn, "select count(*) from worker") == 9, 30, "all look")
            before, cpu = _queries(conn), _cpu_seconds(supervisor.pid)
            threading.Event().wait(seconds)  # the time that is measured, not a wait for something
            queries = _queries(conn) - before - 1  # one is ours
            cpu = _cpu_seconds(supervisor.pid) - cpu
        pids = [supervisor.pid, *proctree.descendants(supervisor.pid)]
        runners = [pid for pid in pids if _name(pid) == "tireless:runner"]
        return {
            "processes": float(len(pids)),
            "queries_minute": queries * 60 / seconds,
            "cpu_percent": cpu * 100 / seconds,
            "runner_mb": max(_memory_kb(pid, "Private") for pid in runners) / 1024,
            "memory_mb": sum(_memory_kb(pid, "Pss:") for pid in pids) / 1024,
        }
    finally:
        rig.close()


def _queries(conn: Connection) -> int:
    """Statements that the server has logged so far."""
    log = Path(str(scalar(conn, "show data_directory")), "log")
    text = log.read_text(errors="replace")
    return text.count("LOG:  statement: ") + text.count("LOG:  execute ")


def _cpu_seconds(root: int) -> float:
    spent = 0
    for pid in (root, *proctree.descendants(root)):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            spent += int((thread / "schedstat").read_text().split()[0])
    return spent / 1e9


def _memory_kb(pid: int, kind: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return sum(int(line.split()[1]) for line in lines if line.startswith(kind) and "Hugetlb" not in line)


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
