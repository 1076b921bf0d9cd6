"""From the end of a job to what its forge is told."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from tireless import delivery
from tireless.config import ChildPolicy, Config, DeliveryConfig
from tireless.delivery import Ending
from tireless.entities import (
    AgentKind,
    Forge,
    IssueRef,
    Job,
    JobKind,
    JobState,
    NewWrite,
    Phase,
    WriteOp,
)

CONFIG = Config()
NOW = datetime(2026, 11, 30, tzinfo=UTC)


def job(kind: JobKind = JobKind.IMPLEMENT, **facts: Any) -> Job:
    values: dict[str, Any] = dict.fromkeys(f.name for f in dataclasses.fields(Job))
    values.update(
        id=UUID(int=1),
        issue=IssueRef(Forge.GITEA, "forge.example", "acme", "site", 7),
        title="Say\nhello @all",
        kind=kind,
        state=JobState.RUNNING,
        lane=AgentKind.CLAUDE_CODE,
        phase=Phase.ANNOUNCE,
        attempts=1,
        max_attempts=3,
        branch="tireless/issue-7",
        head_commit="c" * 40,
        **facts,
    )
    return Job(**values)


def ops(writes: list[NewWrite]) -> list[WriteOp]:
    return [w.op for w in writes]


def body_of(writes: list[NewWrite], op: WriteOp) -> str:
    return str(next(w for w in writes if w.op is op).payload["body"])


def test_a_delivery_makes_the_request_before_it_speaks_of_it_and_takes_the_label_off_last() -> None:
    ending = Ending(
        JobState.DELIVERED, summary="Did it. Closes #99, thanks @bob", diffstat="a | 1 +", notes=("look",)
    )
    writes = delivery.writes_for_ending(CONFIG, job(), ending, "main")
    assert ops(writes) == [
        WriteOp.PULL_REQUEST,
        WriteOp.STATUS_COMMENT,
        WriteOp.STATE_LABEL,
        WriteOp.REMOVE_LABEL,
    ]
    request = writes[0].payload
    assert (request["head"], request["base"], request["draft"]) == ("tireless/issue-7", "main", True)
    assert request["title"] == "Say hello @\u200ball"
    assert request["body"].startswith("Closes #7\n")
    assert "loses #99" in request["body"]
    assert "Closes #99" not in request["body"]
    assert "@bob" not in request["body"]
    assert "Note: look" in request["body"]
    assert delivery.PULL_REQUEST_PLACEHOLDER in body_of(writes, WriteOp.STATUS_COMMENT)
    assert writes[2].payload["name"] == "tireless/state/delivered"
    assert writes[3].payload["name"] == "tireless"


def test_a_question_is_a_comment_of_its_own_and_the_work_is_named() -> None:
    ending = Ending(JobState.BLOCKED, question="Red or blue?")
    writes = delivery.writes_for_ending(CONFIG, job(), ending, "main")
    assert ops(writes)[0] is WriteOp.COMMENT
    assert "> Red or blue?" in body_of(writes, WriteOp.COMMENT)
    assert "`tireless/issue-7`" in body_of(writes, WriteOp.STATUS_COMMENT)
    assert ops(writes)[-1] is WriteOp.REMOVE_LABEL


def test_a_failure_says_why_and_makes_no_request() -> None:
    ending = Ending(JobState.FAILED, why="It broke.", verify_tail="```\nboom\n```")
    writes = delivery.writes_for_ending(CONFIG, job(), ending, "main")
    assert WriteOp.PULL_REQUEST not in ops(writes)
    text = body_of(writes, WriteOp.STATUS_COMMENT)
    assert "It broke." in text
    assert "````\n```\nboom" in text
    assert ops(writes)[-1] is WriteOp.REMOVE_LABEL


CHILDREN = (
    {"key": "b", "title": "B", "body": "second", "depends_on": ["a"]},
    {"key": "a", "title": "A", "body": "first", "depends_on": []},
)


@pytest.mark.parametrize(
    ("kind", "policy", "labels"),
    [
        (
            JobKind.PLAN,
            ChildPolicy.OPT_IN,
            {"a": ["tireless", "tireless/implement"], "b": ["tireless/proposed"]},
        ),
        (JobKind.PLAN, ChildPolicy.PROPOSE, {"a": ["tireless/proposed"], "b": ["tireless/proposed"]}),
        (JobKind.DISCOVER, ChildPolicy.OPT_IN, {"a": ["tireless/proposed"], "b": ["tireless/proposed"]}),
    ],
)
def test_children_come_after_what_they_depend_on_and_only_a_plan_may_opt_them_in(
    kind: JobKind, policy: ChildPolicy, labels: dict[str, list[str]]
) -> None:
    config = dataclasses.replace(CONFIG, delivery=DeliveryConfig(plan_children=policy))
    ending = Ending(JobState.DELIVERED, children=CHILDREN)
    writes = delivery.writes_for_ending(config, job(kind), ending, "main")
    children = [w.payload for w in writes if w.op is WriteOp.CHILD_ISSUE]
    assert [c["key"] for c in children] == ["a", "b"]
    assert {c["key"]: c["labels"] for c in children} == labels
    assert WriteOp.PULL_REQUEST not in ops(writes)


def test_who_withdrew_decides_what_is_tidied_up() -> None:
    by_people = job(cancel_reason=f"{delivery.WITHDRAWN}the issue is closed")
    by_operator = job(cancel_reason="not today")
    compose = delivery.writes_for_end(CONFIG)
    gone = [dataclasses.replace(j, state=JobState.ABANDONED) for j in (by_people, by_operator)]
    first, second = (list(compose(j)) for j in gone)
    assert WriteOp.REMOVE_LABEL not in ops(first)
    assert "withdrawn. the issue is closed" in body_of(first, WriteOp.STATUS_COMMENT)
    assert ops(second)[-1] is WriteOp.REMOVE_LABEL
    assert "cancelled. not today" in body_of(second, WriteOp.STATUS_COMMENT)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("not today", "cancelled. not today"),
        ("cancelled by an operator", "cancelled by an operator"),  # tireless-ctl's, where none was given
        (None, "cancelled"),
    ],
)
def test_a_cancel_says_once_that_it_is_one(reason: str | None, said: str) -> None:
    (end, *_) = delivery.writes_for_end(CONFIG)(
        dataclasses.replace(job(cancel_reason=reason), state=JobState.ABANDONED)
    )
    assert end.payload["body"].startswith(f"**tireless**: {said}\n\n")


def test_an_ending_survives_its_row() -> None:
    ending = Ending(
        JobState.FAILED, "why", "summary", "question?", "stat", ({"key": "a"},), "tail", ("note",), 1.25
    )
    assert Ending.from_json(ending.to_json()) == ending


def test_secrets_are_masked_in_every_text_of_an_ending() -> None:
    ending = Ending(JobState.BLOCKED, "s3cret", "s3cret", "s3cret", children=({"key": "a", "body": "s3cret"},))
    masked = ending.masked(lambda text: text.replace("s3cret", "***"))
    assert "s3cret" not in str(masked)


def test_the_rules_of_order_take_a_cycle_as_it_comes() -> None:
    circle = [{"key": "a", "depends_on": ["b"]}, {"key": "b", "depends_on": ["a"]}]
    assert [c["key"] for c in delivery.in_order(circle)] == ["a", "b"]
