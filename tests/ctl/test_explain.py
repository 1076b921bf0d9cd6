"""explain, on rows. The judgement itself is tested in tests/unit/test_ctl_explain.py."""

from __future__ import annotations

import subprocess

from tests.ctl.conftest import Ctl
from tests.support.store import CC, queued, running, track
from tireless import process
from tireless.entities import JobState, PollResult, WorkerRole
from tireless.store import claims, lanes, refusals, repos, workers
from tireless.store.queries import Connection


def reason(ctl: Ctl, job: str = "acme/site#7") -> str:
    document = ctl("explain", job, "--json").ok().json
    assert set(document) == {"job", "reason", "text", "also"}
    assert document["text"] in ctl("explain", job).ok().out
    found: str = document["reason"]
    return found


def alive(conn: Connection, role: WorkerRole) -> None:
    lane = CC if role is WorkerRole.RUNNER else None
    workers.register(conn, f"there/boot/1/{role}/1", "there", role, lane, 1)


def test_a_waiting_job(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7, repo=track(conn))
    assert reason(ctl) == "no_runner"
    alive(conn, WorkerRole.RUNNER)
    assert reason(ctl) == "ready"
    lanes.pause(conn, CC, "invoice first")
    assert reason(ctl) == "lane_paused"


def test_a_lane_that_is_off_here(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7, repo=track(conn))
    ctl.write("[lane.claude_code]\nenabled = false")
    alive(conn, WorkerRole.POLLER)
    assert reason(ctl) == "lane_off"
    said = ctl("explain", "acme/site#7").out
    assert f"lane claude_code is not enabled in {ctl.path} of this host" in said
    alive(conn, WorkerRole.RUNNER)
    assert reason(ctl) == "ready"


def test_a_worker_that_was_not_seen_for_long_is_not_alive(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7, repo=track(conn))
    alive(conn, WorkerRole.RUNNER)
    conn.execute("update worker set seen_at = now() - interval '4 minutes'")
    assert reason(ctl) == "no_runner"


def test_those_before_it_and_a_full_lane(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 5, 6, 7, repo=track(conn))
    alive(conn, WorkerRole.RUNNER)
    assert reason(ctl) == "queued"
    lanes.set_cap(conn, CC, 1)
    running(conn)
    assert reason(ctl) == "lane_full"
    assert "1 of 1 running, and 1 job before it" in ctl("explain", "acme/site#7").out


def test_a_running_and_an_ended_job(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7, repo=track(conn))
    claim = running(conn)
    assert reason(ctl) == "running"
    claims.finish(conn, claim, JobState.FAILED, [], error="it fell over")
    assert reason(ctl) == "ended"
    assert "it fell over; tireless-ctl retry" in ctl("explain", "acme/site#7").out


def test_a_job_whose_runner_is_gone(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7, repo=track(conn))
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as runner:
        holder = process.worker_id("here", runner.pid)
        workers.register(conn, holder, "here", WorkerRole.RUNNER, CC, runner.pid)
        running(conn, holder)
        assert "it runs: phase" in ctl("explain", "acme/site#7").ok().out
        runner.kill()
    document = ctl("explain", "acme/site#7", "--json").ok().json
    assert document["reason"] == "runner_gone"
    assert "is gone, as is all of tireless on here; start tireless-supervisor there" in document["text"]
    assert f"its runner here/{runner.pid} is gone" in ctl("explain", "acme/site#7").ok().out


def test_an_issue_that_never_had_a_job(ctl: Ctl, conn: Connection) -> None:
    assert reason(ctl) == "repo_untracked"
    repo = track(conn)
    assert reason(ctl) == "no_poller"
    alive(conn, WorkerRole.POLLER)
    assert reason(ctl) == "not_polled"
    repos.record_poll(conn, repo.id, PollResult.UNREACHABLE, detail="connection refused")
    assert reason(ctl) == "poll_failed"
    repos.record_poll(conn, repo.id, PollResult.CHANGED)
    assert reason(ctl) == "not_opted_in"
    document = ctl("explain", "acme/site#7", "--json").ok().json
    refusals.add(conn, repo.id, 7, None)
    assert reason(ctl) == "label_refused"
    assert document["job"] is None
    assert "with the label 'tireless'" in document["text"]
