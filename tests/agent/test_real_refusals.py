"""The real CLIs where the model's API refuses or their own start fails; see tests/support/agent/real.py.

How each failure ends a whole job: test_real_ends.py and test_real_holds.py.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import pytest

from tests.support.agent.model_api import ModelApi, failure, run_command, say
from tests.support.agent.real import against, lane_for, realistic
from tests.support.agent.runs import Job
from tireless.entities import AgentKind, Outcome

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(180)]


@pytest.fixture
def claude(job: Job) -> Job:
    return realistic(job, AgentKind.CLAUDE_CODE)


@pytest.fixture
def opencode(job: Job) -> Job:
    return realistic(job, AgentKind.OPENCODE)


def test_a_refused_key_is_given_up_early(claude: Job) -> None:
    """Left alone it would try ten times, over minutes."""
    began = time.monotonic()
    with ModelApi([failure(401)]) as api:
        lane = lane_for(claude, api)
        conclusion = claude.run(replace(lane, env={**lane.env, "CLAUDE_CODE_MAX_RETRIES": "10"}), timeout=60)
    assert conclusion.outcome is Outcome.NOT_AUTHENTICATED
    assert time.monotonic() - began < 30


def test_opencode_gives_up_a_rate_limit_that_names_its_time(opencode: Job) -> None:
    """After half a minute, whatever the time; without one it never does (test_real_ends.py)."""
    conclusion = against(opencode, failure(429, {"retry-after": "3"}))
    assert conclusion.outcome is Outcome.RATE_LIMITED
    assert conclusion.retry_after_seconds == 60


def test_the_api_is_out_of_reach(claude: Job) -> None:
    with ModelApi([]) as api:
        lane = lane_for(claude, api)
    assert claude.run(lane, timeout=60).outcome is Outcome.OVERLOADED


def test_sessions_that_go_on_are_taken_or_are_unknown(claude: Job) -> None:
    """One that goes on after its end costs what it uses itself: the totals of claude's result are the run's own."""
    assert against(claude, run_command("true"), say("One.")).outcome is Outcome.COMPLETED
    resumed = against(claude, say("Two."), resume=True)
    assert (resumed.outcome, resumed.usage.input_tokens) == (Outcome.COMPLETED, 100)
    taken = against(claude, say("Done."))
    assert (taken.outcome, taken.session_in_use) == (Outcome.REFUSED, True)
    claude.session = str(uuid.uuid4())
    unknown = against(claude, say("Done."), resume=True)
    assert (unknown.outcome, unknown.unknown_session) == (Outcome.REFUSED, True)


def test_an_unknown_session_of_opencode(opencode: Job) -> None:
    opencode.session = "ses_dd4bb2d51ffejz2m4Zc94zBV8d"
    conclusion = against(opencode, say("Done."), resume=True)
    assert (conclusion.outcome, conclusion.unknown_session) == (Outcome.REFUSED, True), conclusion
