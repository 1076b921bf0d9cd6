"""What follows from how an agent run ended: for the job, for its attempts, for its lane; pure.

The other half of governing, which lanes may start what now, is one query over rows (store/sql/claim_next.sql):
not paused, not held, under the cap, the repository not quiet and under its own limit. All of it is in rows, so
that every host obeys, a restart forgets nothing and tireless-ctl changes it live.

    run ended as          the job                                    the lane
    completed             goes on to be judged by git and verify     -
    blocked               goes on, to end as blocked                 -
    turn, budget limit    goes on: what was done is saved on its     -
                          branch and a person decides about more
    timed out             the same
    refused               fails: the same task would be refused again
    rate limited, until   back to pending, no attempt burnt          held until then; then one job probes
    overloaded, plain 429 back to pending, growing backoff           -
    no login, no credit   back to pending, no attempt burnt          held until an operator resumes it
    crashed, stalled      back to pending, growing backoff           -
    stopped               as who stopped it wants (drain: pending, no attempt burnt)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tireless.agents.base import Conclusion
from tireless.entities import Outcome
from tireless.store.budgets import Budget, Spending


class Next(StrEnum):
    JUDGE = "judge"  # on to verify: git decides
    SAVE = "save"  # on to verify, to end as blocked with the work saved
    RETRY = "retry"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Decision:
    next: Next
    why: str
    keep_attempt: bool = False
    delay_seconds: float = 0.0
    hold: bool = False
    hold_until: datetime | None = None  # with `hold`, None: until an operator resumes the lane


BACKOFF_CAP_SECONDS = 3600.0


def backoff(attempts: int, first_seconds: float) -> float:
    """Before the next attempt, after `attempts` were counted: doubled each time, up to an hour."""
    return min(first_seconds * 2.0 ** max(attempts - 1, 0), BACKOFF_CAP_SECONDS)


def decide(conclusion: Conclusion, attempts: int, backoff_seconds: float) -> Decision:
    """What to do after a run that nobody stopped."""
    why = conclusion.detail
    delay = backoff(attempts, backoff_seconds)
    match conclusion.outcome:
        case Outcome.COMPLETED | Outcome.BLOCKED:
            return Decision(Next.JUDGE, why)
        case Outcome.TURN_LIMIT | Outcome.BUDGET_LIMIT | Outcome.TIMED_OUT:
            return Decision(Next.SAVE, why)
        case Outcome.REFUSED:
            return Decision(Next.FAIL, why)
        case Outcome.RATE_LIMITED if conclusion.retry_at is not None:
            return Decision(Next.RETRY, why, keep_attempt=True, hold=True, hold_until=conclusion.retry_at)
        case Outcome.NOT_AUTHENTICATED | Outcome.OUT_OF_CREDIT:
            return Decision(Next.RETRY, why, keep_attempt=True, hold=True)
        case Outcome.RATE_LIMITED | Outcome.OVERLOADED:
            return Decision(Next.RETRY, why, delay_seconds=max(delay, conclusion.retry_after_seconds or 0.0))
        case Outcome.STOPPED:
            return Decision(Next.RETRY, why, keep_attempt=True)
        case _:  # crashed, stalled
            return Decision(Next.RETRY, why, delay_seconds=delay)


def in_words(detail: str) -> str:
    """A conclusion's detail as a sentence without its full stop: about the agent ("ended its work"), unless it names
    another subject itself ("the account is out of credit")."""
    text = detail if detail.startswith("the ") else f"the agent {detail}"
    return f"{text[0].upper()}{text[1:]}".rstrip(".")


PROVEN = (Outcome.COMPLETED, Outcome.BLOCKED, Outcome.TURN_LIMIT, Outcome.BUDGET_LIMIT, Outcome.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class BudgetHold:
    """A budget is used up: hold the lane, or the repository, until the UTC day ends or it is raised (budgeting.py)."""

    of_lane: bool
    why: str
    until: datetime


def budget_holds(spending: Spending) -> Iterator[BudgetHold]:
    """The budgets that are used up. A run that has begun goes on: it has a limit of its own, and is paid for."""
    for of_lane, name, budget in ((True, "lane", spending.lane), (False, "repository", spending.repo)):
        why = _used_up(name, budget) if budget is not None else None
        if why is not None:
            yield BudgetHold(of_lane, why, spending.ends_at)


def _used_up(name: str, budget: Budget) -> str | None:
    if budget.usd is not None and budget.usd_spent >= budget.usd:
        return f"the {name}'s budget of {budget.usd:.2f} USD a day is used up ({budget.usd_spent:.2f} spent)"
    if budget.jobs is not None and budget.jobs_spent >= budget.jobs:
        return f"the {name}'s budget of {budget.jobs} jobs a day is used up"
    return None
