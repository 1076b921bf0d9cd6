"""A fake GitHub (Enterprise paths: /api/v3): `Authorization: Bearer T`, an ETag a page, labels by name, 422 for a
pull request that exists, 301 and 307 to /repositories/ID after a rename."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.forge.core import OWN_LOGIN, FakeForge, Refusal, route
from tests.support.forge.github_bodies import Bodies
from tests.support.forge.server import Answer, Call
from tests.support.forge.state import Comment, Issue, Label, Pull, Repo
from tireless.entities import Forge

LONGEST_BODY = 65536  # characters of an issue, comment or pull request
_DOCS = "https://docs.github.com/rest"


class FakeGitHub(FakeForge):
    kind = Forge.GITHUB
    api = "/api/v3"
    token_word = "Bearer"
    size_name = "per_page"
    default_size = 30
    largest_size = 100
    edited_status = 200
    missing_message = "Not Found"
    unauthorized_message = "Bad credentials"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.pushes = True  # without push access labels of a new issue are dropped silently
        self.app_token = False  # a GitHub App's token may not ask who it is
        self.bodies = Bodies(self.url, self.api_url)

    def _answer(self, call: Call) -> Answer:
        """Every 200 of a GET has an ETag, which depends on the token too; rate-limit headers are always there."""
        answer = super()._answer(call)
        if not call.path.startswith(self.api + "/"):
            return answer
        for name, value in (("limit", "5000"), ("remaining", "4999"), ("reset", "4102444800"), ("used", "1")):
            answer.headers[f"X-RateLimit-{name.title()}"] = value
        if call.method == "GET" and answer.status == 200:
            answer.headers["ETag"] = self.etag(answer.body, call)
            if call.headers.get("if-none-match") == answer.headers["ETag"]:
                return Answer(304, b"", {"ETag": answer.headers["ETag"]})
        return answer

    def _route(self, call: Call, path: str) -> Answer:
        """/repositories/ID/… is what renamed repositories are redirected to, and what next links name."""
        if path.startswith("/repositories/"):
            _, _, identity, *rest = path.split("/")
            repo = next((repo for repo in self.repos.values() if str(repo.id) == identity), None)
            if repo is None:
                raise Refusal(404, self.missing_message)
            path = "/".join(["/repos", repo.full_name, *rest])
        return super()._route(call, path)

    def renamed(self, call: Call, repo: Repo) -> Answer:
        rest = call.path.removeprefix(self.api).split("/")[4:]
        return self.moved(call, "/".join([f"{self.api_url}/repositories/{repo.id}", *rest]))

    def moved(self, call: Call, url: str) -> Answer:
        query = f"?{call.raw_query}" if call.raw_query else ""
        status = 301 if call.method == "GET" else 307
        body = {"message": "Moved Permanently", "url": url, "documentation_url": _DOCS}
        return Answer.of(status, body, {"Location": url + query})

    def find(self, repo: Repo, number: str) -> Issue:
        if not repo.issues_enabled:
            raise Refusal(410, "Issues are disabled for this repo")
        return super().find(repo, number)

    # Issues

    @route("GET", "/repos/{owner}/{name}/issues")
    def list_issues(self, call: Call, repo: Repo) -> Answer:
        """Pull requests are among them. Several labels are ANDed; one that does not exist matches nothing."""
        found = self.matching(call, repo)
        for name in filter(None, call.query.get("labels", "").split(",")):
            found = [issue for issue in found if issue.has(name)]
        key = {"updated": "updated_at", "comments": "comments"}.get(call.query.get("sort", ""), "created_at")
        found.sort(key=lambda issue: getattr(issue, key), reverse=call.query.get("direction", "desc") == "desc")
        base = f"{self.api_url}/repositories/{repo.id}/issues"
        return self.page(call, found, lambda issue: self.bodies.issue(repo, issue), base=base)

    @route("GET", "/repos/{owner}/{name}/issues/{number}")
    def get_issue(self, call: Call, repo: Repo, number: str) -> Answer:
        gone = self.transferred.get((repo.id, int(number)))
        if gone is not None:
            return self.moved(call, f"{self.api_url}/repositories/{gone[0].id}/issues/{gone[1]}")
        return Answer.of(200, self.bodies.issue(repo, self.find(repo, number)))

    @route("POST", "/repos/{owner}/{name}/issues")
    def post_issue(self, call: Call, repo: Repo) -> Answer:
        if not repo.issues_enabled:
            raise Refusal(410, "Issues has been disabled in this repository.")
        self.check_writable(repo)
        names = call.json.get("labels", []) if self.pushes else []
        title, body = self.text(call, "title"), self.body_text(call, "Issue")
        issue = self.new_issue(repo, title, body, [self._made_label(repo, name) for name in names])
        return Answer.of(201, self.bodies.issue(repo, issue))

    @route("PATCH", "/repos/{owner}/{name}/issues/{number}")
    def patch_issue(self, call: Call, repo: Repo, number: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        issue.title, issue.body = call.json.get("title", issue.title), call.json.get("body", issue.body)
        issue.is_open = call.json.get("state", "open" if issue.is_open else "closed") == "open"
        self.touch(issue)
        return Answer.of(200, self.bodies.issue(repo, issue))

    @route("GET", "/repos/{owner}/{name}/issues/{number}/comments")
    def list_comments(self, call: Call, repo: Repo, number: str) -> Answer:
        issue = self.find(repo, number)
        return self.page(call, issue.comments, lambda comment: self.bodies.comment(repo, issue, comment))

    @route("POST", "/repos/{owner}/{name}/issues/{number}/comments")
    def post_comment(self, call: Call, repo: Repo, number: str) -> Answer:
        self.body_text(call, "IssueComment")
        return super().post_comment(call, repo, number)

    # Labels

    @route("GET", "/repos/{owner}/{name}/labels")
    def list_labels(self, call: Call, repo: Repo) -> Answer:
        return self.page(call, repo.labels, lambda label: self.bodies.label(repo, label))

    @route("GET", "/repos/{owner}/{name}/labels/{label}")
    def get_label(self, call: Call, repo: Repo, label: str) -> Answer:
        found = repo.label(label)
        if found is None:
            raise Refusal(404, self.missing_message)
        return Answer.of(200, self.bodies.label(repo, found))

    @route("POST", "/repos/{owner}/{name}/labels")
    def post_label(self, call: Call, repo: Repo) -> Answer:
        self.check_writable(repo)
        name, colour = self.text(call, "name"), call.json.get("color", "ededed")
        description = call.json.get("description") or ""
        if len(colour) != 6 or set(colour.lower()) - set("0123456789abcdef"):
            raise Refusal(
                422, "Validation Failed", [{"resource": "Label", "code": "invalid", "field": "color"}]
            )
        if len(description) > 100:
            error = {"resource": "Label", "code": "custom", "field": "description", "message": "is too long"}
            raise Refusal(422, "Validation Failed", [error])
        if repo.label(name) is not None:
            error = {"resource": "Label", "code": "already_exists", "field": "name"}
            raise Refusal(422, "Validation Failed", [error])
        label = Label(self.next_id(), name, colour, description)
        repo.labels.append(label)
        return Answer.of(201, self.bodies.label(repo, label))

    @route("DELETE", "/repos/{owner}/{name}/labels/{label}")
    def delete_label(self, call: Call, repo: Repo, label: str) -> Answer:
        self.check_writable(repo)
        found = repo.label(label)
        if found is None:
            raise Refusal(404, self.missing_message)
        self.forget_label(repo, found)
        return Answer(204)

    @route("GET", "/repos/{owner}/{name}/issues/{number}/labels")
    def list_issue_labels(self, call: Call, repo: Repo, number: str) -> Answer:
        return self.page(call, self.find(repo, number).labels, lambda label: self.bodies.label(repo, label))

    @route("POST", "/repos/{owner}/{name}/issues/{number}/labels")
    def post_issue_labels(self, call: Call, repo: Repo, number: str) -> Answer:
        """Names only, and what is missing is created."""
        self.check_writable(repo)
        issue = self.find(repo, number)
        for name in self.label_names(call):
            self.put_label(issue, self._made_label(repo, name))
        return self.drawn_labels(repo, issue)

    @route("PUT", "/repos/{owner}/{name}/issues/{number}/labels")
    def put_issue_labels(self, call: Call, repo: Repo, number: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        issue.labels = [self._made_label(repo, name) for name in self.label_names(call)]
        self.touch(issue)
        return self.drawn_labels(repo, issue)

    @route("DELETE", "/repos/{owner}/{name}/issues/{number}/labels/{label}")
    def delete_issue_label(self, call: Call, repo: Repo, number: str, label: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        if not issue.has(label):
            raise Refusal(404, "Label does not exist")
        self.take_label(issue, label)
        return self.drawn_labels(repo, issue)

    def label_names(self, call: Call) -> list[str]:
        names = call.json.get("labels") if isinstance(call.json, dict) else call.json
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refusal(422, "Invalid request.\n\nFor 'items', 1 is not a string.")
        return names

    def drawn_labels(self, repo: Repo, issue: Issue) -> Answer:
        return Answer.of(200, [self.bodies.label(repo, label) for label in issue.labels])

    @route("GET", "/repos/{owner}/{name}/issues/{number}/events")
    def list_events(self, call: Call, repo: Repo, number: str) -> Answer:
        issue = self.find(repo, number)
        return self.page(call, issue.events, lambda event: self.bodies.label_event(repo, issue, event))

    # Pull requests

    @route("GET", "/repos/{owner}/{name}/pulls")
    def list_pulls(self, call: Call, repo: Repo) -> Answer:
        """`head` counts only as owner:branch; anything else is ignored."""
        found = [issue for issue in self.matching(call, repo) if issue.pull is not None]
        owner, colon, branch = call.query.get("head", "").partition(":")
        if colon:
            found = [i for i in found if i.pull and (repo.owner, i.pull.head) == (owner, branch)]
        if "base" in call.query:
            found = [i for i in found if i.pull and i.pull.base == call.query["base"]]
        return self.page(call, found, lambda issue: self.bodies.pull_in_list(repo, issue))

    @route("POST", "/repos/{owner}/{name}/pulls")
    def post_pull(self, call: Call, repo: Repo) -> Answer:
        self.check_writable(repo)
        head, base = self.text(call, "head").rpartition(":")[2], self.text(call, "base")
        for side, branch in (("head", head), ("base", base)):
            if repo.git.sha(branch) is None:
                error = {"resource": "PullRequest", "field": side, "code": "invalid"}
                raise Refusal(422, "Validation Failed", [error])
        if self.open_pull_of(repo, head, base) is not None:
            self.refuse_pull(f"A pull request already exists for {repo.owner}:{head}.")
        if not repo.git.commits(base, head):
            self.refuse_pull(f"No commits between {base} and {head}")
        if call.json.get("draft") and not repo.drafts:
            raise Refusal(422, "Draft pull requests are not supported in this repository.")
        issue = self.new_issue(repo, self.text(call, "title"), self.body_text(call, "PullRequest"), [])
        issue.pull = Pull(head, base, draft=bool(call.json.get("draft")))
        return Answer.of(201, self.bodies.pull(repo, issue))

    def refuse_pull(self, message: str) -> None:
        raise Refusal(
            422, "Validation Failed", [{"resource": "PullRequest", "code": "custom", "message": message}]
        )

    # Others

    @route("GET", "/user")
    def get_user(self, call: Call) -> Answer:
        if self.app_token:
            raise Refusal(403, "Resource not accessible by integration")
        return Answer.of(200, self.bodies.public_user(OWN_LOGIN))

    @route("GET", "/repos/{owner}/{name}/branches")
    def list_branches(self, call: Call, repo: Repo) -> Answer:
        def draw(branch: tuple[str, str]) -> Mapping[str, Any]:
            return {"name": branch[0], "commit": {"sha": branch[1], "url": self.api_url}, "protected": False}

        return self.page(call, sorted(repo.git.branches().items()), draw)

    @route("GET", "/repos/{owner}/{name}/collaborators/{login}/permission")
    def get_permission(self, call: Call, repo: Repo, login: str) -> Answer:
        role = "admin" if login == repo.owner else repo.permissions.get(login, "none")
        permission = {"triage": "read", "maintain": "write"}.get(role, role)
        user = self.bodies.user(login) | {"role_name": role}
        return Answer.of(200, {"permission": permission, "role_name": role, "user": user})

    def check_writable(self, repo: Repo) -> None:
        if repo.archived:
            raise Refusal(403, "Repository was archived so is read-only.")

    def body_text(self, call: Call, resource: str) -> str:
        body = call.json.get("body") or ""
        if len(body) > LONGEST_BODY:
            message = f"body is too long (maximum is {LONGEST_BODY} characters)"
            error = {"resource": resource, "code": "custom", "field": "body", "message": message}
            raise Refusal(422, "Validation Failed", [error])
        return str(body)

    def error_body(self, refusal: Refusal) -> dict[str, Any]:
        body = {"message": refusal.message, "documentation_url": _DOCS, "status": str(refusal.status)}
        return body | ({"errors": refusal.errors} if refusal.errors else {})

    def draw_user(self, login: str) -> dict[str, Any]:
        return self.bodies.user(login)

    def draw_repo(self, repo: Repo) -> dict[str, Any]:
        return self.bodies.full_repo(repo)

    def draw_comment(self, repo: Repo, issue: Issue, comment: Comment) -> dict[str, Any]:
        return self.bodies.comment(repo, issue, comment)

    def draw_pull(self, repo: Repo, issue: Issue) -> dict[str, Any]:
        return self.bodies.pull(repo, issue)
