"""The agent's part of a job: a run that a crash left open is concluded or resumed; else a new one is started,
watched and concluded; then what follows for the job and its lane is written in one transaction with the run's end."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import time
from datetime import datetime
from pathlib import Path
from typing import TypeAlias
from uuid import UUID, uuid4

from tireless import delivery, governor
from tireless.agents import adapter_for
from tireless.agents import prompt as prompts
from tireless.agents import report as reports
from tireless.agents.base import Conclusion, Limits, Places, StopReason, Task
from tireless.agents.conclusion import StillRunning, await_guard, conclude_from, session_of
from tireless.agents.process import AgentProcess, end_job
from tireless.agents.sandbox import Sandbox
from tireless.agents.shell import Shell, shell_command
from tireless.agents.transcript import seal_transcript
from tireless.budgeting import hold_used_up
from tireless.delivery import Ending
from tireless.entities import AgentRun, Issue, Job, JobState, Outcome, Phase, Usage
from tireless.governor import Next
from tireless.redact import Redactor
from tireless.store import claims, lanes, runs, writes
from tireless.store.queries import Connection
from tireless.work import verdict
from tireless.work.in_hand import InHand
from tireless.work.leaving import PASSING_SECONDS, ClaimGone, Leave, Passing, Requeued, Unsure
from tireless.work.subject import Subject
from tireless.work.workplace import Workplace, run_dir
from tireless.workspace import Checkout

log = logging.getLogger(__name__)

_CANNOT_RUN = (126, 127)  # a shell's words for a program that is not there, or is none
_USAGE_SECONDS = 10.0
_ROOM_SECONDS = 0.5  # between two looks at the room on the disk
_ROOM_SHARE = 10.0  # times what a look took, before the next one
_GUARD_SECONDS = 2.0  # for the guard of an earlier run to leave; it looks for its runner each second
_STOP_GRACE_SECONDS = 1.0  # for an agent on a fast stop: the rest of process.STOP_SECONDS is for the row

Ended: TypeAlias = tuple[AgentRun, Conclusion]


class Attempt:
    """Runs the agent of the job in hand, and its repository's verify command."""

    def __init__(
        self, hand: InHand, subject: Subject, workplace: Workplace, sandbox: Sandbox, redactor: Redactor
    ) -> None:
        self._hand = hand
        self._config = hand.config
        self._lane = hand.lane
        self._subject = subject
        self._workplace = workplace
        self._sandbox = sandbox
        self._redactor = redactor

    def run(self) -> None:
        """To the end of the agent's part: the row is at verify, or a Leave is raised."""
        checkout = self._workplace.checkout()
        ended = self._earlier(checkout)
        if ended is None:
            crowded = self._workplace.took_the_room(alone=False)
            if crowded is not None:  # from before a crash, or faster than it could be stopped
                ending = Ending(JobState.BLOCKED, why=f"The agent's work is not gone on with: {crowded}.")
                self._hand.advance(Phase.VERIFY, result=ending.to_json())
                return
            self._workplace.demand_room()
            ended = self._run_agent(checkout)
        self._settle(checkout, *ended)

    def verified(self, command: str, checkout: Checkout, ending: Ending) -> Ending:
        """Run the repository's verify command as the agent ran: its code is in the checkout too."""
        places = self._workplace.places(checkout)
        limits = Limits(
            stall_seconds=self._config.runner.verify_timeout_seconds,
            wall_seconds=self._config.runner.verify_timeout_seconds,
            grace_seconds=self._config.supervisor.stop_grace_seconds,
        )
        job_id = str(self._hand.job.id)
        process = AgentProcess.start(
            shell_command(command, places, job_id),
            checkout.run / f"verify-{self._hand.claim.seq}",
            job_id,
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
        if self._workplace.room.full and self._workplace.took_the_room() is None:
            raise Passing(
                f"the disk under {self._config.state_dir} is full: the verify command {result.detail}"
            )
        tail = self._redactor(result.final_text or "")
        why = f"The verify command `{command}` failed: {result.detail}."
        return dataclasses.replace(ending, state=JobState.FAILED, why=why, verify_tail=tail)

    # -- a run that a crash left open --------------------------------------------------------------------

    def _earlier(self, checkout: Checkout) -> Ended | None:
        """Its conclusion, if its files tell that it had ended: paid once."""
        job = self._hand.job
        for run in self._runs():
            if run.ended_at is not None or run.host != self._config.host:
                continue
            adapter = adapter_for(run.agent)
            self._end_guard(run_dir(checkout, run.id))
            conclusion = conclude_from(run_dir(checkout, run.id), adapter)
            if conclusion is not None:
                log.info("agent had ended before a crash job=%s run=%s", job.id, run.id)
                return run, self._masked(conclusion)
            session = session_of(run_dir(checkout, run.id), adapter) or run.session_id
            self._end_run(run, Conclusion(Outcome.CRASHED, "was cut off half-way", session_id=session))
            self._seal(checkout, run.id)
        return None

    def _end_guard(self, directory: Path) -> None:
        """A guard leaves within moments of its runner. Where it does not, the runner was stopped, not killed, and
        has lost the job to us: its agent is ended."""
        try:
            await_guard(directory, _GUARD_SECONDS)
        except StillRunning:
            log.warning("ending the agent of a runner that lost the job job=%s", self._hand.job.id)
            end_job(str(self._hand.job.id))

    def _session_to_resume(self, places: Places) -> str | None:
        for run in reversed(self._runs()):
            if run.agent is self._lane and run.host == self._config.host and run.session_id:
                known = adapter_for(run.agent).can_resume(run.session_id, places)
                return run.session_id if known and run.outcome is not Outcome.REFUSED else None
        return None

    # -- a new run ---------------------------------------------------------------------------------------

    def _run_agent(self, checkout: Checkout) -> Ended:
        issue = self._subject.as_asked(self._subject.look())
        if self._runs():  # people may have been told since that it waits
            self._subject.tell(*delivery.writes_for_start(self._config, self._hand.job))
        places = self._workplace.places(checkout)
        session = self._session_to_resume(places)
        run, conclusion = self._one_run(checkout, places, issue, session)
        if conclusion.unknown_session or conclusion.session_in_use:
            log.warning("session cannot be used, starting afresh job=%s session=%s", self._hand.job.id, session)
            self._end_run(run, conclusion)
            run, conclusion = self._one_run(checkout, places, issue, None)
        return run, conclusion

    def _one_run(self, checkout: Checkout, places: Places, issue: Issue, session: str | None) -> Ended:
        adapter, lane, job = adapter_for(self._lane), self._config.lane[self._lane], self._hand.job
        run_id = uuid4()
        task = Task(
            str(job.id),
            job.kind,
            self._prompt(issue, checkout, resumed=session is not None),
            checkout.path,
            checkout.home,
            checkout.report,
            session or str(uuid4()),
            resume=session is not None,
        )
        command = adapter.command(task, lane, places)
        reports.clear(checkout.report)
        run = self._hand.db(lambda c: self._start_run(c, run_id, task))
        self._hand.check()  # stopped meanwhile, we would end the agent of who has the job now
        process = AgentProcess.start(
            command,
            run_dir(checkout, run_id),
            task.job_id,
            self._sandbox,
            Limits.of(lane, self._config.supervisor),
            adapter=adapter,
            places=places,
        )
        with process:
            left = self._watch(process, run_id)
            conclusion = self._masked(process.conclude())
        if left is not None and conclusion.outcome is not Outcome.COMPLETED:
            self._record_stopped(checkout, run_id, conclusion)
            raise left
        if left is not None and not self._hand.trusted:
            # Its work is done, and the row not ours to say so. The run stays open: who works the job next concludes
            # it from its files. Closed without the phase that follows, it would be paid for again.
            raise left
        if conclusion.outcome is not Outcome.COMPLETED:
            self._leave_if_not_to_blame(checkout, run_id, conclusion)
        return run, conclusion

    def _leave_if_not_to_blame(self, checkout: Checkout, run_id: UUID, conclusion: Conclusion) -> None:
        """A run that failed for want of something that is this host's to give burns no attempt. It is tried again later
        each time, and not for ever: an agent that always ends like this is to blame."""
        runs_so_far = len(self._runs())
        if runs_so_far > 2 * self._hand.job.max_attempts:
            return
        why = None
        if self._workplace.room.full:  # and what it printed is not all there
            why = f"the disk under {self._config.state_dir} is full: the agent {conclusion.detail}"
        elif (
            conclusion.outcome is Outcome.CRASHED
            and conclusion.exit_code in _CANNOT_RUN
            and conclusion.session_id is None
        ):
            why = f"the agent's program cannot be run here: it {conclusion.detail}"
        if why is not None:
            self._record_stopped(checkout, run_id, conclusion)
            raise Passing(why, governor.backoff(runs_so_far, PASSING_SECONDS))

    def _start_run(self, conn: Connection, run_id: UUID, task: Task) -> AgentRun:
        with conn.transaction():
            run = runs.start(
                conn,
                self._hand.claim,
                run_id,
                self._lane,
                host=self._config.host,
                session_id=task.session_id,
                resumed=task.resume,
            )
            hold_used_up(conn, self._lane, self._hand.job.repo_id)  # a day's last job is counted when it begins
        return run

    def _prompt(self, issue: Issue, checkout: Checkout, *, resumed: bool) -> str:
        job = self._hand.job
        request = prompts.Request(
            job.kind,
            job.issue.repo_ref.full_name,
            job.issue.number,
            issue.title,
            issue.body,
            issue.author,
            checkout.report,
            checkout.default_branch,
            remarks=[] if resumed else self._subject.remarks(issue),
            earlier=self._workplace.earlier_work(checkout),
            verify_command=self._subject.repo.verify_command,
            max_children=self._config.delivery.max_children,
        )
        if resumed:
            return prompts.resume_prompt(request)
        text = prompts.build_prompt(request, self._config.prompt.max_chars, secrets.token_hex(8))
        more = self._config.lane[self._lane].append_prompt
        return f"{text}\n{more}\n" if more else text

    # -- while it runs -----------------------------------------------------------------------------------

    def _watch(self, process: AgentProcess, run_id: UUID | None = None) -> Leave | None:
        """Turn the loop until the process has ended; why it was stopped, if it was. `run_id`: of an agent, whose use is
        noted."""
        left: Leave | None = None
        noted, noted_at = Usage(), time.monotonic()
        kill_at, room_at = float("inf"), time.monotonic()
        while not process.ended:
            process.turn(0.5)
            self._hand.beat()
            if left is None:
                left = self._stop_if_left(process)
            if process.stopping is None and time.monotonic() >= room_at:
                room_at = time.monotonic() + self._stop_if_crowding(process)
            if self._hand.ctx.stopping and kill_at == float("inf"):
                kill_at = time.monotonic() + _STOP_GRACE_SECONDS
            if time.monotonic() >= kill_at:
                process.kill(StopReason.DRAIN)
            if run_id is not None and process.usage != noted and time.monotonic() - noted_at >= _USAGE_SECONDS:
                noted, noted_at = process.usage, time.monotonic()
                self._note_usage(run_id, process)
        return left

    def _stop_if_left(self, process: AgentProcess) -> Leave | None:
        try:
            self._hand.check()
        except (ClaimGone, Unsure) as e:
            process.kill(e.stop)
            return e
        except Leave as e:
            process.stop(e.stop)
            return e
        return None

    def _stop_if_crowding(self, process: AgentProcess) -> float:
        """Stop it if its workspace took the room of all. Seconds until the next look: sizes are dear to take."""
        began = time.monotonic()
        try:
            why = self._workplace.took_the_room()
        except OSError as e:
            log.warning("room on the disk not known job=%s error=%s", self._hand.job.id, e)
            return _ROOM_SECONDS
        if why is not None:
            log.warning("stopping the agent job=%s why=%s", self._hand.job.id, why)
            process.stop(StopReason.DISK)
        return max(_ROOM_SECONDS, _ROOM_SHARE * (time.monotonic() - began))

    def _note_usage(self, run_id: UUID, process: AgentProcess) -> None:
        """While it runs, so that a crash does not lose it. An outage may: the next note holds the totals."""
        usage, session = process.usage, process.session_id
        self._hand.db_if_there(lambda c: runs.note_usage(c, run_id, usage, session))

    def _record_stopped(self, checkout: Checkout, run_id: UUID, conclusion: Conclusion) -> None:
        """Best effort: without the database the run is closed by whoever works the job next."""
        worker = self._hand.claim.worker
        if self._hand.db_if_there(lambda c: _end_run(c, run_id, worker, conclusion)):
            self._seal(checkout, run_id)

    # -- once it has ended -------------------------------------------------------------------------------

    def _settle(self, checkout: Checkout, run: AgentRun, conclusion: Conclusion) -> None:
        """What follows for the job and for the lane, in one transaction with the run's end."""
        job = self._hand.job
        decision = governor.decide(conclusion, job.attempts, self._config.lease.backoff_seconds)
        ending = self._ending(checkout, run, conclusion, decision)

        def record(conn: Connection) -> Job:
            with conn.transaction():
                _end_run(conn, run.id, self._hand.claim.worker, conclusion)
                until: datetime | None = None
                if decision.hold:
                    probe = decision.hold_until is not None
                    until = lanes.hold(conn, self._lane, decision.why, until=decision.hold_until, probe=probe)
                elif conclusion.outcome in governor.PROVEN:
                    lanes.end_probe(conn, self._lane)
                hold_used_up(conn, self._lane, job.repo_id)
                if ending is not None:
                    return claims.advance(conn, self._hand.claim, Phase.VERIFY, result=ending.to_json())
                waiting = claims.transition(
                    conn,
                    self._hand.claim,
                    JobState.PENDING,
                    error=governor.in_words(decision.why),
                    keep_attempt=decision.keep_attempt,
                    delay_seconds=decision.delay_seconds,
                    writes_for=delivery.writes_for_end(self._config),
                )
                if decision.hold and not waiting.state.terminal:
                    why = governor.in_words(decision.why)
                    told = delivery.writes_for_wait(self._config, waiting, why, until)
                    writes.add(conn, waiting, told)
                return waiting

        self._hand.job = self._hand.db(record)
        self._seal(checkout, run.id)
        if decision.hold:
            self._subject.tell()
            until = decision.hold_until or "resumed by an operator"
            log.error("lane held lane=%s until=%s why=%s", self._lane, until, decision.why)
        if ending is None:
            raise Requeued(decision.why)

    def _ending(
        self, checkout: Checkout, run: AgentRun, conclusion: Conclusion, decision: governor.Decision
    ) -> Ending | None:
        """What the job comes to; None if it is to be tried again."""
        job, why = self._hand.job, governor.in_words(decision.why)
        spent = not decision.keep_attempt and job.attempts >= job.max_attempts
        if decision.next is Next.JUDGE:
            most = self._config.delivery.max_children
            ending = verdict.judge(job.kind, checkout.report, conclusion.final_text, most)
        elif decision.next is Next.SAVE:
            ending = Ending(JobState.BLOCKED, why=f"{why}.", summary=conclusion.final_text)
        elif decision.next is Next.FAIL or spent:
            tried = f" Gave up after {job.attempts} attempts." if spent and job.attempts > 1 else ""
            ending = Ending(JobState.FAILED, why=f"{why}.{tried}")
        else:
            return None
        return dataclasses.replace(ending, cost_usd=self._cost_with(run, conclusion)).masked(self._redactor)

    def _cost_with(self, run: AgentRun, conclusion: Conclusion) -> float | None:
        earlier = [r.usage.cost_usd for r in self._runs() if r.id != run.id]
        costs = [c for c in (*earlier, conclusion.usage.cost_usd) if c is not None]
        return sum(costs) if costs else None

    # -- its records -------------------------------------------------------------------------------------

    def _runs(self) -> list[AgentRun]:
        return self._hand.db(lambda c: runs.of_job(c, self._hand.job.id))

    def _end_run(self, run: AgentRun, conclusion: Conclusion) -> None:
        self._hand.db(lambda c: _end_run(c, run.id, self._hand.claim.worker, conclusion))

    def _masked(self, conclusion: Conclusion) -> Conclusion:
        """Its texts may quote what the agent printed."""
        words = conclusion.final_text
        return dataclasses.replace(
            conclusion,
            detail=self._redactor(conclusion.detail),
            final_text=self._redactor(words) if words is not None else None,
        )

    def _seal(self, checkout: Checkout, run_id: UUID) -> None:
        limit = self._config.lane[self._lane].transcript_mb * 1024 * 1024
        try:
            seal_transcript(run_dir(checkout, run_id), self._redactor, limit)
        except OSError as e:
            log.error("transcript not sealed job=%s run=%s error=%s", self._hand.job.id, run_id, e)


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
