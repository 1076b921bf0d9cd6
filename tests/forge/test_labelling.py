"""Who set a label, and what a person may do: the two questions behind `who may start work`."""

from __future__ import annotations

import pytest

from tests.support.forge import OWN_LOGIN, FakeForge, FakeGitea, FakeGitHub
from tireless.entities import RepoRef
from tireless.forge import Forbidden, ForgeClient, decode


def test_the_last_setting_of_the_label_counts(forge: FakeForge, client: ForgeClient) -> None:
    number = forge.open_issue("One", labels=["tireless"], labelled_by="mallory")
    ref = forge.issue_ref(number)
    first = client.last_labelling(ref, "tireless")
    assert first is not None
    assert (first.login, first.is_bot) == ("mallory", False)
    assert first.at is not None
    forge.label(number, "bug", by="trent")
    forge.comment(number, "1", author="trent")  # looks like a setting, but is none
    forge.unlabel(number, "tireless", by="trent")
    forge.label(number, "TIRELESS", by="bob")
    second = client.last_labelling(ref, "tireless")
    assert second is not None
    assert second.login == "bob"
    assert second.id > first.id


def test_a_label_that_we_set_ourselves_is_ours(forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
    made = client.create_issue(repo, "Child", "", ["tireless"])
    found = client.last_labelling(made.ref, "tireless")
    assert found is not None
    assert found.login == client.own_login() == OWN_LOGIN


def test_no_label_no_labelling(forge: FakeForge, client: ForgeClient) -> None:
    ref = forge.issue_ref(forge.open_issue("One", labels=["bug"]))
    assert client.last_labelling(ref, "tireless") is None


def test_it_is_found_behind_pages_of_other_events(forge: FakeForge, client: ForgeClient) -> None:
    number = forge.open_issue("One")
    for n in range(130):
        forge.label(number, f"l{n}")
        forge.comment(number, f"{n}")
    forge.label(number, "tireless", by="bob")
    found = client.last_labelling(forge.issue_ref(number), "tireless")
    assert found is not None
    assert found.login == "bob"


def test_bots_and_accounts_that_are_gone_are_known_as_such() -> None:
    github = {"id": 1, "event": "labeled", "label": {"name": "tireless"}, "created_at": "2026-01-01T00:00:00Z"}
    app = decode.github_labelling({**github, "actor": {"login": "renovate", "type": "Bot"}}, "tireless")
    assert app is not None
    assert app.is_bot
    gone = decode.github_labelling({**github, "actor": None}, "tireless")
    assert gone is not None
    assert (gone.login, gone.is_bot) == ("", False)
    gitea = {"id": 1, "type": "label", "body": "1", "label": {"name": "tireless"}}
    actions = decode.gitea_labelling({**gitea, "user": {"id": -2, "login": "gitea-actions"}}, "tireless")
    assert actions is not None
    assert actions.is_bot
    ghost = decode.gitea_labelling({**gitea, "user": {"id": -1, "login": "Ghost"}}, "tireless")
    assert ghost is not None
    assert (ghost.login, ghost.is_bot) == ("", False)
    assert decode.gitea_labelling({**gitea, "body": "", "user": {"id": 1, "login": "a"}}, "tireless") is None
    assert decode.gitea_labelling({**gitea, "label": None, "user": {"id": 1, "login": "a"}}, "tireless") is None


@pytest.mark.parametrize("role", ["admin", "write", "triage", "read"])
def test_github_tells_roles(github: FakeGitHub, github_client: ForgeClient, role: str) -> None:
    github.repos["acme/site"].permissions["bob"] = role
    repo = github.ref("acme/site")
    assert github_client.user_role(repo, "bob") == role
    assert github_client.user_role(repo, "stranger") == "none"


def test_gitea_tells_writers_to_a_token_that_is_no_admin(
    gitea_like: FakeForge, gitea_like_client: ForgeClient
) -> None:
    repo = gitea_like.ref("acme/site")
    gitea_like.repos["acme/site"].permissions |= {"bob": "write", "carol": "read"}
    assert gitea_like.asked("/permission") == []
    roles = {who: gitea_like_client.user_role(repo, who) for who in ("Bob", "carol", "stranger", "acme")}
    assert roles == {"Bob": "write", "carol": "read", "stranger": "read", "acme": "write"}
    assert [r.status for r in gitea_like.asked("/permission")] == [403] * 4


def test_gitea_tells_an_admin_exactly(gitea: FakeGitea, gitea_client: ForgeClient) -> None:
    gitea.repos["acme/site"].permissions |= {OWN_LOGIN: "admin", "carol": "read"}
    repo = gitea.ref("acme/site")
    assert gitea_client.user_role(repo, "carol") == "read"
    assert gitea_client.user_role(repo, "acme") == "admin"
    assert gitea.asked("/assignees") == []


def test_what_the_forge_keeps_to_itself_is_forbidden(gitea: FakeGitea, gitea_client: ForgeClient) -> None:
    gitea.hides_assignees = True
    with pytest.raises(Forbidden):
        gitea_client.user_role(gitea.ref("acme/site"), "bob")
