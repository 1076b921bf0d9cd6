"""What an idle tireless costs: a supervisor, its poller and two runners a lane, one repository polled each minute.

    python -m tests.bench idle [--json] [--seconds N]

Transactions are the database's own count over the time, without those of the measurement; CPU seconds and memory
(proportional set size) are of the whole process tree.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from pathlib import Path

import psycopg

from tests.support import postgres
from tests.support.rig import Rig
from tests.support.store import scalar
from tests.support.wait import wait_until
from tireless import proctree
from tireless.store.queries import Connection

_LANE = "cap = 2\nrunners = 2"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench idle")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args(argv)
    with postgres.server() as server, server.database() as url:
        figures = measure(url, options.seconds)
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"processes      {figures['processes']:8.0f}")
        print(f"transactions   {figures['transactions_minute']:8.1f} a minute")
        print(f"CPU            {figures['cpu_ms_minute']:8.1f} ms a minute")
        print(f"memory         {figures['memory_mb']:8.1f} MB")
    return 0


def measure(url: str, seconds: int) -> dict[str, float]:
    rig = Rig(url=url, claude=_LANE, opencode=_LANE + '\ncommand = ["true"]')
    try:
        rig.track(interval_seconds=60)
        supervisor = rig.start()
        with psycopg.connect(url, autocommit=True) as conn:
            polled = "select count(*) from tracked_repo where last_polled_at is not null"
            wait_until(lambda: scalar(conn, polled) == 1, 30, "the first poll")
            before, cpu = _transactions(conn), _cpu_seconds(supervisor.pid)
            threading.Event().wait(seconds)  # the time that is measured, not a wait for something
            pids = [supervisor.pid, *proctree.descendants(supervisor.pid)]
            minutes = seconds / 60
            return {
                "processes": float(len(pids)),
                "transactions_minute": (_transactions(conn) - before) / minutes,
                "cpu_ms_minute": (_cpu_seconds(supervisor.pid) - cpu) * 1000 / minutes,
                "memory_mb": sum(_memory_kb(pid) for pid in pids) / 1024,
            }
    finally:
        rig.close()


def _transactions(conn: Connection) -> int:
    """Of the database so far, without the statements that ask: two of this function a measurement."""
    conn.execute("select pg_stat_clear_snapshot()")
    return int(scalar(conn, "select xact_commit from pg_stat_database where datname = current_database()")) - 2


def _cpu_seconds(root: int) -> float:
    ticks = 0
    for pid in (root, *proctree.descendants(root)):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _memory_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
