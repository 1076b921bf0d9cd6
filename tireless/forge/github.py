"""GitHub and GitHub Enterprise (base URL https://HOST/api/v3)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tireless.entities import IssueRef, Labelling, PullRequest, RepoRef
from tireless.forge import decode
from tireless.forge.client import DEFAULT_COLOUR, ForgeClient
from tireless.forge.errors import NotFound, Refused

_DESCRIPTION_CHARS = 100  # GitHub refuses a longer label description


class GitHubClient(ForgeClient):
    accept = "application/vnd.github+json"
    extra_headers: ClassVar[Mapping[str, str]] = {"X-GitHub-Api-Version": "2022-11-28"}
    token_word = "Bearer"
    sends_etags = True
    page_size: ClassVar[Mapping[str, str]] = {"per_page": "100"}
    # A new or changed row moves to page 1, which is the page that the ETag covers.
    newest_change_first: ClassVar[Mapping[str, str]] = {"sort": "updated", "direction": "desc"}

    def find_pull_request(self, repo: RepoRef, head: str, base: str) -> PullRequest | None:
        query = {"head": f"{repo.owner}:{head}", "base": base, "state": "open", **self.page_size}
        found = self._all(self._path(repo, "pulls"), query)
        for pull in self._decode_each(found, decode.pull_request):
            if pull.is_open and (pull.head, pull.base) == (head, base):
                return pull
        now = self._name_now(repo) if found.moved else repo
        if now.owner.casefold() != repo.owner.casefold():
            # The old owner's name in `head` matches nothing.
            return self.find_pull_request(now, head, base)
        return None

    def create_pull_request(
        self, repo: RepoRef, head: str, base: str, title: str, body: str, draft: bool
    ) -> PullRequest:
        wanted = {"head": head, "base": base, "title": title, "body": body, "draft": draft}
        try:
            reply = self._ask("POST", self._path(repo, "pulls"), body=wanted)
        except Refused as refused:
            text = str(refused).lower()
            if refused.status == 422 and "already exists" in text:
                existing = self.find_pull_request(repo, head, base)
                if existing is not None:
                    return existing
            if refused.status == 422 and draft and "draft" in text:
                # Not every plan has drafts. A pull request that is none is better than none at all.
                return self.create_pull_request(repo, head, base, title, body, draft=False)
            raise
        return self._decode(reply.request, decode.pull_request, reply.data)

    def last_labelling(self, issue: IssueRef, label: str) -> Labelling | None:
        """From the issue's events, oldest first, which unlike the timeline hold no comments."""
        path = self._path(issue.repo_ref, "issues", str(issue.number), "events")
        found = self._decode_each(self._all(path, self.page_size), decode.github_labelling, label)
        return next((event for event in reversed(found) if event is not None), None)

    def _looks_empty(self, repo: RepoRef, facts: decode.RepositoryFacts) -> bool:
        """`size` is 0 for an empty repository, and for a small new one for a while; its branches tell."""
        return facts.size == 0 and not self._all(self._path(repo, "branches"), {"per_page": "1"}, most=1).rows

    def _ensure_label(self, repo: RepoRef, name: str, colour: str, description: str, exclusive: bool) -> None:
        try:
            self._ask("GET", self._path(repo, "labels", name))
            return
        except NotFound:
            pass
        wanted = {"name": name, "color": colour, "description": description[:_DESCRIPTION_CHARS]}
        try:
            self._ask("POST", self._path(repo, "labels"), body=wanted)
        except Refused as refused:
            if not (refused.status == 422 and "already_exists" in str(refused)):
                raise

    def _add_label(self, issue: IssueRef, name: str) -> list[decode.Label]:
        path = self._path(issue.repo_ref, "issues", str(issue.number), "labels")
        return self._added(self._ask("POST", path, body={"labels": [name]}, repeatable=True), name)

    def _remove_label(self, issue: IssueRef, label: decode.Label) -> None:
        with contextlib.suppress(NotFound):  # taken off meanwhile
            self._ask("DELETE", self._path(issue.repo_ref, "issues", str(issue.number), "labels", label.name))

    def _issue_labels(self, repo: RepoRef, names: Sequence[str]) -> list[Any]:
        for name in names:
            self._ensure_label(repo, name, DEFAULT_COLOUR, "", exclusive=False)
        return list(names)
