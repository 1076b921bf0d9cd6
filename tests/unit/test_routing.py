"""Labels to a job's kind and lane, over all combinations."""

from __future__ import annotations

import itertools

import pytest

from tireless.entities import AgentKind, JobKind
from tireless.labels import LabelProtocol
from tireless.routing import RoutingTable, job_kind_for, lane_for

P = LabelProtocol()
CC, OC = AgentKind.CLAUDE_CODE, AgentKind.OPENCODE
MODES = ("tireless/plan", "tireless/implement", "tireless/discover")
ALL = [c for n in range(4) for c in itertools.combinations(MODES, n)]


@pytest.mark.parametrize("modes", ALL)
@pytest.mark.parametrize("more", [(), ("bug",), ("tireless/state/running",), ("tireless/agent:oc",)])
def test_without_the_opt_in_there_is_no_job(modes: tuple[str, ...], more: tuple[str, ...]) -> None:
    assert job_kind_for((*modes, *more), P) is None


@pytest.mark.parametrize("modes", ALL)
@pytest.mark.parametrize("more", [(), ("bug",), ("tireless/state/running",), ("tireless/agent:oc",)])
def test_opted_in_the_mode_decides_and_none_is_implement(modes: tuple[str, ...], more: tuple[str, ...]) -> None:
    if "tireless/plan" in modes:
        expected = JobKind.PLAN
    elif "tireless/implement" in modes or not modes:
        expected = JobKind.IMPLEMENT
    else:
        expected = JobKind.DISCOVER
    assert job_kind_for(iter(("tireless", *modes, *more)), P) is expected, "any iterable, read once"


TABLES = [
    RoutingTable(implement, plan, discover, child)
    for implement, plan, discover in itertools.product((CC, OC), repeat=3)
    for child in (None, CC, OC)
]


@pytest.mark.parametrize("kind", list(JobKind))
@pytest.mark.parametrize("has_parent", [False, True])
def test_the_table_decides_and_children_may_go_elsewhere(kind: JobKind, has_parent: bool) -> None:
    for table in TABLES:
        expected = {
            JobKind.IMPLEMENT: table.implement,
            JobKind.PLAN: table.plan,
            JobKind.DISCOVER: table.discover,
        }[kind]
        if has_parent and kind is JobKind.IMPLEMENT and table.child is not None:
            expected = table.child
        assert lane_for(kind, has_parent, ["tireless"], P, table) is expected
        both = ["tireless/agent:cc", "tireless/agent:oc"]
        assert lane_for(kind, has_parent, both, P, table) is expected, "of two overrides neither wins"


@pytest.mark.parametrize("kind", list(JobKind))
@pytest.mark.parametrize("has_parent", [False, True])
@pytest.mark.parametrize(("label", "lane"), [("tireless/agent:cc", CC), ("tireless/agent:oc", OC)])
def test_a_label_overrides_every_table(kind: JobKind, has_parent: bool, label: str, lane: AgentKind) -> None:
    for table in TABLES:
        assert lane_for(kind, has_parent, [label], P, table) is lane
