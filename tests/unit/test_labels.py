"""The label protocol over all combinations of its labels."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import fields, replace

import pytest

from tireless.entities import AgentKind, JobKind
from tireless.labels import LabelProtocol, agent_override, is_opted_in, is_state_label, mode_of

P = LabelProtocol()
MODES = {
    "tireless/plan": JobKind.PLAN,
    "tireless/implement": JobKind.IMPLEMENT,
    "tireless/discover": JobKind.DISCOVER,
}
AGENTS = {"tireless/agent:cc": AgentKind.CLAUDE_CODE, "tireless/agent:oc": AgentKind.OPENCODE}
NOISE = ("bug", "tireless/state/queued", "tireless/state/delivered", "tirelessly", "tireless/other", "")


def subsets(names: Iterable[str]) -> list[tuple[str, ...]]:
    names = list(names)
    return [c for n in range(len(names) + 1) for c in itertools.combinations(names, n)]


@pytest.mark.parametrize("modes", subsets(MODES))
@pytest.mark.parametrize("rest", [(), ("tireless",), NOISE, ("tireless", *NOISE)])
def test_plan_beats_implement_beats_discover(modes: tuple[str, ...], rest: tuple[str, ...]) -> None:
    expected = next((MODES[name] for name in MODES if name in modes), None)
    assert mode_of((*rest, *modes), P) is expected
    assert mode_of((*modes[::-1], *rest), P) is expected, "whatever their order"


@pytest.mark.parametrize("agents", subsets(AGENTS))
@pytest.mark.parametrize("rest", [(), ("tireless", "tireless/plan"), NOISE])
def test_one_agent_label_decides_and_two_decide_nothing(agents: tuple[str, ...], rest: tuple[str, ...]) -> None:
    expected = AGENTS[agents[0]] if len(agents) == 1 else None
    assert agent_override((*rest, *agents), P) is expected


@pytest.mark.parametrize("others", subsets([*MODES, *AGENTS, "bug"]))
def test_only_the_opt_in_opts_in(others: tuple[str, ...]) -> None:
    assert not is_opted_in(others, P)
    assert is_opted_in((*others, "tireless"), P)


@pytest.mark.parametrize("name", ["Tireless", "TIRELESS", " tireless ", "tireless"])
def test_names_go_without_regard_to_case_as_on_the_forges(name: str) -> None:
    assert is_opted_in([name], P)
    assert mode_of([f"{name.strip()}/Plan"], P) is JobKind.PLAN
    assert agent_override([f"{name.strip()}/AGENT:oc"], P) is AgentKind.OPENCODE
    assert is_state_label(f"{name.strip()}/State/queued", P)


def test_state_labels_are_made_and_known_and_never_intent() -> None:
    for state in ("queued", "running", "delivered", "blocked", "failed"):
        label = P.state_label(state)
        assert label == f"tireless/state/{state}"
        assert is_state_label(label, P)
        assert not is_opted_in([label], P)
        assert mode_of([label], P) is None
        assert agent_override([label], P) is None
    assert not is_state_label("tireless", P)
    assert not is_state_label("tireless/plan", P)


def test_all_names_are_configurable() -> None:
    own = LabelProtocol(*(f"own:{f.name}" for f in fields(LabelProtocol)))
    assert is_opted_in(["OWN:opt_in"], own)
    assert not is_opted_in(["tireless"], own)
    assert mode_of(["own:discover"], own) is JobKind.DISCOVER
    assert agent_override(["own:agent_opencode"], own) is AgentKind.OPENCODE
    assert own.state_label("queued") == "own:state_prefixqueued"


@pytest.mark.parametrize("key", [f.name for f in fields(LabelProtocol)])
def test_an_empty_name_is_refused_by_key(key: str) -> None:
    with pytest.raises(ValueError, match=f"labels.{key} is empty"):
        replace(P, **{key: "  "})


@pytest.mark.parametrize(
    ("one", "other"),
    list(itertools.combinations([f.name for f in fields(LabelProtocol) if f.name != "state_prefix"], 2)),
)
def test_two_labels_of_one_name_are_refused_by_key(one: str, other: str) -> None:
    with pytest.raises(ValueError, match=f"labels.{other} and labels.{one} are both 'same'"):
        replace(P, **{one: "same", other: "Same"})


@pytest.mark.parametrize("key", [f.name for f in fields(LabelProtocol) if f.name != "state_prefix"])
def test_no_intent_lives_under_the_state_prefix(key: str) -> None:
    with pytest.raises(ValueError, match=f"labels.{key} is .* under labels.state_prefix"):
        replace(P, **{key: "tireless/state/mine"})
