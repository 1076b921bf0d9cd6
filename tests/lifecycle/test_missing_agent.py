"""A host that lacks its lane's CLI: it claims nothing, says so, and goes on by itself once the program is there."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.rig import SCRIPTED_AGENT, WORK, NewRig, Rig
from tests.support.wait import wait_until
from tireless.entities import Job, JobState, Phase, WorkerRole
from tireless.store import workers
from tireless.store.workers import Worker, session_name

CLI = "the-agent"
ONE = "cap = 1\nrunners = 1"
VERIFY = "touch $HOME/at-verify; while [ ! -e $HOME/go ]; do sleep 0.1; done"


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the supervisor's PATH, for the CLI to be there or not."""
    found = tmp_path / "bin"
    found.mkdir()
    monkeypatch.setenv("PATH", f"{found}:/usr/bin:/bin")
    return found


def install(directory: Path, name: str = CLI) -> Path:
    """By a rename, as a package manager does it: a program that is half there is none."""
    made = directory / f".{name}.new"
    made.write_text(f"#!{sys.executable}\n{SCRIPTED_AGENT.read_text()}")
    made.chmod(0o755)
    return made.rename(directory / name)


def runners(rig: Rig) -> list[Worker]:
    with rig.connection() as conn:
        return [w for w in workers.of_host(conn) if w.role is WorkerRole.RUNNER]


def waits_for(rig: Rig, host: str = "host-a") -> str | None:
    return next((w.waits_for for w in runners(rig) if w.host == host), None)


def await_missing(rig: Rig) -> str:
    return str(wait_until(lambda: waits_for(rig), 20, "the runner's row says what it waits for"))


def asks(rig: Rig, what: str, *params: Any) -> bool:
    """Whether that can be said of what the one runner asks the database, or asked it last."""
    [runner] = runners(rig)
    ask = f"select {what} from pg_stat_activity where application_name = %s"
    with rig.connection() as conn:
        found = conn.execute(ask, (*params, session_name(runner.id, "runner claude_code"))).fetchone()
    return found is not None and bool(found[0])


def await_look(rig: Rig, job: Job) -> None:
    wait_until(lambda: asks(rig, "query_start > %s", job.created_at), 20, "the runner has looked at the queue")


def of_job(rig: Rig, *words: str) -> dict[str, Any]:
    return dict(json.loads(rig.ctl(*words, "--json", check=False).stdout))


def told(rig: Rig, number: int) -> tuple[list[str], list[str]]:
    return rig.forge.labels(number), [comment.body for comment in rig.forge.comments(number)]


def assert_untouched(rig: Rig, number: int) -> None:
    """It waits in the queue as it was put there: no claim, no attempt, and its issue was told of nothing more."""
    job = rig.job(number)
    assert (job.state, job.attempts, job.claim_seq, job.last_error) == (JobState.PENDING, 0, 0, None)
    assert rig.runs(job) == []
    labels, comments = told(rig, number)
    assert "tireless/state/running" not in labels
    assert not [text for text in comments if "work" in text and "queue" not in text], comments


def test_nothing_is_claimed_until_it_is_installed(new_rig: NewRig, bin_dir: Path) -> None:
    rig = new_rig(agent=[CLI], claude=ONE)
    why = await_missing(rig)
    assert why == (
        f"{CLI} is not on PATH ({bin_dir}:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin); "
        "install it, or set lane.claude_code.command"
    )
    number = rig.open_issue("Wait for it", *WORK)
    job = rig.wait_job(number, JobState.PENDING)
    await_look(rig, job)
    assert_untouched(rig, number)

    explained = of_job(rig, "explain", str(job.id))
    assert explained["reason"] == "agent_missing"
    assert explained["text"] == f"no runner of lane claude_code can start its agent: on host-a {why}"
    assert [w["waits_for"] for w in of_job(rig, "status")["workers"] if w["role"] == "runner"] == [why]
    page = rig.ctl("status").stdout
    assert "waits" in page
    assert "WAITS ON" in page
    assert "no runner" in rig.ctl("lane", "list").stdout
    checks = {c["name"]: c for c in of_job(rig, "doctor")["checks"]}
    assert checks["runners claude_code"]["level"] == "fail"
    assert checks["runners claude_code"]["detail"] == f"those on host-a take no work: {why}"
    assert rig.said().count("nothing is started lane=") == 1
    assert "lane held" not in rig.said()

    install(bin_dir)
    done = rig.wait_job(number)
    assert (done.state, done.attempts) == (JobState.DELIVERED, 1)
    assert waits_for(rig) is None
    assert rig.said().count("work is started again lane=") == 1


def test_a_reload_may_name_another(new_rig: NewRig, bin_dir: Path) -> None:
    """It goes away while all is well, and the operator's way out is a command in the configuration."""
    cli = install(bin_dir)
    rig = new_rig(agent=[CLI], claude=ONE)
    assert rig.wait_job(rig.open_issue("First", *WORK)).state is JobState.DELIVERED
    cli.unlink()
    await_missing(rig)
    number = rig.open_issue("Second", *WORK)
    job = rig.wait_job(number, JobState.PENDING)
    await_look(rig, job)
    assert_untouched(rig, number)
    rig.config_path.write_text(rig.config_path.read_text().replace(CLI, str(install(bin_dir, "another"))))
    rig.supervisors[0].send(signal.SIGHUP)
    assert rig.wait_job(number).state is JobState.DELIVERED
    assert waits_for(rig) is None


def test_the_other_host_has_it(new_rig: NewRig, bin_dir: Path, tmp_path: Path) -> None:
    """One lane, two hosts: the one that lacks the program stands aside, the other one works."""
    other = tmp_path / "other-bin"
    other.mkdir()
    install(other)
    rig = new_rig(agent=[CLI], claude=ONE)
    await_missing(rig)
    rig.write_config("host-b")
    rig.start("host-b", env={"PATH": f"{other}:/usr/bin:/bin"})
    numbers = [rig.open_issue(f"Number {i}", *WORK) for i in range(2)]
    for number in numbers:
        job = rig.wait_job(number)
        assert (job.state, job.attempts) == (JobState.DELIVERED, 1)
        assert [run.host for run in rig.runs(job)] == ["host-b"]
    assert (waits_for(rig) is None, waits_for(rig, "host-b")) == (False, None)
    [lane] = [lane for lane in of_job(rig, "status")["lanes"] if lane["lane"] == "claude_code"]
    assert (lane["held"], lane["paused"], lane["runners"]) == (False, False, 1)


def test_what_an_agent_has_ended_is_delivered_without_it(new_rig: NewRig, bin_dir: Path) -> None:
    """Paid once: the next runner has no need of the program for what is left to do."""
    cli = install(bin_dir)
    rig = new_rig(agent=[CLI], claude=ONE, track={"verify_command": VERIFY})
    number = rig.open_issue("Cut off at its verification", *WORK)
    at_verify = wait_until(
        lambda: next(rig.state_dir().glob("work/*/home/at-verify"), None), 40, "the verification runs"
    )
    cli.unlink()
    [first] = runners(rig)
    os.kill(first.pid, signal.SIGKILL)
    assert await_missing(rig)
    at_verify.with_name("go").touch()
    done = rig.wait_job(number)
    assert (done.state, len(rig.runs(done))) == (JobState.DELIVERED, 1)
    [second] = runners(rig)
    assert (second.pid != first.pid, second.waits_for is None) == (True, False)


def test_it_goes_between_the_look_and_the_claim(new_rig: NewRig, bin_dir: Path) -> None:
    """Race made certain: the claim waits for a lock while the program goes. The job comes back untold and unburnt."""
    cli = install(bin_dir)
    rig = new_rig(agent=[CLI], claude=ONE)
    rig.ctl("lane", "pause", "cc")
    number = rig.open_issue("Gone in between", *WORK)
    rig.wait_job(number, JobState.PENDING)
    with rig.connection() as conn:
        with conn.transaction():
            conn.execute("lock table lane_slot in access exclusive mode")
            conn.execute("update lane set paused = false, pause_reason = null")
            wait_until(lambda: asks(rig, "wait_event_type = 'Lock'"), 20, "the claim waits")
            cli.unlink()
        job = wait_until(lambda: next((j for j in rig.jobs(number) if j.last_error), None), 20, "it came back")
    assert (job.state, job.attempts, job.phase) == (JobState.PENDING, 0, Phase.PREPARE)
    assert "is not on PATH" in (job.last_error or "")
    assert await_missing(rig)
    assert [e.kind for e in rig.events(job)].count("claimed") == 1
    assert "tireless/state/running" not in rig.forge.labels(number)


def test_a_wrapper_to_nothing_burns_no_attempt_and_is_tried_later_each_time(
    new_rig: NewRig, bin_dir: Path
) -> None:
    """What cannot be seen beforehand: the program is there, and what it would run is not. It is not for ever, either:
    an agent that never says a word ends its job."""
    wrapper = bin_dir / CLI
    wrapper.write_text("#!/bin/sh\nexec /no/such/agent\n")
    wrapper.chmod(0o755)
    rig = new_rig(agent=(CLI,), claude=ONE)
    number = rig.open_issue("Wrapped", *WORK)

    def waits() -> Job | None:
        job = next(iter(rig.jobs(number)), None)
        return job if job is not None and job.state is JobState.PENDING and job.last_error else None

    job = wait_until(waits, 30, "it waits")
    assert job.attempts == 0
    assert "the agent's program cannot be run here" in str(job.last_error)

    def ends_in_the_end() -> bool:
        with rig.connection() as conn:  # what it waits for is over
            conn.execute("update job set run_at = now() where state = 'pending'")
            conn.execute("select pg_notify('tireless_lane_claude_code', '')")
        return rig.jobs(number)[0].state.terminal

    wait_until(ends_in_the_end, 90, "the job ends")
    ended = rig.job(number)
    assert ended.state is JobState.FAILED
    assert len(rig.runs(ended)) == 3 * ended.max_attempts
