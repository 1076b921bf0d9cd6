"""jobs, show, cancel, retry, and how a job is named."""

from __future__ import annotations

import os
from dataclasses import replace
from uuid import uuid4

import pytest

from tests.ctl.conftest import Ctl
from tests.support.store import REPO, claimed, job_of, queued, running, track
from tireless import process
from tireless.entities import (
    AgentKind,
    Forge,
    Job,
    JobState,
    NewWrite,
    Outcome,
    RepoRef,
    Usage,
    WriteOp,
    WriteState,
)
from tireless.store import claims, jobs, refusals, repos, runs, writes
from tireless.store.queries import Connection

JOB_KEYS = {
    "issue", "id", "title", "kind", "state", "lane", "priority", "run_at", "attempts", "max_attempts",
    "claimed_by", "claim_expires_at", "slot", "phase", "parent_job_id", "work_host", "lane_pinned",
    "relaned_at", "cancel_requested_at",
    "cancel_reason", "branch", "base_commit", "head_commit", "pull_request_number", "pull_request_url", "result",
    "last_error", "created_at", "updated_at", "finished_at",
}  # fmt: skip


def finished(conn: Connection, number: int, to: JobState = JobState.FAILED, error: str | None = "boom") -> Job:
    """A job that has run and ended."""
    queued(conn, number)
    return claims.finish(conn, running(conn), to, [], error=error)


# -- which job is meant ---------------------------------------------------------------------------------------


def test_a_job_is_named_by_id_prefix_or_issue(ctl: Ctl, conn: Connection) -> None:
    (job,) = queued(conn, 7)
    for name in (
        str(job.id),
        str(job.id).upper(),
        str(job.id)[:6],
        "acme/site#7",
        "gitea:forge.test/acme/site#7",
    ):
        assert ctl("show", name, "--json").ok().json["id"] == str(job.id)


def test_an_issue_means_its_latest_job(ctl: Ctl, conn: Connection) -> None:
    finished(conn, 7)
    (latest,) = queued(conn, 7)
    assert ctl("show", "acme/site#7", "--json").ok().json["id"] == str(latest.id)


def test_an_issue_of_two_hosts_must_be_written_in_full(ctl: Ctl, conn: Connection) -> None:
    other = track(conn, RepoRef(Forge.GITEA, "other.test", "acme", "site"))
    queued(conn, 7)
    queued(conn, 7, repo=other)
    answer = ctl("show", "acme/site#7")
    assert answer.code == 1
    assert "gitea:forge.test/acme/site#7, gitea:other.test/acme/site#7; write it in full" in answer.err
    ctl("show", "other.test/acme/site#7").ok()


def test_a_name_that_several_hosts_have_is_told_with_its_host(ctl: Ctl, conn: Connection) -> None:
    (job,) = queued(conn, 7, repo=track(conn))
    assert "  acme/site#7  " in ctl("jobs").ok().out
    track(conn, RepoRef(Forge.GITEA, "other.test", "Acme", "site"))
    name = "forge.test/acme/site#7"
    assert f"  {name}  " in ctl("jobs").ok().out
    assert ctl("explain", str(job.id)).ok().out.startswith(f"{name} (pending): ")
    assert f"  {name}  pending" in ctl("show", "0" * 36).err
    assert ctl("cancel", str(job.id)).ok().out.startswith(f"{name} ({str(job.id)[:8]}): ")
    assert ctl("retry", str(job.id)).ok().out.startswith(f"{name} (")


def test_an_ambiguous_prefix_lists_the_candidates(ctl: Ctl, conn: Connection) -> None:
    made = queued(conn, *range(1, 18))  # of 17 ids two begin alike
    first = [str(job.id)[0] for job in made]
    twice = next(c for c in first if first.count(c) > 1)
    answer = ctl("show", twice)
    assert answer.code == 1
    for job in made:
        assert (str(job.id) in answer.err) == str(job.id).startswith(twice)


def test_an_unknown_job_lists_the_latest(ctl: Ctl, conn: Connection) -> None:
    (job,) = queued(conn, 7)
    unknown = str(uuid4())
    answer = ctl("cancel", unknown)
    assert answer.code == 1
    assert f"no job whose id begins with '{unknown}'; the latest are:" in answer.err
    assert f"{job.id}  acme/site#7  pending" in answer.err


def test_what_names_no_job_is_a_usage_error(ctl: Ctl) -> None:
    answer = ctl("show", "job-1")
    assert answer.code == 64
    assert "write its id, the beginning of it, or OWNER/NAME#NUMBER" in answer.err
    assert ctl("show", "acme/site#8").code == 1
    assert ctl("show", "%").code == 64


# -- jobs and show --------------------------------------------------------------------------------------------


def test_jobs_can_be_narrowed(ctl: Ctl, conn: Connection) -> None:
    other = track(conn, RepoRef(Forge.GITEA, "forge.test", "acme", "docs"))
    finished(conn, 1)
    queued(conn, 2, labels=["tireless/agent:oc"])
    queued(conn, 3, repo=other)

    def numbers(*argv: str) -> list[int]:
        return [document["issue"]["number"] for document in ctl("jobs", *argv, "--json").ok().json]

    assert numbers() == [3, 2, 1]
    assert numbers("--state", "live") == [3, 2]
    assert numbers("--state", "failed,blocked") == [1]
    assert numbers("--state", "ended") == [1]
    assert numbers("--lane", "oc") == [2]
    assert numbers("--repo", "acme/docs") == [3]
    assert numbers("--limit", "1") == [3]
    assert ctl("jobs", "--state", "claimed,running").ok().out == "no job is claimed or running\n"
    assert ctl("jobs", "--lane", "oc", "--state", "failed").ok().out == "no such job\n"
    assert "no state 'done'; there is live, ended, pending" in ctl("jobs", "--state", "done").err


def test_no_job_in_words(ctl: Ctl) -> None:
    said = [ctl("jobs", *argv).ok().out for argv in ([], ["--state", "live"], ["--state", "ended"])]
    assert said == ["no job yet\n", "no job is live\n", "no job has ended\n"]


def test_jobs_in_both_forms(ctl: Ctl, conn: Connection) -> None:
    assert ctl("jobs").ok().out == "no job yet\n"
    assert ctl("jobs", "--json").ok().json == []
    job = finished(conn, 7)
    (document,) = ctl("jobs", "--json").ok().json
    assert set(document) == JOB_KEYS
    assert document["issue"]["ref"] == "gitea:forge.test/acme/site#7"
    assert (document["state"], document["last_error"]) == ("failed", "boom")
    head, line = ctl("jobs").ok().out.splitlines()
    assert head.index("STATE") == line.index("failed")
    assert line.startswith(f"{str(job.id)[:8]}  acme/site#7  failed")


def test_show_tells_runs_writes_and_events(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7)
    claim = running(conn)
    run_id = uuid4()
    runs.start(conn, claim, run_id, AgentKind.CLAUDE_CODE, host="here", session_id="s", resumed=False)
    usage = Usage(cost_usd=1.25, turns=4)
    runs.end(conn, run_id, "w1", Outcome.CRASHED, detail="it fell over", exit_code=1, usage=usage)
    claims.finish(conn, claim, JobState.FAILED, [NewWrite(WriteOp.COMMENT, {})], error="gave up")

    document = ctl("show", "acme/site#7", "--json").ok().json
    text = ctl("show", "acme/site#7").ok().out

    assert set(document) == JOB_KEYS | {"runs", "writes", "events"}
    assert document["runs"][0]["outcome"] == "crashed"
    assert document["runs"][0]["cost_usd"] == 1.25
    assert document["writes"][0]["op"] == "comment"
    assert [e["kind"] for e in document["events"]][:3] == ["enqueued", "claimed", "started"]
    for word in ("gave up", "it fell over", "1.25", "comment", "waiting", "started", "attempts"):
        assert word in text


def test_strangers_words_cannot_act_on_the_terminal(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7)
    claim = running(conn)
    evil = "red \x1b[31m bell \x07 turned \u202e line\nbreak"
    conn.execute("update job set title = %s where id = %s", (evil, claim.job.id))
    claims.finish(conn, claim, JobState.FAILED, [], error=evil)
    for argv in (["jobs"], ["show", "acme/site#7"], ["explain", "acme/site#7"], ["logs", "acme/site#7"]):
        text = ctl(*argv).ok().out
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert "red" in text
        assert "line\nbreak" not in text
    assert ctl("jobs", "--json").ok().json[0]["title"] == evil


# -- cancel ---------------------------------------------------------------------------------------------------


def test_cancelling_a_waiting_job_ends_it_and_tells_its_issue(ctl: Ctl, conn: Connection) -> None:
    (job,) = queued(conn, 7)
    document = ctl("cancel", "acme/site#7", "--reason", "see #9", "--json").ok().json
    assert (document["changed"], document["state"], document["last_error"]) == (True, "abandoned", "see #9")
    ops = [w.op for w in writes.of_job(conn, job.id)]
    assert WriteOp.REMOVE_LABEL in ops
    event = jobs.events(conn, job.id)[-1]
    assert event.actor.startswith("tireless-ctl: ")
    assert event.detail["why"] == "see #9"
    again = ctl("cancel", "acme/site#7", "--json").ok().json
    assert again["changed"] is False
    assert len(writes.of_job(conn, job.id)) == len(ops)


def test_cancelling_a_running_job_asks_it_to_stop(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7)
    claim = running(conn)
    assert "asked to stop" in ctl("cancel", "acme/site#7", "--reason", "wrong issue").ok().out
    renewal = claims.renew_claim(conn, claim, lease_seconds=600)
    assert renewal is not None
    assert (renewal.cancel_requested, renewal.cancel_reason) == (True, "wrong issue")
    assert "was asked to stop already" in ctl("cancel", "acme/site#7").ok().out
    assert "running (stopping)" in ctl("jobs").ok().out


def test_cancelling_what_has_ended_is_refused(ctl: Ctl, conn: Connection) -> None:
    finished(conn, 7, JobState.DELIVERED, None)
    answer = ctl("cancel", "acme/site#7")
    assert answer.code == 1
    assert "is delivered already; there is nothing to cancel" in answer.err


# -- retry ----------------------------------------------------------------------------------------------------


def test_retry_has_the_label_set_again_and_the_repository_polled(ctl: Ctl, conn: Connection) -> None:
    repo = track(conn)
    repos.take_due(conn, 10)
    job = finished(conn, 7)

    document = ctl("retry", "acme/site#7", "--json").ok().json

    assert (document["queued"], document["id"], document["state"]) == (True, str(job.id), "failed")
    (write,) = writes.of_job(conn, job.id)
    assert (write.op, write.payload, write.state) == (
        WriteOp.ADD_LABEL,
        {"name": "tireless"},
        WriteState.WAITING,
    )
    assert [r.id for r, _ in repos.take_due(conn, 10)] == [repo.id]
    assert ctl("retry", "acme/site#7", "--json").ok().json["queued"] is False
    assert len(writes.of_job(conn, job.id)) == 1


def test_retry_uses_the_configured_label(ctl: Ctl, conn: Connection) -> None:
    track(conn)
    job = finished(conn, 7)
    ctl.lines.append('[labels]\nopt_in = "robot"')
    assert "'robot'" in ctl("retry", "acme/site#7").ok().out
    assert writes.of_job(conn, job.id)[0].payload == {"name": "robot"}


@pytest.mark.parametrize(
    "case", ["live", "newer_live", "untracked", "disabled", "label_stuck", "label_refused"]
)
def test_retry_is_refused_where_it_would_lead_nowhere(ctl: Ctl, conn: Connection, case: str) -> None:
    repo = track(conn)
    if case == "live":
        (job,) = queued(conn, 7)
    else:
        job = finished(conn, 7)
    if case == "newer_live":
        queued(conn, 7)
    elif case == "untracked":
        repos.remove(conn, repo.id)
    elif case == "disabled":
        repos.update(conn, repo.id, replace(repos.settings_of(repo), enabled=False))
    elif case == "label_stuck":
        (write,) = writes.add(conn, job, [NewWrite(WriteOp.REMOVE_LABEL, {"name": "tireless"})])
        writes.refused(conn, write, "w1", "403 no permission")
    elif case == "label_refused":
        refusals.add(conn, repo.id, 7, None)
    before = writes.counts(conn)

    answer = ctl("retry", str(job.id))

    assert answer.code == 1
    says = {
        "live": "has a job that is pending",
        "newer_live": "has a job that is pending",
        "untracked": "is not tracked, so nobody would see the label",
        "disabled": "tireless-ctl repo enable",
        "label_stuck": "403 no permission); take it off by hand",
        "label_refused": "was set by somebody who may not start work",
    }
    assert says[case] in answer.err
    assert writes.counts(conn) == before


def test_a_job_in_hand_is_shown_with_its_holder(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7)
    claimed(conn, "somebody")
    assert "held by" in ctl("show", "acme/site#7").ok().out
    assert job_of(conn, 7, REPO).claimed_by == "somebody"


def test_workers_are_told_by_host_and_pid_in_text(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7, repo=track(conn))
    worker = process.worker_id("a/host", os.getpid())
    claimed(conn, worker)
    short = f"a/host/{os.getpid()}"
    for command in ("show", "explain", "logs"):
        said = ctl(command, "acme/site#7").ok().out
        assert short in said
        assert worker not in said
    document = ctl("show", "acme/site#7", "--json").ok().json
    assert document["claimed_by"] == worker
    assert worker in {event["actor"] for event in document["events"]}
