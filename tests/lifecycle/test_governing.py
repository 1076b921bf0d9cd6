"""What starts when, end to end: budgets of a day, the probe after a usage limit, a lane that gives its jobs away."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.rig import SCRIPTED_AGENT, WORK, NewRig, Rig
from tests.support.wait import wait_until
from tireless.entities import AgentKind, Job, JobState, Lane, Outcome, WriteOp
from tireless.store import lanes, repos, writes

CC, OC = AgentKind.CLAUDE_CODE, AgentKind.OPENCODE


def lane_of(rig: Rig, kind: AgentKind = CC) -> Lane:
    with rig.connection() as conn:
        return next(lane for lane in lanes.all_lanes(conn) if lane.lane is kind)


def explained(rig: Rig, job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rig.ctl("explain", str(job.id), "--json").stdout)
    return found


def shown(rig: Rig, number: int) -> str:
    """The one status comment of an issue."""
    [comment] = [c.body for c in rig.forge.comments(number) if "**tireless**" in c.body]
    return comment


def told(rig: Rig, number: int) -> tuple[str, str]:
    """What people see of an issue: its state label, and the first word of its status comment."""
    [label] = [name for name in rig.forge.labels(number) if name.startswith("tireless/state/")]
    return label, shown(rig, number).partition("**tireless**: ")[2].split()[0]


def day_ends(moment: datetime) -> bool:
    """Whether it is a midnight, UTC, of today or (around one) of tomorrow."""
    left = moment - datetime.now(UTC)
    at = moment.astimezone(UTC)
    return (at.hour, at.minute, at.second) == (0, 0, 0) and timedelta(minutes=-5) < left <= timedelta(days=1)


@pytest.mark.parametrize("what", [("--jobs", "1"), ("--usd", "0.01")])
def test_a_lanes_daily_budget_holds_it_until_the_day_ends(new_rig: NewRig, what: tuple[str, str]) -> None:
    rig = new_rig(claude="cap = 1\nrunners = 1")
    rig.ctl("lane", "budget", "cc", *what)
    first = rig.open_issue("First", *WORK)
    second = rig.open_issue("Second", *WORK)
    assert rig.wait_job(first).state is JobState.DELIVERED
    lane = lane_of(rig)
    assert lane.held_until is not None
    assert day_ends(lane.held_until)
    waiting = rig.wait_job(second, JobState.PENDING)
    assert (waiting.attempts, rig.runs(waiting)) == (0, [])
    why = explained(rig, waiting)
    assert why["reason"] == "lane_budget"
    assert "the lane's budget of" in why["text"]
    assert "a day is used up" in rig.ctl("lane", "list").stdout

    rig.ctl("lane", "budget", "cc", what[0], "9")
    assert rig.wait_job(second).state is JobState.DELIVERED


def test_a_repositorys_budget_holds_no_other(new_rig: NewRig) -> None:
    rig = new_rig(claude="cap = 1\nrunners = 1")
    rig.forge.add_repo("acme/other", {"README.md": "# other\n"})
    rig.ctl("repo", "add", rig.repo_name("acme/other"), "--interval", "5")
    rig.ctl("repo", "set", rig.repo_name(), "--daily-usd", "0.01")
    first = rig.open_issue("First", *WORK)
    assert rig.wait_job(first).state is JobState.DELIVERED
    with rig.connection() as conn:
        [held] = [repo for repo in repos.tracked(conn) if repo.held_until is not None]
    assert held.ref.repo == "site"
    assert held.held_until is not None
    assert day_ends(held.held_until)
    second = rig.open_issue("Second", *WORK)
    waiting = rig.wait_job(second, JobState.PENDING)
    body = f"scripted-agent: {json.dumps({'steps': list(WORK)})}"
    other = rig.forge.open_issue("Elsewhere", body, labels=["tireless"], repo="acme/other")
    rig.poke()

    def delivered() -> bool:
        there = [job for job in rig.jobs(other) if job.issue.repo == "other"]
        return bool(there) and there[0].state is JobState.DELIVERED

    wait_until(delivered, 45, "the other repository's job is delivered")
    assert rig.runs(waiting) == []
    assert explained(rig, waiting)["reason"] == "repo_budget"
    rig.ctl("repo", "set", rig.repo_name(), "--daily-usd", "none")
    assert rig.wait_job(second).state is JobState.DELIVERED


def test_after_a_usage_limit_one_job_goes_first(new_rig: NewRig) -> None:
    rig = new_rig()  # two runners, cap 2
    limited = rig.open_issue(
        "Limited",
        {"do": "fail", "as": "usage_limit", "resets_in": 3600},
        resume=[{"do": "wait_for", "path": "$HOME/go"}, *WORK],
    )
    wait_until(lambda: lane_of(rig).held, 30, "the lane is held")
    first = rig.wait_job(limited, JobState.PENDING)
    wait_until(
        lambda: told(rig, limited) == ("tireless/state/queued", "waiting."), 20, "people see that it waits"
    )
    until = lane_of(rig).held_until
    assert until is not None
    assert f"Claude Code starts nothing until {until.astimezone(UTC):%Y-%m-%d %H:%M} UTC." in shown(
        rig, limited
    )
    other = rig.open_issue("Other", *WORK)
    waiting = rig.wait_job(other, JobState.PENDING)
    assert explained(rig, waiting)["reason"] == "lane_held"
    with rig.connection() as conn:
        conn.execute("update lane set held_until = now() where lane = 'claude_code'")  # the hour has passed
    wait_until(lambda: len(rig.runs(first)) == 2, 30, "the job that met the limit probes")
    wait_until(
        lambda: told(rig, limited) == ("tireless/state/running", "Claude"), 20, "people see that it goes on"
    )
    assert explained(rig, waiting)["reason"] == "lane_probing"
    assert "probing" in rig.ctl("lane", "list").stdout
    (rig.state_dir() / "work" / str(first.id) / "home" / "go").touch()
    for number in (limited, other):
        assert rig.wait_job(number).state is JobState.DELIVERED
    ended = [run.ended_at for run in rig.runs(first)]
    [begun] = [run.started_at for run in rig.runs(waiting)]
    assert ended[-1] is not None
    assert begun >= ended[-1]
    assert not lane_of(rig).probing
    assert [run.outcome for run in rig.runs(first)] == [Outcome.RATE_LIMITED, Outcome.COMPLETED]


def test_a_probe_that_meets_the_limit_again_holds_the_lane_again(new_rig: NewRig) -> None:
    rig = new_rig()
    limit = {"do": "fail", "as": "usage_limit", "resets_in": 3600}
    limited = rig.open_issue("Limited", limit, resume=[limit])
    wait_until(lambda: lane_of(rig).held, 30, "the lane is held")
    other = rig.open_issue("Other", *WORK)
    waiting = rig.wait_job(other, JobState.PENDING)
    with rig.connection() as conn:
        conn.execute("update lane set held_until = now() where lane = 'claude_code'")
    wait_until(lambda: len(rig.runs(rig.job(limited))) == 2 and lane_of(rig).held, 30, "it is held again")
    job = rig.wait_job(limited, JobState.PENDING)
    assert (job.attempts, rig.runs(waiting)) == (0, [])


RELANE = "[routing]\nrelane_on_hold = true\nrelane_after_seconds = 1\n"


def test_a_held_lane_gives_what_nobody_has_begun_to_the_other(new_rig: NewRig) -> None:
    opencode = f'cap = 1\nrunners = 1\ncommand = ["{sys.executable}", "{SCRIPTED_AGENT}"]'
    rig = new_rig(RELANE, opencode=opencode)
    rig.ctl("lane", "hold", "cc", "--for", "1h", "--reason", "the account's limit")
    free = rig.open_issue("Anywhere", *WORK)
    bound = rig.open_issue("Only there", *WORK, labels=["tireless", "tireless/agent:cc"])
    done = rig.wait_job(free)
    assert (done.state, done.lane) == (JobState.DELIVERED, OC), rig.report()
    rig.wait_settled()
    assert [run.agent for run in rig.runs(done)] == [OC]
    [moved] = [e.detail for e in rig.events(done) if e.kind == "relaned"]
    assert (moved["from"], moved["lane"], moved["why"]) == (CC, OC, "the account's limit")
    assert [e for e in rig.events(done) if e.kind == "rerouted"] == []  # polls went by meanwhile
    with rig.connection() as conn:
        told = [w.payload["body"] for w in writes.of_job(conn, done.id) if w.op is WriteOp.STATUS_COMMENT]
    assert told[0].startswith("**tireless**: OpenCode will work on this issue instead of Claude Code")
    assert "the account's limit" in told[0]
    assert len(rig.forge.comments(free)) == 1
    assert rig.job(bound).state is JobState.PENDING
    assert rig.job(bound).lane is CC
    rig.ctl("lane", "resume", "cc")
    assert rig.wait_job(bound).state is JobState.DELIVERED


def test_without_the_setting_a_held_lane_keeps_its_jobs(new_rig: NewRig) -> None:
    opencode = f'cap = 1\nrunners = 1\ncommand = ["{sys.executable}", "{SCRIPTED_AGENT}"]'
    rig = new_rig(RELANE.replace("true", "false"), opencode=opencode)
    rig.ctl("lane", "hold", "cc", "--for", "1h")
    stays = rig.open_issue("Stays", *WORK)
    rig.wait_job(stays, JobState.PENDING)
    with rig.connection() as conn:
        conn.execute("update lane set held_since = now() - interval '1 hour' where lane = 'claude_code'")
    goes = rig.open_issue("Goes", *WORK, labels=["tireless", "tireless/agent:oc"])
    rig.wait_job(goes, JobState.DELIVERED)
    assert (rig.job(stays).lane, rig.job(stays).state) == (CC, JobState.PENDING)
