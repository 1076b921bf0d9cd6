"""The real CLIs through whole jobs that are cut off and go on. See tests/support/agent/real_jobs.py."""

from __future__ import annotations

import json
import os
import signal

import pytest

from tests.support.agent.model_api import ModelApi, say
from tests.support.agent.real_jobs import (
    CC,
    OC,
    TOOL,
    WAIT,
    WORK,
    NewRig,
    ask,
    assert_delivered,
    ended_as,
    in_its_tool,
)
from tests.support.rig import Rig
from tireless import proctree
from tireless.entities import Job, JobState, Outcome
from tireless.process import parse_worker_id

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(240)]


def test_a_run_that_is_cut_off_in_a_tool_goes_on_in_its_session(new_rig: NewRig) -> None:
    """By a KILL to the runners, then by a TERM whose patience is over: no process stays, and the work is paid for
    once."""
    words = {OC: "cut-oc", CC: "cut-cc"}
    script = {
        "cut-oc": [TOOL, WORK, say("All is written.")],
        "cut-cc": [TOOL, TOOL, WORK, say("All is written.")],
    }
    with ModelApi(script) as api:
        rig = new_rig(api, {"cap": 1, "runners": 1}, {"cap": 1, "runners": 1})
        numbers = {lane: ask(rig, word, lane) for lane, word in words.items()}
        for number in numbers.values():
            in_its_tool(rig, number)
        for number in numbers.values():
            holder = parse_worker_id(rig.job(number).claimed_by or "")
            assert holder is not None
            os.kill(holder.pid, signal.SIGKILL)
        rig.wait_job(numbers[OC], seconds=WAIT)
        assert_cut_off_by_a_drain(rig, in_its_tool(rig, numbers[CC]))
        rig.start()
        done = {lane: rig.wait_job(number, seconds=WAIT) for lane, number in numbers.items()}
        rig.wait_settled()
    assert_went_on(rig, done[OC], [Outcome.CRASHED, Outcome.COMPLETED])
    assert_went_on(rig, done[CC], [Outcome.CRASHED, Outcome.STOPPED, Outcome.COMPLETED])
    for lane, job in done.items():
        assert_delivered(rig, job, lane)
        assert api.asked[words[lane]] == len(script[words[lane]])  # nothing was asked twice
        last = [said for body in api.bodies if words[lane] in (said := json.dumps(body["messages"]))][-1]
        assert "sleep 1000" in last  # what was asked for in the first run


def assert_went_on(rig: Rig, job: Job, outcomes: list[Outcome]) -> None:
    found = rig.runs(job)
    assert [run.outcome for run in found] == outcomes, rig.report()
    assert [run.resumed for run in found] == [False] + [True] * (len(found) - 1)
    assert len({run.session_id for run in found}) == 1
    assert job.attempts == 2  # a drain costs none


def assert_cut_off_by_a_drain(rig: Rig, job: Job) -> None:
    [supervisor] = rig.supervisors
    supervisor.send(signal.SIGTERM)
    assert supervisor.wait(30) == 1
    now = rig.job(job.issue.number)
    assert (now.state, now.attempts) == (JobState.PENDING, job.attempts - 1), rig.report()
    assert ended_as(rig, now)[-1] == (Outcome.STOPPED, "was stopped: tireless is shutting down")
    assert "tireless is stopping" in (now.last_error or "")
    assert proctree.marked(str(job.id)) == []
