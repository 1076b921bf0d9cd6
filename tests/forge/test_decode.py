"""JSON -> entities: what is read by truth, what is tolerated, what is malformed."""

from __future__ import annotations

from typing import Any

import pytest

from tireless.entities import Forge, RepoRef
from tireless.forge import decode

REPO = RepoRef(Forge.GITEA, "forge.example.org", "acme", "site")
ROW: dict[str, Any] = {
    "number": 3,
    "title": "t",
    "body": "b",
    "state": "open",
    "labels": [],
    "user": {"login": "ann"},
}


@pytest.mark.parametrize(
    ("value", "is_pull"),
    [(None, False), ({}, False), (False, False), ({"url": "x"}, True), ({"merged": False}, True)],
)
def test_pull_request_is_a_question_of_truth(value: Any, is_pull: bool) -> None:
    assert decode.issue({**ROW, "pull_request": value}, REPO).is_pull_request is is_pull
    assert decode.issue(ROW, REPO).is_pull_request is False


def test_nulls_that_mean_nothing() -> None:
    nothing = dict.fromkeys(("title", "body", "labels", "user", "updated_at", "html_url"))
    found = decode.issue({**ROW, **nothing}, REPO)
    assert (found.title, found.body, found.labels, found.author, found.updated_at) == ("", "", (), "", None)


def test_labels_are_objects_or_names_and_may_be_null() -> None:
    found = decode.labels([{"id": 4, "name": "a"}, "b", None, {"name": "c"}])
    assert found == [decode.Label(4, "a"), decode.Label(0, "b"), decode.Label(0, "c")]


def test_null_rows_are_left_out() -> None:
    assert decode.rows([None, ROW, None]) == [ROW]


def test_a_list_that_must_be_whole_has_no_null_rows() -> None:
    assert decode.rows([ROW], whole=True) == [ROW]
    with pytest.raises(decode.Malformed):
        decode.rows([ROW, None], whole=True)


@pytest.mark.parametrize("data", [None, {}, "x", 3, [3], [ROW, "x"], [[ROW]]])
def test_malformed_lists(data: Any) -> None:
    with pytest.raises(decode.Malformed):
        decode.rows(data)


@pytest.mark.parametrize(
    "change",
    [
        {"number": None}, {"number": "3"}, {"number": 0}, {"number": True}, {"number": 1.5}, {"title": 7},
        {"state": None}, {"state": ""}, {"labels": {"a": 1}}, {"labels": [7]}, {"labels": [{"id": 1}]},
        {"body": ["x"]}, {"user": {"login": 3}},
    ],
)  # fmt: skip
def test_malformed_issues(change: dict[str, Any]) -> None:
    with pytest.raises(decode.Malformed):
        decode.issue({**ROW, **change}, REPO)


@pytest.mark.parametrize("data", [None, [], "x", {}])
def test_malformed_objects(data: Any) -> None:
    for read in (decode.comment, decode.pull_request, decode.repository, decode.login, decode.permission):
        with pytest.raises(decode.Malformed):
            read(data)


@pytest.mark.parametrize("name", ["site", "/site", "acme/", "a/b/c", ""])
def test_a_repository_is_owner_and_name(name: str) -> None:
    with pytest.raises(decode.Malformed):
        decode.repository({"full_name": name})


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ("2026-01-02T03:04:05Z", True), ("2026-01-02T03:04:05+01:00", True), ("2026-01-02T03:04:05", False),
        ("yesterday", False), (7, False), (None, False),
    ],
)  # fmt: skip
def test_times_have_a_zone_or_are_unknown(value: Any, known: bool) -> None:
    assert (decode.moment(value) is not None) is known


def test_the_branch_of_a_gitea_pull_request_survives_its_deletion() -> None:
    end = {"label": "tireless/issue-3", "ref": "refs/pull/4/head"}
    found = decode.pull_request({**ROW, "head": end, "base": {"label": "main", "ref": "main"}})
    assert (found.head, found.base) == ("tireless/issue-3", "main")


@pytest.mark.parametrize(
    ("given", "meant"), [("owner", "admin"), ("admin", "admin"), ("write", "write"), ("none", "none")]
)
def test_permissions_in_one_vocabulary(given: str, meant: str) -> None:
    assert decode.permission({"permission": given}) == meant
