"""jobs, show, cancel, retry: what waits, runs and has ended, and what an operator may do about it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from tireless.ctl import documents, lookup
from tireless.ctl.commands import Group
from tireless.ctl.output import Cell, Output, age, clean, detail_text, plural, short_ids, when
from tireless.ctl.session import Exit, Refused, Session, clock
from tireless.delivery import writes_for_end
from tireless.entities import (
    TERMINAL_STATES,
    AgentRun,
    ForgeWrite,
    Job,
    JobEvent,
    JobState,
    NewWrite,
    TrackedRepo,
    WriteOp,
    WriteState,
)
from tireless.store import jobs, refusals, repos, runs, writes
from tireless.store.queries import Connection

JOBS_MORE = """\
Newest first. `live` stands for pending, claimed and running, `ended` for the others.

examples
  tireless-ctl jobs --state live
  tireless-ctl jobs --state failed,blocked --repo acme/site --limit 10
  tireless-ctl jobs --json | jq -r '.[] | select(.state == "failed") | .id'
"""
CANCEL_MORE = """\
A job that waits ends at once; one that runs is stopped at its next look, within a minute, its agent with it. The
issue is told, and its opt-in label comes off. Repeating it changes nothing.

examples
  tireless-ctl cancel acme/site#7 --reason "superseded by #9"
"""
RETRY_MORE = """\
A finished job is never opened again: the opt-in label is set on the issue again, as a person would, and the next
poll makes a new job of it, which goes on from the branch that the last one left.

examples
  tireless-ctl retry acme/site#7
"""
_TONES = {
    JobState.CLAIMED: "busy",
    JobState.RUNNING: "busy",
    JobState.DELIVERED: "good",
    JobState.BLOCKED: "bad",
    JobState.FAILED: "bad",
    JobState.ABANDONED: "dim",
}
_LIVE = [state for state in JobState if not state.terminal]
_SHOWN_EVENTS = 12


def register(group: Group, listed_by: str = "jobs") -> None:
    listing = group.add(listed_by, run_jobs, "what waits, runs and has ended", JOBS_MORE)
    listing.add_argument("--state", type=_states, metavar="STATE[,STATE]", help="only these states")
    listing.add_argument("--lane", type=lookup.lane, metavar="LANE", help="only this lane")
    listing.add_argument("--repo", metavar="REPO", help="only this repository")
    listing.add_argument("--limit", type=_limit, default=50, metavar="N", help="at most so many (50)")
    for name, run, help, more in (
        ("show", run_show, "everything about a job", ""),
        ("cancel", run_cancel, "withdraw a job", CANCEL_MORE),
        ("retry", run_retry, "have a finished job's issue worked again", RETRY_MORE),
    ):
        command = group.add(name, run, help, more)
        command.add_argument("job", metavar="JOB", help="an id, the beginning of one, or OWNER/NAME#NUMBER")
        if name == "cancel":
            command.add_argument("--reason", default="cancelled by an operator", help="the issue is told it")


def _states(text: str) -> list[JobState]:
    found: list[JobState] = []
    for word in text.split(","):
        if word in ("live", "ended"):
            found += _LIVE if word == "live" else list(TERMINAL_STATES)
            continue
        try:
            found.append(JobState(word))
        except ValueError:
            known = ", ".join(["live", "ended", *JobState])
            raise argparse.ArgumentTypeError(f"no state {word!r}; there is {known}") from None
    return found


def _limit(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number between 1 and 100000")
    return int(text)


def run_jobs(session: Session) -> int:
    args = session.args
    pattern = lookup.parse_repo(args.repo, session.config) if args.repo else None
    owner, repo = (pattern.owner, pattern.repo) if pattern else (None, None)
    with session.database() as conn:
        found = jobs.find(conn, states=args.state, lane=args.lane, owner=owner, repo=repo, limit=args.limit)
        called = lookup.names(conn)
        now = clock(conn)
    if pattern is not None:
        found = [job for job in found if pattern.matches(job.issue.repo_ref)]
    rows = [_row(job, called, now) for job in found]
    head = ["JOB", "ISSUE", "STATE", "KIND", "LANE", "TRY", "CHANGED", "TITLE"]
    text = session.out.table(head, rows) if rows else _none(args)
    session.out.give([documents.job(job) for job in found], text)
    return Exit.OK


def _none(args: argparse.Namespace) -> str:
    if args.lane or args.repo:
        return "no such job"
    if not args.state:
        return "no job yet"
    named = {tuple(_LIVE): "is live", tuple(TERMINAL_STATES): "has ended"}
    return "no job " + (named.get(tuple(args.state)) or f"is {' or '.join(args.state)}")


def _row(job: Job, called: lookup.Names, now: datetime) -> list[Cell | str]:
    return [
        str(job.id)[:8],
        called.of(job.issue),
        state_cell(job),
        job.kind.value,
        job.lane.value,
        f"{job.attempts}/{job.max_attempts}",
        age(job.updated_at, now),
        clean(job.title, 60),
    ]


def state_cell(job: Job) -> Cell:
    stopping = job.cancel_requested_at is not None and not job.state.terminal
    return Cell(f"{job.state} (stopping)" if stopping else job.state.value, _TONES.get(job.state))


# -- show -----------------------------------------------------------------------------------------------------


def run_show(session: Session) -> int:
    with session.database() as conn:
        job = lookup.job(conn, session.args.job, session.config)
        events = jobs.events(conn, job.id)
        ran = runs.of_job(conn, job.id)
        queued = writes.of_job(conn, job.id)
        now = clock(conn)
    document = {
        **documents.job(job),
        "runs": [documents.run(r) for r in ran],
        "writes": [documents.write(w) for w in queued],
        "events": [documents.event(e) for e in events],
    }
    session.out.give(document, _page(session.out, job, ran, queued, events, now))
    return Exit.OK


def _page(
    out: Output,
    job: Job,
    ran: Sequence[AgentRun],
    queued: Sequence[ForgeWrite],
    events: Sequence[JobEvent],
    now: datetime,
) -> str:
    parts = [out.facts(_facts(job, now))]
    if ran:
        head = ["RUN", "AGENT", "STARTED", "OUTCOME", "TURNS", "USD", "DETAIL"]
        parts.append(out.table(head, [_run_row(run) for run in ran]))
    if queued:
        head = ["WRITE", "STATE", "TRIES", "LAST ERROR"]
        rows = [[w.op.value, _write_cell(w), str(w.attempts), clean(w.last_error or "", 100)] for w in queued]
        parts.append(out.table(head, rows))
    shown = events[-_SHOWN_EVENTS:]
    if shown:
        parts.append("\n".join(event_line(event) for event in shown))
        if len(events) > len(shown):
            more = plural(len(events) - len(shown), "earlier event")
            parts.append(f"({more}: tireless-ctl logs {str(job.id)[:8]})")
    return "\n\n".join(parts)


def _facts(job: Job, now: datetime) -> list[tuple[str, Any]]:
    stopping = job.cancel_requested_at is not None and not job.state.terminal
    held = f"{short_ids(job.claimed_by)} (lease until {when(job.claim_expires_at)})" if job.claimed_by else None
    return [
        ("job", job.id),
        ("issue", f"{job.issue}  {job.title}"),
        ("state", f"{job.state}, phase {job.phase}, changed {age(job.updated_at, now)}"),
        ("kind", f"{job.kind} in lane {job.lane}"),
        ("attempts", f"{job.attempts} of {job.max_attempts}"),
        ("not before", when(job.run_at) if job.state is JobState.PENDING and job.run_at > now else None),
        ("held by", held),
        ("cancelled", (job.cancel_reason or "yes") if stopping else None),
        ("branch", job.branch),
        ("commit", job.head_commit),
        ("pull request", job.pull_request_url),
        ("parent", job.parent_job_id),
        ("error", short_ids(job.last_error) if job.last_error else None),
        ("created", when(job.created_at)),
        ("finished", when(job.finished_at)),
    ]


def _run_row(run: AgentRun) -> list[Cell | str]:
    usage = run.usage
    outcome = run.outcome.value if run.outcome else "running"
    return [
        str(run.id)[:8],
        run.agent.value + (" (resumed)" if run.resumed else ""),
        when(run.started_at) or "",
        outcome,
        str(usage.turns) if usage.turns is not None else "",
        f"{usage.cost_usd:.2f}" if usage.cost_usd is not None else "",
        clean(run.detail or "", 100),
    ]


def _write_cell(write: ForgeWrite) -> Cell:
    tones = {WriteState.DONE: "good", WriteState.REFUSED: "bad", WriteState.WAITING: "busy"}
    return Cell(write.state.value, tones.get(write.state, "dim"))


def event_line(event: JobEvent) -> str:
    return clean(
        short_ids(f"{when(event.at)}  {event.kind:<16}  {event.actor}  {detail_text(event.detail)}"), 400
    ).rstrip()


# -- cancel and retry -----------------------------------------------------------------------------------------


def run_cancel(session: Session) -> int:
    reason = session.args.reason.strip() or "cancelled by an operator"
    with session.database() as conn:
        job = lookup.job(conn, session.args.job, session.config)
        writes_for = writes_for_end(session.config)
        moved = jobs.cancel(conn, [job.id], reason, writes_for=writes_for, actor=session.actor)
        after = jobs.get(conn, job.id) or job
        name = _name(after, lookup.names(conn))
    if not moved and after.state.terminal and after.state is not JobState.ABANDONED:
        raise Refused(f"job {after.id} is {after.state} already; there is nothing to cancel")
    session.out.give({"changed": bool(moved), **documents.job(after)}, f"{name}: {_cancelled(after, moved)}")
    return Exit.OK


def _cancelled(job: Job, moved: Sequence[Job]) -> str:
    if job.state is JobState.ABANDONED:
        return "cancelled" if moved else "was cancelled already"
    return "asked to stop, its runner does so within a minute" if moved else "was asked to stop already"


def _name(job: Job, called: lookup.Names) -> str:
    return clean(f"{called.of(job.issue)} ({str(job.id)[:8]})")


def run_retry(session: Session) -> int:
    label = session.config.labels.opt_in
    with session.database() as conn:
        job = lookup.job(conn, session.args.job, session.config)
        history = lookup.jobs_of_issue(conn, lookup.exactly(job.issue))
        repo = _may_retry(conn, job, history)
        name = _name(job, lookup.names(conn))
        queued = [w for j in history for w in writes.of_job(conn, j.id)]
        _demand_label_can_come_off(queued, label)
        waiting = any(w.op is WriteOp.ADD_LABEL and w.state is WriteState.WAITING for w in queued)
        if not waiting:
            with conn.transaction():
                writes.add(conn, job, [NewWrite(WriteOp.ADD_LABEL, {"name": label})])
                repos.make_due(conn, repo.id)
    what = "is to be set already" if waiting else "will be set"
    text = f"{name}: the label {label!r} {what} on the issue; the poll after that makes a new job of it"
    session.out.give({"queued": not waiting, **documents.job(job)}, text)
    return Exit.OK


def _may_retry(conn: Connection, job: Job, history: Sequence[Job]) -> TrackedRepo:
    """The tracked repository of a job that may be tried again."""
    live = next((j for j in history if not j.state.terminal), None)
    if live is not None:
        raise Refused(
            f"issue {job.issue} has a job that is {live.state} ({str(live.id)[:8]}); wait for it, or cancel it first"
        )
    ref = job.issue.repo_ref
    found = repos.find(conn, forge=ref.forge, host=ref.host, owner=ref.owner, repo=ref.repo)
    if not found:
        raise Refused(f"{ref} is not tracked, so nobody would see the label; tireless-ctl repo add {ref}")
    if not found[0].schedule.enabled:
        raise Refused(f"{ref} is disabled, so nobody would see the label; tireless-ctl repo enable {ref}")
    if job.issue.number in refusals.of_repo(conn, found[0].id):
        raise Refused(
            f"the label on {job.issue} was set by somebody who may not start work, and is still there; take it off "
            "by hand and set it again"
        )
    return found[0]


def _demand_label_can_come_off(queued: Sequence[ForgeWrite], label: str) -> None:
    """An issue whose label the forge would not take off is never queued again: its label means nothing any more."""
    for write in queued:
        if write.op is WriteOp.REMOVE_LABEL and write.state is WriteState.REFUSED:
            raise Refused(
                f"the forge would not take {label!r} off {write.issue} ({write.last_error}); take it off by hand, "
                "and set it again once a poll has seen that"
            )
