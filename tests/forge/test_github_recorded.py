"""The client against answers that GitHub really gave (data/README.md), served over a socket."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forge.conftest import QUICK
from tests.support.forge.server import Answer, Call, Server
from tireless.config import ForgeConfig, Secret
from tireless.entities import Forge, IssueRef, RepoRef
from tireless.forge import ForgeClient, MemoryGate, Refused, client_for

RECORDED = json.loads((Path(__file__).parent / "data" / "github-recorded.json").read_text())
ORG = "octokit-fixture-org"


class Replay:
    """Serves one scenario. The client asks its own query, so only method, path and page have to fit; each recorded
    answer is given in its turn, the last one for good."""

    def __init__(self, scenario: str) -> None:
        self.entries = list(RECORDED[scenario])
        self.server = Server(self.answer)
        self.host = f"127.0.0.1:{self.server.port}"

    def answer(self, call: Call) -> Answer:
        parts = call.path.split("/")
        by_id = "/".join(["", "repositories", "1000", *parts[4:]])
        page = call.query.get("page", "1")
        for path in (call.path, by_id):
            fitting = [e for e in self.entries if self.fits(e, call.method, path, page)]
            if fitting:
                if len(fitting) > 1:
                    self.entries.remove(fitting[0])
                return self.draw(fitting[0])
        if call.path.endswith(
            "/branches"
        ):  # asked because the recorded `size` is 0; no scenario has the answer
            return Answer.of(200, [{"name": "main", "commit": {"sha": "0" * 40}, "protected": False}])
        return Answer.of(404, {"message": "Not Found"})

    def fits(self, entry: dict[str, Any], method: str, path: str, page: str) -> bool:
        recorded, _, query = entry["path"].partition("?")
        number = next((p.removeprefix("page=") for p in query.split("&") if p.startswith("page=")), "1")
        return (entry["method"], recorded, number) == (method, path, page)

    def draw(self, entry: dict[str, Any]) -> Answer:
        local = f"http://{self.host}"
        body = json.dumps(entry["response"]) if entry["response"] else ""
        headers = {k: v.replace("https://api.github.com", local) for k, v in entry["headers"].items()}
        return Answer(entry["status"], body.replace("https://api.github.com", local).encode(), headers)

    def ref(self, name: str) -> RepoRef:
        return RepoRef(Forge.GITHUB, self.host, ORG, name)

    def statuses(self) -> list[int | None]:
        return [r.status for r in self.server.requests]


Served = tuple[Replay, ForgeClient]


@pytest.fixture
def serve() -> Iterator[Callable[[str], Served]]:
    made: list[Served] = []

    def start(scenario: str) -> Served:
        replay = Replay(scenario)
        url = f"http://{replay.host}"
        config = ForgeConfig(Forge.GITHUB, replay.host, api_url=url, token_env="T", token=Secret("t"))
        made.append((replay, client_for(config, gate=MemoryGate(), pace=QUICK)))
        return made[-1]

    yield start
    for replay, client in made:
        client.close()
        replay.server.down()


def test_get_repository(serve: Callable[[str], Served]) -> None:
    replay, client = serve("get-repository")
    found = client.get_repository(replay.ref("hello-world"))
    assert found.ref == replay.ref("hello-world")
    assert (found.default_branch, found.archived, found.empty) == ("master", False, False)


def test_rename_repository(serve: Callable[[str], Served]) -> None:
    replay, client = serve("rename-repository")
    found = client.get_repository(replay.ref("rename-repository"))
    assert found.ref == replay.ref("rename-repository-newname")
    assert replay.statuses()[:2] == [301, 200]
    assert all(r.call.headers["authorization"] == "Bearer t" for r in replay.server.requests)


def test_paginate_issues(serve: Callable[[str], Served]) -> None:
    """Thirteen issues over five pages, none of them opted in: next links name /repositories/1000."""
    replay, client = serve("paginate-issues")
    page = client.list_opted_in_issues(replay.ref("paginate-issues"), "tireless")
    assert page.issues == ()
    assert page.etag
    asked = [r.call.query.get("page") for r in replay.server.requests]
    assert asked == [None, "2", "3", "4", "5"]


def test_every_recorded_row_is_read(serve: Callable[[str], Served]) -> None:
    replay, client = serve("paginate-issues")
    for entry in replay.entries:
        for row in entry["response"]:
            row["labels"] = [{"id": 1, "name": "Tireless"}]
    page = client.list_opted_in_issues(replay.ref("paginate-issues"), "tireless")
    assert sorted(issue.ref.number for issue in page.issues) == list(range(1, 14))
    assert {issue.is_pull_request for issue in page.issues} == {False}


def test_add_labels_to_issue(serve: Callable[[str], Served]) -> None:
    replay, client = serve("add-labels-to-issue")
    made = client.create_issue(replay.ref("add-labels-to-issue"), "Issue without a label", "", [])
    assert (made.ref.number, made.labels) == (1, ())
    client.add_label(made.ref, "bar")  # the recorded answer spells it bAr
    assert replay.statuses() == [201, 200]


def test_labels(serve: Callable[[str], Served]) -> None:
    replay, client = serve("labels")
    client.ensure_label(replay.ref("labels"), "test-label", "663399", "")
    assert replay.statuses() == [200]
    client.ensure_label(replay.ref("labels"), "another", "663399", "")
    assert replay.statuses() == [200, 404, 201]


def test_errors(serve: Callable[[str], Served]) -> None:
    replay, client = serve("errors")
    with pytest.raises(Refused, match="Label color invalid") as caught:
        client.ensure_label(replay.ref("errors"), "foo", "invalid", "")
    assert caught.value.status == 422


def test_an_issue_that_was_never_recorded_is_missing(serve: Callable[[str], Served]) -> None:
    replay, client = serve("errors")
    with pytest.raises(Exception, match="404"):
        client.get_issue(IssueRef(Forge.GITHUB, replay.host, ORG, "errors", 1))
