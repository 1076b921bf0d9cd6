"""How long a job waits for an idle runner: from before its enqueue to after its claim by a listening process.

python -m tests.bench wake [--json] [--jobs N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from multiprocessing.connection import Connection as Pipe

import psycopg

from tests.support import postgres
from tests.support.store import CC, claim, enqueue, issue, open_lanes, track
from tireless.entities import JobState
from tireless.store import claims
from tireless.store.listen import Listener, lane_channel

AIMS_MS = {"p50_ms": 3.0, "p99_ms": 15.0}
_WARM = 20


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench wake")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=500)
    options = parser.parse_args(argv)
    with postgres.server() as server, server.database() as url:
        figures = measure(url, options.jobs)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, aim in AIMS_MS.items():
            print(f"{name}   {figures[name]:7.2f}   aim {aim:.0f}")
        print(f"worst    {figures['max_ms']:7.2f}")
    return 0


def measure(url: str, count: int) -> dict[str, float]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    runner = context.Process(target=_runner, args=(url, theirs))
    with psycopg.connect(url, autocommit=True) as conn:
        repo = track(conn)
        open_lanes(conn)
        # Connected before the fork and not used by the child, which leaves by os._exit.
        runner.start()
        assert ours.recv() == "listening"
        waits = []
        for n in range(1, count + _WARM + 1):
            began = time.perf_counter()
            enqueue(conn, [issue(n)], repo)
            waits.append((ours.recv() - began) * 1000)
        ours.send("stop")
    runner.join(10)
    waits = sorted(waits[_WARM:])
    return {
        "p50_ms": statistics.median(waits),
        "p99_ms": waits[int(len(waits) * 0.99)],
        "max_ms": waits[-1],
    }


def _runner(url: str, pipe: Pipe) -> None:
    """As a runner does: wait, look, and after a job look again before the next wait."""
    ear = Listener(url, (lane_channel(CC),))
    ear.wait(0)
    pipe.send("listening")
    while not pipe.poll():
        ear.wait(5)
        with ear.connection() as conn:
            while found := claim(conn, "bench", [CC]):
                at = time.perf_counter()
                claims.finish(conn, found, JobState.DELIVERED, [])
                pipe.send(at)
    os._exit(0)
