"""How fast a poll's issues become jobs: a page of 1,000 new issues, and the same page again when nothing is new.

python -m tests.bench enqueue [--json] [--issues N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import time

from tests.support import postgres
from tests.support.store import REPO, enqueue, issue, open_lanes, track
from tireless.entities import RepoRef
from tireless.store.connection import connect
from tireless.store.intake import Verdict

AIM_S = 20_000


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench enqueue")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--issues", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args(argv)
    with postgres.server() as server, server.database() as url:
        figures = measure(url, options.issues, options.rounds)
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"new issues     {figures['new_s']:9.0f} a second   aim {AIM_S}")
        print(f"known issues   {figures['known_s']:9.0f} a second")
    return 0


def measure(url: str, count: int, rounds: int) -> dict[str, float]:
    new: list[float] = []
    known: list[float] = []
    with connect(url) as conn:
        open_lanes(conn)
        for n in range(rounds):
            repo = track(conn, RepoRef(REPO.forge, REPO.host, REPO.owner, f"r{n}"))
            page = [issue(i, repo=repo.ref) for i in range(1, count + 1)]
            for times, verdict in ((new, Verdict.ENQUEUED), (known, Verdict.LIVE)):
                began = time.perf_counter()
                found = enqueue(conn, page, repo)
                times.append(time.perf_counter() - began)
                assert set(found.values()) == {verdict}
            if n == 0:
                conn.execute("vacuum analyze")
    return {"new_s": count / min(new), "known_s": count / min(known)}
