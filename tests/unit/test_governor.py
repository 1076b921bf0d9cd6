"""What follows from how a run ended: one row an outcome."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tireless.agents.base import Conclusion
from tireless.entities import Outcome
from tireless.governor import BACKOFF_CAP_SECONDS, Next, backoff, budget_holds, decide, in_words
from tireless.store.budgets import Budget, Spending

RESET = datetime(2026, 11, 30, 12, tzinfo=UTC)

#        outcome                    reset  next        keeps attempt, backs off, holds, until
TABLE = [
    (Outcome.COMPLETED, None, Next.JUDGE, False, False, False, None),
    (Outcome.BLOCKED, None, Next.JUDGE, False, False, False, None),
    (Outcome.TURN_LIMIT, None, Next.SAVE, False, False, False, None),
    (Outcome.BUDGET_LIMIT, None, Next.SAVE, False, False, False, None),
    (Outcome.TIMED_OUT, None, Next.SAVE, False, False, False, None),
    (Outcome.REFUSED, None, Next.FAIL, False, False, False, None),
    (Outcome.RATE_LIMITED, RESET, Next.RETRY, True, False, True, RESET),
    (Outcome.RATE_LIMITED, None, Next.RETRY, False, True, False, None),
    (Outcome.OVERLOADED, None, Next.RETRY, False, True, False, None),
    (Outcome.NOT_AUTHENTICATED, None, Next.RETRY, True, False, True, None),
    (Outcome.OUT_OF_CREDIT, None, Next.RETRY, True, False, True, None),
    (Outcome.CRASHED, None, Next.RETRY, False, True, False, None),
    (Outcome.STALLED, None, Next.RETRY, False, True, False, None),
    (Outcome.STOPPED, None, Next.RETRY, True, False, False, None),
]


def test_the_table_knows_every_outcome() -> None:
    assert {row[0] for row in TABLE} == set(Outcome)


@pytest.mark.parametrize(("outcome", "reset", "following", "keeps", "waits", "holds", "until"), TABLE)
def test_each_outcome_leads_to_its_own_decision(
    outcome: Outcome,
    reset: datetime | None,
    following: Next,
    keeps: bool,
    waits: bool,
    holds: bool,
    until: datetime | None,
) -> None:
    decision = decide(Conclusion(outcome, "why", retry_at=reset), attempts=1, backoff_seconds=30)
    assert decision.next is following
    assert decision.keep_attempt is keeps
    assert (decision.delay_seconds > 0) is waits
    assert (decision.hold, decision.hold_until) == (holds, until)
    assert decision.why == "why"


@pytest.mark.parametrize(
    ("detail", "sentence"),
    [
        ("was cut off: exit 9", "The agent was cut off: exit 9"),
        ("the account is out of credit: Pay first.", "The account is out of credit: Pay first"),
    ],
)
def test_a_reason_reads_as_a_sentence(detail: str, sentence: str) -> None:
    assert in_words(detail) == sentence


def test_a_backoff_doubles_up_to_an_hour() -> None:
    assert [backoff(n, 30) for n in (1, 2, 3)] == [30, 60, 120]
    assert backoff(50, 30) == BACKOFF_CAP_SECONDS


def test_a_longer_wait_that_the_service_names_is_kept() -> None:
    conclusion = Conclusion(Outcome.OVERLOADED, "busy", retry_after_seconds=500)
    assert decide(conclusion, 1, 30).delay_seconds == 500


@pytest.mark.parametrize(
    ("usd", "jobs", "spent", "run", "held"),
    [
        (None, None, 99.0, 99, False),
        (10.0, None, 9.99, 99, False),
        (10.0, None, 10.0, 1, True),
        (None, 3, 99.0, 2, False),
        (None, 3, 0.0, 3, True),
    ],
)
def test_a_budget_holds_once_it_is_used_up(
    usd: float | None, jobs: int | None, spent: float, run: int, held: bool
) -> None:
    budget = Budget(usd, jobs, spent, run)
    free = Budget(None, None, spent, run)
    assert [h.of_lane for h in budget_holds(Spending(RESET, budget, free))] == ([True] if held else [])
    assert [h.of_lane for h in budget_holds(Spending(RESET, free, budget))] == ([False] if held else [])
    assert list(budget_holds(Spending(RESET, free, None))) == []
    assert all(h.until == RESET for h in budget_holds(Spending(RESET, budget, None)))
