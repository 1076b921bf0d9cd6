"""JSON of the three forges -> entities; pure. Their rows are close enough to share one reading.

What differs is read by truth: `"pull_request": null` (Gitea, Forgejo) is no pull request; labels may be objects or
plain names (GitHub's description allows both); a user may be null (a deleted account); a text may be null.
A row that lacks what its meaning needs is `Malformed`, which the client turns into Broken.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tireless.entities import Comment, Issue, IssueRef, Labelling, PullRequest, RepoRef


class Malformed(Exception):
    """The JSON is not what this forge answers; the text says what is wrong, without quoting it."""


@dataclass(frozen=True, slots=True)
class Label:
    """`id` is what Gitea and Forgejo want instead of a name in many places."""

    id: int
    name: str


@dataclass(frozen=True, slots=True)
class RepositoryFacts:
    owner: str
    name: str
    default_branch: str
    archived: bool
    empty: bool | None  # None: the forge does not say (GitHub)
    size: int


def rows(data: Any, *, whole: bool = False) -> list[dict[str, Any]]:
    """The objects of a list. Null rows are left out (Forgejo's list of pull requests may hold some), except where
    the list must be `whole`: what is missing from it has a meaning then."""
    if not isinstance(data, list):
        raise Malformed("is not a list")
    kept = [row for row in data if row is not None]
    if whole and len(kept) < len(data):
        raise Malformed("holds a null row")
    if not all(isinstance(row, dict) for row in kept):
        raise Malformed("holds a row that is no object")
    return kept


def row(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise Malformed("is not an object")
    return data


def issue(data: Any, repo: RepoRef) -> Issue:
    """An issue or a pull request of the issue list, as one of `repo`."""
    found = row(data)
    return Issue(
        ref=IssueRef(repo.forge, repo.host, repo.owner, repo.repo, _number(found, "number")),
        title=_text(found, "title"),
        body=_text(found, "body"),
        labels=tuple(label.name for label in labels(found.get("labels") or [])),
        is_open=_word(found, "state") == "open",
        is_pull_request=bool(found.get("pull_request")),
        author=_login(found),
        url=_text(found, "html_url"),
        updated_at=moment(found.get("updated_at")),
    )


def home(data: Any) -> str | None:
    """The full name of the repository that an issue's row says it is in; None if it does not say."""
    found = row(data)
    url, repository = found.get("repository_url"), found.get("repository")
    if isinstance(url, str) and url.count("/") >= 2:
        return "/".join(url.rstrip("/").split("/")[-2:])
    if isinstance(repository, dict) and isinstance(repository.get("full_name"), str):
        return str(repository["full_name"])
    return None


def labels(data: Any) -> list[Label]:
    if not isinstance(data, list):
        raise Malformed("has labels that are not a list")
    found = []
    for item in data:
        if isinstance(item, str):
            found.append(Label(0, item))
        elif isinstance(item, dict) and isinstance(item.get("name"), str):
            identity = item.get("id")
            found.append(Label(identity if isinstance(identity, int) else 0, item["name"]))
        elif item is not None:
            raise Malformed("has a label without a name")
    return found


def comment(data: Any) -> Comment:
    found = row(data)
    return Comment(
        id=_number(found, "id"),
        author=_login(found),
        body=_text(found, "body"),
        url=_text(found, "html_url"),
        created_at=moment(found.get("created_at")),
        updated_at=moment(found.get("updated_at")),
    )


def github_labelling(data: Any, label: str) -> Labelling | None:
    """An event of an issue, if it is the setting of `label`. The actor is null for an account that is gone."""
    found = row(data)
    if found.get("event") != "labeled" or not _names(found, label):
        return None
    actor = found.get("actor")
    user = actor if isinstance(actor, dict) else {}
    login = _text(user, "login")
    is_bot = user.get("type") == "Bot" or login.endswith("[bot]")
    return Labelling(_number(found, "id"), login, is_bot, moment(found.get("created_at")))


def gitea_labelling(data: Any, label: str) -> Labelling | None:
    """A row of an issue's timeline, if it is the setting of `label`: its type is `label`, and its body `1`, where the
    body of a removal is empty. Accounts with an id below 0 are the forge's own: Ghost (-1), Actions (-2)."""
    found = row(data)
    if found.get("type") != "label" or found.get("body") != "1" or not _names(found, label):
        return None
    poster = found.get("user")
    user = poster if isinstance(poster, dict) else {}
    identity = user.get("id")
    own = isinstance(identity, int) and identity < 0
    login = "" if identity == -1 else _text(user, "login")
    return Labelling(_number(found, "id"), login, own and bool(login), moment(found.get("created_at")))


def logins(data: Any) -> list[str]:
    return [login(item) for item in rows(data)]


def pull_request(data: Any) -> PullRequest:
    found = row(data)
    return PullRequest(
        number=_number(found, "number"),
        url=_text(found, "html_url"),
        title=_text(found, "title"),
        body=_text(found, "body"),
        head=_branch(found, "head"),
        base=_branch(found, "base"),
        is_open=_word(found, "state") == "open",
        merged=bool(found.get("merged") or found.get("merged_at")),
        draft=bool(found.get("draft")),
    )


def repository(data: Any) -> RepositoryFacts:
    found = row(data)
    owner, _, name = _word(found, "full_name").partition("/")
    if not owner or not name or "/" in name:
        raise Malformed("has a full_name that is not owner/name")
    empty = found.get("empty")
    size = found.get("size")
    return RepositoryFacts(
        owner=owner,
        name=name,
        default_branch=_text(found, "default_branch"),
        archived=bool(found.get("archived")),
        empty=empty if isinstance(empty, bool) else None,
        size=size if isinstance(size, int) else 0,
    )


def login(data: Any) -> str:
    return _word(row(data), "login")


def permission(data: Any) -> str:
    """admin, write, read or none. Gitea adds `owner`; GitHub's finer roles are in another field."""
    found = _word(row(data), "permission")
    return {"owner": "admin", "maintain": "write", "triage": "read"}.get(found, found)


def role(data: Any) -> str:
    """admin, write, triage, read or none. GitHub's `permission` knows no triage; `role_name` does. The name of a role
    that an organisation made itself says nothing: the permission that it is built on counts."""
    coarse, named = permission(data), row(data).get("role_name")
    return "triage" if coarse == "read" and named == "triage" else coarse


def moment(value: Any) -> datetime | None:
    """A time with its zone; None for an absent or odd one, which nothing depends on."""
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _branch(found: dict[str, Any], side: str) -> str:
    """The branch of `head` or `base`. Gitea's ref is refs/pull/N/head once the branch is gone; its label stays."""
    end = row(found.get(side))
    ref = _text(end, "ref")
    return _text(end, "label") if ref.startswith("refs/pull/") else ref


def _login(found: dict[str, Any]) -> str:
    user = found.get("user")
    return _text(user, "login") if isinstance(user, dict) else ""


def _names(found: dict[str, Any], label: str) -> bool:
    """Whether the label of an event is this one. It is null where the label itself was deleted since."""
    value = found.get("label")
    name = value.get("name") if isinstance(value, dict) else None
    return isinstance(name, str) and name.casefold() == label.casefold()


def _number(found: dict[str, Any], key: str) -> int:
    value = found.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise Malformed(f"has no usable {key}")
    return value


def _text(found: dict[str, Any], key: str) -> str:
    """A text that may be null or absent."""
    value = found.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Malformed(f"has a {key} that is no text")
    return value


def _word(found: dict[str, Any], key: str) -> str:
    value = _text(found, key)
    if not value:
        raise Malformed(f"has no {key}")
    return value
