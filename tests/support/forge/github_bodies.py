"""GitHub's JSON, whole as its OpenAPI description demands (tests/forge/test_github_schemas.py holds it to that)."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

from tests.support.forge.state import Comment, Issue, Label, LabelEvent, Repo

_USER_LINKS = {
    "followers_url": "/followers", "following_url": "/following{/other_user}", "gists_url": "/gists{/gist_id}",
    "starred_url": "/starred{/owner}{/repo}", "subscriptions_url": "/subscriptions",
    "organizations_url": "/orgs", "repos_url": "/repos", "events_url": "/events{/privacy}",
    "received_events_url": "/received_events",
}  # fmt: skip
_REPO_LINKS = tuple(
    f"{name}_url"
    for line in (
        "forks keys teams hooks issue_events events assignees branches tags blobs git_tags git_refs trees",
        "statuses languages stargazers contributors subscribers subscription commits git_commits comments",
        "issue_comment contents compare merges archive downloads issues pulls milestones notifications labels",
        "releases deployments collaborators",
    )
    for name in line.split()
)


def _node(kind: str, identity: int) -> str:
    return base64.b64encode(f"{kind}{identity}".encode()).decode()


def _stamp(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


class Bodies:
    def __init__(self, url: str, api_url: str) -> None:
        self.url, self.api_url = url, api_url

    def user(self, login: str) -> dict[str, Any]:
        identity, at = sum(login.encode()), f"{self.api_url}/users/{login}"
        return {
            "login": login, "id": identity, "node_id": _node("User", identity), "gravatar_id": "",
            "avatar_url": f"{self.url}/avatars/{login}", "url": at, "html_url": f"{self.url}/{login}",
            "type": "Bot" if login.endswith("[bot]") else "User", "site_admin": False,
            **{name: at + rest for name, rest in _USER_LINKS.items()},
        }  # fmt: skip

    def public_user(self, login: str) -> dict[str, Any]:
        nothing = dict.fromkeys(("name", "company", "blog", "location", "email", "hireable", "bio"))
        counts = dict.fromkeys(("public_repos", "public_gists", "followers", "following"), 0)
        stamps = {"created_at": "2024-01-01T00:00:00Z", "updated_at": "2024-01-01T00:00:00Z"}
        return self.user(login) | nothing | counts | stamps

    def label(self, repo: Repo, label: Label) -> dict[str, Any]:
        return {
            "id": label.id, "node_id": _node("Label", label.id), "name": label.name, "color": label.colour,
            "url": f"{self._api(repo)}/labels/{label.name}", "default": False, "description": label.description,
        }  # fmt: skip

    def label_event(self, repo: Repo, issue: Issue, event: LabelEvent) -> dict[str, Any]:
        """As an issue's events show it; the label is the name that it had."""
        known = repo.label(event.label)
        return {
            "id": event.id, "node_id": _node("LabeledEvent", event.id),
            "url": f"{self._api(repo)}/issues/events/{event.id}", "actor": self.user(event.actor),
            "event": "labeled" if event.added else "unlabeled", "commit_id": None, "commit_url": None,
            "created_at": _stamp(event.at), "performed_via_github_app": None,
            "label": {"name": event.label, "color": known.colour if known is not None else "ededed"},
        }  # fmt: skip

    def issue(self, repo: Repo, issue: Issue) -> dict[str, Any]:
        at = f"{self._api(repo)}/issues/{issue.number}"
        row = self._row(repo, issue) | {
            "url": at, "repository_url": self._api(repo), "labels_url": f"{at}/labels{{/name}}",
            "comments_url": f"{at}/comments", "events_url": f"{at}/events", "comments": len(issue.comments),
            "html_url": self._page(repo, issue), "state_reason": None if issue.is_open else "completed",
            "reactions": self._reactions(at), "timeline_url": f"{at}/timeline",
            "performed_via_github_app": None,
        }  # fmt: skip
        if issue.pull is not None:
            page = self._page(repo, issue)
            merged_at = _stamp(issue.updated_at) if issue.pull.merged else None
            row["pull_request"] = {
                "url": f"{self._api(repo)}/pulls/{issue.number}", "html_url": page, "diff_url": f"{page}.diff",
                "patch_url": f"{page}.patch", "merged_at": merged_at,
            }  # fmt: skip
            row["draft"] = issue.pull.draft
        return row

    def comment(self, repo: Repo, issue: Issue, comment: Comment) -> dict[str, Any]:
        at = f"{self._api(repo)}/issues/comments/{comment.id}"
        return {
            "id": comment.id, "node_id": _node("IssueComment", comment.id), "url": at,
            "html_url": f"{self._page(repo, issue)}#issuecomment-{comment.id}", "body": comment.body,
            "user": self.user(comment.author), "created_at": _stamp(comment.created_at),
            "updated_at": _stamp(comment.updated_at), "author_association": "COLLABORATOR",
            "issue_url": f"{self._api(repo)}/issues/{issue.number}", "reactions": self._reactions(at),
            "performed_via_github_app": None,
        }  # fmt: skip

    def pull_in_list(self, repo: Repo, issue: Issue) -> dict[str, Any]:
        assert issue.pull is not None
        at, page = f"{self._api(repo)}/pulls/{issue.number}", self._page(repo, issue)
        links = {
            "url": at, "html_url": page, "diff_url": f"{page}.diff", "patch_url": f"{page}.patch",
            "issue_url": f"{self._api(repo)}/issues/{issue.number}", "commits_url": f"{at}/commits",
            "review_comments_url": f"{at}/comments", "statuses_url": f"{self._api(repo)}/statuses/x",
            "review_comment_url": f"{self._api(repo)}/pulls/comments{{/number}}",
            "comments_url": f"{self._api(repo)}/issues/{issue.number}/comments",
        }  # fmt: skip
        named = (
            "comments", "commits", "statuses", "html", "issue", "review_comments", "review_comment"
        )  # fmt: skip
        return self._row(repo, issue) | links | {
            "_links": {"self": {"href": at}} | {name: {"href": links[f"{name}_url"]} for name in named},
            "base": self._branch(repo, issue.pull.base), "head": self._branch(repo, issue.pull.head),
            "draft": issue.pull.draft, "auto_merge": None, "requested_reviewers": [], "requested_teams": [],
            "merged_at": _stamp(issue.updated_at) if issue.pull.merged else None,
            "merge_commit_sha": issue.pull.merge_commit,
        }  # fmt: skip

    def pull(self, repo: Repo, issue: Issue) -> dict[str, Any]:
        assert issue.pull is not None
        head, base, git = issue.pull.head, issue.pull.base, repo.git
        there = git.sha(head) is not None
        mergeable = there and git.mergeable(base, head)
        return self.pull_in_list(repo, issue) | {
            "merged": issue.pull.merged, "mergeable": mergeable, "rebaseable": mergeable,
            "mergeable_state": "clean" if mergeable else "dirty", "merged_by": None,
            "comments": len(issue.comments), "review_comments": 0, "maintainer_can_modify": False,
            "commits": len(git.commits(base, head)) if there else 0, "additions": 1, "deletions": 0,
            "changed_files": len(git.changed_files(base, head)) if there else 0,
        }  # fmt: skip

    def full_repo(self, repo: Repo) -> dict[str, Any]:
        return self.repo(repo) | {"network_count": 0, "subscribers_count": 1}

    def repo(self, repo: Repo) -> dict[str, Any]:
        page, at = f"{self.url}/{repo.full_name}", self._api(repo)
        return {
            "id": repo.id, "node_id": _node("Repository", repo.id), "name": repo.name,
            "full_name": repo.full_name, "owner": self.user(repo.owner), "private": True, "html_url": page,
            "description": None, "fork": False, "url": at, "git_url": f"git:{page}.git",
            "ssh_url": f"git@127.0.0.1:{repo.full_name}.git", "clone_url": f"{page}.git", "svn_url": page,
            "mirror_url": None, "homepage": None, "language": None, "license": None, "forks": 0,
            "forks_count": 0, "stargazers_count": 0, "watchers": 0, "watchers_count": 0, "size": 0,
            "default_branch": repo.default_branch, "open_issues": 0, "open_issues_count": 0,
            "has_issues": repo.issues_enabled, "has_projects": False, "has_wiki": False, "has_pages": False,
            "has_downloads": True, "has_discussions": False, "archived": repo.archived, "disabled": False,
            "pushed_at": _stamp(repo.created_at), "created_at": _stamp(repo.created_at),
            "updated_at": _stamp(repo.created_at), "permissions": {"admin": False, "push": True, "pull": True},
            **{name: f"{at}/{name.removesuffix('_url')}" for name in _REPO_LINKS},
        }  # fmt: skip

    def _row(self, repo: Repo, issue: Issue) -> dict[str, Any]:
        """What issues and pull requests have alike."""
        return {
            "id": issue.id, "node_id": _node("Issue", issue.id), "number": issue.number, "title": issue.title,
            "user": self.user(issue.author), "labels": [self.label(repo, label) for label in issue.labels],
            "state": "open" if issue.is_open else "closed", "locked": False, "assignee": None, "assignees": [],
            "milestone": None, "created_at": _stamp(issue.created_at), "updated_at": _stamp(issue.updated_at),
            "closed_at": None if issue.is_open else _stamp(issue.updated_at), "body": issue.body or None,
            "author_association": "COLLABORATOR", "active_lock_reason": None,
        }  # fmt: skip

    def _branch(self, repo: Repo, branch: str) -> dict[str, Any]:
        sha = repo.git.sha(branch) or "0" * 40
        user = self.user(repo.owner)
        return {
            "label": f"{repo.owner}:{branch}",
            "ref": branch,
            "sha": sha,
            "user": user,
            "repo": self.repo(repo),
        }

    def _reactions(self, at: str) -> dict[str, Any]:
        names = ("+1", "-1", "laugh", "hooray", "confused", "heart", "rocket", "eyes")
        return {"url": f"{at}/reactions", "total_count": 0, **dict.fromkeys(names, 0)}

    def _api(self, repo: Repo) -> str:
        return f"{self.api_url}/repos/{repo.full_name}"

    def _page(self, repo: Repo, issue: Issue) -> str:
        return f"{self.url}/{repo.full_name}/{'pull' if issue.pull else 'issues'}/{issue.number}"
