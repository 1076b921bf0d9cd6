"""One claimed job, from its first incomplete phase to its end.

    prepare    look at the issue, and who asked; update the mirror, make the checkout  -> agent
    agent      look again, run the agent (or conclude the run that a crash cut off)  -> verify
    verify     take the work out of the workspace, run the verify command            -> push
    push       look once more, push the branch from the mirror                       -> announce
    announce   end the job and queue what the forge is told, in one transaction      -> done

Each arrow is a write under the fence. Who comes after a crash, on this host, goes on at the phase in the row:
the checkout, the agent's stream and the collected commits are on disk. Once an agent has ended, its conclusion can be
read from the run's files, so it is never run again; cut off half-way, its own session is resumed where the CLI
can. Only when the host that holds the work has been gone for `lease.host_gone_seconds` does another begin anew.

What the agent says is not evidence: a job is delivered if git shows a change (implement) or a valid plan or
findings are there, and the repository's verify command succeeds. What was done is pushed even when the job ends as
blocked or failed, so that nothing paid for is lost.

Where the disk has less room than `runner.min_free_mb`, an agent whose own workspace took it is stopped, what it did is
saved on its branch, and the job ends as blocked; with less than twice that no work begins (workspace/room.py).

Every early end is a `Leave` (leaving.py) with its own way to leave the row behind (ends.py). The other modules:
in_hand.py is the claim in hand, subject.py the issue and its repository, workplace.py the mirror and the checkout,
attempt.py the agent's run, verdict.py what its answer comes to.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from tireless import delivery
from tireless.agents import presence
from tireless.agents.sandbox import Sandbox
from tireless.config import agent_environment
from tireless.delivery import Ending
from tireless.entities import Claim, ClaimLost, IllegalTransition, Job, JobKind, JobState, Phase
from tireless.forge import Gate
from tireless.lease import LeaseKeeper
from tireless.process import ChildContext
from tireless.redact import Redactor, secrets_in
from tireless.store import claims
from tireless.work import verdict
from tireless.work.attempt import Attempt
from tireless.work.ends import Ends
from tireless.work.in_hand import InHand
from tireless.work.leaving import ClaimGone, Leave, Passing, passing
from tireless.work.subject import Subject
from tireless.work.workplace import Workplace
from tireless.workspace import (
    BranchMoved,
    Cancelled,
    DiskFull,
    GitFailed,
    NotCollected,
    TooLarge,
    UnsafeWorkspace,
)

log = logging.getLogger(__name__)


class Work:
    """Works one claim. `run` returns when the job is out of our hands, whatever happened."""

    def __init__(
        self,
        ctx: ChildContext,
        url: str,
        claim: Claim,
        keeper: LeaseKeeper,
        sandbox: Sandbox,
        gate: Gate | None = None,
    ) -> None:
        self._config = ctx.config
        self._hand = InHand(ctx, url, claim, keeper)
        self._secrets = (
            *self._config.secrets(),
            *secrets_in(agent_environment(self._config.lane[self._hand.lane])),
        )
        self._redactor = Redactor(self._secrets)
        self._sandbox = sandbox
        self._subject = Subject(self._hand, gate)
        self._workplace = Workplace(self._hand, self._subject, sandbox)
        self._attempt = Attempt(self._hand, self._subject, self._workplace, sandbox, self._redactor)
        self._ends = Ends(self._hand, self._subject, self._redactor)

    def run(self) -> None:
        try:
            self._phases()
        except Leave as e:
            self._ends.leave(e)
        except (ClaimLost, IllegalTransition) as e:
            self._ends.leave(ClaimGone(str(e)))
        except Exception as e:
            self._ends.leave(self._as_leave(e) or e)
        finally:
            self._hand.close()
            self._subject.close()

    @property
    def _job(self) -> Job:
        return self._hand.job

    def _phases(self) -> None:
        steps: dict[Phase, Callable[[], None]] = {
            Phase.PREPARE: self._prepare,
            Phase.AGENT: self._attempt.run,
            Phase.VERIFY: self._verify,
            Phase.PUSH: self._push,
            Phase.ANNOUNCE: self._announce,
        }
        hand = self._hand
        hand.job = hand.db(lambda c: claims.transition(c, hand.claim, JobState.RUNNING))
        self._begin_anew_if_the_work_is_elsewhere()
        while self._job.phase is not Phase.DONE:
            hand.paid = self._job.phase in (Phase.PUSH, Phase.ANNOUNCE)
            hand.check()
            steps[self._job.phase]()

    def _begin_anew_if_the_work_is_elsewhere(self) -> None:
        here = self._job.work_host in (None, self._config.host)
        if self._job.phase in (Phase.AGENT, Phase.VERIFY, Phase.PUSH) and not here:
            log.warning("work is on a host that is gone job=%s host=%s", self._job.id, self._job.work_host)
            self._hand.advance(Phase.PREPARE)

    def _as_leave(self, error: Exception) -> Leave | None:
        """A fault that is not the job's own, or what made git stop; None for any other."""
        if isinstance(error, Cancelled):
            try:
                self._hand.check()
            except Leave as e:
                return e
        if isinstance(error, GitFailed) and self._workplace.room.full:
            # git does not always say why it cannot write, and no attempt is burnt for that.
            return Passing(f"the disk under {self._config.state_dir} is full: {error}")
        return passing(error, self._config.state_dir)

    # -- the phases --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._workplace.demand_room()
        lane = self._hand.lane
        presence.demand(self._config.lane[lane], lane, self._sandbox)  # before a word is said
        self._subject.look()
        self._subject.judge_asker()
        self._subject.tell(*delivery.writes_for_start(self._config, self._job))
        self._workplace.updated_mirror()
        checkout = self._workplace.checkout()
        self._hand.advance(
            Phase.AGENT,
            branch=checkout.branch,
            base_commit=checkout.base_commit,
            work_host=self._config.host,
        )

    def _verify(self) -> None:
        ending = self._ending()
        if self._job.kind is not JobKind.IMPLEMENT:
            self._hand.advance(Phase.ANNOUNCE)
            return
        mirror, checkout = self._workplace.mirror, self._workplace.checkout()
        self._sandbox.reclaim(self._workplace.places(checkout))
        message = f"{delivery.pull_request_title(self._job)}\n\nIssue #{self._job.issue.number}"
        try:
            collected = self._workplace.workspaces.collect(checkout, mirror, message)
        except (TooLarge, UnsafeWorkspace) as e:  # the same tomorrow: a person has to look
            self._conclude(ending, JobState.FAILED, f"The work cannot be delivered: {e}.")
            return
        except DiskFull:
            why = self._workplace.took_the_room()
            if why is None:
                raise
            self._conclude(ending, JobState.FAILED, f"The work cannot be delivered: {why}.")
            return
        if not collected.changed:
            if ending.state is JobState.DELIVERED:
                self._conclude(ending, JobState.FAILED, "The agent reported success but changed nothing.")
            else:
                self._hand.advance(Phase.ANNOUNCE)
            return
        leaked = self._workplace.workspaces.leaks(mirror, collected, self._secrets)
        if leaked:
            ending = verdict.leaking(leaked, self._job.id).masked(self._redactor)
            self._hand.advance(Phase.ANNOUNCE, result=ending.to_json())
            return
        ending = dataclasses.replace(ending, diffstat=collected.diffstat.text, notes=verdict.notes(collected))
        command = self._subject.repo.verify_command
        if command and ending.state is JobState.DELIVERED:
            ending = self._attempt.verified(command, checkout, ending)
        ending = ending.masked(self._redactor)
        self._hand.advance(Phase.PUSH, head_commit=collected.head_commit, result=ending.to_json())

    def _push(self) -> None:
        self._subject.look(lenient=True)
        job = self._job
        assert job.branch is not None
        assert job.head_commit is not None
        mirror, base = self._workplace.mirror, self._subject.repo.default_branch
        try:
            self._workplace.workspaces.push(
                mirror, self._subject.remote, job.id, job.branch, job.head_commit, base
            )
        except BranchMoved as e:
            self._conclude(self._ending(), JobState.BLOCKED, str(e))
            return
        except NotCollected as e:
            log.warning("collected work is gone, beginning anew job=%s why=%s", job.id, e)
            self._hand.advance(Phase.PREPARE)
            return
        self._hand.advance(Phase.ANNOUNCE)

    def _announce(self) -> None:
        hand, ending = self._hand, self._ending()
        new = delivery.writes_for_ending(self._config, self._job, ending, self._subject.repo.default_branch)
        error = ending.why if ending.state is not JobState.DELIVERED else None
        hand.job = hand.db(lambda c: claims.finish(c, hand.claim, ending.state, new, error=error))
        log.info("finished job=%s issue=%s state=%s", self._job.id, self._job.issue, self._job.state)
        self._subject.tell()

    def _ending(self) -> Ending:
        assert self._job.result is not None
        return Ending.from_json(self._job.result)

    def _conclude(self, ending: Ending, state: JobState, why: str) -> None:
        """Nothing is left to do but to say how it ended."""
        ended = dataclasses.replace(ending, state=state, why=why)
        self._hand.advance(Phase.ANNOUNCE, result=ended.to_json())
