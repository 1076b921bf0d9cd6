"""A fake Gitea: /api/v1, `Authorization: token T`, no ETag, labels by id, unknown labels dropped without a word.

Compared call by call with a Gitea 1.26.0; tests/real_forge/test_facts.py has what matters of that.
"""

from __future__ import annotations

from typing import Any

from tests.support.forge.core import OWN_LOGIN, FakeForge, Refusal, route
from tests.support.forge.server import Answer, Call
from tests.support.forge.state import Comment, Issue, Label, LabelEvent, Pull, Repo
from tireless.entities import Forge

DRAFT_PREFIXES = ("WIP:", "[WIP]")
_ZERO_TIME = "0001-01-01T00:00:00Z"


class FakeGitea(FakeForge):
    kind = Forge.GITEA
    api = "/api/v1"
    token_word = "token"
    size_name = "limit"
    default_size = 30
    largest_size = 50
    edited_status = 201
    missing_message = "The target couldn't be found."
    unauthorized_message = "invalid username, password or token"

    # Issues

    @route("GET", "/repos/{owner}/{name}/issues")
    def list_issues(self, call: Call, repo: Repo) -> Answer:
        """An unknown label is dropped from the filter: alone, it lists every open issue."""
        self.check_issues(repo)
        found = self.matching(call, repo)
        if call.query.get("type") == "issues":
            found = [issue for issue in found if issue.pull is None]
        names = call.query.get("labels", "").split(",")
        for wanted in [label for label in self.filter_labels(repo) if label.name in names]:
            found = [issue for issue in found if wanted in issue.labels]
        return self.page(call, self.sorted(call, found), lambda issue: self.draw_issue(repo, issue))

    def filter_labels(self, repo: Repo) -> list[Label]:
        """Those that its filter knows, by their exact name. Of two with the same name an issue must have both."""
        return repo.labels

    def sorted(self, call: Call, issues: list[Issue]) -> list[Issue]:
        return issues  # Gitea's API knows no sort

    @route("GET", "/repos/{owner}/{name}/issues/{number}")
    def get_issue(self, call: Call, repo: Repo, number: str) -> Answer:
        return Answer.of(200, self.draw_issue(repo, self.find(repo, number)))

    @route("POST", "/repos/{owner}/{name}/issues")
    def post_issue(self, call: Call, repo: Repo) -> Answer:
        self.check_issues(repo)
        self.check_writable(repo)
        ids = call.json.get("labels") or []
        if not all(isinstance(i, int) for i in ids):
            raise Refusal(422, "json: cannot unmarshal string into Go struct field .labels of type int64")
        labels = [label for label in (*repo.labels, *repo.org_labels) if label.id in ids]
        issue = self.new_issue(repo, self.text(call, "title"), call.json.get("body", ""), labels)
        return Answer.of(201, self.draw_issue(repo, issue))

    @route("PATCH", "/repos/{owner}/{name}/issues/{number}")
    def patch_issue(self, call: Call, repo: Repo, number: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        issue.title, issue.body = call.json.get("title", issue.title), call.json.get("body", issue.body)
        issue.is_open = call.json.get("state", "open" if issue.is_open else "closed") == "open"
        self.touch(issue)
        return Answer.of(201, self.draw_issue(repo, issue))

    @route("DELETE", "/repos/{owner}/{name}/issues/{number}")
    def delete_issue_for_good(self, call: Call, repo: Repo, number: str) -> Answer:
        self.find(repo, number)
        if repo.permissions.get(OWN_LOGIN) != "admin":
            raise Refusal(403, "user should be an owner or a collaborator with admin write of a repository")
        del repo.issues[int(number)]
        return Answer(204)

    @route("GET", "/repos/{owner}/{name}/issues/{number}/comments")
    def list_comments(self, call: Call, repo: Repo, number: str) -> Answer:
        """Not paged, whatever is asked for."""
        issue = self.find_or_fail(repo, number)
        rows = [self.draw_comment(repo, issue, comment) for comment in issue.comments]
        return Answer.of(200, rows, self.list_headers(len(rows)))

    @route("POST", "/repos/{owner}/{name}/issues/{number}/comments")
    def post_comment(self, call: Call, repo: Repo, number: str) -> Answer:
        self.find_or_fail(repo, number)
        return super().post_comment(call, repo, number)

    def find_or_fail(self, repo: Repo, number: str) -> Issue:
        """What has to do with comments does not expect that an issue is missing."""
        if number.isdecimal() and int(number) not in repo.issues:
            raise Refusal(500, "")
        return self.find(repo, number)

    # Labels

    @route("GET", "/repos/{owner}/{name}/labels")
    def list_labels(self, call: Call, repo: Repo) -> Answer:
        """In pages, by name, with the total and without a link to the next."""
        answer = self.page(
            call, sorted(repo.labels, key=lambda label: label.name), lambda label: self.draw_label(repo, label)
        )
        answer.headers.pop("Link", None)
        return answer

    @route("POST", "/repos/{owner}/{name}/labels")
    def post_label(self, call: Call, repo: Repo) -> Answer:
        """A second label of the same name is no error here."""
        self.check_writable(repo)
        colour = self.text(call, "color").removeprefix("#")
        if len(colour) != 6 or set(colour.lower()) - set("0123456789abcdef"):
            raise Refusal(422, "bad color code")
        label = Label(self.next_id(), self.text(call, "name"), colour, call.json.get("description", ""))
        label.exclusive = bool(call.json.get("exclusive"))
        repo.labels.append(label)
        return Answer.of(201, self.draw_label(repo, label))

    @route("DELETE", "/repos/{owner}/{name}/labels/{identity}")
    def delete_label(self, call: Call, repo: Repo, identity: str) -> Answer:
        """Deleted, or unknown: 204 for both. What the history tells of the label goes with it."""
        self.check_writable(repo)
        for label in [label for label in repo.labels if str(label.id) == identity]:
            self.forget_label(repo, label)
            for issue in repo.issues.values():
                issue.events = [event for event in issue.events if event.label != label.name]
        return Answer(204)

    @route("GET", "/repos/{owner}/{name}/issues/{number}/labels")
    def list_issue_labels(self, call: Call, repo: Repo, number: str) -> Answer:
        return Answer.of(200, [self.draw_label(repo, label) for label in self.find(repo, number).labels])

    @route("POST", "/repos/{owner}/{name}/issues/{number}/labels")
    def post_issue_labels(self, call: Call, repo: Repo, number: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        for label in self.meant_labels(repo, call.json.get("labels") or []):
            if label.scope is not None:
                for other in [o for o in issue.labels if o.scope == label.scope and o is not label]:
                    self.take_label(issue, other.name)
            self.put_label(issue, label)
        return self.list_issue_labels(call, repo, number)

    @route("PUT", "/repos/{owner}/{name}/issues/{number}/labels")
    def put_issue_labels(self, call: Call, repo: Repo, number: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        issue.labels = self.meant_labels(repo, call.json.get("labels") or [])
        self.touch(issue)
        return self.list_issue_labels(call, repo, number)

    def meant_labels(self, repo: Repo, given: list[Any]) -> list[Label]:
        """Ids or names, never mixed; what is unknown is dropped."""
        known = [*repo.labels, *repo.org_labels]
        if all(isinstance(item, int) for item in given):
            return [label for label in known if label.id in given]
        if all(isinstance(item, str) for item in given):
            return [label for label in known if label.name in given]
        raise Refusal(400, "labels should be an array of strings or integers")

    @route("DELETE", "/repos/{owner}/{name}/issues/{number}/labels/{label}")
    def delete_issue_label(self, call: Call, repo: Repo, number: str, label: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        found = self.deletable(repo, label)
        if found is None:
            raise Refusal(422, f"label does not exist [label_id: {label}]")
        self.take_label(issue, found.name)
        return Answer(204)

    def deletable(self, repo: Repo, label: str) -> Label | None:
        return next((known for known in (*repo.labels, *repo.org_labels) if str(known.id) == label), None)

    # Pull requests

    @route("GET", "/repos/{owner}/{name}/pulls")
    def list_pulls(self, call: Call, repo: Repo) -> Answer:
        found = [issue for issue in self.matching(call, repo) if issue.pull is not None]
        return self.page(call, found, lambda issue: self.draw_pull(repo, issue))

    @route("GET", "/repos/{owner}/{name}/pulls/{base}/{head*}")
    def get_pull_by_branches(self, call: Call, repo: Repo, base: str, head: str) -> Answer:
        """The first of that pair that the database finds, which may be a closed one."""
        for issue in repo.issues.values():
            if issue.pull is not None and (issue.pull.head, issue.pull.base) == (head, base):
                return Answer.of(200, self.draw_pull(repo, issue))
        raise Refusal(404, self.missing_message)

    @route("POST", "/repos/{owner}/{name}/pulls")
    def post_pull(self, call: Call, repo: Repo) -> Answer:
        self.check_writable(repo)
        head, base = self.text(call, "head"), self.text(call, "base")
        if head == base:
            raise Refusal(422, "Invalid PullRequest: There are no changes between the head and the base")
        if repo.git.sha(head) is None or repo.git.sha(base) is None:
            raise Refusal(404, self.missing_message)
        existing = self.open_pull_of(repo, head, base)
        if existing is not None:
            message = (
                f"pull request already exists for these targets [id: {existing.id}, issue_id: {existing.id}]"
            )
            raise Refusal(409, message)
        title = self.text(call, "title")
        issue = self.new_issue(repo, title, call.json.get("body", ""), [])
        issue.pull = Pull(head, base)
        return Answer.of(201, self.draw_pull(repo, issue))

    # Others

    @route("GET", "/repos/{owner}/{name}/collaborators/{login}/permission")
    def get_permission(self, call: Call, repo: Repo, login: str) -> Answer:
        if login != OWN_LOGIN and repo.permissions.get(OWN_LOGIN) != "admin":
            raise Refusal(
                403, "Only admins can query all permissions, repo admins can query all repo permissions"
            )
        permission = "owner" if login == repo.owner else repo.permissions.get(login, "none")
        permission = {"triage": "read", "maintain": "write"}.get(permission, permission)
        body = {"permission": permission, "role_name": permission, "user": self.draw_user(login)}
        return Answer.of(200, body)

    @route("GET", "/repos/{owner}/{name}/assignees")
    def list_assignees(self, call: Call, repo: Repo) -> Answer:
        """For all who can read the repository, and not paged: its owner, and who may write."""
        if self.hides_assignees:
            raise Refusal(403, "user should have a permission to read the repo")
        writers = [login for login, may in repo.permissions.items() if may in ("admin", "write", "maintain")]
        return Answer.of(200, [self.draw_user(login) for login in dict.fromkeys([repo.owner, *writers])])

    @route("GET", "/repos/{owner}/{name}/issues/{number}/timeline")
    def list_timeline(self, call: Call, repo: Repo, number: str) -> Answer:
        """Comments and events by time; without a page, all of them. The total that it tells is the page's."""
        issue = self.find_or_fail(repo, number)
        rows = [self.draw_timeline_comment(repo, issue, comment) for comment in issue.comments]
        rows += [self.draw_label_event(repo, issue, event) for event in issue.events]
        rows.sort(key=lambda row: row["id"])
        if "page" in call.query:
            size, page = int(call.query.get("limit", self.default_size)), int(call.query["page"])
            rows = rows[(page - 1) * size : page * size]
        return Answer.of(200, rows, self.list_headers(len(rows)))

    hides_assignees = False

    def draw_timeline_comment(self, repo: Repo, issue: Issue, comment: Comment) -> dict[str, Any]:
        row = self.draw_comment(repo, issue, comment)
        for key in ("original_author", "original_author_id", "assets"):
            del row[key]
        return row | {"type": "comment", "label": None}

    def draw_label_event(self, repo: Repo, issue: Issue, event: LabelEvent) -> dict[str, Any]:
        page = f"{self.url}/{repo.full_name}/issues/{issue.number}"
        known = {label.name: label for label in (*repo.org_labels, *repo.labels)}.get(event.label)
        return {
            "id": event.id, "type": "label", "html_url": f"{page}#issuecomment-{event.id}", "pull_request_url": "",
            "issue_url": page, "user": self.draw_user(event.actor), "body": "1" if event.added else "",
            "created_at": self.stamp(event.at), "updated_at": self.stamp(event.at),
            "label": None if known is None else self.draw_label(repo, known),
        }  # fmt: skip

    def check_issues(self, repo: Repo) -> None:
        if not repo.issues_enabled:
            raise Refusal(404, self.missing_message)

    def check_writable(self, repo: Repo) -> None:
        if repo.archived:
            raise Refusal(423, f"{repo.full_name} is archived")

    def list_headers(self, total: int) -> dict[str, str]:
        return {"X-Total-Count": str(total)}

    def error_body(self, refusal: Refusal) -> dict[str, Any]:
        return {"message": refusal.message, "url": f"{self.url}/api/swagger"}

    def renamed(self, call: Call, repo: Repo) -> Answer:
        """The same status for every method, with the new name put into the same path."""
        path = "/".join(["", "repos", repo.owner, repo.name, *call.path.removeprefix(self.api).split("/")[4:]])
        query = f"?{call.raw_query}" if call.raw_query else ""
        return Answer(self.renamed_status, b"", {"Location": f"{self.api}{path}{query}"})

    renamed_status = 301

    # Bodies

    def draw_user(self, login: str) -> dict[str, Any]:
        return {
            "id": sum(login.encode()), "login": login, "login_name": "", "source_id": 0, "full_name": "",
            "email": f"{login}@noreply.example.org", "avatar_url": f"{self.url}/avatars/{login}",
            "html_url": f"{self.url}/{login}", "language": "", "is_admin": False, "last_login": _ZERO_TIME,
            "created": "2024-01-01T00:00:00Z", "restricted": False, "active": False, "prohibit_login": False,
            "location": "", "website": "", "description": "", "visibility": "public",
            "followers_count": 0, "following_count": 0, "starred_repos_count": 0,
        }  # fmt: skip

    def draw_label(self, repo: Repo, label: Label) -> dict[str, Any]:
        return {
            "id": label.id, "name": label.name, "exclusive": label.exclusive, "is_archived": False,
            "color": label.colour, "description": label.description,
            "url": f"{self.api_url}/repos/{repo.full_name}/labels/{label.id}",
        }  # fmt: skip

    def draw_issue(self, repo: Repo, issue: Issue) -> dict[str, Any]:
        page = f"{repo.full_name}/{'pulls' if issue.pull else 'issues'}/{issue.number}"
        meta = {"id": repo.id, "name": repo.name, "owner": repo.owner, "full_name": repo.full_name}
        pull = None
        if issue.pull is not None:
            pull = {
                "merged": issue.pull.merged,
                "merged_at": None,
                "draft": self.is_draft(issue),
                "html_url": page,
            }
        return {
            "id": issue.id, "url": f"{self.api_url}/repos/{repo.full_name}/issues/{issue.number}",
            "html_url": f"{self.url}/{page}", "number": issue.number, "user": self.draw_user(issue.author),
            "original_author": "", "original_author_id": 0, "title": issue.title, "body": issue.body, "ref": "",
            "assets": [], "labels": [self.draw_label(repo, label) for label in issue.labels], "milestone": None,
            "assignee": None, "assignees": None, "state": "open" if issue.is_open else "closed",
            "is_locked": False, "comments": len(issue.comments), "created_at": self.stamp(issue.created_at),
            "updated_at": self.stamp(issue.updated_at),
            "closed_at": None if issue.is_open else self.stamp(issue.updated_at), "due_date": None,
            "time_estimate": 0, "pull_request": pull, "repository": meta, "pin_order": 0,
        }  # fmt: skip

    def draw_comment(self, repo: Repo, issue: Issue, comment: Comment) -> dict[str, Any]:
        page = f"{self.url}/{repo.full_name}/issues/{issue.number}"
        return {
            "id": comment.id, "html_url": f"{page}#issuecomment-{comment.id}", "pull_request_url": "",
            "issue_url": page, "user": self.draw_user(comment.author), "original_author": "",
            "original_author_id": 0, "body": comment.body, "assets": [],
            "created_at": self.stamp(comment.created_at), "updated_at": self.stamp(comment.updated_at),
        }  # fmt: skip

    def is_draft(self, issue: Issue) -> bool:
        return issue.title.upper().startswith(DRAFT_PREFIXES)

    def draw_pull(self, repo: Repo, issue: Issue) -> dict[str, Any]:
        assert issue.pull is not None
        pull, row = issue.pull, self.draw_issue(repo, issue)
        for key in ("original_author", "original_author_id", "ref", "assets", "time_estimate", "pull_request"):
            del row[key]
        del row["repository"]
        page = f"{self.url}/{repo.full_name}/pulls/{issue.number}"
        gone = repo.git.sha(pull.head) is None
        head = {**self.draw_branch(repo, pull.head), "label": pull.head}
        if gone:
            head["ref"] = f"refs/pull/{issue.number}/head"
        return row | {
            "html_url": page, "diff_url": f"{page}.diff", "patch_url": f"{page}.patch",
            "draft": self.is_draft(issue), "mergeable": not gone and repo.git.mergeable(pull.base, pull.head),
            "merged": pull.merged, "merged_at": self.stamp(issue.updated_at) if pull.merged else None,
            "merge_commit_sha": pull.merge_commit, "merged_by": None, "allow_maintainer_edit": False,
            "base": self.draw_branch(repo, pull.base), "head": head, "merge_base": repo.git.sha(pull.base) or "",
            "requested_reviewers": None, "requested_reviewers_teams": None,
            "changed_files": 0 if gone else len(repo.git.changed_files(pull.base, pull.head)),
        }  # fmt: skip

    def draw_branch(self, repo: Repo, branch: str) -> dict[str, Any]:
        sha = repo.git.sha(branch) or ""
        return {"label": branch, "ref": branch, "sha": sha, "repo_id": repo.id, "repo": self.draw_repo(repo)}

    def draw_repo(self, repo: Repo) -> dict[str, Any]:
        page = f"{self.url}/{repo.full_name}"
        return {
            "id": repo.id, "owner": self.draw_user(repo.owner), "name": repo.name, "full_name": repo.full_name,
            "description": "", "empty": not repo.git.branches(), "private": True, "fork": False,
            "template": False, "mirror": False, "size": 24, "language": "",
            "languages_url": f"{self.api_url}/repos/{repo.full_name}/languages", "html_url": page,
            "url": f"{self.api_url}/repos/{repo.full_name}", "link": "",
            "ssh_url": f"git@127.0.0.1:{repo.full_name}.git", "clone_url": f"{page}.git", "original_url": "",
            "website": "", "stars_count": 0, "forks_count": 0, "watchers_count": 1, "open_issues_count": 0,
            "open_pr_counter": 0, "release_counter": 0, "default_branch": repo.default_branch,
            "archived": repo.archived, "created_at": self.stamp(repo.created_at),
            "updated_at": self.stamp(repo.created_at), "archived_at": "1970-01-01T00:00:00Z",
            "permissions": {"admin": False, "push": True, "pull": True}, "has_issues": repo.issues_enabled,
            "has_wiki": False, "has_pull_requests": True, "has_projects": False, "object_format_name": "sha1",
        }  # fmt: skip
