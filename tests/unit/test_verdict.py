"""What the agent answered, a row a case; whether it stands is for git and the verify command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tireless.entities import JobKind, JobState
from tireless.work import verdict

DONE = {"outcome.json": {"status": "done", "summary": "did it"}}
PLAN = {"plan.json": {"children": [{"key": "a", "title": "A", "body": "b", "depends_on": []}]}}
FOUND = {
    "findings.json": {"findings": [{"title": "Leak", "body": "drip", "severity": "high", "path": "tap.c"}]}
}


@pytest.mark.parametrize(
    ("kind", "files", "state", "text"),
    [
        (JobKind.IMPLEMENT, {}, JobState.DELIVERED, "last words"),
        (JobKind.IMPLEMENT, DONE, JobState.DELIVERED, "did it"),
        (JobKind.IMPLEMENT, {"outcome.json": "no json"}, JobState.DELIVERED, "could not be read"),
        (
            JobKind.IMPLEMENT,
            {"outcome.json": {"status": "blocked", "question": "why?"}},
            JobState.BLOCKED,
            "why?",
        ),
        (JobKind.PLAN, DONE, JobState.FAILED, "no plan.json"),
        (JobKind.PLAN, DONE | PLAN, JobState.DELIVERED, "did it"),
        (JobKind.PLAN, {"plan.json": "no json"}, JobState.FAILED, "cannot be used"),
        (
            JobKind.PLAN,
            {"outcome.json": {"status": "blocked", "question": "what?"}} | PLAN,
            JobState.BLOCKED,
            "what?",
        ),
        (JobKind.DISCOVER, DONE, JobState.FAILED, "no findings.json"),
        (JobKind.DISCOVER, DONE | FOUND, JobState.DELIVERED, "Severity: high in `tap.c`."),
        (JobKind.DISCOVER, {"findings.json": []}, JobState.FAILED, "cannot be used"),
    ],
)
def test_each_answer_has_its_own_end(
    kind: JobKind, files: dict[str, Any], state: JobState, text: str, tmp_path: Path
) -> None:
    for name, value in files.items():
        (tmp_path / name).write_text(value if isinstance(value, str) else json.dumps(value))
    ending = verdict.judge(kind, tmp_path, "last words", 20)
    assert ending.state is state
    assert text in json.dumps(ending.to_json())


def test_a_survey_proposes_no_more_than_it_may(tmp_path: Path) -> None:
    many = {"findings": [{"title": f"F{n}", "body": "b", "severity": "low", "path": ""} for n in range(9)]}
    (tmp_path / "findings.json").write_text(json.dumps(many))
    assert len(verdict.judge(JobKind.DISCOVER, tmp_path, None, 4).children) == 4
