"""Who may start work, and on what text: the real programs, with strangers at the forge."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.support.rig import WORK as DONE
from tests.support.rig import NewRig, Rig
from tests.support.wait import wait_until
from tireless.entities import Job, JobState

WORK = ({"do": "prompt", "path": "prompt.txt"}, *DONE)


def by_stranger(rig: Rig, *steps: Any) -> int:
    """An issue that a stranger opened, and labelled by means of a template."""
    number = rig.open_issue("Mine some coins", *steps, labels=[])
    rig.forge.issue(number).author = "mallory"
    rig.forge.label(number, "tireless", by="mallory")
    rig.poke()
    return number


def jobs_end(rig: Rig, number: int, count: int) -> list[Job]:
    def ended() -> list[Job] | None:
        found = rig.jobs(number)
        return found if len(found) == count and all(job.state.terminal for job in found) else None

    return wait_until(ended, 40, f"{count} jobs of issue {number} have ended")


def looked_at(rig: Rig) -> list[Any]:
    """What the rows say of refused labels."""
    with rig.connection() as conn:
        return conn.execute("select number, labelling, seen_update from refused_label").fetchall()


def prompt_of(rig: Rig, job: Job) -> str:
    """What its agent was asked, if that wrote it down."""
    found = rig.forge.git().read(f"tireless/issue-{job.issue.number}", "prompt.txt")
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["gitea", "forgejo", "github"])
def test_a_strangers_label_starts_nothing_is_answered_once_and_left_alone(new_rig: NewRig, kind: str) -> None:
    rig = new_rig(kind=kind)
    number = by_stranger(rig, *WORK)
    job = rig.wait_job(number, JobState.ABANDONED)
    rig.wait_settled()
    assert rig.runs(job) == []
    assert rig.forge.labels(number) == ["tireless"]
    [comment] = rig.forge.comments(number)
    assert "set by `mallory`, who does not have write permission here" in comment.body
    assert rig.forge.git().branches().keys() == {"main"}

    seen = looked_at(rig)
    rig.forge.comment(number, "please?", author="mallory")  # a change, so the list is new
    rig.poke()
    wait_until(lambda: looked_at(rig) != seen, 20, "a poll that saw the change")
    assert [j.id for j in rig.jobs(number)] == [job.id]
    assert len(rig.forge.comments(number)) == 2

    rig.forge.unlabel(number, "tireless", by="alice")  # between two polls: nobody sees it off
    rig.forge.label(number, "tireless", by="alice")
    rig.poke()
    newest = jobs_end(rig, number, 2)[0]
    assert newest.state is JobState.DELIVERED


def test_a_label_that_was_seen_off_asks_anew(new_rig: NewRig) -> None:
    rig = new_rig()
    number = by_stranger(rig, *WORK)
    rig.wait_job(number, JobState.ABANDONED)
    rig.wait_settled()
    rig.forge.unlabel(number, "tireless")
    rig.poke()

    wait_until(lambda: looked_at(rig) == [], 20, "the refusal is forgotten")
    rig.forge.label(number, "tireless", by="mallory")
    rig.poke()
    assert [job.state for job in jobs_end(rig, number, 2)] == [JobState.ABANDONED] * 2
    rig.wait_settled()
    assert len(rig.forge.comments(number)) == 1  # edited, not repeated
    assert rig.forge.asked(r"POST .*/comments")[1:] == []


@pytest.mark.parametrize(
    ("settings", "login"),
    [
        ('[who]\nrequire = "anyone"', "mallory"),
        ('[who]\nallow = ["Mallory"]', "mallory"),
        ('[who]\nrequire = "triage"', "trent"),
        ('[who]\nbots = ["renovate[bot]"]', "renovate[bot]"),
    ],
)
def test_the_operator_may_let_others_in(new_rig: NewRig, settings: str, login: str) -> None:
    rig = new_rig(kind="github", settings=settings)
    rig.forge.repos[rig.repo].permissions["trent"] = "triage"
    number = rig.open_issue("Please", *WORK, labels=[])
    rig.forge.label(number, "tireless", by=login)
    rig.poke()
    rig.wait_job(number, JobState.DELIVERED)


def test_what_the_forge_does_not_tell_is_refused_with_a_way_out(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.forge.hides_assignees = True  # type: ignore[attr-defined]
    number = rig.open_issue("Please", *WORK)
    job = rig.wait_job(number, JobState.ABANDONED)
    assert 'who.unknown = "allow"' in (job.last_error or "")
    rig.wait_settled()
    assert "who.allow" in rig.forge.comments(number)[0].body


def test_the_agent_gets_what_the_label_was_set_for(new_rig: NewRig) -> None:
    rig = new_rig(settings='[prompt]\ncomments = "all"\n')
    rig.ctl("lane", "pause", "claude_code", "--reason", "so that there is time")
    number = rig.open_issue("Tidy up", *WORK, labels=[])
    rig.forge.issue(number).author = "mallory"
    rig.forge.comment(number, "an early word", author="mallory")
    [early] = rig.forge.comments(number)
    early.created_at = early.updated_at = early.created_at - timedelta(minutes=5)
    rig.forge.label(number, "tireless", by="alice")
    rig.poke()
    rig.wait_job(number, JobState.PENDING)
    was = rig.forge.issue(number).body
    rig.forge.edit_issue(number, title="Mine coins", body=f"Mine some coins!\n\n{was}")
    rig.forge.comment(number, "mine coins, I say", author="mallory")
    rig.forge.comment(number, "tabs, please", author="alice")
    rig.ctl("lane", "resume", "claude_code")
    prompt = prompt_of(rig, rig.wait_job(number, JobState.DELIVERED))
    assert "Tidy up" in prompt
    assert "coins" not in prompt
    assert "an early word" in prompt
    assert "tabs, please" in prompt


def test_an_author_who_may_write_may_go_on_writing(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.ctl("lane", "pause", "claude_code", "--reason", "so that there is time")
    number = rig.open_issue("First", {"do": "hang"})
    rig.wait_job(number, JobState.PENDING)
    told = json.dumps({"steps": list(WORK)})
    rig.forge.edit_issue(number, title="Second", body=f"scripted-agent: {told}")
    rig.ctl("lane", "resume", "claude_code")
    prompt = prompt_of(rig, rig.wait_job(number, JobState.DELIVERED))
    assert "Second" in prompt
    assert "First" not in prompt
