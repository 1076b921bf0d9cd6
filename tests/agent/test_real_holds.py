"""The real CLIs through whole jobs: ends that are the account's hold the lane. See tests/support/agent/real_jobs.py."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.agent.model_api import ModelApi, Turn, failure, say
from tests.support.agent.real_jobs import (
    CC,
    LOGIN,
    OC,
    WAIT,
    WORK,
    NewRig,
    ask,
    ended_as,
    lane_of,
    until,
)
from tests.support.rig import Rig
from tireless.entities import AgentKind, JobState, Outcome
from tireless.store import lanes

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(240)]


def test_no_login_no_credit_and_a_usage_limit_hold_the_lane(new_rig: NewRig) -> None:
    """One job after another, the same one: none of it costs an attempt, and in the end it is delivered."""
    resets = int(time.time()) + 3600
    rejected = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(resets),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    hold = threading.Event()
    slowly = Turn(WORK.blocks, hold=hold)
    refused = [failure(401)]
    script = {"first-cc": refused, "second-cc": [WORK, say("Done.")], "first-oc": refused}
    with ModelApi(script) as api:
        rig = new_rig(api, {"env": LOGIN}, {"cap": 1, "runners": 1})
        oc = ask(rig, "first-oc", OC)
        number = ask(rig, "first-cc")
        assert_held(rig, number, Outcome.NOT_AUTHENTICATED, "refuses the key", None)
        api.answer("first-cc", [failure(400)])
        resume(rig, CC)
        assert_held(rig, number, Outcome.OUT_OF_CREDIT, "the account is out of credit", None)
        api.answer("first-cc", [failure(429, rejected)])
        resume(rig, CC)
        until_reset = datetime.fromtimestamp(resets, UTC) + timedelta(minutes=1)
        assert_held(rig, number, Outcome.RATE_LIMITED, "usage limit (five_hour)", until_reset)
        assert "usage limit (five_hour)" in rig.ctl("explain", str(rig.job(number).id)).stdout

        api.answer("first-cc", [slowly, say("Done.")])
        other = ask(rig, "second-cc")
        rig.wait_job(other, JobState.PENDING)
        with rig.connection() as conn:  # the hold ends, as it would in an hour
            conn.execute("update lane set held_until = now() where lane = 'claude_code'")
        until(rig, lambda: api.asked["first-cc"] > 0, "the probe asks the model")
        assert rig.job(other).state is JobState.PENDING  # though the lane has room for two
        assert lane_of(rig, CC).probing
        hold.set()
        for each in (number, other):
            assert rig.wait_job(each, seconds=WAIT).state is JobState.DELIVERED, rig.report()
        assert not lane_of(rig, CC).probing
        assert rig.job(number).attempts == 1

        assert_held(rig, oc, Outcome.NOT_AUTHENTICATED, "refuses the key (401)", None, lane=OC)
        api.answer("first-oc", [failure(400)])
        resume(rig, OC)
        assert_held(rig, oc, Outcome.OUT_OF_CREDIT, "the account is out of credit", None, lane=OC)


def resume(rig: Rig, lane: AgentKind) -> None:
    """As tireless-ctl lane resume does, without starting a program for it."""
    with rig.connection() as conn:
        lanes.resume(conn, lane)


def assert_held(
    rig: Rig, number: int, outcome: Outcome, said: str, end: datetime | None, lane: AgentKind = CC
) -> None:
    """The newest run ended so, its job waits with no attempt burnt, and its lane starts nothing."""

    def look() -> bool:
        found = rig.jobs(number)
        runs = rig.runs(found[0]) if found else []
        return bool(runs) and runs[-1].outcome is outcome

    until(rig, look, f"a run of issue {number} ended as {outcome}")
    job = rig.wait_job(number, JobState.PENDING)
    assert job.attempts == 0
    row = lane_of(rig, lane)
    assert (row.held, row.held_until) == (True, end)
    assert said in ended_as(rig, job)[-1][1]
    for text in (row.hold_reason, job.last_error):
        assert said.removeprefix("the ") in (text or "")
