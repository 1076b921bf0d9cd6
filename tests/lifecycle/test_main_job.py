"""The main job, end to end: real supervisor, poller, runners, guard and agent, real Postgres, a real git server.

All is seen from outside: the rows, the forge's own record, the files and the processes that are left.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from typing import Any

import pytest
import urllib3

from tests.support.rig import WORK, NewRig
from tests.support.wait import wait_until
from tireless import proctree
from tireless.entities import JobKind, JobState, Outcome, Phase, WriteState
from tireless.store import lanes, workers, writes


@pytest.mark.parametrize("kind", ["gitea", "forgejo", "github"])
def test_a_labelled_issue_becomes_a_pull_request(new_rig: NewRig, kind: str) -> None:
    rig = new_rig(kind=kind)
    number = rig.open_issue("Add app.txt", *WORK)
    job = rig.wait_job(number, JobState.DELIVERED)
    rig.wait_settled()

    assert (job.kind, job.phase, job.attempts) == (JobKind.IMPLEMENT, Phase.DONE, 1)
    branch = f"tireless/issue-{number}"
    git = rig.forge.git()
    assert git.read(branch, "app.txt") == "made by the agent"
    assert git.read("main", "app.txt") is None
    [pull] = rig.forge.pulls()
    assert pull.pull is not None
    assert (pull.pull.head, pull.pull.base) == (branch, "main")
    assert f"Closes #{number}" in pull.body
    assert "Add app.txt" in pull.title
    assert rig.job(number).pull_request_number == pull.number
    assert rig.forge.labels(number) == ["tireless/state/delivered"]
    [comment] = rig.forge.comments(number)
    assert f"delivered in #{pull.number}" in comment.body
    assert [run.outcome for run in rig.runs(job)] == [Outcome.COMPLETED]


def test_nothing_starts_without_the_label(new_rig: NewRig) -> None:
    rig = new_rig()
    quiet = rig.open_issue("Only talk", *WORK, labels=["tireless/implement"])
    asked = rig.open_issue("Do it", *WORK)
    rig.wait_job(asked, JobState.DELIVERED)
    assert rig.jobs(quiet) == []
    assert rig.forge.comments(quiet) == []


def test_the_label_again_is_a_new_job_on_the_same_branch_and_pull_request(new_rig: NewRig) -> None:
    rig = new_rig()
    number = rig.open_issue("Twice", *WORK)
    first = rig.wait_job(number, JobState.DELIVERED)
    rig.wait_settled()
    again = {
        "steps": [{"do": "append", "path": "app.txt", "text": "and more\n"}, {"do": "done", "summary": "more"}]
    }
    rig.forge.edit_issue(number, body=f"scripted-agent: {json.dumps(again)}")
    rig.forge.label(number, "tireless")
    rig.poke()
    second = wait_until(
        lambda: next((j for j in rig.jobs(number) if j.id != first.id and j.state.terminal), None),
        30,
        "second job",
    )
    rig.wait_settled()
    assert second.state is JobState.DELIVERED
    assert second.branch == first.branch
    assert rig.forge.git().read(f"tireless/issue-{number}", "app.txt") == "made by the agent\nand more"
    assert len(rig.forge.pulls()) == 1
    assert len(rig.forge.comments(number)) == 2  # one status comment a job


def test_a_plan_becomes_child_issues_once_and_the_independent_ones_start(new_rig: NewRig) -> None:
    rig = new_rig(settings='[delivery]\nplan_children = "opt_in"\n')
    plan = {
        "children": [
            {"key": "base", "title": "Lay the base", "body": "First.", "depends_on": []},
            {"key": "roof", "title": "Put on the roof", "body": "Then.", "depends_on": ["base"]},
        ]
    }
    number = rig.open_issue(
        "A house",
        {"do": "report", "name": "plan.json", "value": plan},
        {"do": "done", "summary": "two parts"},
        labels=["tireless", "tireless/plan", "tireless/implement"],
    )
    job = rig.wait_job(number, JobState.DELIVERED)
    assert job.kind is JobKind.PLAN
    rig.wait_settled()
    with rig.connection() as conn:
        children = writes.children_of(conn, job.id)
    base, roof = children["base"][0].number, children["roof"][0].number
    assert rig.forge.issue(base).title == "Lay the base"
    assert f"Part of #{number}" in rig.forge.issue(base).body
    assert f"Depends on #{base}" in rig.forge.issue(roof).body
    assert "tireless" not in rig.forge.labels(roof)
    assert rig.forge.pulls() == []
    rig.poke()
    child = rig.wait_job(base)
    assert child.parent_job_id == job.id
    assert rig.jobs(roof) == []
    comment = rig.forge.comments(number)[0].body
    assert f"#{base} Lay the base" in comment
    assert f"#{roof} Put on the roof" in comment


def test_a_survey_proposes_issues_that_are_not_opted_in_and_then_cools_down(new_rig: NewRig) -> None:
    rig = new_rig()
    findings = {
        "findings": [{"title": "A leak", "body": "In the tap @alice", "severity": "high", "path": "tap.c"}]
    }
    number = rig.open_issue(
        "Look for leaks",
        {"do": "report", "name": "findings.json", "value": findings},
        {"do": "done", "summary": "one leak"},
        labels=["tireless", "tireless/discover"],
    )
    job = rig.wait_job(number, JobState.DELIVERED)
    rig.wait_settled()
    with rig.connection() as conn:
        [(leak, _)] = writes.children_of(conn, job.id).values()
    assert rig.forge.labels(leak.number) == ["tireless/proposed"]
    assert "@alice" not in rig.forge.issue(leak.number).body  # nobody is mentioned by an agent
    rig.forge.label(number, "tireless")
    rig.poke()
    wait_until(lambda: "cooling" in (rig.ctl("repo", "list").stdout), 20, "the cooldown is told")
    assert len(rig.jobs(number)) == 1


def test_a_question_blocks_the_job_and_the_label_again_goes_on(new_rig: NewRig) -> None:
    rig = new_rig()
    number = rig.open_issue(
        "Unclear",
        {"do": "write", "path": "half.txt", "text": "half\n"},
        {"do": "blocked", "question": "Which colour, @bob?"},
    )
    job = rig.wait_job(number, JobState.BLOCKED)
    rig.wait_settled()
    texts = [c.body for c in rig.forge.comments(number)]
    assert any("Which colour" in t and "tireless:question" in t for t in texts)
    assert not any("@bob" in t for t in texts)
    assert rig.forge.labels(number) == ["tireless/state/blocked"]
    assert rig.forge.git().read(f"tireless/issue-{number}", "half.txt") == "half"  # nothing paid for is lost
    assert rig.forge.pulls() == []
    rig.forge.edit_issue(number, body=f"scripted-agent: {json.dumps({'steps': list(WORK)})}")
    rig.forge.label(number, "tireless")
    rig.poke()
    wait_until(lambda: rig.job(number).id != job.id, 20, "a new job")
    rig.wait_job(number, JobState.DELIVERED)
    assert rig.forge.git().files(f"tireless/issue-{number}") == ["README.md", "app.txt", "half.txt"]


def test_a_failing_verify_command_is_no_delivery(new_rig: NewRig) -> None:
    rig = new_rig(track={"verify_command": "test -f app.txt && echo 'no tests pass' && exit 3"})
    number = rig.open_issue("Break it", *WORK)
    job = rig.wait_job(number, JobState.FAILED)
    rig.wait_settled()
    assert job.last_error is not None
    assert "exit 3" in job.last_error
    assert rig.forge.pulls() == []
    assert rig.forge.git().read(f"tireless/issue-{number}", "app.txt") == "made by the agent"
    assert "no tests pass" in rig.forge.comments(number)[0].body
    assert rig.forge.labels(number) == ["tireless/state/failed"]


def test_a_success_that_changed_nothing_is_no_delivery(new_rig: NewRig) -> None:
    rig = new_rig()
    number = rig.open_issue("Nothing", {"do": "done", "summary": "all good already"})
    job = rig.wait_job(number, JobState.FAILED)
    rig.wait_settled()
    assert job.last_error == "The agent reported success but changed nothing."
    assert rig.forge.pulls() == []
    assert "all good already" in rig.forge.comments(number)[0].body


@pytest.mark.parametrize("how", ["unlabelled", "closed", "cancelled"])
def test_work_that_is_withdrawn_while_it_runs_ends_with_its_processes(new_rig: NewRig, how: str) -> None:
    rig = new_rig()
    number = rig.open_issue("Long", {"do": "spawn", "seconds": 300}, {"do": "hang"})
    job = rig.wait_job(number, JobState.RUNNING)
    wait_until(lambda: len(proctree.marked(str(job.id))) >= 3, 20, "agent and helper run")
    if how == "unlabelled":
        rig.forge.unlabel(number, "tireless")
        rig.poke()
    elif how == "closed":
        rig.forge.close_issue(number)
        rig.poke()
    else:
        rig.ctl("cancel", str(job.id)[:8], "--reason", "not now")
    ended = rig.wait_job(number, JobState.ABANDONED)
    rig.wait_settled()
    assert proctree.marked(str(job.id)) == []
    assert rig.forge.pulls() == []
    labels = [name for name in rig.forge.labels(number) if name != "tireless"]
    assert labels == []
    assert ("not now" in (ended.last_error or "")) == (how == "cancelled")
    if how == "cancelled":
        assert rig.forge.labels(number) == []


def test_a_cancel_that_nobody_saw_before_the_agent_crashed_is_told_and_takes_the_label_off(
    new_rig: NewRig,
) -> None:
    rig = new_rig()
    wait = {"do": "wait_for", "path": "$HOME/go", "seconds": 60}
    number = rig.open_issue("Crash", wait, {"do": "exit", "code": 9})
    job = rig.wait_job(number, JobState.RUNNING)
    wait_until(lambda: rig.runs(job), 20, "agent runs")
    with rig.connection() as conn:  # without its notification, and long before the next renewal
        conn.execute("update job set cancel_requested_at = now(), cancel_reason = 'not now'")
    (rig.state_dir() / "work" / str(job.id) / "home/go").touch()
    ended = rig.wait_job(number, JobState.ABANDONED)
    rig.wait_settled()
    assert len(rig.runs(ended)) == 1
    assert rig.forge.labels(number) == []
    assert "cancelled. not now" in rig.forge.comments(number)[0].body


def test_work_that_is_withdrawn_while_it_waits_never_starts(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.ctl("lane", "pause", "claude_code", "--reason", "release day")
    number = rig.open_issue("Later", *WORK)
    rig.wait_job(number, JobState.PENDING)
    rig.forge.unlabel(number, "tireless")
    rig.poke()
    job = rig.wait_job(number, JobState.ABANDONED)
    assert rig.runs(job) == []
    rig.ctl("lane", "resume", "claude_code")
    other = rig.open_issue("Now", *WORK)
    rig.wait_job(other, JobState.DELIVERED)
    assert rig.runs(job) == []


def test_a_usage_limit_holds_the_lane_and_costs_no_attempt(new_rig: NewRig) -> None:
    rig = new_rig()
    limit = {"do": "fail", "as": "usage_limit", "resets_in": 3600}
    number = rig.open_issue("Limit", limit, resume=list(WORK))  # its session goes on after the limit

    def held() -> Any:
        with rig.connection() as conn:
            return next((lane for lane in lanes.all_lanes(conn) if lane.held), None)

    lane = wait_until(held, 30, "the lane is held")
    assert lane.held_until is not None
    job = rig.wait_job(number, JobState.PENDING)
    assert job.attempts == 0
    rig.ctl("lane", "resume", "claude_code")
    rig.wait_job(number, JobState.DELIVERED)


def test_an_agent_that_crashes_is_tried_again_and_then_given_up_with_the_reason(new_rig: NewRig) -> None:
    rig = new_rig()
    number = rig.open_issue("Crash", {"do": "exit", "code": 9}, resume=[{"do": "exit", "code": 9}])
    job = rig.wait_job(number, JobState.FAILED)
    rig.wait_settled()
    assert job.attempts == job.max_attempts == 3
    assert len(rig.runs(job)) == 3
    assert "exit 9" in (job.last_error or "")
    assert "Gave up after 3 attempts" in rig.forge.comments(number)[0].body


def test_the_other_lane_runs_opencode(new_rig: NewRig) -> None:
    from tests.support.rig import SCRIPTED_AGENT

    rig = new_rig(opencode=f'cap = 1\nrunners = 1\ncommand = ["{sys.executable}", "{SCRIPTED_AGENT}"]')
    number = rig.open_issue("By the other", *WORK, labels=["tireless", "tireless/agent:oc"])
    job = rig.wait_job(number, JobState.DELIVERED)
    assert [run.agent for run in rig.runs(job)] == ["opencode"]


def test_many_issues_each_once_and_never_more_at_once_than_the_cap(new_rig: NewRig) -> None:
    rig = new_rig()
    numbers = [rig.open_issue(f"Issue {n}", *WORK) for n in range(5)]
    for number in numbers:
        rig.wait_job(number, JobState.DELIVERED, seconds=90)
    rig.wait_settled()
    assert len(rig.forge.pulls()) == 5
    assert len(rig.jobs()) == 5
    with rig.connection() as conn:
        taken = conn.execute(
            "select max((detail->>'slot')::int) from job_event where kind = 'claimed'"
        ).fetchone()
        assert taken == (2,)
        assert writes.counts(conn).get(WriteState.REFUSED) is None


def test_no_token_is_left_anywhere(new_rig: NewRig) -> None:
    rig = new_rig()
    number = rig.open_issue("Secrets", {"do": "environment", "path": "env.json"}, *WORK)
    job = rig.wait_job(number, JobState.DELIVERED)
    rig.wait_settled()
    token = rig.forge.config.token
    assert token is not None
    secret = token.reveal().encode()
    found = [p for p in rig.root.rglob("*") if p.is_file() and not p.is_symlink() and secret in p.read_bytes()]
    assert found == []
    env = json.loads(rig.forge.git().read(f"tireless/issue-{number}", "env.json") or "{}")
    assert not [name for name in env if "TOKEN" in name or "DATABASE" in name or "NOTIFY" in name]
    assert env["TIRELESS_JOB"] == str(job.id)


def test_a_drain_finishes_what_is_in_hand(new_rig: NewRig, tmp_path: Any) -> None:
    rig = new_rig()
    number = rig.open_issue("Slow", {"do": "wait_for", "path": "$HOME/go", "seconds": 60}, *WORK)
    job = rig.wait_job(number, JobState.RUNNING)
    home = rig.state_dir() / "work" / str(job.id) / "home"
    wait_until(lambda: rig.runs(job), 20, "agent runs")
    [supervisor] = rig.supervisors
    supervisor.send(signal.SIGTERM)
    wait_until(lambda: "draining" in supervisor.said(), 10, "drain begins")
    with rig.connection() as conn:
        drains = wait_until(lambda: workers.draining(workers.of_host(conn)), 10, "the runner's row says so")
    assert [host.jobs for host in drains] == [1]
    (home / "go").touch()
    assert supervisor.wait(30) == 0
    assert rig.job(number).state is JobState.DELIVERED
    assert len(rig.forge.pulls()) == 1
    with rig.connection() as conn:
        assert workers.of_host(conn) == [], "who leaves in order is not taken for one that was killed"


def test_the_status_page_is_served_by_the_poller_and_follows_a_reload(new_rig: NewRig) -> None:
    port = free_port()
    rig = new_rig(settings=f'[web]\nlisten = "127.0.0.1:{port}"\n')
    http = urllib3.PoolManager(retries=False)
    page = wait_until(lambda: _get(http, port, "/"), 20, "the status page")
    assert "claude_code" in page
    other = free_port()
    rig.write_config(settings=f'[web]\nlisten = "127.0.0.1:{other}"\n')
    rig.supervisors[0].send(signal.SIGHUP)
    assert "tireless_build_info" in wait_until(lambda: _get(http, other, "/metrics"), 20, "the new address")
    assert _get(http, port, "/") is None


def _get(http: urllib3.PoolManager, port: int, path: str) -> str | None:
    try:
        return http.request("GET", f"http://127.0.0.1:{port}{path}", timeout=5).data.decode()
    except urllib3.exceptions.HTTPError:
        return None


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
