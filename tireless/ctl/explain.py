"""explain: why a job does not run, in one sentence. What is known is gathered first; the judgement is pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from tireless import process, standing
from tireless.config import Config, variable_shown
from tireless.ctl import documents, lookup
from tireless.ctl.commands import Group
from tireless.ctl.output import age, clean, plural, seconds, short_ids, when
from tireless.ctl.session import Exit, Refused, Session, clock
from tireless.entities import (
    ForgeWrite,
    Job,
    JobState,
    Lane,
    PollResult,
    PollSchedule,
    TrackedRepo,
    WorkerRole,
    WriteOp,
    WriteState,
)
from tireless.governor import BudgetHold, budget_holds
from tireless.store import budgets, jobs, lanes, refusals, repos, workers, writes
from tireless.store.budgets import Spending
from tireless.store.queries import Connection
from tireless.store.workers import Worker

MORE = """\
For a job that waits: what holds it back. For an issue without one: why there is none. The first reason is the
one to act on; others that apply too follow it.

examples
  tireless-ctl explain acme/site#7
  tireless-ctl explain 3f2a --json
"""
# How long a job whose workspace is on one host's disk waits for that host (store/sql/claim_next.sql).
_NO_LOGIN = ("not logged in", "refuses the key")  # as tireless/agents word Outcome.NOT_AUTHENTICATED
LABEL_REFUSED = (
    "the issue's label was set by somebody who may not start work (who.require); somebody who may takes it off and "
    "sets it again"
)


@dataclass(frozen=True, slots=True)
class Reason:
    code: str  # stable, for programs
    text: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What rows tell about a job, all read at `now`, by the database's clock."""

    now: datetime
    job: Job
    lane: Lane | None
    repo: TrackedRepo | None
    repo_running: int  # jobs of its repository in somebody's hands
    alive: Sequence[Worker]  # processes that are there, of all hosts
    ahead: int  # jobs of its lane that go before it
    writes: Sequence[ForgeWrite] = ()
    lane_off_in: str | None = None  # the configuration of this host, if it gives the lane no runner
    label_refused: bool = False  # whoever set the issue's label may not start work
    wake_seconds: float = 60.0
    host_gone: timedelta = timedelta(hours=1)  # for so long others leave it to the host that has its workspace
    holder_gone: bool = False  # the process that holds the job has ended, as this host can tell for sure
    keys: Sequence[str] = ()  # what the lane's agent is given of the environment, by this host's configuration
    spending: Spending | None = None  # of the UTC day; None where neither lane nor repository has a budget

    @property
    def runners(self) -> list[Worker]:
        return standing.runners(self.job.lane, self.alive)

    @property
    def able(self) -> list[Worker]:
        """The runners that take this job, now or after the one in hand."""
        return standing.takers(self.job.lane, self.alive, needs_agent=self.job.phase.needs_agent)

    def used_up(self, *, of_lane: bool) -> BudgetHold | None:
        """The budget that is used up, of the lane or of the repository."""
        holds = budget_holds(self.spending) if self.spending is not None else ()
        return next((hold for hold in holds if hold.of_lane is of_lane), None)


def register(group: Group) -> None:
    command = group.add("explain", run, "why a job does not run, in one sentence", MORE)
    command.add_argument("job", metavar="JOB", help="an id, the beginning of one, or OWNER/NAME#NUMBER")


def run(session: Session) -> int:
    issue = lookup.parse_issue(session.args.job, session.config)
    with session.database() as conn:
        if issue is not None and not lookup.jobs_of_issue(conn, issue):
            reasons = [_why_no_job(session, conn, issue)]
            job, called = None, session.args.job
        else:
            job = lookup.job(conn, session.args.job, session.config)
            called = lookup.names(conn).of(job.issue)
            reasons = why(gather(session, conn, job))
    document = {
        "job": documents.job(job) if job is not None else None,
        "reason": reasons[0].code,
        "text": reasons[0].text,
        "also": [{"reason": r.code, "text": r.text} for r in reasons[1:]],
    }
    name = f"{called} ({job.state})" if job else called
    lines = [f"{name}: {reasons[0].text}", *(f"also: {reason.text}" for reason in reasons[1:])]
    session.out.give(document, "\n".join(clean(short_ids(line)) for line in lines))
    return Exit.OK


def gather(session: Session, conn: Connection, job: Job) -> Facts:
    now = clock(conn)
    place = jobs.place_of(conn, job.id)
    repo = next(iter(repos.find(conn, repo_id=job.repo_id)), None) if job.repo_id is not None else None
    refused = refusals.of_repo(conn, repo.id) if repo is not None else {}
    return Facts(
        now=now,
        job=job,
        lane=next((lane for lane in lanes.all_lanes(conn) if lane.lane is job.lane), None),
        repo=repo,
        repo_running=place.repo_running,
        alive=session.living(conn),
        lane_off_in=standing.lane_off_in(session.config, job.lane),
        ahead=place.ahead,
        label_refused=job.issue.number in refused,
        writes=writes.of_job(conn, job.id),
        wake_seconds=session.config.runner.listening_seconds,
        holder_gone=process.is_dead(job.claimed_by or "", session.config.host) is True,
        keys=session.config.lane[job.lane].env_from,
        host_gone=timedelta(seconds=session.config.lease.host_gone_seconds),
        spending=budgets.spent_today(conn, job.lane, job.repo_id),
    )


def why(facts: Facts) -> list[Reason]:
    """The reasons, the one to act on first; never empty."""
    if facts.job.state.terminal:
        refused = [Reason("label_refused", LABEL_REFUSED)] if facts.label_refused else []
        return [_ended(facts.job), *refused, *_outbox(facts)]
    if facts.job.state.held:
        return [_in_hand(facts), *_outbox(facts)]
    found = [*_lane(facts), *_workers(facts), *_repository(facts), *_job(facts), *_queue(facts)]
    soon = f"nothing holds it back: a runner takes it within {seconds(facts.wake_seconds)}"
    return [*(found or [Reason("ready", soon)]), *_outbox(facts)]


def _lane(facts: Facts) -> list[Reason]:
    lane, name = facts.lane, facts.job.lane
    if lane is None:
        return [Reason("lane_missing", f"lane {name} has no row: no supervisor has ever started with it")]
    found = []
    if lane.paused:
        text = f"lane {name} is paused ({lane.pause_reason}); tireless-ctl lane resume {name} ends that"
        found.append(Reason("lane_paused", text))
    if lane.held and lane.held_until is None:
        text = f"lane {name} is held until an operator resumes it ({lane.hold_reason}); {_way_out(facts, lane)}"
        found.append(Reason("lane_held", text))
    elif lane.held and lane.held_until is not None and lane.held_until > facts.now:
        found.append(_held_lane(facts, lane, lane.held_until))
    if lane.probing and not found and lane.running > 0:
        found.append(
            Reason("lane_probing", f"lane {name} had a usage limit: one job goes first, and is running")
        )
    if lane.cap == 0:
        text = f"the cap of lane {name} is 0; tireless-ctl lane cap {name} N raises it"
        found.append(Reason("lane_cap_zero", text))
    return found


def _way_out(facts: Facts, lane: Lane) -> str:
    """Out of a hold without an end. The agents' own words tell whether the key is to blame (governor.py has the two
    kinds of them; the third is the operator's own)."""
    resume = f"tireless-ctl lane resume {lane.lane}"
    reason = (lane.hold_reason or "").casefold()
    if not any(words in reason for words in _NO_LOGIN):
        return resume
    names = f" ({', '.join(map(variable_shown, facts.keys))})" if facts.keys else ""
    return (
        f"renew the key that lane.{lane.lane}.env_from names{names}, restart tireless-supervisor, which reads the "
        f"environment at its start, then {resume}"
    )


def _held_lane(facts: Facts, lane: Lane, until: datetime) -> Reason:
    text = f"lane {lane.lane} is held until {when(until)} ({lane.hold_reason})"
    used_up = facts.used_up(of_lane=True)
    if used_up is not None and used_up.until == until:
        more = f"; tireless-ctl lane budget {lane.lane} raises it, lane resume {lane.lane} ends the hold alone"
        return Reason("lane_budget", text + more)
    return Reason("lane_held", f"{text}; it lifts by itself")


def _workers(facts: Facts) -> list[Reason]:
    job = facts.job
    stop = standing.no_taker(
        job.lane, facts.alive, facts.lane_off_in, needs_agent=job.phase.needs_agent, named=True
    )
    return [Reason(stop.code, stop.why)] if stop is not None else []


def _repository(facts: Facts) -> list[Reason]:
    repo = facts.repo
    if repo is None:
        return [Reason("repo_untracked", "its repository is no longer tracked")]
    found = []
    if not repo.schedule.enabled:
        text = f"its repository is disabled; tireless-ctl repo enable {repo.ref.full_name}"
        found.append(Reason("repo_disabled", text))
    if repo.held_until is not None and repo.held_until > facts.now:
        text = f"its repository is held until {when(repo.held_until)} ({repo.hold_reason})"
        code = "repo_budget" if facts.used_up(of_lane=False) is not None else "repo_held"
        found.append(Reason(code, f"{text}; tireless-ctl repo resume {repo.ref.full_name} ends that"))
    until = quiet_until(repo.schedule, facts.now)
    if until is not None:
        found.append(Reason("repo_quiet", f"its repository has quiet hours until {until}"))
    if repo.max_running is not None and facts.repo_running >= repo.max_running:
        text = f"its repository is at its own limit of {plural(repo.max_running, 'job')} at once"
        found.append(Reason("repo_limit", text))
    return found


def quiet_until(schedule: PollSchedule, now: datetime) -> str | None:
    """The end of the quiet hours on the wall, if it is quiet now; as tireless_is_quiet of the schema has it."""
    start, end = schedule.quiet_from, schedule.quiet_until
    if start is None or end is None or start == end:
        return None
    wall = now.astimezone(ZoneInfo(schedule.quiet_zone)).time().replace(tzinfo=None)
    quiet = start <= wall < end if start < end else wall >= start or wall < end
    return f"{end:%H:%M} {schedule.quiet_zone}" if quiet else None


def _job(facts: Facts) -> list[Reason]:
    job = facts.job
    found = []
    if job.run_at > facts.now:
        text = f"it waits until {when(job.run_at)} after {plural(job.attempts, 'attempt')}"
        found.append(Reason("backoff", text + (f": {job.last_error}" if job.last_error else "")))
    hosts = {w.host for w in facts.able}
    others_from = job.updated_at + facts.host_gone
    if job.work_host is not None and hosts and job.work_host not in hosts and facts.now < others_from:
        text = (
            f"its workspace is on {job.work_host}, where {_why_not_there(facts, job.work_host)}; other hosts begin it "
            f"anew from {when(others_from)}"
        )
        found.append(Reason("work_elsewhere", text))
    return found


def _why_not_there(facts: Facts, host: str) -> str:
    """Why no runner of a host takes the job."""
    there = [w for w in facts.runners if w.host == host]
    if any(w.draining_since is not None for w in there):
        return "its runners drain"
    waits_for = next((w.waits_for for w in there), None)
    return "no runner is alive" if waits_for is None else f"its agent cannot be started ({waits_for})"


def _queue(facts: Facts) -> list[Reason]:
    lane = facts.lane
    if lane is None or lane.cap == 0:
        return []
    if lane.running >= lane.cap:
        text = f"lane {lane.lane} is full: {lane.running} of {lane.cap} running"
        if facts.ahead:
            text += f", and {plural(facts.ahead, 'job')} before it"
        return [Reason("lane_full", text)]
    if facts.able and all(w.job_id is not None for w in facts.able):
        text = f"all runners of lane {lane.lane} ({len(facts.able)}) are at work"
        if facts.ahead:
            text += f", and {plural(facts.ahead, 'job')} before it"
        return [Reason("runners_busy", text)]
    if facts.ahead:
        return [Reason("queued", f"{plural(facts.ahead, 'job')} of its lane go before it")]
    return []


def _in_hand(facts: Facts) -> Reason:
    job = facts.job
    if job.claim_expires_at is not None and job.claim_expires_at < facts.now:
        text = f"the lease of {job.claimed_by} has run out; a poller takes the job back at its next sweep"
        if not any(w.role is WorkerRole.POLLER for w in facts.alive):
            text = (
                f"the lease of {job.claimed_by} has run out and no poller is alive; start tireless-supervisor"
            )
        return Reason("lease_expired", text)
    if facts.holder_gone:
        return Reason("runner_gone", _gone(facts))
    if job.cancel_requested_at is not None:
        text = f"it was asked to stop {age(job.cancel_requested_at, facts.now)} ({job.cancel_reason})"
        return Reason("stopping", text)
    return Reason("running", f"it runs: phase {job.phase}, attempt {job.attempts}, held by {job.claimed_by}")


def _gone(facts: Facts) -> str:
    """A supervisor takes back what its runners held; where it has ended as well, its next start does, or a poller once
    the lease has ended."""
    job = facts.job
    found = process.parse_worker_id(job.claimed_by or "")
    host = found.host if found is not None else "its host"
    text = f"its runner {job.claimed_by} is gone"
    if any(w.host == host for w in facts.alive):
        return f"{text}; the supervisor of {host} takes the job back within seconds"
    text += (
        f", as is all of tireless on {host}; start tireless-supervisor there, which takes the job up at once"
    )
    others = (
        "a poller of another host" if any(w.role is WorkerRole.POLLER for w in facts.alive) else "any poller"
    )
    return f"{text}, or else the lease ends at {when(job.claim_expires_at)}, and {others} takes it back then"


def _ended(job: Job) -> Reason:
    text = f"it ended as {job.state} at {when(job.finished_at)}"
    if job.state is JobState.DELIVERED:
        return Reason("ended", text + (f": {job.pull_request_url}" if job.pull_request_url else ""))
    text += f": {job.last_error}" if job.last_error else ""
    return Reason("ended", f"{text}; tireless-ctl retry {str(job.id)[:8]} has the issue worked again")


def _outbox(facts: Facts) -> list[Reason]:
    found = []
    waiting = [w for w in facts.writes if w.state is WriteState.WAITING]
    if waiting:
        error = next((w.last_error for w in waiting if w.last_error), None)
        text = f"{plural(len(waiting), 'write')} to its forge {'wait' if len(waiting) > 1 else 'waits'}"
        text += f" (the last error: {error})" if error else ""
        found.append(Reason("write_waiting", f"{text}; until then the issue makes no new job"))
    for write in facts.writes:
        if write.state is WriteState.REFUSED:
            text = f"its forge refused to {_SAID.get(write.op, write.op)}: {write.last_error}"
            if write.op is WriteOp.REMOVE_LABEL:
                text += "; the issue makes no new job until the label is taken off by hand"
            found.append(Reason("write_refused", text))
    return found


_SAID = {
    WriteOp.PULL_REQUEST: "open the pull request",
    WriteOp.STATUS_COMMENT: "write the status comment",
    WriteOp.COMMENT: "write a comment",
    WriteOp.STATE_LABEL: "set the state label",
    WriteOp.ADD_LABEL: "set a label",
    WriteOp.REMOVE_LABEL: "take the opt-in label off",
    WriteOp.CHILD_ISSUE: "open a child issue",
}


# -- an issue without a job -----------------------------------------------------------------------------------


def _why_no_job(session: Session, conn: Connection, issue: lookup.IssuePattern) -> Reason:
    found = [r for r in repos.tracked(conn, disabled_too=True) if issue.repo.matches(r.ref)]
    if not found:
        return Reason(
            "repo_untracked", f"there is no job: {issue.repo} is not tracked; tireless-ctl repo add starts that"
        )
    if len(found) > 1:
        raise Refused(
            f"{issue.repo} is more than one: {', '.join(str(r.ref) for r in found)}; write it in full"
        )
    now = clock(conn)
    polling = any(w.role is WorkerRole.POLLER and session.is_alive(w, now) for w in workers.of_host(conn))
    if issue.number in refusals.of_repo(conn, found[0].id):
        return Reason("label_refused", f"there is no job: {LABEL_REFUSED}")
    return why_no_job(found[0], session.config, polling, now)


def why_no_job(repo: TrackedRepo, config: Config, polling: bool, now: datetime) -> Reason:
    """Why an issue of a tracked repository has never had a job; pure."""
    if not repo.schedule.enabled:
        text = f"its repository is disabled; tireless-ctl repo enable {repo.ref.full_name}"
        return Reason("repo_disabled", f"there is no job: {text}")
    if not polling:
        return Reason("no_poller", "there is no job: no poller is alive on any host; start tireless-supervisor")
    if repo.poll_result is None:
        return Reason("not_polled", "there is no job yet: its repository has not been polled")
    if repo.poll_result not in (PollResult.CHANGED, PollResult.UNCHANGED):
        text = f"there is no job: the last poll of its repository was {repo.poll_result} ({repo.poll_detail})"
        return Reason("poll_failed", text)
    return Reason(
        "not_opted_in",
        f"there is no job: {age(repo.last_polled_at, now)} the poller saw no open issue of that number with the label "
        f"{config.labels.opt_in!r}",
    )
