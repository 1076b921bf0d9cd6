"""One run from label to pull request: real supervisor, Postgres, git and forge, and the scripted agent.

The labels and the branch bear the test's mark, so that a tireless which watches the same repository is not woken.
"""

from __future__ import annotations

import json

import pytest

from tests.support.real_forge import Scratch, Target
from tests.support.rig import QUICK, WORK, Installation
from tireless.entities import JobState, Outcome


def settings(scratch: Scratch) -> str:
    names = {
        "opt_in": "opt-in", "plan": "plan", "implement": "implement", "discover": "discover",
        "agent_claude_code": "agent:cc", "agent_opencode": "agent:oc", "state_prefix": "state/",
    }  # fmt: skip
    labels = "\n".join(f'{key} = "{scratch.label_name(name)}"' for key, name in names.items())
    return f'{QUICK}\n[labels]\n{labels}\n[git]\nbranch_prefix = "{scratch.branch_name("issue-")}"\n'


@pytest.mark.parametrize(
    "target", ["real", "fake-gitea"], indirect=True
)  # the fakes have theirs in tests/lifecycle
def test_a_labelled_issue_becomes_a_pull_request(target: Target, scratch: Scratch, database_url: str) -> None:
    with Installation(target.config, target.repo, url=database_url, settings=settings(scratch)) as tireless:
        tireless.start()
        tireless.track()
        script = f"Please.\n\nscripted-agent: {json.dumps({'steps': WORK})}\n"
        issue = scratch.open_issue("Add app.txt", script, [scratch.label_name("opt-in")])
        tireless.poke()
        job = tireless.wait_job(issue.number, JobState.DELIVERED, seconds=120)
        tireless.wait_settled(60)
        assert [run.outcome for run in tireless.runs(job)] == [Outcome.COMPLETED]
        number = tireless.job(issue.number).pull_request_number

    assert number is not None
    scratch.ref(number)
    pull, branch, base = (
        scratch.pull(number),
        scratch.branch_name(f"issue-{issue.number}"),
        scratch.default_branch(),
    )
    assert (pull["head"]["ref"], pull["base"]["ref"], pull["state"]) == (branch, base, "open")
    assert f"Closes #{issue.number}" in pull["body"]
    assert scratch.title("Add app.txt") in pull["title"]
    assert scratch.file(branch, "app.txt") == "made by the agent\n"
    assert scratch.labels(issue) == {scratch.label_name("state/delivered")}
    [comment] = scratch.settled(lambda: scratch.comments(issue), "the status comment")
    assert f"delivered in #{number}" in comment["body"]
