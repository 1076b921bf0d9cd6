"""The fake GitHub's bodies and the client's requests, held to GitHub's own OpenAPI description (data/README.md)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.forge.conftest import QUICK
from tests.support.forge import OWN_LOGIN, FakeGitHub, Recorded
from tireless.forge import ForgeClient, ForgeError, MemoryGate, client_for, hidden

DESCRIPTION = json.loads((Path(__file__).parent / "data" / "github-openapi.json").read_text())
HEAD = "tireless/issue-1"
# What the description leaves out: any operation may answer these (and GitHub does), in the shape of basic-error.
EVERYWHERE = {"301", "304", "307", "401", "403", "404", "410", "422"}


def operation_of(recorded: Recorded, api: str) -> dict[str, Any]:
    path = recorded.path.removeprefix(api)
    path = re.sub(r"^/repositories/\d+", "/repos/o/r", path)
    for operation in DESCRIPTION["operations"]:
        pattern = re.sub(r"\{\w+\}", "[^/]+", operation["path"])
        if operation["method"] == recorded.method and re.fullmatch(pattern, path):
            assert isinstance(operation, dict)
            return operation
    raise AssertionError(f"GitHub has no such operation: {recorded.call}")


def validate(instance: Any, schema: Any, what: str) -> None:
    validator = Draft202012Validator({**schema, "$defs": DESCRIPTION["$defs"]})
    errors = [
        f"{'/'.join(map(str, e.absolute_path))}: {e.message[:200]}" for e in validator.iter_errors(instance)
    ]
    assert errors == [], what


def properties(schema: dict[str, Any]) -> set[str]:
    """The keys that a body may have, over all its variants."""
    variants = [v for key in ("oneOf", "anyOf", "allOf") for v in schema.get(key, ())]
    return set(schema.get("properties", ())).union(*map(properties, variants))


def check(recorded: Recorded, api: str) -> None:
    operation = operation_of(recorded, api)
    what = f"{recorded.call} -> {recorded.status}"
    for name, value in recorded.call.query.items():
        assert name in operation["query"], f"{what}: no parameter {name}"
        kind = operation["query"][name].get("type")
        validate(int(value) if kind == "integer" else value, operation["query"][name], f"{what}: {name}")
    if recorded.call.body:
        validate(recorded.call.json, operation["body"], f"{what}: request body")
        assert set(recorded.call.json) <= properties(operation["body"]), f"{what}: an unknown key"
    assert recorded.answer is not None
    status = str(recorded.status)
    assert status in operation["answers"] or status in EVERYWHERE, what
    schema = operation["answers"].get(status)
    if status in EVERYWHERE or schema is None:
        schema = {"$ref": "#/$defs/validation-error" if status == "422" else "#/$defs/basic-error"}
    if recorded.answer.body:
        validate(json.loads(recorded.answer.body), schema, f"{what}: answer body")


@pytest.fixture
def asked(github: FakeGitHub) -> FakeGitHub:
    """A forge after every kind of request has been made of it, with success and without."""
    client = client_for(github.config, gate=MemoryGate(), pace=QUICK)
    succeed(github, client)
    fail(github, client)
    client.close()
    return github


def succeed(github: FakeGitHub, client: ForgeClient) -> None:
    repo, issue = (
        github.ref("acme/site"),
        github.issue_ref(github.open_issue("One", "body", ["tireless", "bug"])),
    )
    github.comment(issue.number, "from alice")
    git = github.git()
    git.git("branch", HEAD, "main")
    git.commit(HEAD, {"new": "file"}, "work")
    github.open_pull(HEAD, "main", "A person's")
    github.close_issue(2)
    page = client.list_opted_in_issues(repo, "tireless")
    client.list_opted_in_issues(repo, "tireless", etag=page.etag, etag_key=page.etag_key)
    client.get_repository(repo)
    client.get_issue(issue)
    client.upsert_comment(issue, "m", "first")
    client.upsert_comment(issue, "m", "second")
    client.set_state_label(issue, "tireless/state/", "tireless/state/queued", "#00ff00", "waits")
    client.set_state_label(issue, "tireless/state/", "tireless/state/running", "#00ff00", "runs")
    client.remove_label(issue, "tireless")
    pull = client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=True)
    client.edit_pull_request(repo, pull.number, "Other title", "Other body")
    client.find_pull_request(repo, HEAD, "main")
    client.create_pull_request(repo, HEAD, "main", "Title", "Body", draft=True)
    client.create_issue(repo, "Child", hidden("plan:1"), ["tireless/proposed"])
    client.find_issue_by_marker(repo, "plan:1", page.issues[0].updated_at)
    client.user_permission(repo, OWN_LOGIN)
    client.last_labelling(issue, "tireless")


def fail(github: FakeGitHub, client: ForgeClient) -> None:
    repo, issue = github.ref("acme/site"), github.issue_ref(1)
    github.rename_repo("acme/site", "umbrella/page")
    client.get_issue(issue)
    client.list_opted_in_issues(repo, "tireless")
    refused = (
        lambda: client.ensure_label(repo, "bad", "no colour", ""),
        lambda: client.create_pull_request(repo, "nowhere", "main", "T", "B", draft=False),
        lambda: client.get_repository(github.ref("acme/none")),
        lambda: client.create_comment(issue, "x" * 70_000),
    )
    for call in refused:
        with pytest.raises(ForgeError):
            call()


def test_every_request_and_answer_fits_the_description(asked: FakeGitHub) -> None:
    assert len(asked.requests) > 30
    for recorded in asked.requests:
        if recorded.status not in (301, 307):  # the rest of that one is checked where it was redirected to
            check(recorded, asked.api)


def test_every_operation_was_asked(asked: FakeGitHub) -> None:
    seen = {(o["method"], o["path"]) for o in (operation_of(r, asked.api) for r in asked.requests)}
    assert seen == {(o["method"], o["path"]) for o in DESCRIPTION["operations"]}


def test_the_check_can_fail(asked: FakeGitHub) -> None:
    issue = json.loads(asked.asked(r"GET .*/issues/1$")[0].answer.body)  # type: ignore[union-attr]
    del issue["number"]
    with pytest.raises(AssertionError):
        validate(issue, {"$ref": "#/$defs/issue"}, "an issue without a number")
