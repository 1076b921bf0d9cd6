"""What a statement may cost, by EXPLAIN at a million pending and a million finished jobs.

Buffers are counted, not milliseconds: the counts do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import time
from typing import Any

import psycopg
import pytest

from tests.support import postgres
from tests.support.store import (
    BOTH,
    CC,
    OC,
    REPO,
    claim,
    claimed,
    enqueue,
    issue,
    open_lanes,
    release,
    running,
    scalar,
    sweep,
    track,
)
from tireless.entities import AgentKind, Forge, JobState, RepoRef
from tireless.store import claims, intake, jobs, repos
from tireless.store.queries import Connection, text

MILLION = 1_000_000
REPOS = 5
HEAD = 10_000  # of each kind that must not be read: of one repository, in backoff

Plan = dict[str, Any]


def fill(conn: Connection, rows: int) -> None:
    """So many pending and so many finished jobs, with indexes made afterwards. The first of the pending ones are of one
    repository, the last are in backoff."""
    conn.execute("set session_replication_role = replica")
    conn.execute("set maintenance_work_mem = '256MB'")
    indexes = conn.execute(
        "select indexname, indexdef from pg_indexes where tablename = 'job' and indexname <> 'job_pkey'"
    ).fetchall()
    for name, _ in indexes:
        conn.execute(f"drop index {name}".encode())
    head = repos.find(conn, repo="head")[0].id
    common = (
        f"lpad(to_hex(n), 32, '0')::uuid, case when n <= {HEAD} then {head} else 1 + n % {REPOS} end, 'gitea',"
        f" 'forge.test', 'acme', case when n <= {HEAD} then 'head' else 'r' || n % {REPOS} end, n, 'An issue',"
        " 'implement', case when n % 2 = 0 then 'claude_code' else 'opencode' end"
    )
    columns = "id, repo_id, forge, host, owner, repo, number, title, kind, lane, run_at, created_at"
    conn.execute(
        f"insert into job ({columns}, claim_seq)"
        f" select {common}, at + case when n > {rows - HEAD} then interval '1 day' else interval '0' end, at,"
        f" case when n > {rows - HEAD} then 1 else 0 end"
        f" from generate_series(1, {rows}) as n,"
        " lateral (select now() - interval '1 hour' + n * interval '1 ms' as at)".encode()
    )
    conn.execute(
        f"insert into job ({columns}, state, phase, claim_seq, attempts, finished_at)"
        f" select {common}, at, at, 'delivered', 'done', 1, 1, at + interval '1 hour'"
        f" from generate_series({rows} + 1, 2 * {rows}) as n,"
        " lateral (select now() - interval '2 days' + n * interval '1 ms' as at)".encode()
    )
    for _, definition in indexes:
        conn.execute(definition.encode())
    conn.execute("set session_replication_role = origin")
    conn.execute("vacuum analyze")


@pytest.fixture(scope="module")
def full_url(pg_server: postgres.Server) -> Iterator[str]:
    with pg_server.database() as url:
        with psycopg.connect(url, autocommit=True) as conn:
            open_lanes(conn, cap=4)
            for n in range(REPOS):
                track(conn, RepoRef(Forge.GITEA, REPO.host, "acme", f"r{n}"))
            track(conn, RepoRef(Forge.GITEA, REPO.host, "acme", "head"))
            fill(conn, MILLION)
        yield url


@pytest.fixture
def full(full_url: str) -> Iterator[Connection]:
    """The full queue; what a test claims is put back."""
    with psycopg.connect(full_url, autocommit=True) as conn:
        yield conn
        conn.execute("rollback")
        release(conn, "w1")
        claims.mark_floors(conn)


def explain(conn: Connection, query: str, params: dict[str, Any]) -> Plan:
    with conn.cursor() as cur:
        cur.execute(b"explain (analyze, buffers, timing off, format json) " + text(query), params)
        found = cur.fetchone()
    assert found is not None
    plan: Plan = found[0][0]["Plan"]
    return plan


def explain_claim(conn: Connection, *lanes: AgentKind, query: str = "claim_next") -> Plan:
    params = {
        "worker": "w1",
        "lanes": list(lanes),
        "lease": "600 seconds",
        "host": None,
        "host_gone": "1 hour",
        **claims.KNOWN,
    }
    return explain(conn, query, params)


def buffers(node: Plan) -> int:
    return int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"])


def nodes(plan: Plan) -> Iterator[Plan]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def part(plan: Plan, name: str) -> Plan:
    return next(node for node in nodes(plan) if node.get("Subplan Name") == f"CTE {name}")


def search_cost(plan: Plan) -> int:
    """Buffers to find and lock a job and a slot; the rest is writing them, their index entries and the event."""
    return max(
        buffers(part(plan, "near")), buffers(part(plan, "choice"))
    )  # the one that came first read for the other


def scans_of_job(plan: Plan) -> set[str]:
    return {
        str(node.get("Index Name", node["Node Type"]))
        for node in nodes(plan)
        if node.get("Relation Name") == "job" and "Scan" in node["Node Type"] and node["Actual Loops"] > 0
    }


def found_a_job(plan: Plan) -> bool:
    return bool(part(plan, "claimed")["Actual Rows"] == 1)


@contextmanager
def warmed(conn: Connection) -> Iterator[None]:
    """As a process that has claimed before: the first statement of a session also reads what it caches."""
    claimed(conn)
    release(conn, "w1")
    claims.mark_floors(conn)
    yield


@pytest.mark.parametrize("lanes", [(CC,), (OC,), BOTH])
def test_a_claim_is_a_few_index_probes(full: Connection, lanes: tuple[AgentKind, ...]) -> None:
    with warmed(full):
        plan = explain_claim(full, *lanes)
    assert found_a_job(plan)
    assert search_cost(plan) <= 24
    assert buffers(plan) <= 64, "with what it writes"
    assert scans_of_job(plan) == {"job_claimable_idx", "Tid Scan", "job_pkey"}
    for node in nodes(plan):
        if node["Node Type"] == "Sort":
            assert node["Actual Rows"] <= 16, "the heads of the lanes, nothing of the queue"


def test_a_lane_at_its_cap_does_not_look_at_the_queue(full: Connection) -> None:
    for _ in range(4):
        claimed(full, lanes=[CC])
    assert claim(full, lanes=[CC]) is None
    plan = explain_claim(full, CC)
    assert "job_claimable_idx" not in scans_of_job(plan)
    assert buffers(plan) <= 12


def test_the_plan_is_kept(full_url: str) -> None:
    """Planning the claim takes longer than executing it: it must not be planned anew each time."""
    with psycopg.connect(full_url, autocommit=True) as conn:
        for _ in range(12):
            claimed(conn)
            release(conn, "w1")
        kept = conn.execute(
            "select generic_plans from pg_prepared_statements where statement like '%taken as%'"
        ).fetchall()
    assert kept
    assert all(generic >= 1 for (generic,) in kept)


def test_the_kept_plan_is_as_cheap(full_url: str) -> None:
    with psycopg.connect(full_url, autocommit=True) as conn:
        conn.execute("set plan_cache_mode = force_generic_plan")
        with warmed(conn):
            plan = explain_claim(conn, *BOTH)
        release(conn, "w1")
    assert search_cost(plan) <= 24
    assert scans_of_job(plan) == {"job_claimable_idx", "Tid Scan", "job_pkey"}


def test_jobs_in_backoff_are_not_read(full: Connection) -> None:
    waiting = scalar(full, "select count(*) from job where state = 'pending' and run_at > now()")
    assert waiting >= HEAD
    with warmed(full):
        plan = explain_claim(full, *BOTH)
    assert found_a_job(plan)
    assert search_cost(plan) <= 24


def test_urgent_jobs_in_backoff_cost_index_pages_at_most(conn: Connection) -> None:
    """Ten thousand of a better priority, none of which may run: their entries are passed over, no row is read."""
    repo = track(conn)
    open_lanes(conn)
    enqueue(conn, [issue(n) for n in range(1, HEAD + 1)], repo)
    conn.execute("update job set priority = 1, claim_seq = 1, run_at = now() + interval '1 hour'")
    enqueue(conn, [issue(n) for n in range(HEAD + 1, HEAD + 11)], repo)
    conn.execute("vacuum analyze")
    plan = explain_claim(conn, CC)
    assert found_a_job(plan)
    assert search_cost(plan) <= 150
    assert scalar(conn, "select relpages from pg_class where relname = 'job'") > 500


@pytest.mark.parametrize("why", ["quiet", "disabled", "limit"])
def test_a_sleeping_repository_at_the_head_of_the_queue_costs_a_probe(full: Connection, why: str) -> None:
    sleeper = next(r for r in repos.tracked(full) if r.ref.repo == "head")
    with warmed(full):
        assert claimed(full).job.repo_id == sleeper.id
    full.execute("begin")
    if why == "limit":
        full.execute("update tracked_repo set max_running = 1 where id = %s", (sleeper.id,))
        full.execute("update job set repo_slot = 1 where repo_id = %s and claimed_by = 'w1'", (sleeper.id,))
    elif why == "disabled":
        full.execute("update tracked_repo set enabled = false where id = %s", (sleeper.id,))
    else:
        hour = scalar(full, "select extract(hour from tireless_now() at time zone 'UTC')::int")
        hours = (time(hour), time((hour + 2) % 24))
        full.execute(
            "update tracked_repo set quiet_from = %s, quiet_until = %s where id = %s", (*hours, sleeper.id)
        )
    head = explain_claim(full, CC)
    assert not found_a_job(head)
    assert buffers(head) <= 64
    past = explain_claim(full, CC, query="claim_past")
    assert found_a_job(past)
    assert scans_of_job(past) >= {"job_repo_pending_idx"}
    assert search_cost(past) <= 24 + 12 * (REPOS + 1)
    assert claimed(full).job.repo_id != sleeper.id


def test_behind_an_old_snapshot_claims_do_not_read_what_was_claimed_before(full_url: str) -> None:
    """Five thousand claims whose dead versions nothing may clean away. A floor a lane and slots that are found newest
    first keep the five-thousandth as cheap as the first, within a few pages of what 32 claims leave."""
    with psycopg.connect(full_url) as old, psycopg.connect(full_url, autocommit=True) as conn:
        release(conn, "w1")
        conn.execute("vacuum job")
        conn.execute("vacuum lane_slot")
        old.execute("set transaction isolation level repeatable read")
        old.execute("select count(*) from lane")
        with warmed(conn):
            first = explain_claim(conn, *BOTH)
        release(conn, "w1")
        for _ in range(5000):
            claims.finish(conn, claimed(conn), JobState.DELIVERED, [])
        last = explain_claim(conn, *BOTH)
        assert found_a_job(last)
        release(conn, "w1")
        ending = running(conn)
        fence = claims.fence(ending)
        finish = explain(
            conn,
            "transition",
            {
                **fence,
                "to": "delivered",
                "phase": "done",
                "set_error": False,
                "error": None,
                "keep_attempt": False,
                "delay": "0 seconds",
                "event": "finished",
                "detail": "{}",
            },
        )
    assert search_cost(last) <= search_cost(first) + 20
    assert buffers(last) < 100
    assert buffers(finish) < 60


def test_a_renewal_is_a_hot_update(full: Connection) -> None:
    held = running(full)
    full.execute("select pg_stat_force_next_flush()")
    asked = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'job'"
    before = full.execute(asked).fetchone()
    for _ in range(200):
        assert claims.renew_claim(full, held, lease_seconds=600) is not None
    full.execute("select pg_stat_force_next_flush()")
    after = full.execute(asked).fetchone()
    assert before is not None
    assert after is not None
    updates, hot = after[0] - before[0], after[1] - before[1]
    assert updates == 200
    assert hot >= 190, "a page that is full moves the row once; pruning makes room again"


def test_a_renewal_touches_a_handful_of_buffers(full: Connection) -> None:
    held = running(full)
    claims.renew_claim(full, held, lease_seconds=600)
    plan = explain(full, "renew_claim", {**claims.fence(held), "lease": "600 seconds"})
    assert scans_of_job(plan) == {"job_pkey"}
    assert buffers(plan) <= 10


def test_the_sweep_reads_live_rows_only(full: Connection) -> None:
    claimed(full)
    full.execute("vacuum job")
    params = {
        "workers": None,
        "why": "x",
        "event": "lease_expired",
        "backoff": 30.0,
        "actor": "s",
        **claims.WORDS_KNOWN,
    }
    plan = explain(full, "expire_stale_claims", params)
    assert scans_of_job(plan) == {"job_held_idx"}
    assert part(plan, "stale")["Actual Rows"] == 0
    assert buffers(part(plan, "stale")) <= 60, (
        "claims of the tests before, dead and not yet vacuumed, among them"
    )
    assert sweep(full) == []


def test_the_agenda_is_a_few_index_probes(full: Connection) -> None:
    full.execute("vacuum job")
    params = {"since": scalar(full, "select now() - interval '8 seconds'"), "pulse": True, **claims.WORDS_KNOWN}
    plan = explain(full, "agenda", params)
    assert scans_of_job(plan) == {"job_claimable_idx", "job_held_idx"}
    assert buffers(part(plan, "queue")) <= 2 * 10 * 2 * 4, (
        "two lanes, ten priorities, two probes of a few pages"
    )
    assert buffers(plan) <= 250


def test_a_poll_that_finds_what_it_found_before_reads_by_index(full: Connection) -> None:
    repo = next(r for r in repos.tracked(full) if r.ref.repo == "r1")
    page = [issue(n, repo=repo.ref) for n in range(HEAD + 1, HEAD + 1001) if n % REPOS == 1]
    listed_at = scalar(full, "select tireless_now()")
    before = sequential_scans(full)
    assert set(enqueue(full, page, repo, listed_at=listed_at).values()) == {intake.Verdict.LIVE}
    assert sequential_scans(full) == before


def test_finding_the_jobs_of_an_issue_reads_by_index(full: Connection) -> None:
    before = sequential_scans(full)
    found = jobs.find(full, owner="acme", repo="r1", number=MILLION + 1)
    assert [j.state for j in found] == [JobState.DELIVERED]
    assert [j.state for j in jobs.find(full, owner="acme", repo="r1", number=HEAD + 1)] == [JobState.PENDING]
    assert sequential_scans(full) == before


def sequential_scans(conn: Connection) -> int:
    conn.execute("select pg_stat_force_next_flush()")
    return int(scalar(conn, "select seq_scan from pg_stat_user_tables where relname = 'job'"))
