"""The claim in hand: the job's row under its fence, and whether the work may go on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg

from tireless.entities import Claim, Job, Phase
from tireless.lease import LeaseKeeper, connect_patience, patience
from tireless.process import ChildContext
from tireless.store import claims, workers
from tireless.store.connection import Link, is_outage, through_outage
from tireless.store.queries import Connection
from tireless.work.leaving import CancelAsked, ClaimGone, Leave, Stopped, Unsure

log = logging.getLogger(__name__)

T = TypeVar("T")


class InHand:
    """One claimed job. `job` is the row as last written; `paid`: past the agent, so that a cancel no longer throws
    the work away."""

    def __init__(self, ctx: ChildContext, url: str, claim: Claim, keeper: LeaseKeeper) -> None:
        self.ctx = ctx
        self.config = ctx.config
        self.claim = claim
        self.job: Job = claim.job
        self.lane = claim.job.claimed_lane or claim.job.lane
        self.paid = False
        self._keeper = keeper
        self.link = Link(
            url,
            timeout=connect_patience(self.config),
            name=workers.session_name(claim.worker, "work"),
            patience=patience(self.config),
        )

    @property
    def trusted(self) -> bool:
        """Whether nobody else can have the job: the lease was renewed in time."""
        return self._keeper.trusted

    def beat(self) -> None:
        """Show the supervisor that the loop turns."""
        self.ctx.turn()

    def check(self) -> None:
        """Whether the work may go on; a Leave if not. It goes on while the host drains, which the row then says."""
        self.beat()
        if self.ctx.draining:
            self._keeper.drain()
        if self._keeper.lost:
            raise ClaimGone("a renewal matched no row")
        if not self._keeper.trusted:
            raise Unsure("the lease could not be renewed")
        if self._keeper.cancel_reason is not None and not self.paid:
            raise CancelAsked(self._keeper.cancel_reason)
        if self.ctx.stopping:
            raise Stopped("tireless is stopping")

    def should_stop(self) -> bool:
        try:
            self.check()
        except Leave:
            return True
        return False

    def advance(self, phase: Phase, **facts: Any) -> None:
        """Record that the phase before `phase` is complete."""
        self.job = self.db(lambda c: claims.advance(c, self.claim, phase, **facts))
        log.info("phase job=%s phase=%s", self.job.id, phase)

    def db(self, action: Callable[[Connection], T]) -> T:
        """Do something on the database, through an outage, for as long as the claim may be trusted."""

        def once() -> T:
            with self.link.connection() as conn:
                return action(conn)

        try:
            return through_outage(
                once, what=f"job {self.job.id}", sleep=self._sleep, give_up=lambda: not self.trusted
            )
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            self.check()
            raise Unsure("the database did not answer while the lease was good") from e

    def db_if_there(self, action: Callable[[Connection], Any]) -> bool:
        """Try once; False if the database is away."""
        try:
            with self.link.connection() as conn:
                action(conn)
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            return False
        return True

    def db_at_last(self, action: Callable[[Connection], Any]) -> None:
        """Through an outage of any length, but not past a stop: the row is then left to the lease."""

        def once() -> None:
            with self.link.connection() as conn:
                action(conn)

        through_outage(once, what=f"job {self.job.id}", sleep=self._sleep, give_up=lambda: self.ctx.stopping)

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self.ctx.stopping:
            self.ctx.wait(min(left, 0.5))

    def close(self) -> None:
        self.link.close()
