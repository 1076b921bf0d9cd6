"""What a real Gitea (1.26.0) was seen to do and one would not expect, and that the client lives with it.

tests/real_forge/test_facts.py asks whatever forge there is whether it is so.
"""

from __future__ import annotations

import pytest

from tests.support.forge import FakeForge
from tireless.forge import ForgeClient, NotFound, Unreachable


def test_a_label_beyond_the_first_page_is_not_made_again(
    gitea_like: FakeForge, gitea_like_client: ForgeClient
) -> None:
    """The list of labels has pages and no links. Of two labels of one name the filter wants both on an issue, so that a
    second `tireless` would hide every issue that has the first."""
    forge, client = gitea_like, gitea_like_client
    names = [f"area/{n:03}" for n in range(130)]
    forge.add_repo("acme/big", labels=[*names, "tireless", "tireless/state/queued"])
    number = forge.open_issue("One", labels=["tireless"], repo="acme/big")
    repo, issue = forge.ref("acme/big"), forge.issue_ref(number, "acme/big")
    client.ensure_label(repo, "tireless", "ededed", "")
    client.set_state_label(issue, "tireless/state/", "tireless/state/queued", "ededed", "")
    client.create_issue(repo, "Child", "", ["tireless", "area/129"])
    assert sorted(label.name for label in forge.repos["acme/big"].labels) == sorted(
        [*names, "tireless", "tireless/state/queued"]
    )
    assert len(client.list_opted_in_issues(repo, "tireless").issues) == 2


def test_labels_of_one_name_are_told_of(
    gitea_like: FakeForge, gitea_like_client: ForgeClient, caplog: pytest.LogCaptureFixture
) -> None:
    forge, client = gitea_like, gitea_like_client
    forge.add_repo("acme/twins", labels=["bug", "tireless", "tireless", "Bug"])
    client.ensure_label(forge.ref("acme/twins"), "tireless", "ededed", "")
    [record] = caplog.records
    assert "delete all but one" in record.getMessage()
    assert "acme/twins label='tireless' labels=2" in record.getMessage()


def test_comments_and_history_of_a_deleted_issue_are_not_found(
    gitea_like: FakeForge, gitea_like_client: ForgeClient
) -> None:
    """The forge answers 500, which would be asked again and again."""
    forge, client = gitea_like, gitea_like_client
    number = forge.open_issue("One", labels=["tireless"])
    issue = forge.issue_ref(number)
    forge.delete_issue(number)
    with pytest.raises(NotFound):
        client.list_comments(issue)
    with pytest.raises(NotFound):
        client.create_comment(issue, "hello")
    with pytest.raises(NotFound):
        client.upsert_comment(issue, "m", "hello")
    with pytest.raises(NotFound):
        client.last_labelling(issue, "tireless")


def test_a_forge_in_trouble_is_not_taken_for_a_missing_issue(
    gitea_like: FakeForge, gitea_like_client: ForgeClient
) -> None:
    number = gitea_like.open_issue("One", labels=["tireless"])
    gitea_like.fail(None, match="/comments", status=500)
    with pytest.raises(Unreachable, match="500"):
        gitea_like_client.list_comments(gitea_like.issue_ref(number))
    gitea_like.fail(None, status=500)
    with pytest.raises(Unreachable, match="500"):
        gitea_like_client.last_labelling(gitea_like.issue_ref(number), "tireless")
