"""The real CLIs through whole jobs: work, plans, questions, and silence. See tests/support/agent/real_jobs.py."""

from __future__ import annotations

import json
import threading
from datetime import timedelta

import pytest

from tests.support.agent.model_api import ModelApi, failure, run_command, say, waiting
from tests.support.agent.real_jobs import (
    CC,
    OC,
    SETTINGS,
    WAIT,
    WORK,
    NewRig,
    ask,
    assert_delivered,
    ended_as,
    lane_of,
    told,
    until,
)
from tests.support.rig import Rig
from tireless import proctree
from tireless.entities import JobKind, JobState, Outcome
from tireless.store import writes

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(240)]

PLAN = {
    "summary": "Two parts.",
    "children": [
        {"key": "base", "title": "Lay the base", "body": "First.", "depends_on": []},
        {"key": "roof", "title": "Put on the roof", "body": "Then.", "depends_on": ["base"]},
    ],
}


def test_work_plans_and_questions(new_rig: NewRig) -> None:
    """Both CLIs side by side; a tool that is left behind does not outlive the job. OpenCode does such work in
    test_real_cuts.py. Where the API limits it and names no time, or does not answer, it waits in silence for ever."""
    question = json.dumps({"status": "blocked", "question": "Which colour?"})
    asking = run_command(f"echo half > half.txt; echo '{question}' > $TIRELESS_REPORT/outcome.json")
    planning = run_command(f"echo '{json.dumps(PLAN)}' > $TIRELESS_REPORT/plan.json")
    script = {
        "work-cc": [WORK, say("All is written.")],
        "plan-cc": [planning, say("Planned.")],
        "ask-cc": [asking, say("I wait.")],
        "ask-oc": [asking, say("I wait.")],
        "silent-oc": [failure(429), failure(429), waiting(threading.Event())],
    }
    with ModelApi(script) as api:
        rig = new_rig(
            api,
            {"cap": 3, "runners": 3},
            {"stall_seconds": 60},
            SETTINGS.replace("backoff_seconds = 0.1", "backoff_seconds = 50"),
        )
        silent = ask(rig, "silent-oc", OC)
        asked = {lane: ask(rig, f"ask-{word}", lane) for lane, word in ((OC, "oc"), (CC, "cc"))}
        work, plan = ask(rig, "work-cc"), ask(rig, "plan-cc", CC, "tireless/plan")
        ended = {number: rig.wait_job(number, seconds=WAIT) for number in (work, *asked.values(), plan)}
        assert_stalls(rig, silent)
        assert api.asked["silent-oc"] > 1
        rig.wait_settled()
    assert_delivered(rig, ended[work], CC)
    assert len(rig.runs(ended[work])) == 1
    for lane, number in asked.items():
        job = ended[number]
        assert (job.state, [r.agent for r in rig.runs(job)]) == (JobState.BLOCKED, [lane]), rig.report()
        assert "Which colour?" in told(rig, number)
        assert rig.forge.git().read(f"tireless/issue-{number}", "half.txt") == "half"
    assert (ended[plan].state, ended[plan].kind) == (JobState.DELIVERED, JobKind.PLAN), rig.report()
    with rig.connection() as conn:
        children = writes.children_of(conn, ended[plan].id)
    assert rig.forge.issue(children["base"][0].number).title == "Lay the base"
    assert f"Depends on #{children['base'][0].number}" in rig.forge.issue(children["roof"][0].number).body


def assert_stalls(rig: Rig, number: int) -> None:
    """It is stopped, and its job waits for another attempt."""
    until(rig, lambda: rig.job(number).last_error, f"the agent of issue {number} was stopped")
    job = rig.job(number)
    [(outcome, said)] = ended_as(rig, job)
    assert (outcome, job.state, job.attempts) == (Outcome.STALLED, JobState.PENDING, 1), rig.report()
    assert said.startswith("printed no event for too long and was stopped; its log ends: ")
    assert "exceed your account's rate limit" in said
    assert job.last_error == f"The agent {said}"
    assert job.run_at - job.updated_at == timedelta(seconds=50)
    assert [e.detail["why"] for e in rig.events(job) if e.kind == "requeued"] == [job.last_error]
    assert not lane_of(rig, OC).held
    assert proctree.marked(str(job.id)) == []
