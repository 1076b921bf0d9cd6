"""From the end of a job to what its forge is told: branch, pull request, comments, labels; pure.

Nothing here speaks to a forge or to the database. The runner (and the sweep, and a cancel) queues what these
functions compose in the transaction that ends the job; tireless/outbox.py carries it out, once each, in order.

    delivered, implement   a pull request from the job's branch (`Closes #N` is ours to say, and only about its
                           own issue), the status comment, the state label, the opt-in label taken off
    delivered, plan        the child issues in the order of their dependencies, then as above without a request
    delivered, discover    the findings as proposed issues that are not opted in, then as above
    blocked                the question as a comment of its own (an edited comment notifies nobody), then status
    failed                 the reasons in the status comment
    abandoned              by an operator: status and labels; by the issue's own people: the state label goes
    not started            who set the label may not start work: a comment that says so, and the state label goes

The opt-in label goes at each end that a person did not bring about by taking it off: with it left on, the
next poll would start the finished work again. A label that started nothing stays (see tireless/who.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from tireless.config import ChildPolicy, Config
from tireless.entities import AgentKind, Job, JobKind, JobState, NewWrite, Relaned, WriteOp
from tireless.prose import BODY_CHARS, cut, fenced, neutralise, one_line, quote

AGENT_NAMES = {AgentKind.CLAUDE_CODE: "Claude Code", AgentKind.OPENCODE: "OpenCode"}

# Stands in a queued comment for what only the forge's answer to an earlier write can tell.
# How the reason of a cancel begins that the issue's own people brought about.
WITHDRAWN = "withdrawn: "

REFUSAL_MARKER = "tireless:not-started"

PULL_REQUEST_PLACEHOLDER = "{{pull request}}"
CHILDREN_PLACEHOLDER = "{{children}}"

COLOURS = {
    "queued": "c5def5",
    "running": "fbca04",
    "delivered": "0e8a16",
    "blocked": "d93f0b",
    "failed": "b60205",
}
DESCRIPTIONS = {
    "queued": "tireless has queued this issue",
    "running": "an agent is working on this issue",
    "delivered": "a result waits for review",
    "blocked": "the agent needs an answer from a person",
    "failed": "tireless gave up; see its comment",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """What a job's work came to, as judged after the agent. Kept in job.result, so that any later phase, on
    any day, ends the job the same way."""

    state: JobState
    why: str | None = None  # the reason, for blocked and failed; one paragraph
    summary: str | None = None  # the agent's own words
    question: str | None = None
    diffstat: str | None = None
    children: tuple[dict[str, Any], ...] = field(default=())
    verify_tail: str | None = None
    notes: tuple[str, ...] = ()  # what a reviewer should know
    cost_usd: float | None = None

    def masked(self, redact: Callable[[str], str]) -> Ending:
        """With every text that an agent or a command wrote passed through `redact`."""

        def mask(text: str | None) -> str | None:
            return redact(text) if text is not None else None

        def mask_value(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [mask_value(item) for item in value]
            return redact(value) if isinstance(value, str) else value

        children = tuple({key: mask_value(value) for key, value in c.items()} for c in self.children)
        return replace(
            self,
            why=mask(self.why),
            summary=mask(self.summary),
            question=mask(self.question),
            diffstat=mask(self.diffstat),
            children=children,
            verify_tail=mask(self.verify_tail),
            notes=tuple(redact(note) for note in self.notes),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "why": self.why,
            "summary": self.summary,
            "question": self.question,
            "diffstat": self.diffstat,
            "children": list(self.children),
            "verify_tail": self.verify_tail,
            "notes": list(self.notes),
            "cost_usd": self.cost_usd,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Ending:
        return cls(
            JobState(value["state"]),
            value.get("why"),
            value.get("summary"),
            value.get("question"),
            value.get("diffstat"),
            tuple(value.get("children") or ()),
            value.get("verify_tail"),
            tuple(value.get("notes") or ()),
            value.get("cost_usd"),
        )


def state_label_payload(config: Config, state: str | None) -> dict[str, Any]:
    """Exactly this state label, or none."""
    if state is None:
        return {"prefix": config.labels.state_prefix, "name": None}
    return {
        "prefix": config.labels.state_prefix,
        "name": config.labels.state_label(state),
        "colour": COLOURS[state],
        "description": DESCRIPTIONS[state],
    }


def state_label(config: Config, state: str | None) -> NewWrite:
    return NewWrite(WriteOp.STATE_LABEL, state_label_payload(config, state))


def status_marker(job: Job) -> str:
    return f"tireless:job={job.id}"


def status_comment(job: Job, text: str) -> NewWrite:
    return NewWrite(WriteOp.STATUS_COMMENT, {"marker": status_marker(job), "body": cut(text, BODY_CHARS)})


def remove_opt_in(config: Config) -> NewWrite:
    return NewWrite(WriteOp.REMOVE_LABEL, {"name": config.labels.opt_in})


def writes_for_start(config: Config, job: Job) -> list[NewWrite]:
    """What people see while the agent works."""
    agent = AGENT_NAMES[job.claimed_lane or job.lane]
    again = f" This is attempt {job.attempts} of {job.max_attempts}." if job.attempts > 1 else ""
    text = f"**tireless**: {agent} is working on this issue ({job.kind}).{again}\n\n{_footer(job)}"
    return [state_label(config, "running"), status_comment(job, text)]


def writes_for_wait(config: Config, job: Job, why: str, until: datetime | None) -> list[NewWrite]:
    """A job whose agent was begun waits, for the lane's sake: until a time (UTC), or None: until an operator acts."""
    agent = AGENT_NAMES[job.lane]
    end = f"until {until:%Y-%m-%d %H:%M} UTC" if until is not None else "until an operator has seen to it"
    text = f"**tireless**: waiting. {neutralise(why, 1000)}. {agent} starts nothing {end}.\n\n{_footer(job)}"
    return [state_label(config, "queued"), status_comment(job, text)]


def writes_for_relane(config: Config, moved: Relaned) -> list[NewWrite]:
    """A job that waited in a held lane waits in another now."""
    was, agent = AGENT_NAMES[moved.was], AGENT_NAMES[moved.job.lane]
    until = f" until {moved.held_until:%Y-%m-%d %H:%M} UTC" if moved.held_until is not None else ""
    text = (
        f"**tireless**: {agent} will work on this issue instead of {was}, which starts nothing{until}: "
        f"{one_line(moved.hold_reason, 500)}.\n\n{_footer(moved.job)}"
    )
    return [status_comment(moved.job, text)]


def writes_for_ending(config: Config, job: Job, ending: Ending, default_branch: str) -> list[NewWrite]:
    if ending.state is JobState.DELIVERED:
        return _delivered(config, job, ending, default_branch)
    if ending.state is JobState.BLOCKED:
        return _blocked(config, job, ending)
    return _failed(config, job, ending)


def writes_for_end(config: Config) -> Callable[[Job], Sequence[NewWrite]]:
    """For jobs that end outside a runner: failed by the sweep after their last attempt, or cancelled while queued."""

    def compose(job: Job) -> list[NewWrite]:
        if job.state is JobState.FAILED:
            return _failed(config, job, Ending(JobState.FAILED, why=job.last_error))
        reason = job.cancel_reason or job.last_error or "cancelled"
        if reason.startswith(WITHDRAWN):
            return writes_for_withdrawal(config, job, reason)
        return writes_for_cancel(config, job, reason)

    return compose


def writes_for_cancel(config: Config, job: Job, reason: str) -> list[NewWrite]:
    """An operator ended it."""
    said = one_line(reason, 500)
    if not said.startswith("cancelled"):  # what stands for a reason where none was given says it itself
        said = f"cancelled. {said}"
    text = f"**tireless**: {said}\n\n{_again(config)}\n\n{_footer(job)}"
    return [status_comment(job, text), state_label(config, None), remove_opt_in(config)]


def writes_for_withdrawal(config: Config, job: Job, reason: str) -> list[NewWrite]:
    """The issue's own people ended it: closed, label taken off. Nothing to explain to them, only to tidy up."""
    text = f"**tireless**: withdrawn. {one_line(reason.removeprefix(WITHDRAWN), 500)}\n\n{_footer(job)}"
    return [status_comment(job, text), state_label(config, None)]


def writes_for_refusal(config: Config, job: Job, why: str) -> list[NewWrite]:
    """Nobody who may start work asked for it. One comment an issue, whoever sets the label how often; the label stays:
    it is not ours, and who takes it off and sets it again is the one that counts then."""
    text = f"**tireless**: not started. {neutralise(why, 1000)}\n\n{_footer(job)}"
    return [NewWrite(WriteOp.COMMENT, {"marker": REFUSAL_MARKER, "body": text}), state_label(config, None)]


def pull_request_title(job: Job) -> str:
    return one_line(job.title) or f"Issue {job.issue.number}"


def pull_request_body(job: Job, ending: Ending) -> str:
    parts = [f"Closes #{job.issue.number}"]
    if ending.summary:
        parts.append(neutralise(ending.summary, BODY_CHARS // 2))
    if ending.diffstat:
        parts.append(fenced(cut(ending.diffstat, 4000)))
    parts.extend(f"Note: {neutralise(note, 1000)}" for note in ending.notes)
    parts.append(_footer(job))
    return "\n\n".join(parts)


def _delivered(config: Config, job: Job, ending: Ending, default_branch: str) -> list[NewWrite]:
    writes: list[NewWrite] = []
    if job.kind is JobKind.IMPLEMENT:
        payload = {
            "head": job.branch,
            "base": default_branch,
            "title": pull_request_title(job),
            "body": pull_request_body(job, ending),
            "draft": config.delivery.draft,
        }
        writes.append(NewWrite(WriteOp.PULL_REQUEST, payload))
        headline = f"delivered in {PULL_REQUEST_PLACEHOLDER}."
    else:
        writes.extend(_child_writes(config, job, ending))
        what = "planned" if job.kind is JobKind.PLAN else "surveyed"
        headline = f"{what}.\n\n{CHILDREN_PLACEHOLDER}" if ending.children else f"{what}; nothing to propose."
    text = _text(job, headline, ending)
    return [*writes, status_comment(job, text), state_label(config, "delivered"), remove_opt_in(config)]


def _blocked(config: Config, job: Job, ending: Ending) -> list[NewWrite]:
    writes: list[NewWrite] = []
    if ending.question:
        body = (
            f"**tireless**: the agent needs an answer before it can go on:\n\n"
            f"{quote(neutralise(ending.question, 20_000))}\n\n{_again(config)}"
        )
        writes.append(NewWrite(WriteOp.COMMENT, {"marker": f"tireless:question={job.id}", "body": body}))
    headline = f"blocked. {neutralise(ending.why or 'The agent asked a question.', 2000)}"
    text = _text(job, f"{headline}\n\n{_again(config)}", ending)
    return [*writes, status_comment(job, text), state_label(config, "blocked"), remove_opt_in(config)]


def _failed(config: Config, job: Job, ending: Ending) -> list[NewWrite]:
    headline = f"failed. {neutralise(ending.why or 'No reason was recorded.', 4000)}"
    text = _text(job, f"{headline}\n\n{_again(config)}", ending)
    return [status_comment(job, text), state_label(config, "failed"), remove_opt_in(config)]


def _text(job: Job, headline: str, ending: Ending) -> str:
    parts = [f"**tireless**: {headline}"]
    if ending.state is not JobState.DELIVERED and job.head_commit and job.branch:
        parts.append(f"What it did is on the branch `{job.branch}`.")
    if ending.summary:
        parts.append(quote(neutralise(ending.summary, 20_000)))
    if ending.verify_tail:
        parts.append("The end of the verify command's output:\n\n" + fenced(cut(ending.verify_tail, 6000)))
    parts.append(_footer(job, ending.cost_usd))
    return "\n\n".join(parts)


def _again(config: Config) -> str:
    return f"Set the label `{config.labels.opt_in}` again to have it tried again, on the same branch."


def _footer(job: Job, cost_usd: float | None = None) -> str:
    cost = f" · {cost_usd:.2f} USD" if cost_usd else ""
    return f"<sub>job {str(job.id)[:8]}{cost}</sub>"


def _child_writes(config: Config, job: Job, ending: Ending) -> list[NewWrite]:
    """Children in an order in which each comes after what it depends on, so that their numbers can be named."""
    writes = []
    for child in in_order(ending.children):
        key = child["key"]
        payload = {
            "key": key,
            "marker": f"tireless:child={job.id}/{key}",
            "title": one_line(child["title"]) or f"Part of {job.issue.number}",
            "body": neutralise(child.get("body") or "", BODY_CHARS // 2),
            "depends_on": list(child.get("depends_on") or ()),
            "labels": child_labels(config, job.kind, child),
            "parent": job.issue.number,
        }
        writes.append(NewWrite(WriteOp.CHILD_ISSUE, payload))
    return writes


def child_labels(config: Config, kind: JobKind, child: dict[str, Any]) -> list[str]:
    """A finding is proposed only. A plan's child is opted in by the operator's policy, and only where it depends on no
    other: a dependent one would start before what it needs is merged, so a person sets its label."""
    opt_in = (
        kind is JobKind.PLAN
        and config.delivery.plan_children is ChildPolicy.OPT_IN
        and not child.get("depends_on")
    )
    return [config.labels.opt_in, config.labels.implement] if opt_in else [config.delivery.proposed_label]


def in_order(children: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Dependencies first, otherwise as given. A cycle (refused when the plan is read) would be left as given."""
    placed: list[dict[str, Any]] = []
    left = list(children)
    while left:
        keys_left = {c["key"] for c in left}
        ready = [c for c in left if not (set(c.get("depends_on") or ()) & (keys_left - {c["key"]}))] or left
        placed.append(ready[0])
        left.remove(ready[0])
    return placed
