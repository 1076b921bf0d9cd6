"""Every method of every client, against fake forges that behave as the real ones do."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.forge.conftest import QUICK
from tests.support.forge import OWN_LOGIN, FakeForge, FakeForgejo, FakeGitea, FakeGitHub
from tests.support.forge.state import Label
from tireless.config import ForgeConfig, Secret
from tireless.entities import Forge, IssuePage, IssueRef, RepoRef
from tireless.forge import (
    Broken,
    Forbidden,
    ForgeClient,
    ForgejoClient,
    GiteaClient,
    GitHubClient,
    Limited,
    MemoryGate,
    Moved,
    NotFound,
    Refused,
    Unreachable,
    client_for,
    hidden,
)

LABEL = "tireless"
PREFIX = "tireless/state/"
HEAD = "tireless/issue-1"


def numbers(page: IssuePage) -> list[int]:
    return sorted(issue.ref.number for issue in page.issues)


class TestRepository:
    def test_facts(self, forge: FakeForge, client: ForgeClient) -> None:
        forge.add_repo("acme/Trunk", default_branch="trunk")
        found = client.get_repository(forge.ref("acme/Trunk"))
        assert found.ref == forge.ref("acme/Trunk")
        assert (found.default_branch, found.archived, found.empty) == ("trunk", False, False)
        assert found.clone_url == f"{forge.url}/acme/Trunk.git"

    def test_the_forges_own_spelling_is_told(self, forge: FakeForge, client: ForgeClient) -> None:
        assert client.get_repository(forge.ref("ACME/Site")).ref == forge.ref("acme/site")

    def test_empty_and_archived(self, forge: FakeForge, client: ForgeClient) -> None:
        forge.add_repo("acme/void", empty=True).archived = True
        found = client.get_repository(forge.ref("acme/void"))
        assert (found.empty, found.archived) == (True, True)

    def test_missing(self, forge: FakeForge, client: ForgeClient) -> None:
        with pytest.raises(NotFound):
            client.get_repository(forge.ref("acme/none"))

    def test_renamed(self, forge: FakeForge, client: ForgeClient) -> None:
        forge.rename_repo("acme/site", "umbrella/page")
        assert client.get_repository(forge.ref("acme/site")).ref == forge.ref("umbrella/page")

    @pytest.mark.parametrize(
        ("kind", "host", "api", "url"),
        [
            (Forge.GITHUB, "github.com", None, "https://github.com/o/r.git"),
            (Forge.GITHUB, "ghe.example.org", None, "https://ghe.example.org/o/r.git"),
            (Forge.GITHUB, "x.ghe.com", "https://api.x.ghe.com", "https://x.ghe.com/o/r.git"),
            (Forge.GITEA, "git.example.org", None, "https://git.example.org/o/r.git"),
            (Forge.GITEA, "e.org", "https://e.org/gitea/api/v1/", "https://e.org/gitea/o/r.git"),
            (Forge.FORGEJO, "f.org:3000", "http://f.org:3000/api/v1", "http://f.org:3000/o/r.git"),
            (Forge.FORGEJO, "api.f.org", None, "https://api.f.org/o/r.git"),
        ],
    )
    def test_the_clone_url_comes_from_the_configuration(
        self, kind: Forge, host: str, api: str | None, url: str
    ) -> None:
        client = client_for(ForgeConfig(kind, host, api_url=api, token_env="T", token=Secret("t")))
        assert client.clone_url(RepoRef(kind, host, "o", "r")) == url
        client.close()

    def test_another_instances_repository_is_not_asked_for_here(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        with pytest.raises(ValueError, match="is not of"):
            client.get_repository(replace(repo, host="other.example.org"))
        assert forge.requests == []

    def test_each_kind_has_its_client(self) -> None:
        kinds = {Forge.GITHUB: GitHubClient, Forge.GITEA: GiteaClient, Forge.FORGEJO: ForgejoClient}
        for kind, made in kinds.items():
            client = client_for(ForgeConfig(kind, "h.example.org", token_env="T", token=Secret("t")))
            assert type(client) is made
            client.close()


class TestOptedInIssues:
    def test_only_open_issues_with_the_label(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        wanted = forge.open_issue("Do it", "please", [LABEL, "bug"])
        forge.open_issue("No label")
        forge.close_issue(forge.open_issue("Closed", labels=[LABEL]))
        page = client.list_opted_in_issues(repo, LABEL)
        assert numbers(page) == [wanted]
        issue = page.issues[0]
        assert issue.ref == forge.issue_ref(wanted)
        assert (issue.title, issue.body, issue.author, set(issue.labels)) == (
            "Do it", "please", "alice", {LABEL, "bug"}
        )  # fmt: skip
        assert issue.is_open
        assert not issue.is_pull_request
        assert issue.updated_at is not None
        assert not page.not_modified

    def test_a_label_that_the_repository_does_not_have(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        """Gitea and Forgejo drop it from the filter and answer with every open issue."""
        forge.open_issue("One")
        forge.open_issue("Two", labels=["bug"])
        assert client.list_opted_in_issues(repo, LABEL).issues == ()

    def test_the_label_is_compared_without_regard_to_case(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        wanted = forge.open_issue("One", labels=["Tireless"])
        assert numbers(client.list_opted_in_issues(repo, LABEL)) == [wanted]

    def test_pull_requests_are_not_issues(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        forge.git().commit("topic", {"a": "b"}, "topic")
        pull = forge.open_pull("topic", "main", "A pull request")
        forge.label(pull, LABEL)
        issue = forge.open_issue("An issue", labels=[LABEL])
        assert numbers(client.list_opted_in_issues(repo, LABEL)) == [issue]

    def test_all_pages(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        made = [forge.open_issue(f"Issue {i}", labels=[LABEL]) for i in range(forge.largest_size * 2 + 1)]
        assert numbers(client.list_opted_in_issues(repo, LABEL)) == made
        assert len(forge.requests) == 3

    def test_unchanged_is_not_empty(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        first = client.list_opted_in_issues(repo, LABEL)
        assert (first.issues, first.not_modified) == ((), False)
        again = client.list_opted_in_issues(
            repo, LABEL, etag=first.etag, etag_key=first.etag_key, body_hash=first.body_hash
        )
        assert (again.issues, again.not_modified) == ((), True)
        assert (again.etag, again.etag_key, again.body_hash) == (first.etag, first.etag_key, first.body_hash)

    @pytest.mark.parametrize("change", ["open", "close", "unlabel", "edit"])
    def test_a_change_is_seen(self, forge: FakeForge, client: ForgeClient, repo: RepoRef, change: str) -> None:
        number = forge.open_issue("One", labels=[LABEL])
        first = client.list_opted_in_issues(repo, LABEL)
        if change == "open":
            forge.open_issue("Two", labels=[LABEL])
        elif change == "close":
            forge.close_issue(number)
        elif change == "unlabel":
            forge.unlabel(number, LABEL)
        else:
            forge.edit_issue(number, title="Other")
        again = client.list_opted_in_issues(
            repo, LABEL, etag=first.etag, etag_key=first.etag_key, body_hash=first.body_hash
        )
        assert not again.not_modified
        assert len(again.issues) == {"open": 2, "edit": 1}.get(change, 0)

    def test_nothing_is_returned_when_a_later_page_fails(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        for i in range(forge.largest_size + 1):
            forge.open_issue(f"Issue {i}", labels=[LABEL])
        forge.fail(None, match=r"[?&]page=2", status=500)
        with pytest.raises(Unreachable):
            client.list_opted_in_issues(repo, LABEL)

    def test_a_forge_that_pages_in_circles(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        link = f'<{forge.api_url}/x?page=2>; rel="next"'
        forge.fail(None, status=200, body=b"[]", headers={"Link": link})
        with pytest.raises(Broken, match="without end"):
            client.list_opted_in_issues(repo, LABEL)
        assert len(forge.requests) < 5

    def test_next_links_of_another_origin_are_not_followed(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        """Gitea builds them from its ROOT_URL, which a proxy may make wrong: the page number is all we take."""
        made = [forge.open_issue(f"Issue {i}", labels=[LABEL]) for i in range(forge.largest_size + 1)]
        forge.fail(1, headers={"Link": '<https://wrong.example.org/api/x?page=2>; rel="next"'})
        assert numbers(client.list_opted_in_issues(repo, LABEL)) == made

    def test_a_row_that_moves_to_a_later_page_counts_once(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        number = forge.open_issue("One", labels=[LABEL])
        forge.fail(1, headers={"Link": '<https://x/?page=1>; rel="next"'})
        assert numbers(client.list_opted_in_issues(repo, LABEL)) == [number]
        assert len(forge.requests) == 2

    def test_a_renamed_repository_is_followed_and_told(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        number = forge.open_issue("One", labels=[LABEL])
        forge.rename_repo("acme/site", "umbrella/page")
        page = client.list_opted_in_issues(repo, LABEL)
        assert page.moved_to == forge.ref("umbrella/page")
        assert [issue.ref for issue in page.issues] == [forge.issue_ref(number, "umbrella/page")]
        again = client.list_opted_in_issues(
            repo, LABEL, etag=page.etag, etag_key=page.etag_key, body_hash=page.body_hash
        )
        assert (again.not_modified, again.moved_to) == (True, forge.ref("umbrella/page"))

    def test_disabled_issues(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.repos["acme/site"].issues_enabled = False
        with pytest.raises(NotFound):
            gitea_client.list_opted_in_issues(gitea.ref("acme/site"), LABEL)

    def test_a_label_of_the_organisation(self, gitea_like: FakeForge, gitea_like_client: ForgeClient) -> None:
        """Gitea's filter does not know it and lists everything; Forgejo's does. The rows tell on both."""
        forge, client = gitea_like, gitea_like_client
        number = forge.open_issue("One")
        forge.open_issue("Two")
        label = Label(9000, LABEL)
        forge.repos["acme/site"].org_labels.append(label)
        forge.issue(number).labels.append(label)
        assert numbers(client.list_opted_in_issues(forge.ref("acme/site"), LABEL)) == [number]
        client.remove_label(forge.issue_ref(number), LABEL)
        assert forge.labels(number) == []

    def test_a_cursor_in_the_next_link(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        """GitHub refuses page numbers on large sets and names a cursor instead."""
        github.fail(1, headers={"Link": '<https://x/?after=Y3Vyc29y&page=2>; rel="next"'})
        github_client.list_opted_in_issues(github.ref("acme/site"), LABEL)
        assert [(r.call.query.get("after"), r.call.query.get("page")) for r in github.requests] == [
            (None, None), ("Y3Vyc29y", "2")
        ]  # fmt: skip


class TestConditionalRequests:
    def test_github_is_asked_with_the_etag(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        repo = github.ref("acme/site")
        first = github_client.list_opted_in_issues(repo, LABEL)
        assert first.etag
        github_client.list_opted_in_issues(repo, LABEL, etag=first.etag, etag_key=first.etag_key)
        assert [r.status for r in github.requests] == [200, 304]

    @pytest.mark.parametrize("key", [None, "", "0123"])
    def test_an_etag_of_other_circumstances_is_not_sent(
        self, github: FakeGitHub, github_client: ForgeClient, key: str | None
    ) -> None:
        repo = github.ref("acme/site")
        first = github_client.list_opted_in_issues(repo, LABEL)
        assert not github_client.list_opted_in_issues(repo, LABEL, etag=first.etag, etag_key=key).not_modified
        assert all("if-none-match" not in r.call.headers for r in github.requests)

    def test_the_key_depends_on_url_label_and_token(
        self, github: FakeGitHub, github_client: ForgeClient
    ) -> None:
        github.add_repo("acme/other")
        keys = {
            github_client.list_opted_in_issues(github.ref(name), label).etag_key
            for name in ("acme/site", "acme/other")
            for label in (LABEL, "other")
        }
        github.token = "another"
        rotated = client_for(github.config, gate=MemoryGate())
        keys.add(rotated.list_opted_in_issues(github.ref("acme/site"), LABEL).etag_key)
        rotated.close()
        assert len(keys) == 5
        assert None not in keys

    def test_the_newest_change_is_on_the_page_that_the_etag_covers(
        self, github: FakeGitHub, github_client: ForgeClient
    ) -> None:
        repo = github.ref("acme/site")
        made = [github.open_issue(f"Issue {i}", labels=[LABEL]) for i in range(101)]
        first = github_client.list_opted_in_issues(repo, LABEL)
        github.edit_issue(made[0], title="changed, and on page 2 by age")
        again = github_client.list_opted_in_issues(repo, LABEL, etag=first.etag, etag_key=first.etag_key)
        assert not again.not_modified
        assert again.etag != first.etag

    def test_the_etag_is_that_of_the_first_page(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        repo = github.ref("acme/site")
        for i in range(101):
            github.open_issue(f"Issue {i}", labels=[LABEL])
        first = github_client.list_opted_in_issues(repo, LABEL)
        again = github_client.list_opted_in_issues(repo, LABEL, etag=first.etag, etag_key=first.etag_key)
        assert again.not_modified

    def test_gitea_is_never_asked_conditionally(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        """A proxy in front may send an ETag; it covers page 1 only, and Gitea does not sort changes onto it."""
        repo = gitea.ref("acme/site")
        gitea.fail(1, headers={"ETag": '"of-a-proxy"'})
        first = gitea_client.list_opted_in_issues(repo, LABEL)
        assert first.etag is None
        gitea_client.list_opted_in_issues(repo, LABEL, etag='"of-a-proxy"', etag_key=first.etag_key)
        assert all("if-none-match" not in r.call.headers for r in gitea.requests)

    def test_the_hash_covers_all_pages(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        repo = gitea.ref("acme/site")
        made = [gitea.open_issue(f"Issue {i}", labels=[LABEL]) for i in range(51)]
        first = gitea_client.list_opted_in_issues(repo, LABEL)
        gitea.edit_issue(made[0], title="changed on page 2")
        assert not gitea_client.list_opted_in_issues(repo, LABEL, body_hash=first.body_hash).not_modified

    def test_the_hash_of_another_label_does_not_count(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        repo = gitea.ref("acme/site")
        first = gitea_client.list_opted_in_issues(repo, LABEL)
        assert not gitea_client.list_opted_in_issues(repo, "other", body_hash=first.body_hash).not_modified


class TestGetIssue:
    def test_an_issue(self, forge: FakeForge, client: ForgeClient) -> None:
        number = forge.open_issue("One", labels=[LABEL])
        found = client.get_issue(forge.issue_ref(number))
        assert (found.ref, found.title, found.is_open, found.is_pull_request) == (
            forge.issue_ref(number), "One", True, False
        )  # fmt: skip

    def test_closed_and_unlabelled(self, forge: FakeForge, client: ForgeClient) -> None:
        number = forge.open_issue("One", labels=[LABEL])
        forge.close_issue(number)
        forge.unlabel(number, LABEL)
        found = client.get_issue(forge.issue_ref(number))
        assert (found.is_open, found.labels) == (False, ())

    def test_a_pull_request_is_told(self, forge: FakeForge, client: ForgeClient) -> None:
        forge.git().commit("topic", {"a": "b"}, "topic")
        number = forge.open_pull("topic", "main", "A pull request")
        assert client.get_issue(forge.issue_ref(number)).is_pull_request

    def test_gone(self, forge: FakeForge, client: ForgeClient) -> None:
        number = forge.open_issue("One")
        forge.delete_issue(number)
        with pytest.raises(NotFound):
            client.get_issue(forge.issue_ref(number))

    def test_issues_disabled_meanwhile(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        number = github.open_issue("One")
        github.repos["acme/site"].issues_enabled = False
        with pytest.raises(NotFound) as caught:
            github_client.get_issue(github.issue_ref(number))
        assert caught.value.status == 410

    def test_transferred(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        github.add_repo("acme/elsewhere")
        github.open_issue("First there", repo="acme/elsewhere")
        ref = github.issue_ref(github.open_issue("One"))
        there = github.transfer_issue(ref.number, "acme/elsewhere")
        with pytest.raises(Moved) as caught:
            github_client.get_issue(ref)
        assert caught.value.to == github.ref("acme/elsewhere")
        assert caught.value.issue == github.issue_ref(there, "acme/elsewhere")

    def test_a_rename_is_not_a_transfer(self, forge: FakeForge, client: ForgeClient) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        forge.rename_repo("acme/site", "umbrella/page")
        assert client.get_issue(ref).ref == forge.issue_ref(ref.number, "umbrella/page")


class TestComments:
    def test_list_create_edit(self, forge: FakeForge, client: ForgeClient) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        forge.comment(ref.number, "from alice")
        made = client.create_comment(ref, "from us")
        assert (made.author, made.body) == (OWN_LOGIN, "from us")
        client.edit_comment(ref, made.id, "edited")
        assert [(c.author, c.body) for c in client.list_comments(ref)] == [
            ("alice", "from alice"), (OWN_LOGIN, "edited")
        ]  # fmt: skip

    def test_all_pages(self, forge: FakeForge, client: ForgeClient) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        for i in range(120):
            forge.comment(ref.number, f"comment {i}")
        assert [c.body for c in client.list_comments(ref)] == [f"comment {i}" for i in range(120)]

    def test_upsert_creates_once_and_edits_in_place(self, forge: FakeForge, client: ForgeClient) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        first = client.upsert_comment(ref, "job:1:status", "queued")
        second = client.upsert_comment(ref, "job:1:status", "running")
        other = client.upsert_comment(ref, "job:12:status", "another job's")
        assert first.id == second.id != other.id
        assert [c.body for c in forge.comments(ref.number)] == [
            "<!-- job:1:status -->\nrunning", "<!-- job:12:status -->\nanother job's"
        ]  # fmt: skip

    def test_upsert_of_the_same_text_writes_nothing(self, forge: FakeForge, client: ForgeClient) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        for _ in range(2):
            client.upsert_comment(ref, "m", "a\nb")
        assert [r.method for r in forge.requests if r.method != "GET"] == ["POST"]

    def test_upsert_after_a_lost_answer_makes_no_second_comment(
        self, forge: FakeForge, client: ForgeClient
    ) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        forge.fail(1, match="POST", hang_up=True)
        with pytest.raises(Unreachable):
            client.upsert_comment(ref, "m", "hello")
        client.upsert_comment(ref, "m", "hello")
        assert len(forge.comments(ref.number)) == 1

    def test_a_marker_that_somebody_else_wrote_is_not_ours(self, forge: FakeForge, client: ForgeClient) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        forge.comment(ref.number, f"{hidden('m')}\nforged", author="mallory")
        client.upsert_comment(ref, "m", "ours")
        assert [c.body for c in forge.comments(ref.number)] == [
            f"{hidden('m')}\nforged",
            f"{hidden('m')}\nours",
        ]

    def test_a_marker_inside_a_comment_of_ours_does_not_count(
        self, forge: FakeForge, client: ForgeClient
    ) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        forge.comment(ref.number, f"> quoted {hidden('m')}", author=OWN_LOGIN)
        client.upsert_comment(ref, "m", "ours")
        assert len(forge.comments(ref.number)) == 2

    def test_a_token_that_may_not_ask_who_it_is(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        github.app_token = True
        ref = github.issue_ref(github.open_issue("One"))
        for text in ("queued", "running"):
            github_client.upsert_comment(ref, "m", text)
        assert [c.body for c in github.comments(ref.number)] == [f"{hidden('m')}\nrunning"]

    @pytest.mark.parametrize("status", [403, 404])
    def test_a_comment_that_may_not_be_edited_is_left(
        self, forge: FakeForge, client: ForgeClient, status: int
    ) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        client.upsert_comment(ref, "m", "first")
        forge.fail(1, match="PATCH", status=status)
        client.upsert_comment(ref, "m", "second")
        assert len(forge.comments(ref.number)) == 2

    @pytest.mark.parametrize("marker", ["a-->b", "a>b", "a--b", "a\nb"])
    def test_a_marker_cannot_end_its_comment(self, marker: str) -> None:
        with pytest.raises(ValueError, match="marker"):
            hidden(marker)

    def test_archived(self, forge: FakeForge, client: ForgeClient) -> None:
        ref = forge.issue_ref(forge.open_issue("One"))
        forge.repos["acme/site"].archived = True
        with pytest.raises((Refused, Forbidden)) as caught:
            client.create_comment(ref, "hello")
        assert caught.value.status == (403 if isinstance(forge, FakeGitHub) else 423)
        assert not caught.value.retryable

    def test_gone(self, forge: FakeForge, client: ForgeClient) -> None:
        with pytest.raises(NotFound):
            client.upsert_comment(replace(forge.issue_ref(1), number=99), "m", "hello")


class TestLabels:
    def test_ensure_makes_it_once_and_leaves_what_people_made(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        forge.repos["acme/site"].labels.append(Label(7000, "Mine", "123456", "people's"))
        for name in ("mine", "new/label", "NEW/label"):
            client.ensure_label(repo, name, "#00ff00", "ours")
        labels = [(x.name, x.colour, x.description) for x in forge.repos["acme/site"].labels]
        assert labels == [("Mine", "123456", "people's"), ("new/label", "00ff00", "ours")]

    def test_ensure_among_many(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        forge.add_repo("acme/many", labels=[f"label {i}" for i in range(120)])
        client.ensure_label(forge.ref("acme/many"), "label 119", "00ff00", "")
        assert len(forge.repos["acme/many"].labels) == 120

    def test_ensure_when_another_process_was_quicker(
        self, github: FakeGitHub, github_client: ForgeClient
    ) -> None:
        github.add_repo("acme/quick", labels=["state"])
        github.fail(1, match="GET .*/labels/state", status=404)
        github_client.ensure_label(github.ref("acme/quick"), "state", "00ff00", "")
        assert [r.status for r in github.requests] == [404, 422]

    def test_a_label_that_the_forge_refuses(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        with pytest.raises(Refused):
            client.ensure_label(repo, "bad", "no colour", "")

    def test_a_long_description_is_cut_for_github(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        client.ensure_label(repo, "x", "00ff00", "d" * 300)
        assert forge.repos["acme/site"].label("x") is not None

    def test_add_makes_the_label_first(self, forge: FakeForge, client: ForgeClient) -> None:
        number = forge.open_issue("One", labels=["bug"])
        for _ in range(2):
            client.add_label(forge.issue_ref(number), "tireless/proposed")
        assert forge.labels(number) == ["bug", "tireless/proposed"]

    def test_add_finds_out_that_a_remembered_label_is_gone(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        number = gitea.open_issue("One")
        gitea_client.add_label(gitea.issue_ref(number), "x")
        gitea.repos["acme/site"].labels.clear()
        gitea.unlabel(number, "x")
        gitea_client.add_label(gitea.issue_ref(number), "x")
        assert gitea.labels(number) == ["x"]

    def test_an_addition_that_is_dropped_is_not_taken_for_done(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        number = gitea.open_issue("One")
        gitea.fail(None, match="POST .*/issues/1/labels", status=200, body=b"[]")
        with pytest.raises(Broken, match="dropped the label 'x'"):
            gitea_client.add_label(gitea.issue_ref(number), "x")

    def test_remove(self, forge: FakeForge, client: ForgeClient) -> None:
        number = forge.open_issue("One", labels=[LABEL, "bug"])
        for name in ("TIRELESS", LABEL, "never there"):
            client.remove_label(forge.issue_ref(number), name)
        assert forge.labels(number) == ["bug"]

    def test_remove_when_it_is_taken_off_meanwhile(self, forge: FakeForge, client: ForgeClient) -> None:
        number = forge.open_issue("One", labels=[LABEL])
        forge.fail(1, match="DELETE", status=404)
        client.remove_label(forge.issue_ref(number), LABEL)

    def test_remove_when_the_label_itself_is_deleted_meanwhile(
        self, gitea_like: FakeForge, gitea_like_client: ForgeClient
    ) -> None:
        number = gitea_like.open_issue("One", labels=[LABEL])
        gitea_like.fail(1, match="DELETE", status=422)
        gitea_like_client.remove_label(gitea_like.issue_ref(number), LABEL)

    def test_the_state_is_exactly_one_label(self, forge: FakeForge, client: ForgeClient) -> None:
        number = forge.open_issue("One", labels=[LABEL, "bug", f"{PREFIX}queued", f"{PREFIX}blocked"])
        for state in ("running", "delivered", "delivered"):
            client.set_state_label(forge.issue_ref(number), PREFIX, f"{PREFIX}{state}", "00ff00", "")
            assert sorted(forge.labels(number)) == sorted([LABEL, "bug", f"{PREFIX}{state}"])

    def test_the_forge_itself_keeps_an_exclusive_label_alone(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        number = gitea.open_issue("One")
        for state in ("running", "delivered"):
            gitea_client.set_state_label(gitea.issue_ref(number), PREFIX, f"{PREFIX}{state}", "00ff00", "")
        assert gitea.labels(number) == [f"{PREFIX}delivered"]
        assert gitea.asked("DELETE") == []


def push(forge: FakeForge, branch: str = HEAD, name: str = "new.txt") -> None:
    """Somebody pushes a branch with one commit over main."""
    git = forge.git()
    git.git("branch", "-f", branch, "main")
    git.commit(branch, {name: "text\n"}, f"work on {branch}")


class TestPullRequests:
    def test_create_find_edit(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        push(forge)
        assert client.find_pull_request(repo, HEAD, "main") is None
        made = client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=False)
        assert (made.title, made.body, made.head, made.base) == ("Title", "Body", HEAD, "main")
        assert (made.is_open, made.merged, made.draft) == (True, False, False)
        client.edit_pull_request(repo, made.number, None, "Other body")
        client.edit_pull_request(repo, made.number, "Other title", None)
        found = client.find_pull_request(repo, HEAD, "main")
        assert found is not None
        assert (found.number, found.title, found.body) == (made.number, "Other title", "Other body")
        assert forge.pull_files(made.number) == ["new.txt"]

    def test_a_draft(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        push(forge)
        made = client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=True)
        assert made.draft
        assert made.title == ("Title" if isinstance(forge, FakeGitHub) else "WIP: Title")

    def test_a_new_title_does_not_end_a_draft(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        push(forge)
        made = client.create_pull_request(repo, HEAD, "main", "Title", "", draft=True)
        client.edit_pull_request(repo, made.number, "Other", None)
        found = client.find_pull_request(repo, HEAD, "main")
        assert found is not None
        assert found.draft
        assert found.title.endswith("Other")

    def test_an_existing_one_is_found_by_creating_it(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        push(forge)
        made = client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=True)
        assert client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=True) == made
        assert len(forge.pulls()) == 1

    def test_a_lost_answer_makes_no_second_one(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        push(forge)
        forge.fail(1, match="POST", hang_up=True)
        with pytest.raises(Unreachable):
            client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=False)
        client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=False)
        assert len(forge.pulls()) == 1

    @pytest.mark.parametrize("end", ["closed", "merged"])
    def test_only_open_ones_are_found(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef, end: str
    ) -> None:
        push(forge)
        old = client.create_pull_request(repo, HEAD, "main", "Old", "", draft=False)
        if end == "merged":
            forge.merge_pull(old.number)
        else:
            forge.close_issue(old.number)
        assert client.find_pull_request(repo, HEAD, "main") is None
        push(forge, name="more.txt")
        new = client.create_pull_request(repo, HEAD, "main", "New", "", draft=False)
        assert new.number != old.number
        assert client.find_pull_request(repo, HEAD, "main") == new

    def test_another_base_is_another_pull_request(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        push(forge)
        forge.git().git("branch", "release/1.0", "main")
        made = client.create_pull_request(repo, HEAD, "release/1.0", "T", "", draft=False)
        assert client.find_pull_request(repo, HEAD, "main") is None
        assert client.find_pull_request(repo, HEAD, "release/1.0") == made

    def test_a_branch_that_is_not_there(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        with pytest.raises((Refused, NotFound)):
            client.create_pull_request(repo, "nowhere", "main", "T", "", draft=False)

    def test_no_commits_between(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        github.git().git("branch", HEAD, "main")
        with pytest.raises(Refused, match="No commits between"):
            github_client.create_pull_request(github.ref("acme/site"), HEAD, "main", "T", "", draft=False)

    def test_a_plan_without_drafts(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        push(github)
        github.repos["acme/site"].drafts = False
        made = github_client.create_pull_request(github.ref("acme/site"), HEAD, "main", "T", "", draft=True)
        assert not made.draft

    def test_after_a_rename_of_the_owner(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        push(forge)
        forge.rename_repo("acme/site", "umbrella/page")
        made = client.create_pull_request(repo, HEAD, "main", "T", "", draft=False)
        assert client.find_pull_request(repo, HEAD, "main") == made
        assert client.create_pull_request(repo, HEAD, "main", "T", "", draft=False) == made

    def test_null_rows_in_the_list(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        with FakeForgejo(tmp_path_factory.mktemp("f")) as forge:
            forge.add_repo("acme/site")
            push(forge)
            client = client_for(forge.config, gate=MemoryGate(), pace=QUICK)
            old = client.create_pull_request(forge.ref("acme/site"), HEAD, "main", "T", "", draft=False)
            forge.close_issue(old.number)
            new = client.create_pull_request(forge.ref("acme/site"), HEAD, "main", "T", "", draft=False)
            assert client.find_pull_request(forge.ref("acme/site"), HEAD, "main") == new
            client.close()

    def test_the_branch_of_a_merged_one_is_deleted(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        push(gitea)
        made = gitea_client.create_pull_request(gitea.ref("acme/site"), HEAD, "main", "T", "", draft=False)
        gitea.merge_pull(made.number)
        gitea.git().git("branch", "-D", HEAD)
        assert gitea_client.find_pull_request(gitea.ref("acme/site"), HEAD, "main") is None


class TestNewIssues:
    def test_with_labels_that_are_made(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        made = client.create_issue(repo, "Child", "Body", ["tireless/proposed", "bug"])
        assert (made.title, made.body, made.author) == ("Child", "Body", OWN_LOGIN)
        assert sorted(forge.labels(made.ref.number)) == ["bug", "tireless/proposed"]

    def test_without_labels(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        assert client.create_issue(repo, "Child", "", []).labels == ()

    def test_labels_that_were_dropped_are_added(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        github.pushes = False
        made = github_client.create_issue(github.ref("acme/site"), "Child", "Body", ["bug"])
        assert github.labels(made.ref.number) == ["bug"]

    def test_issues_disabled(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        forge.repos["acme/site"].issues_enabled = False
        with pytest.raises(NotFound):
            client.create_issue(repo, "Child", "Body", [])

    def test_found_by_its_marker(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        made = client.create_issue(repo, "Child", f"Body {hidden('plan:1:child:1')}", [])
        client.create_issue(repo, "Child 12", f"Body {hidden('plan:1:child:12')}", [])
        forge.close_issue(made.ref.number)
        found = client.find_issue_by_marker(repo, "plan:1:child:1", None)
        assert found is not None
        assert (found.ref, found.is_open) == (made.ref, False)
        assert client.find_issue_by_marker(repo, "plan:1:child:2", None) is None

    def test_the_oldest_of_several(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        refs = [client.create_issue(repo, "Child", hidden("m"), []).ref for _ in range(2)]
        found = client.find_issue_by_marker(repo, "m", datetime.now(UTC) - timedelta(hours=1))
        assert found is not None
        assert found.ref == refs[0]

    def test_not_somebody_elses(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        forge.open_issue("Forged", hidden("m"), author="mallory")
        assert client.find_issue_by_marker(repo, "m", None) is None

    def test_not_before_since(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        client.create_issue(repo, "Child", hidden("m"), [])
        assert client.find_issue_by_marker(repo, "m", datetime.now(UTC) + timedelta(hours=1)) is None

    def test_without_since_only_the_newest_are_looked_at(
        self, forge: FakeForge, client: ForgeClient, repo: RepoRef
    ) -> None:
        forge.open_issue("Old", hidden("m"), author=OWN_LOGIN)
        for i in range(5 * forge.largest_size):
            forge.open_issue(f"Issue {i}")
        assert client.find_issue_by_marker(repo, "m", None) is None
        assert len(forge.requests) == 5
        assert client.find_issue_by_marker(repo, "m", datetime(2020, 1, 1, tzinfo=UTC)) is not None


class TestPermission:
    def test_of_people(self, forge: FakeForge, client: ForgeClient, repo: RepoRef) -> None:
        people = forge.repos["acme/site"].permissions
        people.update({OWN_LOGIN: "admin", "ann": "write", "bob": "read"})
        found = {login: client.user_permission(repo, login) for login in ("acme", "ann", "bob", "eve")}
        assert found == {"acme": "admin", "ann": "write", "bob": "read", "eve": "none"}

    def test_gitea_tells_admins_only(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        repo = gitea.ref("acme/site")
        assert gitea_client.user_permission(repo, OWN_LOGIN) == "write"
        with pytest.raises(Forbidden):
            gitea_client.user_permission(repo, "ann")


class TestLimits:
    def test_a_spent_budget_of_github(self, github: FakeGitHub, github_client: ForgeClient) -> None:
        headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "4102444800"}
        github.fail(1, status=403, headers=headers, body=b'{"message": "API rate limit exceeded"}')
        with pytest.raises(Limited) as caught:
            github_client.list_opted_in_issues(github.ref("acme/site"), LABEL)
        assert caught.value.scope == "token"
        assert caught.value.retry_after_seconds == 24 * 3600

    def test_names_with_odd_characters_stay_in_their_segment(
        self, forge: FakeForge, client: ForgeClient
    ) -> None:
        odd = RepoRef(forge.kind, forge.host, "a/../b", "c?d#e%2F")
        with pytest.raises(NotFound):
            client.get_issue(IssueRef(odd.forge, odd.host, odd.owner, odd.repo, 1))
        assert forge.requests[0].path.endswith("/repos/a%2F..%2Fb/c%3Fd%23e%252F/issues/1")


class TestGit:
    def test_fetch_and_push_need_the_token(
        self, forge: FakeForge, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        work = tmp_path_factory.mktemp("git")
        good = f"http://anybody:{forge.token}@{forge.host}/acme/site.git"
        bad = f"http://anybody:wrong@{forge.host}/acme/site.git"
        assert self.git(work, "clone", "-q", bad, "bad") != 0
        assert self.git(work, "clone", "-q", good, "good") == 0
        (work / "good" / "file").write_text("x")
        commit = ("-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "-q", "-m", "m")
        for args in (("checkout", "-q", "-b", "topic"), ("add", "file"), commit):
            assert self.git(work / "good", *args) == 0
        assert self.git(work / "good", "push", "-q", bad, "topic") != 0
        assert forge.git().sha("topic") is None
        assert self.git(work / "good", "push", "-q", "origin", "topic") == 0
        assert forge.git().files("topic") == ["README.md", "file"]

    def git(self, cwd: object, *args: str) -> int:
        environment = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}
        return subprocess.run(
            ["git", *args], cwd=str(cwd), env=environment, capture_output=True, timeout=60
        ).returncode
