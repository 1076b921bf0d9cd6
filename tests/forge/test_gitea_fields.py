"""The fake Gitea's and Forgejo's bodies and the client's requests, held to the fields of Gitea's generated models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.forge.conftest import QUICK
from tests.support.forge import OWN_LOGIN, FakeForge
from tireless.forge import MemoryGate, client_for

FIELDS: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "data" / "gitea-fields.json").read_text()
)
MODEL_OF = {
    "Issue": "issue", "Label": "label", "Comment": "comment", "PullRequest": "pull_request", "User": "user",
    "PullRequestMeta": "pull_request_meta", "PRBranchInfo": "pr_branch_info", "Repository": "repository",
    "RepositoryMeta": "repository_meta", "Permission": "permission",
}  # fmt: skip
PLAIN: Mapping[str, type | tuple[type, ...]] = {"Str": str, "Int": int, "Bool": bool, "datetime": str}


def check(model: str, value: Any, where: str) -> None:
    """Each field exists in the model and has its type; null is allowed, as Go leaves pointers null."""
    for name, item in value.items():
        assert name in FIELDS[model], f"{where}: {model} has no field {name}"
        check_kind(FIELDS[model][name], item, f"{where}.{name}")


def check_kind(kind: str, item: Any, where: str) -> None:
    if item is None:
        return
    if kind.startswith("List["):
        assert isinstance(item, list), where
        for entry in item:
            check_kind(kind[5:-1].removeprefix("Strict"), entry, f"{where}[]")
    elif kind in PLAIN:
        assert isinstance(item, PLAIN[kind]), f"{where} is no {kind}"
        assert kind != "Int" or not isinstance(item, bool), where
    elif kind in MODEL_OF:
        check(MODEL_OF[kind], item, where)


@pytest.fixture
def asked(gitea_like: FakeForge) -> FakeForge:
    """A forge after every kind of request has been made of it."""
    forge = gitea_like
    client = client_for(forge.config, gate=MemoryGate(), pace=QUICK)
    repo, issue = forge.ref("acme/site"), forge.issue_ref(forge.open_issue("One", "body", ["tireless", "bug"]))
    git = forge.git()
    git.git("branch", "topic", "main")
    git.commit("topic", {"new": "file"}, "work")
    client.get_repository(repo)
    client.get_issue(issue)
    client.list_opted_in_issues(repo, "tireless")
    client.upsert_comment(issue, "m", "first")
    client.upsert_comment(issue, "m", "second")
    client.set_state_label(issue, "tireless/state/", "tireless/state/queued", "#00ff00", "waits")
    client.remove_label(issue, "tireless")
    pull = client.create_pull_request(repo, "topic", "main", "Title", "Body", draft=True)
    client.edit_pull_request(repo, pull.number, "Other title", "Other body")
    client.find_pull_request(repo, "topic", "main")
    client.create_issue(repo, "Child", "Body", ["tireless/proposed"])
    client.user_permission(repo, OWN_LOGIN)
    client.last_labelling(issue, "tireless")
    client._ask("GET", "/repos/acme/site/assignees")
    client.close()
    return forge


# The end of a path, by method: the model of the request's body, and of the answer's.
SHAPES = {
    ("GET", "/user"): (None, "user"),
    ("GET", "/acme/site"): (None, "repository"),
    ("GET", "/issues"): (None, "issue"),
    ("POST", "/issues"): ("create_issue_option", "issue"),
    ("GET", "/issues/1"): (None, "issue"),
    ("GET", "/comments"): (None, "comment"),
    ("POST", "/comments"): ("create_issue_comment_option", "comment"),
    ("PATCH", "/issues/comments/"): ("edit_issue_comment_option", "comment"),
    ("GET", "/labels"): (None, "label"),
    ("POST", "/acme/site/labels"): ("create_label_option", "label"),
    ("POST", "/issues/1/labels"): ("issue_labels_option", "label"),
    ("DELETE", "/issues/1/labels/"): (None, None),
    ("GET", "/pulls/"): (None, "pull_request"),
    ("POST", "/pulls"): ("create_pull_request_option", "pull_request"),
    ("PATCH", "/pulls/"): ("edit_pull_request_option", "pull_request"),
    ("GET", "/permission"): (None, "repo_collaborator_permission"),
    ("GET", "/assignees"): (None, "user"),
    ("GET", "/timeline"): (None, "timeline_comment"),
}


def shape_of(method: str, path: str) -> tuple[str | None, str | None]:
    found = [
        (len(end), models)
        for (verb, end), models in SHAPES.items()
        if verb == method and (end in path if end.endswith("/") else path.endswith(end))
    ]
    assert found, f"no shape for {method} {path}"
    return max(found, key=lambda entry: entry[0])[1]


def test_every_request_and_answer_has_the_fields_of_its_model(asked: FakeForge) -> None:
    for recorded in asked.requests:
        sent, answered = shape_of(recorded.method, recorded.path)
        if recorded.call.body:
            assert sent is not None
            check(sent, recorded.call.json, f"{recorded.call}: request")
        assert recorded.answer is not None
        assert recorded.answer.status < 300, str(recorded.call)
        data = json.loads(recorded.answer.body) if recorded.answer.body else []
        for row in data if isinstance(data, list) else [data]:
            assert answered is not None
            check(answered, row, f"{recorded.call}: answer")


def test_the_check_can_fail() -> None:
    for wrong in ({"nmae": "x"}, {"name": 7}, {"id": True}):
        with pytest.raises(AssertionError):
            check("label", wrong, "a label")
