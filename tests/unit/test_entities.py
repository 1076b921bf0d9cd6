"""The vocabulary's own rules: which states are what, how things are named, what errors say."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from uuid import UUID

import pytest

from tireless.entities import (
    TERMINAL_STATES,
    ClaimLost,
    Forge,
    IllegalTransition,
    IssueRef,
    JobKind,
    JobState,
    RepoRef,
    TirelessError,
    UnknownValue,
    parse_enum,
)

JOB = UUID(int=7)


def test_every_state_is_pending_held_or_terminal() -> None:
    for state in JobState:
        assert [state is JobState.PENDING, state.held, state.terminal].count(True) == 1
    assert {s for s in JobState if s.terminal} == TERMINAL_STATES
    assert {s for s in JobState if s.held} == {JobState.CLAIMED, JobState.RUNNING}


@pytest.mark.parametrize("enum", [Forge, JobKind, JobState])
def test_an_enum_is_its_word(enum: type[Forge | JobKind | JobState]) -> None:
    for member in enum:
        assert parse_enum(enum, str(member), "c") is member
        assert f"{member}" == member.value == member.name.lower()


@pytest.mark.parametrize("value", ["novel", "", None, 3])
def test_an_unknown_value_names_column_and_value(value: object) -> None:
    with pytest.raises(UnknownValue) as caught:
        parse_enum(JobState, value, "job.state")
    assert (caught.value.column, caught.value.value) == ("job.state", value)
    assert str(caught.value) == (
        f"column job.state holds {value!r}, which this build does not understand; "
        "a migration added it without the matching enum member"
    )


def test_an_identity_carries_its_host() -> None:
    one = IssueRef(Forge.GITEA, "a.test", "acme", "site", 7)
    assert one != IssueRef(Forge.GITEA, "b.test", "acme", "site", 7)
    assert one.repo_ref == RepoRef(Forge.GITEA, "a.test", "acme", "site")
    assert str(one) == "gitea:a.test/acme/site#7"
    assert one.repo_ref.full_name == "acme/site"


def test_values_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        RepoRef(Forge.GITEA, "a", "b", "c").host = "d"  # type: ignore[misc]


def test_errors_are_fit_for_an_operator() -> None:
    assert str(IllegalTransition(JOB, JobState.FAILED, JobState.RUNNING)) == (
        f"job {JOB} is failed and cannot become running"
    )
    assert (
        str(IllegalTransition(JOB, None, JobState.RUNNING))
        == f"job {JOB} does not exist and cannot become running"
    )
    assert str(ClaimLost(JOB, "h/1", 3)) == f"claim 3 of h/1 on job {JOB} is lost"
    for error in (UnknownValue, IllegalTransition, ClaimLost):
        assert issubclass(error, TirelessError)
