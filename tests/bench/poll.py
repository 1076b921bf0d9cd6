"""What polling costs: one real poller, a forge whose every answer takes 100 ms, and a host that never answers.

    python -m tests.bench poll [--json] [--repos N] [--interval S] [--seconds S] [--dead N]

Most repositories answer 304. It is seen from outside: by the forge, which notes each request, and by /proc. The first
interval, in which everything is due at once, is left out of the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import psycopg

from tests.support import postgres
from tests.support.wait import wait_until
from tireless.config import Config, DatabaseConfig, ForgeConfig, PollerConfig, Secret
from tireless.entities import Forge, WorkerRole

LATENCY = 0.1
CHANGED = 0.02  # of all polls
AIMS = {"late_p99": 0.1, "cpu": 0.2, "rss_mb": 80.0, "connections": 8, "unevenness": 1.5}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.bench poll")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repos", type=int, default=2000)
    parser.add_argument("--interval", type=int, default=60, help="seconds")
    parser.add_argument("--seconds", type=int, default=120, help="that are measured")
    parser.add_argument("--dead", type=int, default=50, help="repositories on a host that never answers")
    options = parser.parse_args(argv)
    figures = measure(options.repos, options.interval, options.seconds, options.dead)
    if options.json:
        print(json.dumps(figures))
        return 0
    print(f"polls                   {figures['polls_s']:.1f} a second, wanted {figures['wanted_s']:.1f}")
    print(f"late (99 of 100)        {100 * figures['late_p99']:.1f} % of the interval")
    print(f"processor               {100 * figures['cpu']:.1f} % of a core")
    print(f"memory                  {figures['rss_mb']:.0f} MB")
    print(
        f"connections             {figures['connections']} at once to the forge, {figures['sessions']} to Postgres"
    )
    print(f"statements              {figures['statements']:.1f} a poll")
    print(f"busiest 5 s             {figures['unevenness']:.2f} times the mean")
    return 0


def measure(repos: int, interval: int, seconds: int, dead: int) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(postgres.server())
        url = stack.enter_context(server.database())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-poll-")))
        forge = stack.enter_context(_Process(_forge))
        live_port, dead_port = forge.pipe.recv()
        conn = stack.enter_context(psycopg.connect(url, autocommit=True))
        _track(conn, live_port, repos, interval)
        _track(conn, dead_port, dead, interval)
        poller = stack.enter_context(_Process(_poller, url, str(directory), (live_port, dead_port)))
        wait_until(lambda: _left(conn, live_port) == 0, 10 * interval, "every repository was polled once")
        select_for(interval)  # until each has its own place in the interval
        before, used = _statements(conn), _cpu(poller.pid)
        forge.pipe.send("begin")
        began = time.monotonic()
        sessions = 0
        while (left := began + seconds - time.monotonic()) > 0:
            select_for(min(left, 1.0))
            sessions = max(sessions, _sessions(conn))
        passed = time.monotonic() - began
        statements, cpu = _statements(conn) - before, _cpu(poller.pid) - used
        rss = _rss_mb(poller.pid)
        forge.pipe.send("end")
        seen: _Seen = forge.pipe.recv()
    polls = len(seen.times)
    return {
        "repos": repos,
        "polls_s": polls / passed,
        "wanted_s": repos / interval,
        "late_p99": _lateness(seen, interval),
        "cpu": cpu / passed,
        "rss_mb": rss,
        "connections": seen.most_connections,
        "sessions": sessions,
        "statements": statements / max(polls, 1),
        "unevenness": _unevenness(seen, passed),
        "not_modified": seen.not_modified / max(polls, 1),
    }


def select_for(seconds: float) -> None:
    """The passing of time itself is what is waited for here."""
    signal.sigtimedwait([], seconds)


def _lateness(seen: _Seen, interval: int) -> float:
    """How much longer than the interval the time between two polls of a repository is, 99 of 100; as its part."""
    by_repo = defaultdict(list)
    for at, repo in seen.times:
        by_repo[repo].append(at)
    gaps = sorted(b - a for times in by_repo.values() for a, b in itertools.pairwise(times))
    return max(0.0, gaps[int(len(gaps) * 0.99)] / interval - 1) if gaps else float("inf")


def _unevenness(seen: _Seen, seconds: float) -> float:
    """The polls of the busiest five seconds over those of the mean."""
    counts = Counter(int((at - seen.times[0][0]) // 5) for at, _ in seen.times)
    whole = [counts[i] for i in range(max(1, int(seconds // 5)))]
    return max(whole) / statistics.mean(whole)


# -- what is measured --------------------------------------------------------------------------------------


class _Process:
    """A process of a fresh interpreter, with a pipe to it."""

    def __init__(self, target: Any, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *args), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._process.join()


def _poller(pipe: Pipe, url: str, state_dir: str, ports: tuple[int, int]) -> None:
    from tireless.poller import Poller
    from tireless.process import ChildContext

    config = Config(
        host="bench",
        state_dir=Path(state_dir),
        database=DatabaseConfig(url=url),
        poller=PollerConfig(full_sweep_seconds=1e9),
        forge=tuple(
            ForgeConfig(Forge.GITHUB, f"127.0.0.1:{port}", f"http://127.0.0.1:{port}", "T", token=Secret("t"))
            for port in ports
        ),
    )
    Poller(ChildContext(config, WorkerRole.POLLER)).run()


def _track(conn: psycopg.Connection, port: int, count: int, interval: int) -> None:
    conn.execute(
        "insert into tracked_repo (forge, host, owner, repo, clone_url, default_branch, interval_seconds,"
        " last_full_sweep_at) select 'github', %s, 'acme', 'r' || n, 'http://127.0.0.1/x.git', 'main', %s, now()"
        " from generate_series(1, %s) n",
        (f"127.0.0.1:{port}", interval, count),
    )


def _left(conn: psycopg.Connection, port: int) -> int:
    """Repositories of a host that were never polled."""
    query = "select count(*) from tracked_repo where poll_result is null and host = %s"
    found = conn.execute(query, (f"127.0.0.1:{port}",)).fetchone()
    assert found is not None
    return int(found[0])


def _statements(conn: psycopg.Connection) -> int:
    """Transactions of this database so far, which for the poller are statements but for a few."""
    found = conn.execute(
        "select pg_stat_get_db_xact_commit(oid) from pg_database where datname = current_database()"
    ).fetchone()
    assert found is not None
    return int(found[0])


def _sessions(conn: psycopg.Connection) -> int:
    found = conn.execute(
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        " and backend_type = 'client backend'"
    ).fetchone()
    assert found is not None
    return int(found[0])


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no VmRSS of {pid}")


# -- the forge ---------------------------------------------------------------------------------------------


@dataclass
class _Seen:
    times: list[tuple[float, str]] = field(default_factory=list)
    most_connections: int = 0
    not_modified: int = 0


class _SlowForge:
    """Lists of issues, as GitHub answers them: an ETag, and 304 to who has it. One poll in fifty finds a change."""

    def __init__(self) -> None:
        self.seen = _Seen()
        self.connections = 0
        self.versions: Counter[str] = Counter()
        self.count = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.seen.most_connections = max(self.seen.most_connections, self.connections)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await asyncio.sleep(LATENCY)
                writer.write(self.answer(head.decode()))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def answer(self, head: str) -> bytes:
        path = head.split(" ", 2)[1]
        given = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        repo = path.split("/")[3]
        self.seen.times.append((time.monotonic(), repo))
        self.count += 1
        if self.count % int(1 / CHANGED) == 0:
            self.versions[repo] += 1
        etag = f'W/"{repo}-{self.versions[repo]}"'
        if given.get("If-None-Match") == etag:
            self.seen.not_modified += 1
            return f"HTTP/1.1 304 Not Modified\r\nETag: {etag}\r\n\r\n".encode()
        body = "[]"
        return (
            f"HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()


def _forge(pipe: Pipe) -> None:
    asyncio.run(_serve(pipe))


async def _serve(pipe: Pipe) -> None:
    forge = _SlowForge()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass

    live = await asyncio.start_server(forge.serve, "127.0.0.1", 0)
    dead = await asyncio.start_server(never, "127.0.0.1", 0)
    pipe.send((live.sockets[0].getsockname()[1], dead.sockets[0].getsockname()[1]))
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, pipe.recv)
    forge.seen = _Seen(most_connections=forge.connections)
    await loop.run_in_executor(None, pipe.recv)
    pipe.send(forge.seen)
    await asyncio.Event().wait()
