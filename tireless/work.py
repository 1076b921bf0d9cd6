"""One claimed job, from its first incomplete phase to its end.

    prepare    look at the issue, and who asked; update the mirror, make the checkout  -> agent
    agent      look again, run the agent (or conclude the run that a crash cut off)  -> verify
    verify     take the work out of the workspace, run the verify command            -> push
    push       look once more, push the branch from the mirror                       -> announce
    announce   end the job and queue what the forge is told, in one transaction      -> done

Each arrow is a write under the fence. Who comes after a crash, on this host, goes on at the phase in the row:
the checkout, the agent's stream and the collected commits are on disk. Once an agent has ended, its conclusion can be
read from the run's files, so it is never run again; cut off half-way, its own session is resumed where the CLI
can. Only when the host that holds the work has been gone for an hour does another begin anew.

What the agent says is not evidence: a job is delivered if git shows a change (implement) or a valid plan or
findings are there, and the repository's verify command succeeds. What was done is pushed even when the job ends as
blocked or failed, so that nothing paid for is lost.

Every early end is a `_Leave` with its own way to leave the row behind (runner.py lists them).
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

import psycopg

from tireless import delivery, governor, outbox, verdict
from tireless.agents import adapter_for
from tireless.agents import prompt as prompts
from tireless.agents import report as reports
from tireless.agents.base import AgentMissing, AgentNotStarted, Conclusion, Limits, Places, StopReason, Task
from tireless.agents.conclusion import StillRunning, await_guard, conclude_from, session_of
from tireless.agents.process import AgentProcess, end_job
from tireless.agents.sandbox import Sandbox
from tireless.agents.shell import Shell, shell_command
from tireless.agents.transcript import seal_transcript
from tireless.config import CommentPolicy, agent_environment
from tireless.delivery import Ending
from tireless.entities import (
    AgentRun,
    Claim,
    ClaimLost,
    EventKind,
    IllegalTransition,
    Issue,
    Job,
    JobKind,
    JobState,
    NewWrite,
    Outcome,
    Phase,
    TirelessError,
    TrackedRepo,
    Usage,
)
from tireless.forge import (
    ForgeClient,
    ForgeError,
    Gate,
    Limited,
    Moved,
    NotFound,
    client_for,
)
from tireless.governor import Next
from tireless.labels import is_opted_in
from tireless.lease import LeaseKeeper, patience
from tireless.process import ChildContext
from tireless.redact import Redactor, secrets_in
from tireless.store import budgets, jobs, lanes, refusals, repos, runs, workers, writes
from tireless.store.connection import Link, is_outage, through_outage
from tireless.store.queries import Connection
from tireless.who import Askers, Judgement
from tireless.workspace import (
    BranchMoved,
    Cancelled,
    Checkout,
    DiskFull,
    Mirror,
    NotCollected,
    Remote,
    RemoteUnreachable,
    TooLarge,
    UnsafeWorkspace,
    Workspaces,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_LEAST_ROOM_BYTES = 64 * 1024
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_USAGE_SECONDS = 10.0
_GUARD_SECONDS = 2.0  # for the guard of an earlier run to leave; it looks for its runner each second
_STOP_GRACE_SECONDS = 1.0  # for an agent on a fast stop: the rest of process.STOP_SECONDS is for the row
_JUDGED_SECONDS = 60.0  # who set the label is not asked again within this time
_PASSING_SECONDS = 60.0  # before a job is tried again after a fault that is not its own


class _Leave(Exception):
    """The work ends here; `stop` is what its agent is told."""

    stop = StopReason.DRAIN

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(why)


class _ClaimGone(_Leave):
    stop = StopReason.CLAIM_LOST


class _Unsure(_Leave):
    stop = StopReason.LEASE_UNSURE


class _Stopped(_Leave):
    stop = StopReason.DRAIN


class _Cancelled(_Leave):
    stop = StopReason.CANCELLED


class _Withdrawn(_Leave):
    stop = StopReason.CANCELLED


class _NotEntitled(_Leave):
    """Who set the label may not start work."""

    stop = StopReason.CANCELLED

    def __init__(self, judgement: Judgement) -> None:
        self.judgement = judgement
        super().__init__(judgement.why)


class _Passing(_Leave):
    """A fault that is not the job's and goes by itself."""

    def __init__(self, why: str, seconds: float = _PASSING_SECONDS) -> None:
        self.seconds = seconds
        super().__init__(why)


class _Requeue(_Leave):
    """Back to pending by the governor's word; already in the row."""


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
        self._ctx = ctx
        self._config = ctx.config
        self._claim = claim
        self._job: Job = claim.job
        self._keeper = keeper
        self._sandbox = sandbox
        self._gate = gate
        self._link = Link(
            url,
            timeout=self._config.database.connect_timeout_seconds,
            name=workers.session_name(claim.worker, "work"),
            patience=patience(self._config),
        )
        self._agent_kind = claim.job.claimed_lane or claim.job.lane
        agent_env = agent_environment(self._config.lane[self._agent_kind])
        self._secrets = (*self._config.secrets(), *secrets_in(agent_env))
        self._redactor = Redactor(self._secrets)
        self._client_made: ForgeClient | None = None
        self._askers_made: Askers | None = None
        self._judged: Judgement | None = None
        self._judged_at = float("-inf")
        self._repo_row: TrackedRepo | None = None
        self._paid = False  # past the agent: a cancel or a stop no longer throws the work away
        self._workspaces = Workspaces(
            self._config.state_dir,
            self._config.git,
            timeout=self._config.runner.git_timeout_seconds,
            beat=self._beat,
            should_stop=self._should_stop,
            owner=(sandbox.account.uid, sandbox.account.gid) if sandbox.account is not None else None,
        )

    def run(self) -> None:
        try:
            self._phases()
        except _Leave as e:
            self._leave(e)
        except (ClaimLost, IllegalTransition) as e:
            self._leave(_ClaimGone(str(e)))
        except Exception as e:
            self._leave(self._as_leave(e) or e)
        finally:
            self._link.close()
            if self._client_made is not None:
                self._client_made.close()

    def _phases(self) -> None:
        steps: dict[Phase, Callable[[], None]] = {
            Phase.PREPARE: self._prepare,
            Phase.AGENT: self._agent,
            Phase.VERIFY: self._verify,
            Phase.PUSH: self._push,
            Phase.ANNOUNCE: self._announce,
        }
        self._job = self._db(lambda c: jobs.transition(c, self._claim, JobState.RUNNING))
        self._begin_anew_if_the_work_is_elsewhere()
        while self._job.phase is not Phase.DONE:
            self._paid = self._job.phase in (Phase.PUSH, Phase.ANNOUNCE)
            self._check()
            steps[self._job.phase]()

    def _begin_anew_if_the_work_is_elsewhere(self) -> None:
        here = self._job.work_host in (None, self._config.host)
        if self._job.phase in (Phase.AGENT, Phase.VERIFY, Phase.PUSH) and not here:
            log.warning("work is on a host that is gone job=%s host=%s", self._job.id, self._job.work_host)
            self._advance(Phase.PREPARE)

    # -- the phases --------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._look()
        self._judge_asker()
        with_start = delivery.writes_for_start(self._config, self._job)
        self._db(lambda c: _queue(c, self._job, with_start))
        self._drain_writes()
        mirror = self._mirror()
        checkout = self._checkout(mirror)
        self._advance(
            Phase.AGENT,
            branch=checkout.branch,
            base_commit=checkout.base_commit,
            work_host=self._config.host,
        )

    def _agent(self) -> None:
        checkout = self._checkout(self._mirror_as_it_is())
        run, conclusion = self._earlier_conclusion(checkout) or self._run_agent(checkout)
        self._settle(checkout, run, conclusion)

    def _verify(self) -> None:
        ending = self._ending()
        if self._job.kind is not JobKind.IMPLEMENT:
            self._advance(Phase.ANNOUNCE)
            return
        mirror = self._mirror_as_it_is()
        checkout = self._checkout(mirror)
        self._sandbox.reclaim(self._places(checkout, mirror))
        message = f"{delivery.pull_request_title(self._job)}\n\nIssue #{self._job.issue.number}"
        try:
            collected = self._workspaces.collect(checkout, mirror, message)
        except (TooLarge, UnsafeWorkspace) as e:  # the same tomorrow: a person has to look
            ending = dataclasses.replace(
                ending, state=JobState.FAILED, why=f"The work cannot be delivered: {e}."
            )
            self._advance(Phase.ANNOUNCE, result=ending.to_json())
            return
        if not collected.changed:
            if ending.state is JobState.DELIVERED:
                why = "The agent reported success but changed nothing."
                ending = dataclasses.replace(ending, state=JobState.FAILED, why=why)
            self._advance(Phase.ANNOUNCE, result=ending.to_json())
            return
        leaked = self._workspaces.leaks(mirror, collected, self._secrets)
        if leaked:
            ending = verdict.leaking(leaked, self._job.id).masked(self._redactor)
            self._advance(Phase.ANNOUNCE, result=ending.to_json())
            return
        ending = dataclasses.replace(ending, diffstat=collected.diffstat.text, notes=verdict.notes(collected))
        command = self._repo().verify_command
        if command and ending.state is JobState.DELIVERED:
            ending = self._verified(command, checkout, mirror, ending)
        ending = ending.masked(self._redactor)
        self._advance(Phase.PUSH, head_commit=collected.head_commit, result=ending.to_json())

    def _push(self) -> None:
        self._look(lenient=True)
        branch, head = self._job.branch, self._job.head_commit
        assert branch is not None
        assert head is not None
        try:
            self._workspaces.push(
                self._mirror_as_it_is(), self._remote(), self._job.id, branch, head, self._repo().default_branch
            )
        except BranchMoved as e:
            ending = dataclasses.replace(self._ending(), state=JobState.BLOCKED, why=str(e))
            self._advance(Phase.ANNOUNCE, result=ending.to_json())
            return
        except NotCollected as e:
            log.warning("collected work is gone, beginning anew job=%s why=%s", self._job.id, e)
            self._advance(Phase.PREPARE)
            return
        self._advance(Phase.ANNOUNCE)

    def _announce(self) -> None:
        ending = self._ending()
        new = delivery.writes_for_ending(self._config, self._job, ending, self._repo().default_branch)
        error = ending.why if ending.state is not JobState.DELIVERED else None
        self._job = self._db(lambda c: jobs.finish(c, self._claim, ending.state, new, error=error))
        log.info("finished job=%s issue=%s state=%s", self._job.id, self._job.issue, self._job.state)
        self._drain_writes()

    # -- the agent ---------------------------------------------------------------------------------------

    def _earlier_conclusion(self, checkout: Checkout) -> tuple[AgentRun, Conclusion] | None:
        """Of the run that a crash left open, if its files tell that it had ended: paid once."""
        for run in self._db(lambda c: runs.of_job(c, self._job.id)):
            if run.ended_at is not None or run.host != self._config.host:
                continue
            adapter = adapter_for(run.agent)
            self._end_guard(_run_dir(checkout, run.id))
            conclusion = conclude_from(_run_dir(checkout, run.id), adapter)
            if conclusion is not None:
                conclusion = self._masked(conclusion)
                log.info("agent had ended before a crash job=%s run=%s", self._job.id, run.id)
                return run, conclusion
            session = session_of(_run_dir(checkout, run.id), adapter) or run.session_id
            cut_off = Conclusion(Outcome.CRASHED, "was cut off half-way", session_id=session)
            self._end_run(run, cut_off)
            self._seal(checkout, run.id)
        return None

    def _end_guard(self, run_dir: Path) -> None:
        """A guard leaves within moments of its runner. Where it does not, the runner was stopped, not killed, and
        has lost the job to us: its agent is ended."""
        try:
            await_guard(run_dir, _GUARD_SECONDS)
        except StillRunning:
            log.warning("ending the agent of a runner that lost the job job=%s", self._job.id)
            end_job(str(self._job.id))

    def _masked(self, conclusion: Conclusion) -> Conclusion:
        """Its texts may quote what the agent printed."""
        words = conclusion.final_text
        return dataclasses.replace(
            conclusion,
            detail=self._redactor(conclusion.detail),
            final_text=self._redactor(words) if words is not None else None,
        )

    def _end_run(self, run: AgentRun, conclusion: Conclusion) -> None:
        self._db(lambda c: _end_run(c, run.id, self._claim.worker, conclusion))

    def _session_to_resume(self, checkout: Checkout, places: Places) -> str | None:
        earlier = self._db(lambda c: runs.of_job(c, self._job.id))
        for run in reversed(earlier):
            if run.agent is self._agent_kind and run.host == self._config.host and run.session_id:
                known = adapter_for(run.agent).can_resume(run.session_id, places)
                return run.session_id if known and run.outcome is not Outcome.REFUSED else None
        return None

    def _run_agent(self, checkout: Checkout) -> tuple[AgentRun, Conclusion]:
        issue = self._as_asked(self._look())
        places = self._places(checkout, self._mirror_as_it_is())
        session = self._session_to_resume(checkout, places)
        run, conclusion = self._one_run(checkout, places, issue, session)
        if conclusion.unknown_session or conclusion.session_in_use:
            log.warning("session cannot be used, starting afresh job=%s session=%s", self._job.id, session)
            self._end_run(run, conclusion)
            run, conclusion = self._one_run(checkout, places, issue, None)
        return run, conclusion

    def _one_run(
        self, checkout: Checkout, places: Places, issue: Issue, session: str | None
    ) -> tuple[AgentRun, Conclusion]:
        adapter, lane = adapter_for(self._agent_kind), self._config.lane[self._agent_kind]
        run_id = uuid4()
        task = Task(
            str(self._job.id),
            self._job.kind,
            self._prompt(issue, checkout, resumed=session is not None),
            checkout.path,
            checkout.home,
            checkout.report,
            session or str(uuid4()),
            resume=session is not None,
        )
        command = adapter.command(task, lane, places)
        reports.clear(checkout.report)
        run = self._db(lambda c: self._start_run(c, run_id, task))
        self._check()  # stopped meanwhile, we would end the agent of who has the job now
        process = AgentProcess.start(
            command,
            _run_dir(checkout, run_id),
            task.job_id,
            self._sandbox,
            Limits.of(lane, self._config.supervisor),
            adapter=adapter,
            places=places,
        )
        with process:
            left = self._watch(process, run_id)
            conclusion = self._masked(process.conclude())
        if left is not None and (conclusion.outcome is not Outcome.COMPLETED or not self._keeper.trusted):
            self._record_stopped(checkout, run_id, conclusion)
            raise left
        if conclusion.outcome is not Outcome.COMPLETED and _is_full(checkout.run):
            # Not its fault, and what it printed is not all there.
            self._record_stopped(checkout, run_id, conclusion)
            raise _Passing(f"the disk under {self._config.state_dir} is full: the agent {conclusion.detail}")
        return run, conclusion

    def _start_run(self, conn: Connection, run_id: UUID, task: Task) -> AgentRun:
        with conn.transaction():
            run = runs.start(
                conn,
                self._claim,
                run_id,
                self._agent_kind,
                host=self._config.host,
                session_id=task.session_id,
                resumed=task.resume,
            )
            self._hold_by_budget(conn)  # a day's last job is counted when it begins
        return run

    def _watch(self, process: AgentProcess, run_id: UUID | None = None) -> _Leave | None:
        """Turn the loop until the process has ended; why it was stopped, if it was. `run_id`: of an agent, whose use is
        noted."""
        left: _Leave | None = None
        noted, noted_at = Usage(), time.monotonic()
        kill_at = float("inf")
        while not process.ended:
            process.turn(0.5)
            self._ctx.turn()
            if left is None:
                try:
                    self._check()
                except _Leave as e:
                    left = e
                    if isinstance(e, _ClaimGone | _Unsure):
                        process.kill(e.stop)
                    else:
                        process.stop(e.stop)
            if self._ctx.stopping and kill_at == float("inf"):
                kill_at = time.monotonic() + _STOP_GRACE_SECONDS
            if time.monotonic() >= kill_at:
                process.kill(StopReason.DRAIN)
            if run_id is not None and process.usage != noted and time.monotonic() - noted_at >= _USAGE_SECONDS:
                noted, noted_at = process.usage, time.monotonic()
                self._note_usage(run_id, process)
        return left

    def _note_usage(self, run_id: UUID, process: AgentProcess) -> None:
        """While it runs, so that a crash does not lose it. An outage may: the next note holds the totals."""
        try:
            with self._link.connection() as conn:
                runs.note_usage(conn, run_id, process.usage, process.session_id)
        except psycopg.Error as e:
            if not is_outage(e):
                raise

    def _record_stopped(self, checkout: Checkout, run_id: UUID, conclusion: Conclusion) -> None:
        """Best effort: without the database the run is closed by whoever works the job next."""
        try:
            with self._link.connection() as conn:
                _end_run(conn, run_id, self._claim.worker, conclusion)
            self._seal(checkout, run_id)
        except psycopg.Error as e:
            if not is_outage(e):
                raise

    def _settle(self, checkout: Checkout, run: AgentRun, conclusion: Conclusion) -> None:
        """The run has ended: what follows for the job and for the lane, in one transaction with the run's end."""
        job, lease = self._job, self._config.lease
        decision = governor.decide(conclusion, job.attempts, lease.backoff_seconds)
        why = governor.in_words(decision.why)
        spent = not decision.keep_attempt and job.attempts >= job.max_attempts
        ending: Ending | None = None
        if decision.next is Next.JUDGE:
            most = self._config.delivery.max_children
            ending = verdict.judge(job.kind, checkout.report, conclusion.final_text, most)
        elif decision.next is Next.SAVE:
            ending = Ending(JobState.BLOCKED, why=f"{why}.", summary=conclusion.final_text)
        elif decision.next is Next.FAIL or spent:
            tried = f" Gave up after {job.attempts} attempts." if spent and job.attempts > 1 else ""
            ending = Ending(JobState.FAILED, why=f"{why}.{tried}")
        if ending is not None:
            cost = self._cost_with(run, conclusion)
            ending = dataclasses.replace(ending, cost_usd=cost).masked(self._redactor)

        def record(conn: Connection) -> Job:
            with conn.transaction():
                _end_run(conn, run.id, self._claim.worker, conclusion)
                if decision.hold:
                    probe = decision.hold_until is not None
                    lanes.hold(conn, self._agent_kind, decision.why, until=decision.hold_until, probe=probe)
                elif conclusion.outcome in governor.PROVEN:
                    lanes.end_probe(conn, self._agent_kind)
                self._hold_by_budget(conn)
                if ending is not None:
                    return jobs.advance(conn, self._claim, Phase.VERIFY, result=ending.to_json())
                return jobs.transition(
                    conn,
                    self._claim,
                    JobState.PENDING,
                    error=why,
                    keep_attempt=decision.keep_attempt,
                    delay_seconds=decision.delay_seconds,
                    writes_for=delivery.writes_for_end(self._config),
                )

        self._job = self._db(record)
        self._seal(checkout, run.id)
        if decision.hold:
            log.error(
                "lane held lane=%s until=%s why=%s",
                self._agent_kind,
                decision.hold_until or "resumed by an operator",
                decision.why,
            )
        if ending is None:
            raise _Requeue(decision.why)

    def _hold_by_budget(self, conn: Connection) -> None:
        spending = budgets.spent_today(conn, self._agent_kind, self._job.repo_id)
        for hold in governor.budget_holds(spending) if spending is not None else ():
            if hold.of_lane:
                lanes.hold(conn, self._agent_kind, hold.why, until=hold.until)
            elif self._job.repo_id is not None:
                repos.hold(conn, self._job.repo_id, hold.why, hold.until)

    def _cost_with(self, run: AgentRun, conclusion: Conclusion) -> float | None:
        earlier = [r.usage.cost_usd for r in self._db(lambda c: runs.of_job(c, self._job.id)) if r.id != run.id]
        costs = [c for c in (*earlier, conclusion.usage.cost_usd) if c is not None]
        return sum(costs) if costs else None

    def _prompt(self, issue: Issue, checkout: Checkout, *, resumed: bool) -> str:
        request = prompts.Request(
            self._job.kind,
            self._job.issue.repo_ref.full_name,
            self._job.issue.number,
            issue.title,
            issue.body,
            issue.author,
            checkout.report,
            checkout.default_branch,
            remarks=[] if resumed else self._remarks(issue),
            earlier=self._earlier_work(checkout),
            verify_command=self._repo().verify_command,
            max_children=self._config.delivery.max_children,
        )
        if resumed:
            return prompts.resume_prompt(request)
        text = prompts.build_prompt(request, self._config.prompt.max_chars, secrets.token_hex(8))
        more = self._config.lane[self._agent_kind].append_prompt
        return f"{text}\n{more}\n" if more else text

    def _earlier_work(self, checkout: Checkout) -> prompts.Earlier | None:
        if checkout.start_commit == checkout.base_commit:
            return None
        commits = self._workspaces.commits_between(
            self._mirror_as_it_is(), checkout.base_commit, checkout.start_commit
        )
        earlier = self._db(lambda c: jobs.of_issue(c, self._job.issue))
        url = next((job.pull_request_url for job in earlier if job.pull_request_url), None)
        return prompts.Earlier(checkout.branch, commits, url)

    def _remarks(self, issue: Issue) -> list[prompts.Remark]:
        policy = self._config.prompt.comments
        if policy is CommentPolicy.NONE:
            return []
        found = self._askers().remarks(self._client().list_comments(self._job.issue), self._asked_at())
        kept = [c for c in found if not c.body.startswith("<!-- tireless:")]
        if policy is CommentPolicy.AUTHOR:
            kept = [c for c in kept if c.author.casefold() == issue.author.casefold()]
        return [prompts.Remark(c.author, c.body) for c in kept]

    def _verified(self, command: str, checkout: Checkout, mirror: Mirror, ending: Ending) -> Ending:
        """Run the repository's verify command as the agent ran: its code is in the checkout too."""
        places = self._places(checkout, mirror)
        limits = Limits(
            stall_seconds=self._config.runner.verify_timeout_seconds,
            wall_seconds=self._config.runner.verify_timeout_seconds,
            grace_seconds=self._config.supervisor.stop_grace_seconds,
        )
        process = AgentProcess.start(
            shell_command(command, places, str(self._job.id)),
            checkout.run / f"verify-{self._claim.seq}",
            str(self._job.id),
            self._sandbox,
            limits,
            adapter=Shell(),
            places=places,
        )
        with process:
            left = self._watch(process)
            result = process.conclude()
        if left is not None:
            raise left
        if result.outcome is Outcome.COMPLETED:
            return ending
        tail = self._redactor(result.final_text or "")
        why = f"The verify command `{command}` failed: {result.detail}."
        return dataclasses.replace(ending, state=JobState.FAILED, why=why, verify_tail=tail)

    def _seal(self, checkout: Checkout, run_id: UUID) -> None:
        limit = self._config.lane[self._agent_kind].transcript_mb * 1024 * 1024
        try:
            seal_transcript(_run_dir(checkout, run_id), self._redactor, limit)
        except OSError as e:
            log.error("transcript not sealed job=%s run=%s error=%s", self._job.id, run_id, e)

    # -- the issue, the repository, the workspace ----------------------------------------------------------

    def _look(self, *, lenient: bool = False) -> Issue:
        """The issue as it is now: closed, unlabelled, moved, or a pull request, it is withdrawn work."""
        protocol, ref = self._config.labels, self._job.issue
        try:
            issue = self._client().get_issue(ref)
        except NotFound:
            raise _Withdrawn("the issue is gone, or hidden from the token") from None
        except Moved as e:
            raise _Withdrawn(f"the issue was transferred to {e.issue or e.to}") from None
        except ForgeError as e:
            if lenient:  # the push will find out for itself whether the forge is there
                log.warning("issue not looked at again job=%s error=%s", self._job.id, e)
                return Issue(ref, self._job.title, "", (), True, False, "", "")
            raise
        if issue.is_pull_request:
            raise _Withdrawn("the issue is a pull request now")
        if not issue.is_open:
            raise _Withdrawn("the issue is closed")
        if not is_opted_in(issue.labels, protocol):
            raise _Withdrawn(f"the label {protocol.opt_in} was taken off")
        return issue

    def _judge_asker(self) -> Judgement:
        """Who set the label, if that one may start work; _NotEntitled if not."""
        if self._judged is None or time.monotonic() - self._judged_at > _JUDGED_SECONDS:
            self._judged, self._judged_at = self._askers().judge(), time.monotonic()
        if not self._judged.entitled:
            raise _NotEntitled(self._judged)
        return self._judged

    def _as_asked(self, issue: Issue) -> Issue:
        """The issue as its agent is to see it, if who set the label may start work."""
        self._judge_asker()
        return self._askers().text(issue, self._text())

    def _asked_at(self) -> datetime | None:
        """When the label was set, or else first seen."""
        labelling = self._judge_asker().labelling
        text = self._text()
        known = labelling.at if labelling is not None else None
        return known or (text.seen_at if text is not None else None)

    def _text(self) -> refusals.JobText | None:
        return self._db(lambda c: refusals.text_of(c, self._job.id))

    def _askers(self) -> Askers:
        if self._askers_made is None:
            config = self._config
            self._askers_made = Askers(config.who, config.labels.opt_in, self._client(), self._job.issue)
        return self._askers_made

    def _client(self) -> ForgeClient:
        if self._client_made is None:
            ref = self._job.issue
            entry = self._config.forge_for(ref.forge, ref.host)
            self._client_made = client_for(entry, stop=self._ctx.stop_event, gate=self._gate)
        return self._client_made

    def _repo(self) -> TrackedRepo:
        if self._repo_row is None:
            repo_id = self._job.repo_id
            found = self._db(lambda c: repos.find(c, repo_id=repo_id)) if repo_id is not None else []
            if not found:
                raise _Withdrawn(f"{self._job.issue.repo_ref} is no longer tracked")
            self._repo_row = found[0]
        return self._repo_row

    def _remote(self) -> Remote:
        ref = self._job.issue
        entry = self._config.forge_for(ref.forge, ref.host)
        return Remote(self._repo().clone_url, entry.git_user, entry.token, entry.ca_file)

    def _mirror(self) -> Mirror:
        return self._workspaces.update_mirror(self._job.issue.repo_ref, self._remote())

    def _mirror_as_it_is(self) -> Mirror:
        return self._workspaces.mirror_of(self._job.issue.repo_ref)

    def _checkout(self, mirror: Mirror) -> Checkout:
        branch = self._job.branch or f"{self._config.git.branch_prefix}{self._job.issue.number}"
        found = self._workspaces.find(self._job.id)
        if found is not None:
            return found
        earlier = self._db(lambda c: jobs.of_issue(c, self._job.issue))
        own = [job.head_commit for job in earlier if job.head_commit is not None]
        return self._workspaces.prepare(mirror, self._job.id, branch, self._repo().default_branch, own)

    def _places(self, checkout: Checkout, mirror: Mirror) -> Places:
        return Places(checkout.path, checkout.home, checkout.report, checkout.tmp, mirror.path)

    def _ending(self) -> Ending:
        assert self._job.result is not None
        return Ending.from_json(self._job.result)

    # -- the row -----------------------------------------------------------------------------------------

    def _advance(self, phase: Phase, **facts: Any) -> None:
        self._job = self._db(lambda c: jobs.advance(c, self._claim, phase, **facts))
        log.info("phase job=%s phase=%s", self._job.id, phase)

    def _db(self, action: Callable[[Connection], T]) -> T:
        """Do something on the database, through an outage, for as long as the claim may be trusted."""

        def once() -> T:
            with self._link.connection() as conn:
                return action(conn)

        try:
            return through_outage(
                once, what=f"job {self._job.id}", sleep=self._sleep, give_up=lambda: not self._keeper.trusted
            )
        except psycopg.Error as e:
            if not is_outage(e):
                raise
            self._check()
            raise _Unsure("the database did not answer while the lease was good") from e

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not self._ctx.stopping:
            self._ctx.wait(min(left, 0.5))

    def _drain_writes(self) -> None:
        """Tell the forge now; what does not go through is the poller's to try again."""
        try:
            outbox.drain(
                self._link.connection,
                lambda _: self._client(),
                self._claim.worker,
                job_id=self._job.id,
                give_up=lambda: self._ctx.stopping,
                turn=self._beat,
            )
        except psycopg.Error as e:
            if not is_outage(e):
                raise

    # -- ends --------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        self._ctx.turn()

    def _check(self) -> None:
        """Whether the work may go on; a _Leave if not."""
        self._ctx.turn()
        if self._keeper.lost:
            raise _ClaimGone("a renewal matched no row")
        if not self._keeper.trusted:
            raise _Unsure("the lease could not be renewed")
        if self._keeper.cancel_reason is not None and not self._paid:
            raise _Cancelled(self._keeper.cancel_reason)
        if self._ctx.stopping:
            raise _Stopped("tireless is stopping")

    def _should_stop(self) -> bool:
        try:
            self._check()
        except _Leave:
            return True
        return False

    def _as_leave(self, error: Exception) -> _Leave | None:
        """A fault that is not the job's own, or what made git stop; None for any other."""
        if isinstance(error, Cancelled):
            try:
                self._check()
            except _Leave as e:
                return e
        if isinstance(error, Limited):
            return _Passing(str(error), max(error.retry_after_seconds, _PASSING_SECONDS))
        if isinstance(error, ForgeError) and error.retryable:
            return _Passing(str(error))
        if isinstance(error, RemoteUnreachable | DiskFull | AgentMissing | AgentNotStarted):
            return _Passing(str(error))
        if isinstance(error, OSError) and error.errno in _DISK:
            return _Passing(f"the disk under {self._config.state_dir}: {error}")
        return None

    def _leave(self, why: Exception) -> None:
        """Leave the row as this end demands. Whatever happens here, the lease gets the job back in the end."""
        level = logging.WARNING if isinstance(why, _Passing) else logging.INFO  # somebody may have to mend it
        log.log(level, "leaving job=%s end=%s why=%s", self._job.id, type(why).__name__.lstrip("_"), why)
        try:
            if isinstance(why, _ClaimGone):
                self._note_lost(str(why))
            elif isinstance(why, _Unsure):
                self._requeue_when_possible(str(why))
            elif isinstance(why, _Cancelled | _Withdrawn):
                self._abandon(why.why, by_people=isinstance(why, _Withdrawn))
            elif isinstance(why, _NotEntitled):
                self._decline(why.judgement)
            elif isinstance(why, _Stopped | _Passing):
                delay = why.seconds if isinstance(why, _Passing) else 0.0
                self._requeue(str(why), keep_attempt=True, delay=delay)
            elif not isinstance(why, _Requeue):
                self._fault(why)
        except (ClaimLost, IllegalTransition) as e:
            self._note_lost(str(e))
        except _Leave as e:
            log.warning("left to the lease job=%s why=%s", self._job.id, e)
        except Exception:
            log.exception("left to the lease job=%s", self._job.id)

    def _note_lost(self, why: str) -> None:
        log.error("claim lost job=%s seq=%d why=%s", self._job.id, self._claim.seq, why)
        detail = {"seq": self._claim.seq, "why": why}
        self._wait_for_database(
            lambda c: jobs.add_event(c, self._job.id, EventKind.CLAIM_LOST, self._claim.worker, detail)
        )

    def _requeue_when_possible(self, why: str) -> None:
        def requeue(conn: Connection) -> None:
            jobs.transition(
                conn,
                self._claim,
                JobState.PENDING,
                error=why,
                keep_attempt=True,
                writes_for=delivery.writes_for_end(self._config),
            )

        self._wait_for_database(requeue)

    def _wait_for_database(self, action: Callable[[Connection], Any]) -> None:
        """Through an outage of any length, but not past a stop: the row is then left to the lease."""

        def once() -> None:
            with self._link.connection() as conn:
                action(conn)

        through_outage(once, what=f"job {self._job.id}", sleep=self._sleep, give_up=lambda: self._ctx.stopping)

    def _requeue(self, why: str, *, keep_attempt: bool, delay: float) -> None:
        self._db(
            lambda c: jobs.transition(
                c,
                self._claim,
                JobState.PENDING,
                error=why,
                keep_attempt=keep_attempt,
                delay_seconds=delay,
                writes_for=delivery.writes_for_end(self._config),
            )
        )

    def _abandon(self, reason: str, *, by_people: bool) -> None:
        withdrawn = by_people or reason.startswith(delivery.WITHDRAWN)
        compose = delivery.writes_for_withdrawal if withdrawn else delivery.writes_for_cancel
        new = compose(self._config, self._job, reason)
        self._job = self._db(lambda c: jobs.finish(c, self._claim, JobState.ABANDONED, new, error=reason))
        self._drain_writes()

    def _decline(self, judgement: Judgement) -> None:
        """End the job without an agent run, and remember the label that was not good enough."""
        job, labelling = self._job, judgement.labelling
        new = delivery.writes_for_refusal(self._config, job, judgement.why)

        def record(conn: Connection) -> Job:
            with conn.transaction():
                ended = jobs.finish(conn, self._claim, JobState.ABANDONED, new, error=judgement.why)
                if job.repo_id is not None:
                    refusals.add(conn, job.repo_id, job.issue.number, labelling.id if labelling else None)
            return ended

        self._job = self._db(record)
        self._drain_writes()

    def _fault(self, error: Exception) -> None:
        """The job's own fault, or ours: again with backoff, or failed with the reason once attempts are used up."""
        if not isinstance(error, TirelessError):
            log.error("fault job=%s", self._job.id, exc_info=error)
        why = self._redactor(f"{type(error).__name__}: {error}")[:2000]
        job, lease = self._job, self._config.lease
        if job.attempts < job.max_attempts:
            delay = governor.backoff(job.attempts, lease.backoff_seconds)
            self._requeue(why, keep_attempt=False, delay=delay)
            return
        ending = Ending(JobState.FAILED, why=f"Gave up after {job.attempts} attempts. The last: {why}")
        new = delivery.writes_for_ending(self._config, job, ending, "")
        self._db(lambda c: jobs.finish(c, self._claim, JobState.FAILED, new, error=ending.why))
        self._drain_writes()


def _is_full(directory: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=directory) as f:
            f.write(b"x" * _LEAST_ROOM_BYTES)
            f.flush()
            os.fsync(f.fileno())
    except OSError as e:
        return e.errno in _DISK
    return False


def _run_dir(checkout: Checkout, run_id: UUID) -> Path:
    return checkout.run / str(run_id)


def _queue(conn: Connection, job: Job, new: list[NewWrite]) -> None:
    with conn.transaction():
        writes.add(conn, job, new)


def _end_run(conn: Connection, run_id: UUID, worker: str, conclusion: Conclusion) -> None:
    runs.end(
        conn,
        run_id,
        worker,
        conclusion.outcome,
        detail=conclusion.detail,
        exit_code=conclusion.exit_code,
        usage=conclusion.usage,
        session_id=conclusion.session_id,
    )
