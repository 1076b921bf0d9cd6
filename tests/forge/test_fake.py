"""The fake forges themselves, where the client alone would not show that they keep to FORGES.md's table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.support.forge import FakeForge, FakeForgejo, FakeGitea, FakeGitHub
from tests.support.forge.state import Label
from tireless.config import ForgeConfig, Secret
from tireless.entities import Forge, RepoRef
from tireless.forge import MemoryGate, client_for


class Answer:
    def __init__(self, raw: urllib3.BaseHTTPResponse) -> None:
        self.status, self.headers = raw.status, raw.headers
        self.data: Any = json.loads(raw.data) if raw.data else None


def ask(
    forge: FakeForge, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> Answer:
    sent = {"Authorization": f"{forge.token_word} {forge.token}", **(headers or {})}
    payload = None if body is None else json.dumps(body).encode()
    url = f"{forge.api_url}{path}"
    with urllib3.PoolManager(retries=False) as pool:
        return Answer(pool.request(method, url, body=payload, headers=sent, redirect=False, timeout=10))


REPO = "/repos/acme/site"


@pytest.mark.parametrize("form", ["", "Bearer {}", "token {}", "Basic {}", "{}"])
def test_only_its_own_token_form_is_accepted(forge: FakeForge, form: str) -> None:
    answer = ask(forge, "GET", REPO, headers={"Authorization": form.format(forge.token)})
    assert (answer.status == 200) == (form == f"{forge.token_word} {{}}")
    assert answer.status in (200, 401)


def test_error_bodies(forge: FakeForge) -> None:
    answer = ask(forge, "GET", "/repos/acme/none")
    assert answer.status == 404
    key = "documentation_url" if isinstance(forge, FakeGitHub) else "url"
    assert set(answer.data) >= {"message", key}


def test_null_pull_request_keys(forge: FakeForge) -> None:
    forge.open_issue("One")
    row = ask(forge, "GET", f"{REPO}/issues").data[0]
    assert ("pull_request" in row) == (not isinstance(forge, FakeGitHub))
    assert row.get("pull_request") is None


def test_an_unknown_label_in_the_filter(forge: FakeForge) -> None:
    forge.open_issue("One")
    rows = ask(forge, "GET", f"{REPO}/issues?labels=nobody-made-this").data
    assert len(rows) == (0 if isinstance(forge, FakeGitHub) else 1)


def test_labels_of_the_organisation_in_the_filter(gitea_like: FakeForge) -> None:
    gitea_like.open_issue("One")
    gitea_like.repos["acme/site"].org_labels.append(Label(9000, "org"))
    rows = ask(gitea_like, "GET", f"{REPO}/issues?labels=org").data
    assert len(rows) == (0 if isinstance(gitea_like, FakeForgejo) else 1)


def test_page_sizes_and_headers(forge: FakeForge) -> None:
    for i in range(101):
        forge.open_issue(f"Issue {i}")
    answer = ask(forge, "GET", f"{REPO}/issues?{forge.size_name}=1000")
    assert len(answer.data) == forge.largest_size
    assert 'rel="next"' in answer.headers["Link"]
    github = isinstance(forge, FakeGitHub)
    assert ("ETag" in answer.headers, "X-Total-Count" in answer.headers) == (github, not github)
    assert ("X-RateLimit-Remaining" in answer.headers) == github


@pytest.mark.parametrize(
    ("given", "github", "gitea"),
    [
        (["x"], (200, ["x"]), (200, [])),
        ([1, "x"], (422, None), (400, None)),
        (["bug"], (200, ["bug"]), (200, ["bug"])),
    ],
)
def test_adding_labels(forge: FakeForge, given: list[Any], github: Any, gitea: Any) -> None:
    forge.repos["acme/site"].labels.append(Label(7000, "bug"))
    forge.open_issue("One")
    answer = ask(forge, "POST", f"{REPO}/issues/1/labels", {"labels": given})
    names = [row["name"] for row in answer.data] if isinstance(answer.data, list) else None
    assert (answer.status, names) == (github if isinstance(forge, FakeGitHub) else gitea)


@pytest.mark.parametrize(
    ("kind", "label", "status"),
    [
        (FakeGitHub, "bug", 200), (FakeGitHub, "none", 404),
        (FakeGitea, "7000", 204), (FakeGitea, "9", 422), (FakeGitea, "bug", 422),
        (FakeForgejo, "7000", 204), (FakeForgejo, "bug", 204),
    ],
)  # fmt: skip
def test_removing_labels(tmp_path: Path, kind: type[FakeForge], label: str, status: int) -> None:
    with kind(tmp_path / "forge") as forge:
        forge.add_repo("acme/site").labels.append(Label(7000, "bug"))
        forge.open_issue("One", labels=["bug"])
        assert ask(forge, "DELETE", f"{REPO}/issues/1/labels/{label}").status == status


def test_exclusive_labels(gitea_like: FakeForge) -> None:
    gitea_like.open_issue("One")
    for name in ("s/a", "s/b", "t/a"):
        colour = {"name": name, "color": "#00ff00", "exclusive": True}
        identity = ask(gitea_like, "POST", f"{REPO}/labels", colour).data["id"]
        ask(gitea_like, "POST", f"{REPO}/issues/1/labels", {"labels": [identity]})
    assert gitea_like.labels(1) == ["s/b", "t/a"]


def test_pull_requests_that_exist(forge: FakeForge) -> None:
    wanted = {"head": "topic", "base": "main", "title": "T", "body": ""}
    forge.git().git("branch", "topic", "main")
    forge.git().commit("topic", {"a": "b"}, "topic")
    assert ask(forge, "POST", f"{REPO}/pulls", wanted).status == 201
    assert ask(forge, "POST", f"{REPO}/pulls", wanted).status == (422 if isinstance(forge, FakeGitHub) else 409)


@pytest.mark.parametrize("disabled", [True, False])
def test_disabled_issues_and_archives(forge: FakeForge, disabled: bool) -> None:
    forge.open_issue("One")
    repo = forge.repos["acme/site"]
    repo.issues_enabled, repo.archived = not disabled, not disabled
    status = ask(forge, "POST", f"{REPO}/issues", {"title": "x"}).status
    github, gitea = (410, 404) if disabled else (403, 423)
    assert status == (github if isinstance(forge, FakeGitHub) else gitea)


def test_redirects_after_a_rename(forge: FakeForge) -> None:
    forge.rename_repo("acme/site", "acme/page")
    read, write = ask(forge, "GET", REPO), ask(forge, "POST", f"{REPO}/issues", {"title": "x"})
    expected = {Forge.GITHUB: (301, 307), Forge.GITEA: (301, 301), Forge.FORGEJO: (307, 307)}
    assert (read.status, write.status) == expected[forge.kind]
    assert ("/repositories/" in read.headers["Location"]) == isinstance(forge, FakeGitHub)


def test_merge_state_comes_from_the_real_repository(forge: FakeForge) -> None:
    git = forge.git()
    git.git("branch", "topic", "main")
    git.commit("topic", {"README.md": "ours\n", "new": "x"}, "topic")
    number = forge.open_pull("topic", "main", "T")
    assert forge.pull_files(number) == ["README.md", "new"]
    assert ask(forge, "GET", f"{REPO}/pulls/{number}").data["mergeable"] is True
    git.commit("main", {"README.md": "theirs\n"}, "conflict")
    assert ask(forge, "GET", f"{REPO}/pulls/{number}").data["mergeable"] is False
    with pytest.raises(RuntimeError, match="does not merge"):
        forge.merge_pull(number)


def test_as_a_process_under_control_it_ends_with_its_starter(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.support.forge",
        "--kind",
        "gitea",
        "--root",
        str(tmp_path),
        "--control",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())

        def order(call: str, *args: Any, **kwargs: Any) -> Any:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps({"call": call, "args": args, "kwargs": kwargs}) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        order("add_repo", "acme/site")
        assert order("open_issue", "One", labels=["tireless"]) == {"result": 1}
        host, token = facts["host"], Secret(facts["token"])
        client = client_for(
            ForgeConfig(Forge.GITEA, host, api_url=facts["api_url"], token=token), gate=MemoryGate()
        )
        repo = RepoRef(Forge.GITEA, host, "acme", "site")
        assert len(client.list_opted_in_issues(repo, "tireless").issues) == 1
        client.close()
        assert "error" in order("no_such_thing")
        process.stdin.close()
        assert process.wait(10) == 0
