"""Gitea. Labels go by id, pages are of 50, nothing is conditional, and a draft is a title that begins with WIP."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from tireless.entities import Comment, IssueRef, Labelling, PullRequest, RepoRef
from tireless.forge import decode
from tireless.forge.client import DEFAULT_COLOUR, ForgeClient
from tireless.forge.errors import Broken, Forbidden, NotFound, Refused, Unreachable

log = logging.getLogger(__name__)

DRAFT_PREFIX = "WIP: "


class GiteaClient(ForgeClient):
    token_word = "token"
    page_size: ClassVar[Mapping[str, str]] = {"limit": "50"}
    issues_only: ClassVar[Mapping[str, str]] = {"type": "issues"}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()
        self._label_ids: dict[tuple[RepoRef, str], int] = {}  # a hint: checked by what the forge answers

    def find_pull_request(self, repo: RepoRef, head: str, base: str) -> PullRequest | None:
        """`/pulls/{base}/{head}` gives any one of that pair, of any state, so an open one may hide behind it."""
        try:
            # The route ends in a wildcard: slashes of the head stay slashes, those of the base must not.
            reply = self._ask("GET", f"{self._path(repo, 'pulls', base)}/{quote(head)}")
        except NotFound:
            return None
        pull = self._decode(reply.request, decode.pull_request, reply.data)
        return pull if pull.is_open else self._find_in_list(repo, head, base)

    def _find_in_list(self, repo: RepoRef, head: str, base: str) -> PullRequest | None:
        found = self._all(self._path(repo, "pulls"), {"state": "open", **self.page_size})
        for pull in self._decode_each(found, decode.pull_request):
            if pull.is_open and (pull.head, pull.base) == (head, base):
                return pull
        return None

    def create_pull_request(
        self, repo: RepoRef, head: str, base: str, title: str, body: str, draft: bool
    ) -> PullRequest:
        wanted = {
            "head": head,
            "base": base,
            "title": f"{DRAFT_PREFIX}{title}" if draft else title,
            "body": body,
        }
        try:
            reply = self._ask("POST", self._path(repo, "pulls"), body=wanted)
        except Refused as refused:
            existing = self._find_in_list(repo, head, base) if refused.status == 409 else None
            if existing is None:
                raise
            return existing
        return self._decode(reply.request, decode.pull_request, reply.data)

    def edit_pull_request(self, repo: RepoRef, number: int, title: str | None, body: str | None) -> None:
        """A new title keeps the prefix that makes the pull request a draft: only people take that away."""
        if title is not None:
            reply = self._ask("GET", self._path(repo, "pulls", str(number)))
            current = self._decode(reply.request, decode.pull_request, reply.data)
            if current.title.startswith(DRAFT_PREFIX) and not title.startswith(DRAFT_PREFIX):
                title = DRAFT_PREFIX + title
        super().edit_pull_request(repo, number, title, body)

    def user_role(self, repo: RepoRef, login: str) -> str:
        """Only who administers the repository may ask about others. To everybody else who can read it the forge lists
        who may be assigned its issues, which are those with write access; that of an organisation's teams to a part of
        the repository counts, and reading its pull requests too."""
        try:
            return super().user_role(repo, login)
        except Forbidden:
            found = self._all(self._path(repo, "assignees"), {})
            assignable = self._decode(found.request, decode.logins, found.rows)
            return "write" if login.casefold() in {name.casefold() for name in assignable} else "read"

    def last_labelling(self, issue: IssueRef, label: str) -> Labelling | None:
        """From the timeline, oldest first. It comes whole if no page is asked for; with pages nothing says which one is
        the last, since rows are left out of them and the total is that of the page."""
        with self._missing_told(issue):
            found = self._all(self._path(issue.repo_ref, "issues", str(issue.number), "timeline"), {})
        read = self._decode_each(found, decode.gitea_labelling, label)
        return next((event for event in reversed(read) if event is not None), None)

    def list_comments(self, issue: IssueRef) -> list[Comment]:
        with self._missing_told(issue):
            return super().list_comments(issue)

    def create_comment(self, issue: IssueRef, body: str) -> Comment:
        with self._missing_told(issue):
            return super().create_comment(issue, body)

    @contextlib.contextmanager
    def _missing_told(self, issue: IssueRef) -> Iterator[None]:
        """Gitea answers 500 where comments or history are asked for of an issue that was deleted (seen in 1.26.0). The
        issue's own place says 404, and so nobody asks for ever."""
        try:
            yield
        except Unreachable as unreachable:
            if unreachable.status == 500:
                self._ask("GET", self._path(issue.repo_ref, "issues", str(issue.number)))
            raise

    def _looks_empty(self, repo: RepoRef, facts: decode.RepositoryFacts) -> bool:
        return False  # it always says so itself; an answer without `empty` is an older one's

    def _ensure_label(self, repo: RepoRef, name: str, colour: str, description: str, exclusive: bool) -> None:
        self._label_id(repo, name, colour, description, exclusive)

    def _label_id(
        self, repo: RepoRef, name: str, colour: str, description: str = "", exclusive: bool = False
    ) -> int:
        """The id of the repository's label `name`, which is made where it is missing."""
        key = (repo, name.casefold())
        with self._lock:
            if key in self._label_ids:
                return self._label_ids[key]
            labels = self._repository_labels(repo)
            for label in labels:
                self._label_ids.setdefault((repo, label.name.casefold()), label.id)
            _warn_of_twins(repo, labels)
            if key not in self._label_ids:
                wanted = {
                    "name": name, "color": f"#{colour}", "description": description, "exclusive": exclusive
                }  # fmt: skip
                reply = self._ask("POST", self._path(repo, "labels"), body=wanted)
                self._label_ids[key] = self._decode(reply.request, decode.labels, [reply.data])[0].id
            return self._label_ids[key]

    def _repository_labels(self, repo: RepoRef) -> list[decode.Label]:
        """Page by page until one has nothing new: this list comes in pages and without a link to the next (seen in
        1.26.0). A label that was missed would be made a second time, and then the forge's filter, which wants all
        labels of a name on an issue, finds none."""
        found: dict[int, decode.Label] = {}
        for number in itertools.count(1):
            page = self._all(self._path(repo, "labels"), {**self.page_size, "page": str(number)})
            new = {label.id: label for label in self._decode(page.request, decode.labels, page.rows)}
            if new.keys() <= found.keys():
                break
            found |= new
        return sorted(found.values(), key=lambda label: label.id)

    def _forget_labels(self, repo: RepoRef) -> None:
        with self._lock:
            self._label_ids = {key: value for key, value in self._label_ids.items() if key[0] != repo}

    def _add_label(self, issue: IssueRef, name: str) -> list[decode.Label]:
        try:
            return self._add_by_id(issue, name)
        except Broken:
            # The id that we remembered is of a label that was deleted since; the forge drops it without a word.
            self._forget_labels(issue.repo_ref)
            return self._add_by_id(issue, name)

    def _add_by_id(self, issue: IssueRef, name: str) -> list[decode.Label]:
        identity = self._label_id(issue.repo_ref, name, DEFAULT_COLOUR)
        path = self._path(issue.repo_ref, "issues", str(issue.number), "labels")
        return self._added(self._ask("POST", path, body={"labels": [identity]}, repeatable=True), name)

    def _remove_label(self, issue: IssueRef, label: decode.Label) -> None:
        """By the id that the issue itself shows, which finds labels of the organisation too."""
        try:
            self._ask(
                "DELETE", self._path(issue.repo_ref, "issues", str(issue.number), "labels", str(label.id))
            )
        except NotFound:
            pass  # Forgejo, taken off meanwhile
        except Refused as refused:
            if refused.status != 422:  # the label itself is gone, and so off the issue
                raise

    def _issue_labels(self, repo: RepoRef, names: Sequence[str]) -> list[Any]:
        return [self._label_id(repo, name, DEFAULT_COLOUR) for name in names]


def _warn_of_twins(repo: RepoRef, labels: Sequence[decode.Label]) -> None:
    """The forge lets two labels have one name, and then finds no issue by it that has only one of them."""
    for name, count in Counter(label.name for label in labels).items():
        if count > 1:
            log.warning(
                "several labels have one name, and issues are not found by it; delete all but one "
                "repo=%s label=%r labels=%d",
                repo, name, count,
            )  # fmt: skip
