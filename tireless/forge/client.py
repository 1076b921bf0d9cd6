"""What tireless asks of a forge, and what GitHub, Gitea and Forgejo have in common in answering it.

* Every list is read to its last page, or the call fails: nothing partial is returned, so no ETag or hash of a sweep
  that failed half-way can be stored. A null row in the list of issues fails it too: what is missing there is taken
  for withdrawn.
* The opt-in label, the state and the kind are looked at on each row, whatever filter was asked for: Gitea and Forgejo
  drop an unknown label from the filter and answer with every open issue.
* A repository that answers by a redirect has a new name; it is asked for and told (`moved_to`, `Issue.ref`).
* A write that creates looks first where that is possible, so that repeating it does no harm.
* Own comments and issues are known by a hidden marker and, where the token may ask who it is, by their author:
  anybody may write a marker into a comment.
"""

from __future__ import annotations

import hashlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, urlsplit

from tireless.config import ForgeConfig
from tireless.entities import Comment, Issue, IssuePage, IssueRef, Labelling, PullRequest, RepoRef, Repository
from tireless.forge import decode
from tireless.forge.answer import Reply, Unchanged
from tireless.forge.errors import Broken, Forbidden, Moved, NotFound, Request
from tireless.forge.http import Http

log = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_COLOUR = "ededed"
_MOST_PAGES = 200  # of one list; more is a forge that pages in circles
_MARKER_PAGES = 5  # how far back find_issue_by_marker looks without `since`


@dataclass(frozen=True, slots=True)
class Rows:
    """All pages of one list. `request` is the last one made, for errors that come of reading the rows."""

    request: Request
    rows: list[dict[str, Any]]
    etag: str | None
    digest: str
    moved: bool


class ForgeClient(ABC):
    """One forge instance. Safe to use from several threads. Raises the errors of errors.py."""

    accept: ClassVar[str] = "application/json"
    extra_headers: ClassVar[Mapping[str, str]] = {}
    token_word: ClassVar[str]
    sends_etags: ClassVar[bool] = False
    page_size: ClassVar[Mapping[str, str]]
    newest_change_first: ClassVar[Mapping[str, str]] = {}
    issues_only: ClassVar[Mapping[str, str]] = {}

    def __init__(self, config: ForgeConfig, http: Http) -> None:
        self.config = config
        self._http = http
        self._own_login: str | None = None
        self._own_login_known = False

    def close(self) -> None:
        self._http.close()

    def limited_seconds(self) -> float:
        """How long this instance will not be asked, since it has limited our token; 0 if it will be."""
        return self._http.limited_seconds()

    # Repositories and users

    def get_repository(self, repo: RepoRef) -> Repository:
        """The repository under the name that it has now. The clone URL is ours: see `clone_url`."""
        facts = self._facts(repo)
        now = RepoRef(repo.forge, repo.host, facts.owner, facts.name)
        empty = facts.empty if facts.empty is not None else self._looks_empty(now, facts)
        return Repository(now, self.clone_url(now), facts.default_branch, facts.archived, empty)

    def clone_url(self, repo: RepoRef) -> str:
        """Built from the configured base URL and not taken from the forge's answer: git sends the token there, and
        Gitea makes its own from ROOT_URL, which may be wrong behind a proxy."""
        base = urlsplit(self.config.base_url)
        netloc = base.netloc.removeprefix("api.") if self.token_word == "Bearer" else base.netloc
        root = re.sub(r"/api/v[0-9]+$", "", base.path)
        return f"{base.scheme}://{netloc}{root}/{quote(repo.owner)}/{quote(repo.repo)}.git"

    def user_permission(self, repo: RepoRef, login: str) -> str:
        """admin, write, read or none. Forbidden where the forge keeps that from this token."""
        try:
            reply = self._ask("GET", self._path(repo, "collaborators", login, "permission"))
        except NotFound:
            return "none"
        return self._decode(reply.request, decode.permission, reply.data)

    def user_role(self, repo: RepoRef, login: str) -> str:
        """admin, write, triage, read or none. Forbidden where the forge keeps that from this token."""
        try:
            reply = self._ask("GET", self._path(repo, "collaborators", login, "permission"))
        except NotFound:
            return "none"
        return self._decode(reply.request, decode.role, reply.data)

    # Issues

    def list_opted_in_issues(
        self,
        repo: RepoRef,
        label: str,
        *,
        etag: str | None = None,
        etag_key: str | None = None,
        body_hash: str | None = None,
    ) -> IssuePage:
        """The open issues with `label`, of all pages; or `not_modified`, by the forge's 304 or by an equal hash.

        The ETag is sent only while `etag_key` says that it was got with this URL, Accept and token. Give neither
        ETag nor hash for a full sweep. After a rename the issues carry the new name.
        """
        path = self._path(repo, "issues")
        query = {
            "labels": label,
            "state": "open",
            **self.issues_only,
            **self.newest_change_first,
            **self.page_size,
        }
        key = self._http.etag_key(path, query)
        usable = etag if self.sends_etags and etag_key == key else None
        found = self._rows(path, query, etag=usable, whole=True)
        now = self._name_now(repo) if found.moved else repo
        moved_to = now if now != repo else None
        if isinstance(found, Unchanged):
            return IssuePage((), found.etag or etag, key, body_hash, not_modified=True, moved_to=moved_to)
        digest = hashlib.sha256(f"{key}\n{found.digest}".encode()).hexdigest()
        tag = found.etag if self.sends_etags else None
        if digest == body_hash:
            return IssuePage((), tag, key, digest, not_modified=True, moved_to=moved_to)
        issues = self._decode(found.request, _opted_in, found.rows, now, label)
        return IssuePage(issues, tag, key, digest, moved_to=moved_to)

    def get_issue(self, issue: IssueRef) -> Issue:
        """The issue as it is now. NotFound: gone, or not for us. Moved: transferred to another repository.

        After a rename of the repository `ref` carries the new name.
        """
        reply = self._ask("GET", self._path(issue.repo_ref, "issues", str(issue.number)))
        found = self._decode(reply.request, decode.issue, reply.data, issue.repo_ref)
        if not reply.moved:
            return found
        now = self._name_now(issue.repo_ref)
        home = decode.home(reply.data) or now.full_name
        if home.casefold() != now.full_name.casefold():
            owner, _, name = home.partition("/")
            to = RepoRef(now.forge, now.host, owner, name)
            raise Moved(reply.request, reply.status, to, _ref(to, found.ref.number))
        return self._decode(reply.request, decode.issue, reply.data, now)

    def create_issue(self, repo: RepoRef, title: str, body: str, labels: Sequence[str]) -> Issue:
        """A new issue with all of `labels`, which are made where they are missing.

        It may fail when the issue exists already but a label is missing: find it by its marker, then add_label.
        """
        given = self._issue_labels(repo, labels)
        reply = self._ask(
            "POST", self._path(repo, "issues"), body={"title": title, "body": body, "labels": given}
        )
        created = self._decode(reply.request, decode.issue, reply.data, repo)
        # GitHub drops labels silently here for a token without push access, Gitea drops unknown ids.
        for label in labels:
            if not _has(created.labels, label):
                self.add_label(created.ref, label)
        return created

    def find_issue_by_marker(self, repo: RepoRef, marker: str, since: datetime | None) -> Issue | None:
        """An issue of ours, of any state, whose body holds `marker`: the oldest of several, since a copy is younger.

        `since`: look at issues changed from then on. Without it only the newest few hundred are looked at.
        """
        query = {"state": "all", **self.issues_only, **self.page_size}
        if self.newest_change_first:
            query.update(sort="created", direction="desc")
        if since is not None:
            query["since"] = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = self._all(self._path(repo, "issues"), query, most=_MARKER_PAGES if since is None else None)
        wanted = re.compile(re.escape(marker) + r"(?![\w-])")  # `child:1` is not `child:12`
        candidates = [
            issue
            for issue in self._decode_each(found, decode.issue, repo)
            if not issue.is_pull_request and wanted.search(issue.body) and self._is_own(issue.author)
        ]
        return min(candidates, key=lambda issue: issue.ref.number, default=None)

    # Comments

    def list_comments(self, issue: IssueRef) -> list[Comment]:
        """Oldest first."""
        path = self._path(issue.repo_ref, "issues", str(issue.number), "comments")
        found = self._all(path, self.page_size)
        return self._decode_each(found, decode.comment)

    def create_comment(self, issue: IssueRef, body: str) -> Comment:
        path = self._path(issue.repo_ref, "issues", str(issue.number), "comments")
        reply = self._ask("POST", path, body={"body": body})
        return self._decode(reply.request, decode.comment, reply.data)

    def edit_comment(self, issue: IssueRef, comment_id: int, body: str) -> None:
        self._ask(
            "PATCH", self._path(issue.repo_ref, "issues", "comments", str(comment_id)), body={"body": body}
        )

    def upsert_comment(self, issue: IssueRef, marker: str, body: str) -> Comment:
        """Our comment that begins with `marker`, edited in place; a new one where there is none.

        The marker goes in front of `body` as an HTML comment. It counts only at the very beginning, where a quoted
        or forged copy further down does not reach, and only in comments of ours as far as we know who we are.
        """
        text = f"{hidden(marker)}\n{body}"
        for comment in self.list_comments(issue):
            if not comment.body.startswith(hidden(marker)) or not self._is_own(comment.author):
                continue
            if comment.body.replace("\r\n", "\n") == text:
                return comment
            try:
                self.edit_comment(issue, comment.id, text)
            except (Forbidden, NotFound):
                continue  # somebody else's, or deleted since
            return Comment(comment.id, comment.author, text, comment.url, comment.created_at)
        return self.create_comment(issue, text)

    # Labels

    def ensure_label(
        self, repo: RepoRef, name: str, colour: str, description: str, exclusive: bool = False
    ) -> None:
        """The label exists afterwards. One that is there already is left as people have made it."""
        self._ensure_label(repo, name, colour.removeprefix("#"), description, exclusive)

    def add_label(self, issue: IssueRef, name: str) -> None:
        """The issue has the label afterwards, made first where it is missing: Gitea and Forgejo answer 200 to an
        unknown label and drop it."""
        self._add_label(issue, name)

    def remove_label(self, issue: IssueRef, name: str) -> None:
        """The issue has no such label afterwards; it need not have had one."""
        for label in self._labels_of(issue):
            if label.name.casefold() == name.casefold():
                self._remove_label(issue, label)

    def set_state_label(self, issue: IssueRef, prefix: str, name: str, colour: str, description: str) -> None:
        """Exactly one label under `prefix` is on the issue afterwards: `name`, which includes the prefix."""
        self.ensure_label(issue.repo_ref, name, colour, description, exclusive=True)
        for label in self._add_label(issue, name):
            other = label.name.casefold()
            if other.startswith(prefix.casefold()) and other != name.casefold():
                self._remove_label(issue, label)

    @abstractmethod
    def last_labelling(self, issue: IssueRef, label: str) -> Labelling | None:
        """The last time that somebody set the label, by the issue's history; None if that tells of none."""

    # Pull requests

    @abstractmethod
    def find_pull_request(self, repo: RepoRef, head: str, base: str) -> PullRequest | None:
        """The open pull request from branch `head` of the same repository into `base`."""

    @abstractmethod
    def create_pull_request(
        self, repo: RepoRef, head: str, base: str, title: str, body: str, draft: bool
    ) -> PullRequest:
        """A new pull request; the open one of that head and base if there is one already."""

    def edit_pull_request(self, repo: RepoRef, number: int, title: str | None, body: str | None) -> None:
        """None leaves a text as it is."""
        change = {key: value for key, value in (("title", title), ("body", body)) if value is not None}
        if change:
            self._ask("PATCH", self._path(repo, "pulls", str(number)), body=change)

    # What the forges do differently

    @abstractmethod
    def _looks_empty(self, repo: RepoRef, facts: decode.RepositoryFacts) -> bool: ...

    @abstractmethod
    def _ensure_label(
        self, repo: RepoRef, name: str, colour: str, description: str, exclusive: bool
    ) -> None: ...

    @abstractmethod
    def _add_label(self, issue: IssueRef, name: str) -> list[decode.Label]:
        """All labels of the issue afterwards."""

    @abstractmethod
    def _remove_label(self, issue: IssueRef, label: decode.Label) -> None: ...

    @abstractmethod
    def _issue_labels(self, repo: RepoRef, names: Sequence[str]) -> list[Any]:
        """The labels as this forge wants them in a new issue."""

    # Shared means

    def _path(self, repo: RepoRef, *rest: str) -> str:
        """The path below the base URL. ValueError for another instance's repository: names repeat between hosts."""
        if (repo.forge, repo.host.casefold()) != (self.config.kind, self.config.host.casefold()):
            raise ValueError(f"{repo} is not of {self.config.kind}:{self.config.host}")
        return "/" + "/".join(quote(part, safe="") for part in ("repos", repo.owner, repo.repo, *rest))

    def _facts(self, repo: RepoRef) -> decode.RepositoryFacts:
        reply = self._ask("GET", self._path(repo))
        return self._decode(reply.request, decode.repository, reply.data)

    def _name_now(self, repo: RepoRef) -> RepoRef:
        """The name that the forge itself gives to what it finds under `repo`."""
        facts = self._facts(repo)
        return RepoRef(repo.forge, repo.host, facts.owner, facts.name)

    def _labels_of(self, issue: IssueRef) -> list[decode.Label]:
        path = self._path(issue.repo_ref, "issues", str(issue.number), "labels")
        found = self._all(path, self.page_size)
        return self._decode(found.request, decode.labels, found.rows)

    def _added(self, reply: Reply, name: str) -> list[decode.Label]:
        """The labels that the answer to an addition lists; Broken if the added one is not among them."""
        found = self._decode(reply.request, decode.labels, reply.data)
        if not _has((label.name for label in found), name):
            raise Broken(reply.request, reply.status, f"has dropped the label {name!r}")
        return found

    def own_login(self) -> str | None:
        """The token's user; None where the token may not ask (a GitHub App's, for one)."""
        if not self._own_login_known:
            try:
                reply = self._ask("GET", "/user")
                self._own_login = self._decode(reply.request, decode.login, reply.data)
            except (Forbidden, NotFound):
                self._own_login = None
            self._own_login_known = True
        return self._own_login

    def _is_own(self, author: str) -> bool:
        """Whether `author` is the token's user; True where nobody can tell."""
        login = self.own_login()
        return login is None or login.casefold() == author.casefold()

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        repeatable: bool | None = None,
    ) -> Reply:
        answer = self._http.ask(method, path, query=query, body=body, repeatable=repeatable)
        assert isinstance(answer, Reply)  # without an ETag in the question a 304 is Broken
        return answer

    def _all(self, path: str, query: Mapping[str, str], most: int | None = None) -> Rows:
        found = self._rows(path, query, most=most)
        assert isinstance(found, Rows)
        return found

    def _rows(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        etag: str | None = None,
        most: int | None = None,
        whole: bool = False,
    ) -> Rows | Unchanged:
        """All pages of a list, or its first `most`; Unchanged if the first page's ETag still holds. `whole`: a
        null row is Broken."""
        rows: list[dict[str, Any]] = []
        digest = hashlib.sha256()
        first: Reply | None = None
        page: dict[str, str] = {}
        for count in range(1, _MOST_PAGES + 1):
            answer = self._http.ask("GET", path, query={**query, **page}, etag=etag if first is None else None)
            if isinstance(answer, Unchanged):
                return answer
            first = first or answer
            rows += self._decode(answer.request, partial(decode.rows, whole=whole), answer.data)
            digest.update(hashlib.sha256(answer.body).digest())
            following = dict(answer.next_page)
            if not following or count == most:
                return Rows(answer.request, rows, first.etag, digest.hexdigest(), first.moved)
            if following == page:
                break
            page = following
        request = Request("GET", self._http.host, path)
        raise Broken(request, None, f"the list has pages without end ({count} so far)")

    def _decode_each(self, found: Rows, read: Callable[..., T], *args: Any) -> list[T]:
        return [self._decode(found.request, read, row, *args) for row in found.rows]

    def _decode(self, request: Request, read: Callable[..., T], *args: Any) -> T:
        try:
            return read(*args)
        except decode.Malformed as e:
            raise Broken(request, None, f"the answer {e}") from None


def hidden(marker: str) -> str:
    """The marker as an HTML comment, which forges store and do not show."""
    if "--" in marker or ">" in marker or "\n" in marker:
        raise ValueError(f"a marker must not end its own HTML comment: {marker!r}")
    return f"<!-- {marker} -->"


def _ref(repo: RepoRef, number: int) -> IssueRef:
    return IssueRef(repo.forge, repo.host, repo.owner, repo.repo, number)


def _has(names: Any, name: str) -> bool:
    return name.casefold() in {n.casefold() for n in names}


def _opted_in(rows: list[dict[str, Any]], repo: RepoRef, label: str) -> tuple[Issue, ...]:
    """The rows that are what was asked for, each once (a row may move to a later page while pages are read)."""
    found: dict[int, Issue] = {}
    for issue in (decode.issue(row, repo) for row in rows):
        if issue.is_open and not issue.is_pull_request and _has(issue.labels, label):
            found.setdefault(issue.ref.number, issue)
    return tuple(found.values())
