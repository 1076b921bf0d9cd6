"""What a job's work came to, as the agent tells it and as it was found; I/O only to read the agent's answer.

The agent's word is not evidence: `judge` says what it answered; git and the verify command decide whether that stands
(the phase verify). An answer that cannot be used fails a plan or a survey, which is nothing else; a change is in
the checkout all the same, and a broken note about it does not make it worthless.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from tireless.agents import report
from tireless.delivery import Ending
from tireless.entities import JobKind, JobState
from tireless.workspace import Collected

_MOST_LEFT_OUT = 20
_MOST_PLACES = 10


def judge(kind: JobKind, report_dir: Path, words: str | None, max_children: int) -> Ending:
    """The end of a run that completed. `words`: the agent's last, where its report has none."""
    try:
        answer = report.read_outcome(report_dir)
        if answer is not None and answer.status is report.Status.BLOCKED:
            return Ending(JobState.BLOCKED, summary=answer.summary or None, question=answer.question)
        summary = (answer.summary if answer is not None else "") or words
        if kind is JobKind.PLAN:
            return _plan(report_dir, summary, max_children)
        if kind is JobKind.DISCOVER:
            return _survey(report_dir, summary, max_children)
    except report.ReportError as e:
        if kind is not JobKind.IMPLEMENT:
            return Ending(JobState.FAILED, why=f"The agent's answer cannot be used: {e}", summary=words)
        summary = f"{words or ''}\n\n(The agent's report could not be read: {e})".strip()
    return Ending(JobState.DELIVERED, summary=summary)


def _plan(report_dir: Path, summary: str | None, most: int) -> Ending:
    plan = report.read_plan(report_dir, most)
    if plan is None:
        return Ending(JobState.FAILED, why="The agent wrote no plan.json.", summary=summary)
    children = tuple(dataclasses.asdict(child) for child in plan.children)
    return Ending(JobState.DELIVERED, summary=plan.summary or summary, children=children)


def _survey(report_dir: Path, summary: str | None, most: int) -> Ending:
    survey = report.read_findings(report_dir)
    if survey is None:
        return Ending(JobState.FAILED, why="The agent wrote no findings.json.", summary=summary)
    children = tuple(_as_child(n, finding) for n, finding in enumerate(survey.findings[:most], 1))
    return Ending(JobState.DELIVERED, summary=survey.summary or summary, children=children)


def _as_child(number: int, finding: report.Finding) -> dict[str, Any]:
    """A finding as the issue that proposes it."""
    where = f" in `{finding.path}`" if finding.path else ""
    body = f"{finding.body}\n\nSeverity: {finding.severity}{where}."
    return {"key": f"finding-{number}", "title": finding.title, "body": body}


def notes(collected: Collected) -> tuple[str, ...]:
    """What a reviewer should know of how the work was taken out of the workspace."""
    left_out = [f"`{path}` is not in the commit: {why}" for path, why in collected.left_out]
    unchanged = [] if collected.advanced else ["This run added nothing to what was on the branch."]
    return (*unchanged, *collected.notes, *left_out[:_MOST_LEFT_OUT])


def leaking(places: Sequence[str], job_id: UUID) -> Ending:
    """The end of work that holds a secret: for a person who can read the checkout."""
    shown = ", ".join(f"`{place}`" for place in places[:_MOST_PLACES])
    why = (
        f"The work is not pushed: a key or token that tireless was given stands in {shown}. The checkout is kept for a "
        f"while in the state directory, under `work/{job_id}`."
    )
    return Ending(JobState.FAILED, why=why)
