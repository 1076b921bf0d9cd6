"""The budgets of a UTC day, brought to the rows: what is used up holds its lane, or its repository, until the day ends,
and who changes a budget ends the hold that the one before had made. A hold for any other reason stays.

Call both inside the transaction that writes what the budget is compared with. Whoever of a run and an operator writes
second has waited for the other's lock, and its last look sees what both have written.
"""

from __future__ import annotations

from tireless.entities import AgentKind
from tireless.governor import BudgetHold, budget_holds
from tireless.store import budgets, lanes, repos
from tireless.store.queries import Connection


def hold_used_up(conn: Connection, lane: AgentKind | None, repo_id: int | None) -> None:
    """After a run has begun or ended, or a budget was changed."""
    held = _used_up(conn, lane, repo_id)
    for hold in held:
        if hold.of_lane and lane is not None:
            lanes.hold(conn, lane, hold.why, until=hold.until, budget=True)
        elif repo_id is not None:
            repos.hold(conn, repo_id, hold.why, hold.until)
    if held:
        _lift(conn, lane, repo_id, among={hold.of_lane for hold in held})


def follow_budget(conn: Connection, lane: AgentKind | None = None, repo_id: int | None = None) -> None:
    """After the budget of the lane, or of the repository, was changed: at once, not with the next run."""
    hold_used_up(conn, lane, repo_id)
    _lift(conn, lane, repo_id, among={True, False})


def _lift(conn: Connection, lane: AgentKind | None, repo_id: int | None, among: set[bool]) -> None:
    over = among - {hold.of_lane for hold in _used_up(conn, lane, repo_id)}
    if True in over and lane is not None:
        lanes.lift_budget_hold(conn, lane)
    if False in over and repo_id is not None:
        repos.release_hold(conn, repo_id)


def _used_up(conn: Connection, lane: AgentKind | None, repo_id: int | None) -> list[BudgetHold]:
    spending = budgets.spent_today(conn, lane, repo_id)
    return list(budget_holds(spending)) if spending is not None else []
