"""The real CLIs through whole jobs: each end that is the job's own has its own outcome, and its own text in the row,
in the events and in what people are told. See tests/support/agent/real_jobs.py."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tests.support.agent.model_api import ModelApi, Turn, failure, run_command, waiting
from tests.support.agent.real_jobs import CC, OC, WAIT, NewRig, ask, ended_as, lane_of, told, until
from tests.support.rig import Rig
from tireless.entities import JobState, Outcome

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(240)]

LIMITS = {"cap": 6, "runners": 6, "max_turns": 4, "max_budget_usd": 2.0, "stall_seconds": 15}

#   word, its agent's script, the outcome of each run, the state of the job, what is said
FAILURES: list[tuple[str, list[Turn], Outcome, JobState, str]] = [
    ("limit-429", [failure(429)], Outcome.RATE_LIMITED, JobState.FAILED, "limits the rate of requests (429)"),
    ("busy-529", [failure(529)], Outcome.OVERLOADED, JobState.FAILED, "overloaded or out of reach (529)"),
    (
        "no-answer",
        [waiting(threading.Event())],
        Outcome.STALLED,
        JobState.FAILED,
        "printed no event for too long",
    ),
    (
        "many-turns",
        [run_command("echo more >> more.txt")],
        Outcome.TURN_LIMIT,
        JobState.BLOCKED,
        "the turn limit after",
    ),
    (
        "much-money",
        [Turn(run_command("echo more >> more.txt").blocks, output_tokens=1_000_000)],
        Outcome.BUDGET_LIMIT,
        JobState.BLOCKED,
        "the budget of one run",
    ),
    (
        "model-404",
        [failure(404)],
        Outcome.REFUSED,
        JobState.FAILED,
        "model is unknown or not allowed (404)",
    ),
]


def test_failures_that_are_the_jobs_own(new_rig: NewRig) -> None:
    """Twice where trying again may help, once where it cannot; what was done until a limit is saved."""
    with ModelApi({word: script for word, script, *_ in FAILURES}) as api:
        rig = new_rig(api, dict(LIMITS), {"cap": 1, "runners": 1, "model": "anthropic/no-such-model"})
        unknown = ask(rig, "unknown to opencode", OC)
        numbers = {word: ask(rig, word) for word, *_ in FAILURES}
        for word in ("limit-429", "busy-529"):
            bring_forward(rig, numbers[word])
        rows = [(numbers[word], outcome, state, said) for word, _, outcome, state, said in FAILURES]
        rows.append((unknown, Outcome.REFUSED, JobState.FAILED, "would not start, as with a model"))
        for number, *_ in rows:
            rig.wait_job(number, seconds=WAIT)
        rig.wait_settled()
    for number, outcome, state, said in rows:
        job = rig.job(number)
        twice = outcome in (Outcome.RATE_LIMITED, Outcome.OVERLOADED, Outcome.STALLED)
        runs = ended_as(rig, job)
        assert (job.state, [o for o, _ in runs]) == (state, [outcome] * (2 if twice else 1)), rig.report()
        for text in (runs[-1][1], job.last_error, told(rig, number)):
            assert said in (text or ""), rig.report()
        assert ("Gave up after 2 attempts" in told(rig, number)) is twice
        assert rig.forge.pulls() == []
    saved = rig.forge.git().read(f"tireless/issue-{numbers['many-turns']}", "more.txt")
    assert set((saved or "").split()) == {"more"}
    assert not [lane for lane in (lane_of(rig, CC), lane_of(rig, OC)) if lane.held]


def bring_forward(rig: Rig, number: int) -> None:
    """The second attempt, now: after the first it waits, with the reason on record."""

    def waits() -> bool:
        return any(j.state is JobState.PENDING and j.last_error is not None for j in rig.jobs(number))

    until(rig, waits, f"issue {number} waits for its second attempt")
    job = rig.job(number)
    assert job.attempts == 1
    assert timedelta(seconds=30) < job.run_at - job.updated_at <= timedelta(seconds=60)
    assert [e.detail["why"] for e in rig.events(job) if e.kind == "requeued"] == [job.last_error]
    with rig.connection() as conn:
        conn.execute("update job set run_at = now() where id = %s and state = 'pending'", (job.id,))
