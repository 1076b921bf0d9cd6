"""The runner: claims one job of its lane at a time and works it to its end.

States      idle -> claimed -> running (prepare, agent, verify, push, announce) -> idle

Idle. It looks at the queue, then waits for a notification of its lane and looks again; without one after
`runner.wake_seconds`, with jitter, or where notifications are known to arrive after four times that: a lost one costs
at most that. It looks at once after each reconnect. An outage of the database is waited out; the main loop goes on
turning, so it is not taken for a hang. A claim whose answer got lost is taken up at the next look, or else it would
stand until its lease ends.

Its CLI is not there. Before each look at the queue it looks for the lane's program, as a start would find it
(tireless/agents/presence.py). Without it the runner takes no job that an agent has yet to work: the worker's row says
what it waits for, one line in the log says it, no attempt is burnt and no issue is told anything. That is the matter of
this host alone: the lane is not held, and other hosts go on. What an agent has ended is still verified, pushed and
announced. Installed, or named by a reload, the program is found within seconds. Where it goes between that look and the
job's first step, the job returns to pending, a minute later, without an attempt and before its issue was told. A disk
with too little room is the same kind of matter (workspace/room.py): nothing is begun, what was begun is gone on with.

In hand. A thread of its own renews the lease (tireless/lease.py). The main thread works the phases
(tireless/work), each recorded in the row when it is complete, and looks at the claim between any two steps
and all the time while git or the agent runs. What ends the work early:

    claim lost        the agent is killed; neither forge nor row is touched; a `claim_lost` event is on record
    lease unsure      the agent is killed before the lease ends; when the database is back the job returns to
                      pending, if it is still ours, without burning an attempt
    cancelled         the agent is killed; the job ends as abandoned and its issue is told
    withdrawn         the issue was closed, unlabelled or is a pull request by now: ends as abandoned
    not entitled      who set the label may not start work (tireless/who.py): ends as abandoned before the agent
    TERM (drain)      what is in hand is finished, the runner's row says since when; then the runner leaves
    INT (stop)        the agent is killed; the job returns to pending without burning an attempt
    a passing fault   forge or git remote away, disk full: back to pending, later, no attempt burnt
    any other fault   back to pending with growing backoff and the reason; failed once the attempts are used up

KILL at any moment: the guard ends the agent with everything that it started, the supervisor releases the claim, and
the next runner goes on at the first phase that is not complete.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
from collections.abc import Iterator

import psycopg

from tireless import embedded
from tireless.agents import presence
from tireless.agents import sandbox as sandboxes
from tireless.agents.sandbox import Sandbox
from tireless.entities import AgentKind, Claim, Phase, UnknownValue
from tireless.gate import RowsGate
from tireless.lease import LeaseKeeper, boot_clock
from tireless.process import ChildContext
from tireless.store import claims, workers
from tireless.store.connection import connect, is_outage
from tireless.store.listen import Listener, lane_channel
from tireless.store.queries import Connection
from tireless.work import Work
from tireless.workspace import Room

log = logging.getLogger(__name__)

_SEEN_SECONDS = 30.0  # said with a look, of which an idle runner has one a minute
_ABSENT_SECONDS = 10.0  # between two looks for a CLI that is not there
_WITHOUT_AGENT = tuple(phase for phase in Phase if not phase.needs_agent)
_BEGUN = tuple(phase for phase in Phase if phase is not Phase.PREPARE)
_PATIENCE_SECONDS = 10.0  # for an answer at a look; a claim takes milliseconds


def main(ctx: ChildContext) -> int:
    return Runner(ctx).run()


class Runner:
    def __init__(self, ctx: ChildContext) -> None:
        assert ctx.lane is not None
        self._ctx = ctx
        self._lane: AgentKind = ctx.lane
        self._url = embedded.database_url(ctx.config, start=False)
        self._listener = Listener(
            self._url,
            (lane_channel(self._lane),),
            timeout=ctx.config.database.connect_timeout_seconds,
            wait=ctx.wait,
            name=workers.session_name(ctx.worker, f"runner {self._lane}"),
            patience=_PATIENCE_SECONDS,
        )
        self._gate = RowsGate(self._connect_for_gate)
        self._sandbox: Sandbox = sandboxes.probe(ctx.config.sandbox, hidden=sandboxes.hidden_paths(ctx.config))
        self._seen_at = float("-inf")
        self._waits_for: str | None = None  # why nothing is begun here: what this host alone lacks
        self._phases: tuple[Phase, ...] = tuple(Phase)  # of the jobs that can be gone on with
        self._unanswered = False  # whether the last claim got no answer, and may have come about all the same

    def run(self) -> int:
        ctx = self._ctx
        ctx.ready()
        try:
            while ctx.turn():
                claim, claimed_at = self._look()
                if claim is not None:
                    self._work(claim, claimed_at)
                elif ctx.turn():
                    self._listener.wait(self._pause() * random.uniform(0.7, 1.0))
            self._sign_off()
        finally:
            self._listener.close()
        return 0

    def _sign_off(self) -> None:
        """Nobody is to take it for one that was killed. Its leaving waits for no database that is away."""
        if self._listener.connected:
            with contextlib.suppress(psycopg.Error), self._listener.connection() as conn, conn.patient(1.0):
                workers.leave(conn, self._ctx.worker)

    def _pause(self) -> float:
        runner = self._ctx.config.runner
        wake = runner.listening_seconds if self._listener.hears else runner.wake_seconds
        return wake if self._waits_for is None else min(wake, _ABSENT_SECONDS)

    def _look_around(self) -> None:
        """What this host lacks is said when it changes: in the log, and in the row at once."""
        config = self._ctx.config
        absent = presence.why_absent(config.lane[self._lane], self._lane, self._sandbox)
        crowded = Room(config.state_dir, config.runner.min_free_bytes).too_little
        self._phases = _WITHOUT_AGENT if absent is not None else _BEGUN if crowded is not None else tuple(Phase)
        why = absent or crowded
        if why == self._waits_for:
            return
        if why is not None:
            log.error("nothing is started lane=%s why=%s", self._lane, why)
        else:
            log.info("work is started again lane=%s", self._lane)
        self._waits_for = why
        self._seen_at = float("-inf")

    def _look(self) -> tuple[Claim | None, float]:
        """One look at the queue. Time is taken before the claim is sent: the lease may have begun since."""
        self._look_around()
        claimed_at = boot_clock()
        try:
            with self._listener.connection() as conn:
                self._say_seen(conn, claimed_at)
                claim = self._unanswered_claim(conn) if self._unanswered else None
                self._unanswered = True
                if claim is None:
                    claim = claims.claim_next(
                        conn,
                        self._ctx.worker,
                        [self._lane],
                        lease_seconds=self._ctx.config.lease.seconds,
                        host=self._ctx.config.host,
                        host_gone_seconds=self._ctx.config.lease.host_gone_seconds,
                        phases=self._phases,
                    )
                self._unanswered = False
        except UnknownValue as e:
            # Claimed, but not understood: a newer program's row. Its lease lets it go to a newer worker.
            log.error("claimed a job that this build does not understand error=%s", e)
            self._unanswered = False
            return None, claimed_at
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            return None, claimed_at
        return claim, claimed_at

    def _unanswered_claim(self, conn: psycopg.Connection) -> Claim | None:
        """The claim that the last look asked for and was not told of, if there is one; it counts from now."""
        workers.end_sessions(conn, self._ctx.worker, wait_seconds=0.5)
        claim = claims.held_claim(conn, self._ctx.worker)
        if (
            claim is None
            or claims.renew_claim(conn, claim, lease_seconds=self._ctx.config.lease.seconds) is None
        ):
            return None
        log.warning("claimed without an answer job=%s", claim.job.id)
        return claim

    @contextlib.contextmanager
    def _connect_for_gate(self) -> Iterator[Connection]:
        """For a moment: a runner asks a forge some ten times an hour, and its connections add up over all runners."""
        conn = connect(
            self._url,
            timeout=self._ctx.config.database.connect_timeout_seconds,
            name=workers.session_name(self._ctx.worker, "gate"),
        )
        with conn:
            yield conn

    def _say_seen(self, conn: psycopg.Connection, now: float) -> None:
        if now - self._seen_at >= _SEEN_SECONDS:
            ctx = self._ctx
            name = (ctx.worker, ctx.config.host, ctx.role, self._lane, os.getpid())
            workers.register(conn, *name, waits_for=self._waits_for)
            self._seen_at = now

    def _work(self, claim: Claim, claimed_at: float) -> None:
        log.info("claimed job=%s issue=%s attempt=%d", claim.job.id, claim.job.issue, claim.job.attempts)
        keeper = LeaseKeeper(self._ctx.config, self._url, claim, claimed_at)
        keeper.start()
        try:
            Work(self._ctx, self._url, claim, keeper, self._sandbox, self._gate).run()
        finally:
            keeper.stop()
        self._seen_at = float("-inf")
