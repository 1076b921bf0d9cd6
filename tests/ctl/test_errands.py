"""The supervisor's errands, on a real database and with real dead processes."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tests.support import postgres
from tests.support.store import CC, OC, claimed, event_kinds, job_of, queued, running, scalar
from tests.support.wait import wait_until
from tireless import embedded, errands, process, proctree
from tireless.config import Config, ConfigError, DatabaseConfig, LaneConfig
from tireless.entities import AgentKind, JobState, WorkerRole, WriteOp
from tireless.process import Exit, Leave
from tireless.store import jobs, lanes, workers, writes
from tireless.store.queries import Connection

HOST = "here"


@pytest.fixture
def config(tmp_path: Path, database_url: str) -> Config:
    database = DatabaseConfig(url=database_url, connect_timeout_seconds=2, start_timeout_seconds=5)
    return replace(Config(), host=HOST, state_dir=tmp_path, database=database)


def with_url(config: Config, url: str, wait: int = 5) -> Config:
    return replace(config, database=replace(config.database, url=url, start_timeout_seconds=wait))


@pytest.fixture
def closed_url() -> Iterator[str]:
    """A URL that is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"postgresql://ann:hunter22@127.0.0.1:{taken.getsockname()[1]}/tireless"


def dead_worker(host: str = HOST) -> str:
    """The name of a process that has ended."""
    with subprocess.Popen(["sleep", "60"]) as child:
        name = process.worker_id(host, child.pid)
        child.kill()
    return name


# -- prepare --------------------------------------------------------------------------------------------------


def test_prepare_makes_the_schema_and_the_lanes(config: Config, pg_server: postgres.Server) -> None:
    with pg_server.database(empty=True) as url:
        lanes_of_file = {CC: LaneConfig(cap=3), OC: LaneConfig(cap=0)}
        ours = replace(with_url(config, url), lane=lanes_of_file)
        errands.prepare(ours)
        with psycopg.connect(url, autocommit=True) as conn:
            assert {lane.lane: lane.cap for lane in lanes.all_lanes(conn)} == {CC: 3, OC: 0}
            lanes.set_cap(conn, CC, 5)
            errands.prepare(ours)
            assert {lane.lane: lane.cap for lane in lanes.all_lanes(conn)} == {CC: 5, OC: 0}


def test_prepare_takes_back_what_the_dead_of_this_host_held(config: Config, conn: Connection) -> None:
    queued(conn, 1, 2, 3, 4)
    alive = process.worker_id(HOST, os.getpid())
    holders = [dead_worker(), alive, dead_worker("elsewhere"), "no name of ours"]
    held = [claimed(conn, worker).job for worker in holders]
    for worker in (holders[0], alive):
        workers.register(conn, worker, HOST, WorkerRole.RUNNER, CC, 1)

    errands.prepare(config)

    after = [jobs.get(conn, job.id) for job in held]
    assert [job.state for job in after if job] == [JobState.PENDING, *[JobState.CLAIMED] * 3]
    assert "released" in event_kinds(conn, held[0])
    assert [w.id for w in workers.of_host(conn)] == [alive]
    assert claimed(conn, "next").job.id == held[0].id  # at once


def test_prepare_ends_what_a_dead_workers_agent_left_before_its_claim_goes(
    config: Config, conn: Connection
) -> None:
    queued(conn, 1)
    job = running(conn, dead_worker()).job
    code = "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    mark = {**os.environ, proctree.MARK: str(job.id)}
    left = subprocess.Popen(
        [sys.executable, "-c", code], env=mark, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert left.stdout is not None
        left.stdout.readline()  # it ignores TERM by now
        errands.prepare(config)
        assert left.wait(10) == -9
        assert job_of(conn, 1).state is JobState.PENDING
    finally:
        left.kill()
        left.communicate()


def test_a_claim_stays_where_its_processes_do_not_die(
    config: Config, conn: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queued(conn, 1)
    running(conn, dead_worker())
    monkeypatch.setattr(proctree, "kill_all", lambda _find, _seconds: False)
    errands.prepare(config)
    assert job_of(conn, 1).state is JobState.RUNNING
    assert "its claim is left to the lease" in caplog.text


def test_prepare_waits_for_a_database_and_then_leaves_with_69(config: Config, closed_url: str) -> None:
    with pytest.raises(Leave) as left:
        errands.prepare(with_url(config, closed_url, wait=1))
    assert left.value.exit_code == Exit.NO_DATABASE
    assert "hunter22" not in str(left.value)


def test_prepare_goes_through_an_outage(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with postgres.embedded() as url, psycopg.connect(url, autocommit=True) as conn:
        # A role that may not connect yet stands for a server that is not ready.
        conn.execute("create role late login connection limit 0")
        conn.execute("create database late owner late")
        target = (
            url.replace("/postgres?", "/late?")
            .replace("//postgres:", "//late:")
            .replace("//postgres@", "//late@")
        )
        opened = threading.Timer(0.7, lambda: conn.execute("alter role late connection limit 5"))
        opened.start()
        errands.prepare(with_url(config, target, wait=20))
        opened.join()
        with psycopg.connect(target) as check:
            assert scalar(check, "select count(*) from lane") == len(AgentKind)
    assert caplog.text.count("database unreachable") == 1
    assert caplog.text.count("database is back") == 1


def test_a_url_that_cannot_be_read_is_a_configuration_error(config: Config) -> None:
    with pytest.raises(ConfigError, match="cannot be read") as refused:
        errands.prepare(with_url(config, "postgresql://ann:hunter22@h/x?nonsense=1"))
    assert "hunter22" not in str(refused.value)
    assert process.exit_code_of(refused.value) == Exit.CONFIG


def test_a_newer_breaking_schema_is_78(config: Config, conn: Connection) -> None:
    insert = (
        "insert into schema_migration (version, name, checksum, breaking) values (9999, 'later', 'x', true)"
    )
    conn.execute(insert.encode())
    with pytest.raises(Leave, match="upgrade tireless on this host") as left:
        errands.prepare(config)
    assert left.value.exit_code == Exit.CONFIG


# -- release, lanes, finish -----------------------------------------------------------------------------------


def test_release_takes_back_and_forgets(config: Config, conn: Connection) -> None:
    queued(conn, 1)
    running(conn, "w1")
    workers.register(conn, "w1", HOST, WorkerRole.RUNNER, CC, 1)
    errands.release(config, "w1", "killed by SIGKILL")
    job = job_of(conn, 1)
    assert (job.state, job.attempts, job.last_error) == (JobState.PENDING, 1, "killed by SIGKILL")
    assert workers.of_host(conn) == []
    errands.release(config, "w1", "again")
    assert job_of(conn, 1).last_error == "killed by SIGKILL"


def test_the_last_attempt_ends_the_job_and_tells_its_issue(config: Config, conn: Connection) -> None:
    queued(conn, 1)
    conn.execute("update job set max_attempts = 1")
    running(conn, "w1")
    errands.release(config, "w1", "killed by SIGKILL")
    job = job_of(conn, 1)
    assert job.state is JobState.FAILED
    assert "killed by SIGKILL" in (job.last_error or "")
    assert [w.op for w in writes.of_job(conn, job.id)] == [
        WriteOp.STATUS_COMMENT,
        WriteOp.STATE_LABEL,
        WriteOp.REMOVE_LABEL,
    ]


def test_the_others_try_once(config: Config, closed_url: str) -> None:
    away = with_url(config, closed_url, wait=600)
    with pytest.raises(Leave) as left:
        errands.release(away, "w1", "why")
    assert left.value.exit_code == Exit.NO_DATABASE
    with pytest.raises(Leave) as left:
        errands.apply_lanes(away, config)
    assert left.value.exit_code == Exit.NO_DATABASE


def test_only_a_cap_that_the_file_changed_is_written(config: Config, conn: Connection) -> None:
    before = replace(config, lane={CC: LaneConfig(cap=2), OC: LaneConfig(cap=2)})
    errands.prepare(before)
    for lane in (CC, OC):
        lanes.set_cap(conn, lane, 7)  # by an operator, meanwhile
    errands.apply_lanes(replace(before, lane={CC: LaneConfig(cap=3), OC: LaneConfig(cap=2)}), before)
    assert {lane.lane: lane.cap for lane in lanes.all_lanes(conn)} == {CC: 3, OC: 7}
    errands.apply_lanes(before, None)
    assert {lane.lane: lane.cap for lane in lanes.all_lanes(conn)} == {CC: 3, OC: 7}


def test_finish_stops_the_embedded_server_and_no_other(
    config: Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    errands.finish(config)
    own = replace(config, state_dir=tmp_path_factory.mktemp("own"), database=DatabaseConfig(url_env=None))
    try:
        errands.prepare(own)
        pid = embedded.postmaster_pid(own)
        assert pid is not None
        os.kill(pid, 9)
        wait_until(lambda: embedded.postmaster_pid(own) is None, what="the server's end")
        errands.release(own, "w1", "why")  # starts it again
        assert embedded.postmaster_pid(own) not in (None, pid)
        errands.finish(own)
        assert embedded.postmaster_pid(own) is None
    finally:
        embedded.stop(own)


def test_a_worker_of_an_earlier_boot_is_dead(config: Config, conn: Connection) -> None:
    queued(conn, 1)
    me = process.parse_worker_id(process.worker_id(HOST, os.getpid()))
    assert me is not None
    running(conn, str(replace(me, boot_id="00000000-0000-0000-0000-000000000000")))
    errands.prepare(config)
    assert job_of(conn, 1).state is JobState.PENDING
