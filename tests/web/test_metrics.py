"""/metrics: the format, the numbers, and what it costs."""

from __future__ import annotations

import re
from typing import Any
from uuid import uuid4

import psycopg

from tests.web.conftest import Rows, Site, Start
from tireless import __version__
from tireless.entities import AgentKind
from tireless.store import lanes, queries, status
from tireless.store.queries import Connection
from tireless.web.metrics import family

_SAMPLE = re.compile(
    r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)+)\})? (?P<value>\S+)'
)


def scrape(site: Site) -> dict[str, float]:
    """Sample -> value, held to the format: a HELP and a TYPE before the samples of each, each sample once."""
    answer = site.ask("/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.body.endswith("\n")
    found: dict[str, float] = {}
    names: list[str] = []
    lines = iter(answer.body.splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            name = line.split()[2]
            assert name not in names
            assert name.startswith("tireless_")
            names.append(name)
            kind = next(lines).split()
            assert kind[:3] == ["#", "TYPE", name]
            assert kind[3] == ("counter" if name.endswith("_total") else "gauge")
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, line
        assert sample["name"] == names[-1]
        key = line.rpartition(" ")[0].removeprefix("tireless_")
        assert key not in found
        found[key] = float(sample["value"])
    return found


def test_numbers(site: Site, rows: Rows) -> None:
    rows.running()
    for _ in range(3):
        rows.job()
    rows.job(created_at="2020-01-01", lane="opencode")
    rows.finished(state="failed")
    rows.write(state="waiting", created_at="2020-01-01")
    rows.write(state="refused", done_at="now")
    rows.write(state="done", done_at="now")
    rows.add("worker", id="w1", host="h", role="runner", pid=1, version="1")
    rows.add("worker", id="w2", host="h", role="runner", pid=2, version="1", seen_at="2020-01-01")  # gone
    rows.add(
        "worker", id="host/1", host="h", role="runner", pid=3, version="1", seen_at="2020-01-01"
    )  # at work
    repo = {"forge": "gitea", "host": "h", "owner": "o", "clone_url": "u", "default_branch": "main"}
    rows.add("tracked_repo", **repo, repo="a", poll_result="unreachable")
    rows.add("tracked_repo", **repo, repo="b")
    rows.add("tracked_repo", **repo, repo="c", enabled=False)
    lanes.pause(rows.conn, AgentKind.OPENCODE, "why")
    rows.conn.execute(
        "update lane set hold_reason = 'x', held_until = '2100-01-01 00:00Z' where lane = 'claude_code'"
    )
    found = scrape(site)
    for key, value in {
        f'build_info{{version="{__version__}"}}': 1,
        'jobs{lane="claude_code",state="running"}': 1,
        'jobs{lane="claude_code",state="pending"}': 3,
        'jobs{lane="opencode",state="claimed"}': 0,
        'jobs_finished_total{lane="claude_code",state="failed"}': 1,
        'jobs_finished_total{lane="opencode",state="delivered"}': 0,
        'lane_slots_cap{lane="claude_code"}': 3,
        'lane_slots_used{lane="claude_code"}': 1,
        'lane_paused{lane="opencode"}': 1,
        'lane_paused{lane="claude_code"}': 0,
        'lane_held{lane="claude_code"}': 1,
        'lane_held{lane="opencode"}': 0,
        'lane_hold_end_timestamp_seconds{lane="claude_code"}': 4102444800,
        'forge_writes{state="waiting"}': 1,
        'forge_writes{state="refused"}': 1,
        "forge_writes_done_total": 1,
        'repos{result="unreachable"}': 1,
        'repos{result="never"}': 1,
        'repos{result="changed"}': 0,
        'workers{role="runner"}': 2,
        'workers{role="poller"}': 0,
    }.items():
        assert found[key] == value, key
    assert 'lane_hold_end_timestamp_seconds{lane="opencode"}' not in found
    assert 0 <= found['lane_oldest_pending_age_seconds{lane="claude_code"}'] < 60
    assert found['lane_oldest_pending_age_seconds{lane="opencode"}'] > 86400
    assert found["forge_write_oldest_waiting_age_seconds"] > 86400


def add_run(rows: Rows, started: str, ended: str | None, **values: Any) -> None:
    job = rows.finished(at="'2020-01-01'")
    run = {"agent": "claude_code", "outcome": "completed" if ended else None, "host": "h", "worker": "w"}
    rows.add(
        "agent_run",
        id=uuid4(),
        job_id=job,
        claim_seq=1,
        started_at=started,
        ended_at=ended,
        **{**run, **values},
    )


def at(start: Start, url: str, moment: str) -> dict[str, float]:
    """A scrape at a moment of the database's clock, by a server of another time zone."""
    options = f"-c tireless.now={moment} -c timezone=Asia/Tokyo"
    return scrape(start(lambda: psycopg.connect(url, autocommit=True, options=options)))


def test_totals_grow_until_midnight_utc_and_start_again_at_nothing(
    start: Start, database_url: str, rows: Rows
) -> None:
    add_run(
        rows, "2026-03-04 23:00Z", "2026-03-05 00:30Z", cost_usd=1.25, input_tokens=10, output_tokens=2
    )  # over midnight
    add_run(rows, "2026-03-05 08:00Z", "2026-03-05 09:00Z", cost_usd=2, input_tokens=5, output_tokens=1)
    add_run(rows, "2026-03-05 08:00Z", None, cost_usd=9)  # runs still
    add_run(rows, "2026-03-05 08:00Z", "2026-03-05 09:00Z", outcome="crashed")  # of no known cost
    add_run(rows, "2026-03-04 08:00Z", "2026-03-04 09:00Z", cost_usd=100)  # yesterday's
    rows.finished(at="'2026-03-04 23:59:59Z'")
    rows.finished(at="'2026-03-05 00:00:00Z'")
    completed = 'agent="claude_code",outcome="completed"'
    found = at(start, database_url, "2026-03-05T23:59:59Z")
    assert found[f"agent_cost_usd_total{{{completed}}}"] == 3.25
    assert found[f"agent_runs_total{{{completed}}}"] == 2
    assert found['agent_runs_total{agent="claude_code",outcome="crashed"}'] == 1
    assert found['agent_cost_usd_total{agent="claude_code",outcome="crashed"}'] == 0
    assert found[f'agent_tokens_total{{{completed},direction="input"}}'] == 15
    assert found[f'agent_tokens_total{{{completed},direction="output"}}'] == 3
    assert found['jobs_finished_total{lane="claude_code",state="delivered"}'] == 1
    tomorrow = at(start, database_url, "2026-03-06T00:00:00Z")
    assert not [key for key in tomorrow if key.startswith("agent_")]
    assert tomorrow['jobs_finished_total{lane="claude_code",state="delivered"}'] == 0


def test_values_of_labels_are_quoted() -> None:
    assert list(family("x", "gauge", 'a\\b\n"c"', [({"l": 'a\\b\n"c"'}, 1.5), ({}, True)])) == [
        '# HELP tireless_x a\\\\b\\n"c"',
        "# TYPE tireless_x gauge",
        'tireless_x{l="a\\\\b\\n\\"c\\""} 1.5',
        "tireless_x 1",
    ]


def test_an_unknown_state_is_counted_too(site: Site, rows: Rows) -> None:
    rows.conn.execute("alter table lane drop constraint lane_lane_known, add constraint x check (true)")
    rows.conn.execute("alter table job drop constraint job_lane_known")
    rows.job(lane='new"lane')
    assert scrape(site)['jobs{lane="new\\"lane",state="pending"}'] == 1


# -- cost -------------------------------------------------------------------------------------------------

HISTORY = 100_000
BIG = ("job", "agent_run", "forge_write", "job_event")
LIMIT = {"limit": 50}
LOOKS: dict[str, dict[str, Any]] = {
    "status_lanes": {},
    "status_live_counts": {},
    "status_live_jobs": LIMIT,
    "status_finished_jobs": LIMIT,
    "status_finished_today": {},
    "status_runs_today": {},
    "status_writes_open": {},
    "status_writes_today": {},
    "status_open_writes": LIMIT,
    "status_workers": LIMIT,
    "status_workers_by_role": {},
    "status_repos": LIMIT,
    "status_repos_by_result": {},
    "status_job": {},
    "status_job_facts": {},
    "status_job_events": LIMIT,
    "status_job_runs": LIMIT,
    "status_job_writes": LIMIT,
}


def test_every_look_is_held_to_a_bound() -> None:
    """status_begin has no plan; all others are below."""
    from importlib.resources import files

    names = {f.name[:-4] for f in files("tireless.store.sql").iterdir() if f.name.startswith("status_")}
    assert names - {"status_begin"} == set(LOOKS)


def fill(conn: Connection) -> None:
    """Three months of history, and a busy present."""
    conn.execute(
        "insert into job (forge, host, owner, repo, number, kind, lane, state, phase, created_at, finished_at)"
        " select 'github', 'h', 'o', 'r', n, 'implement', (array['claude_code', 'opencode'])[1 + n %% 2],"
        " (array['delivered', 'failed'])[1 + n %% 2], 'done', at, at"
        " from (select n, now() - n * interval '90 days' / %(n)s as at from generate_series(1, %(n)s) as n) as x",
        {"n": HISTORY},
    )
    conn.execute(
        "insert into job (forge, host, owner, repo, number, kind, lane)"
        " select 'github', 'h', 'o', 'r', n, 'implement', (array['claude_code', 'opencode'])[1 + n % 2]"
        " from generate_series(1, 20000) as n"
    )
    conn.execute(
        "insert into agent_run (id, job_id, claim_seq, agent, host, worker, started_at, ended_at, outcome, cost_usd)"
        " select gen_random_uuid(), id, 1, lane, 'h', 'w', finished_at, finished_at, 'completed', 1"
        " from job where finished_at is not null"
    )
    conn.execute(
        "insert into forge_write (job_id, forge, host, owner, repo, number, op, state, done_at)"
        " select id, forge, host, owner, repo, number, 'comment', 'done', finished_at"
        " from job where finished_at is not null"
    )
    conn.execute(
        "insert into job_event (job_id, kind, actor) select id, 'claimed', 'w' from job where finished_at is not null"
    )
    conn.execute("analyze")


def test_no_look_reads_history_as_a_whole(rows: Rows, start: Start, database_url: str) -> None:
    rows.running()
    rows.write()
    rows.add("worker", id="host/1", host="h", role="runner", pid=1, version="1")
    fill(rows.conn)
    job = rows.conn.execute("select id from job where state = 'running'").fetchone()
    assert job is not None
    with status.looking(rows.conn):
        for name, params in LOOKS.items():
            query = b"explain (analyze, buffers, format json) " + queries.text(name)
            found = rows.conn.execute(query, {**params, "job": job[0]}).fetchone()
            assert found is not None
            plan = found[0][0]["Plan"]
            scanned = [n for n in _nodes(plan) if n["Node Type"] == "Seq Scan" and n["Relation Name"] in BIG]
            assert scanned == [], name
            buffers = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
            assert buffers < 2500, (name, buffers)
    found = scrape(start(lambda: psycopg.connect(database_url, autocommit=True)))
    assert found['jobs{lane="opencode",state="pending"}'] == 10_000


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", []) for node in _nodes(part))]
