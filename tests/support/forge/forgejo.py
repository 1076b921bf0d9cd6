"""A fake Forgejo: as Gitea, but it filters by the organisation's labels too, removes a label by name or id, sorts,
answers 413 to a body that is too long, and may put null rows into its list of pull requests."""

from __future__ import annotations

from tests.support.forge.core import Refusal, route
from tests.support.forge.gitea import FakeGitea
from tests.support.forge.server import Answer, Call
from tests.support.forge.state import Issue, Label, Repo
from tireless.entities import Forge

LONGEST_BODY = 1024 * 1024


class FakeForgejo(FakeGitea):
    kind = Forge.FORGEJO

    renamed_status = 307

    def filter_labels(self, repo: Repo) -> list[Label]:
        return [*repo.labels, *repo.org_labels]

    def sorted(self, call: Call, issues: list[Issue]) -> list[Issue]:
        if call.query.get("sort") == "recentupdate":
            return sorted(issues, key=lambda issue: issue.updated_at, reverse=True)
        return issues

    def deletable(self, repo: Repo, label: str) -> Label | None:
        by_id = super().deletable(repo, label)
        if by_id is not None:
            return by_id
        return next((known for known in (*repo.labels, *repo.org_labels) if known.name == label), None)

    @route("GET", "/repos/{owner}/{name}/pulls")
    def list_pulls(self, call: Call, repo: Repo) -> Answer:
        """A row whose pull request went missing in the database is null."""
        found: list[Issue | None] = [None]
        found += [issue for issue in self.matching(call, repo) if issue.pull is not None]
        return self.page(call, found, lambda issue: None if issue is None else self.draw_pull(repo, issue))

    @route("POST", "/repos/{owner}/{name}/pulls")
    def post_pull(self, call: Call, repo: Repo) -> Answer:
        if len(call.body) > LONGEST_BODY:
            raise Refusal(413, "request body too large")
        return super().post_pull(call, repo)
