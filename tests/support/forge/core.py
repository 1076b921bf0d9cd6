"""What the three fake forges share: their world, the Python side for tests, and the parts of the API that agree.

A forge is one small class in github.py, gitea.py or forgejo.py, which says how it differs. FORGES.md's table is the
contract: status codes, ids or names, what happens to unknown labels, what 422 and 409 mean.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import unquote, urlencode

from tests.support.forge.faults import Fault
from tests.support.forge.git import BareRepo, http_backend
from tests.support.forge.server import Answer, Call, Recorded, Server
from tests.support.forge.state import Comment, Issue, Label, LabelEvent, Pull, Repo, now
from tireless.config import ForgeConfig, Secret
from tireless.entities import Forge, IssueRef, RepoRef

OWN_LOGIN = "tireless-bot"  # the token's user
MAINTAINER = "alice"  # may write everywhere; who people are unless a test says otherwise

Handler = Callable[..., Answer]


def route(method: str, pattern: str) -> Callable[[Handler], Handler]:
    """Marks a method as the handler of `pattern`, in which {name} is one segment and {name*} the rest."""

    def mark(handler: Handler) -> Handler:
        handler.route = (method, pattern)  # type: ignore[attr-defined]
        return handler

    return mark


class Refusal(Exception):
    """An error answer of the API."""

    def __init__(self, status: int, message: str, errors: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.status, self.message, self.errors = status, message, list(errors)


class FakeForge(ABC):
    """A running forge. Close it, or use it as a context manager."""

    kind: ClassVar[Forge]
    api: ClassVar[str]  # path of the API below the root
    token_word: ClassVar[str]
    size_name: ClassVar[str]  # of the query's page size
    default_size: ClassVar[int]
    largest_size: ClassVar[int]

    def __init__(
        self,
        root: Path | None = None,
        *,
        token: str = "t0ken-of-the-fake",
        port: int = 0,
        tls: Path | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="forge-") if root is None else None
        self.root = root if root is not None else Path(self._temporary.name)  # type: ignore[union-attr]
        self.token = token
        self.token_works = True
        self.lock = threading.RLock()
        self.repos: dict[str, Repo] = {}  # by full name in lower case
        self.old_names: dict[str, Repo] = {}
        self.transferred: dict[tuple[int, int], tuple[Repo, int]] = {}  # (repo id, number) -> where it is now
        self._last_id = 0
        self._routes = self._collect_routes()
        self._server = Server(self._answer, port, tls, address)

    # Life

    @property
    def url(self) -> str:
        return f"{'https' if self._server.tls else 'http'}://{self.host}"

    @property
    def host(self) -> str:
        return f"{self._server.address}:{self._server.port}"

    @property
    def api_url(self) -> str:
        return self.url + self.api

    @property
    def config(self) -> ForgeConfig:
        return ForgeConfig(
            self.kind, self.host, api_url=self.api_url, token_env="FORGE_TOKEN", token=Secret(self.token)
        )

    def ref(self, full_name: str) -> RepoRef:
        owner, _, name = full_name.partition("/")
        return RepoRef(self.kind, self.host, owner, name)

    def issue_ref(self, number: int, repo: str | None = None) -> IssueRef:
        found = self._repo(repo)
        return IssueRef(self.kind, self.host, found.owner, found.name, number)

    def down(self) -> None:
        """Connections are refused from now on."""
        self._server.down()

    def up(self) -> None:
        """Listens again, on the same port and with the same world."""
        self._server.up()

    def close(self) -> None:
        self._server.down()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, t: TracebackType | None
    ) -> None:
        self.close()

    # Faults and the record

    def fail(self, times: int | None = 1, **order: Any) -> None:
        """Order a fault: see `Fault` for what there is."""
        self._server.faults.order(Fault(times, **order))

    def clear_faults(self) -> None:
        self._server.faults.clear()

    @property
    def requests(self) -> list[Recorded]:
        """Every request so far, git's included."""
        return list(self._server.requests)

    def asked(self, pattern: str) -> list[Recorded]:
        """The requests that the regular expression is found in, as "METHOD path?query"."""
        return [r for r in self.requests if re.search(pattern, str(r.call))]

    # People's side

    def add_repo(
        self,
        full_name: str,
        files: Mapping[str, str | bytes] | None = None,
        *,
        empty: bool = False,
        labels: Sequence[str] = (),
        default_branch: str = "main",
    ) -> Repo:
        """A repository with a first commit (a README, without `files`), or none at all if `empty`."""
        owner, _, name = full_name.partition("/")
        seed = None if empty else dict(files or {"README.md": f"# {name}\n"})
        with self.lock:
            git = BareRepo.create(self.root / owner / f"{name}.git", default_branch, seed)
            repo = Repo(self.next_id(), owner, name, git, default_branch)
            repo.labels = [Label(self.next_id(), label) for label in labels]
            repo.permissions |= {OWN_LOGIN: "write", MAINTAINER: "write"}
            self.repos[full_name.lower()] = repo
        return repo

    def rename_repo(self, full_name: str, new_name: str) -> None:
        with self.lock:
            repo = self.repos.pop(full_name.lower())
            self.old_names[full_name.lower()] = repo
            repo.owner, _, repo.name = new_name.partition("/")
            self.repos[new_name.lower()] = repo
            target = self.root / repo.owner / f"{repo.name}.git"
            target.parent.mkdir(exist_ok=True)
            repo.git.path = repo.git.path.rename(target)

    def remove_repo(self, full_name: str) -> None:
        with self.lock:
            del self.repos[full_name.lower()]

    def open_issue(
        self,
        title: str,
        body: str = "",
        labels: Sequence[str] = (),
        *,
        author: str = MAINTAINER,
        labelled_by: str | None = None,
        repo: str | None = None,
    ) -> int:
        with self.lock:
            found = self._repo(repo)
            issue = Issue(self.next_id(), found.next_number(), title, body, author)
            for name in labels:
                self.put_label(issue, self._made_label(found, name), labelled_by or author)
            found.issues[issue.number] = issue
            return issue.number

    def open_pull(
        self, head: str, base: str, title: str, *, author: str = MAINTAINER, repo: str | None = None
    ) -> int:
        """A pull request of a person; `head` must exist."""
        number = self.open_issue(title, author=author, repo=repo)
        self.issue(number, repo).pull = Pull(head, base)
        return number

    def issue(self, number: int, repo: str | None = None) -> Issue:
        return self._repo(repo).issues[number]

    def edit_issue(
        self, number: int, *, title: str | None = None, body: str | None = None, repo: str | None = None
    ) -> None:
        with self.lock:
            issue = self.issue(number, repo)
            issue.title, issue.body = title or issue.title, issue.body if body is None else body
            self.touch(issue)

    def label(self, number: int, *names: str, by: str = MAINTAINER, repo: str | None = None) -> None:
        with self.lock:
            issue = self.issue(number, repo)
            for name in names:
                self.put_label(issue, self._made_label(self._repo(repo), name), by)

    def unlabel(self, number: int, *names: str, by: str = MAINTAINER, repo: str | None = None) -> None:
        with self.lock:
            issue = self.issue(number, repo)
            for name in names:
                self.take_label(issue, name, by)
            self.touch(issue)

    def labels(self, number: int, repo: str | None = None) -> list[str]:
        with self.lock:
            return [label.name for label in self.issue(number, repo).labels]

    def close_issue(self, number: int, repo: str | None = None) -> None:
        with self.lock:
            self.issue(number, repo).is_open = False
            self.touch(self.issue(number, repo))

    def reopen_issue(self, number: int, repo: str | None = None) -> None:
        with self.lock:
            self.issue(number, repo).is_open = True
            self.touch(self.issue(number, repo))

    def delete_issue(self, number: int, repo: str | None = None) -> None:
        with self.lock:
            del self._repo(repo).issues[number]

    def transfer_issue(self, number: int, to: str, repo: str | None = None) -> int:
        """The issue goes to another repository, under another number (GitHub only)."""
        with self.lock:
            source, target = self._repo(repo), self._repo(to)
            issue = source.issues.pop(number)
            self.transferred[(source.id, number)] = (target, target.next_number())
            issue.number = target.next_number()
            target.issues[issue.number] = issue
            return issue.number

    def comment(self, number: int, body: str, *, author: str = MAINTAINER, repo: str | None = None) -> int:
        with self.lock:
            comment = Comment(self.next_id(), author, body)
            self.issue(number, repo).comments.append(comment)
            self.touch(self.issue(number, repo))
            return comment.id

    def comments(self, number: int, repo: str | None = None) -> list[Comment]:
        with self.lock:
            return list(self.issue(number, repo).comments)

    def pulls(self, repo: str | None = None) -> list[Issue]:
        """All pull requests, of any state, oldest first."""
        with self.lock:
            return [issue for issue in self._repo(repo).issues.values() if issue.pull is not None]

    def pull_files(self, number: int, repo: str | None = None) -> list[str]:
        """What the pull request changes, out of the real repository."""
        pull = self.issue(number, repo).pull
        assert pull is not None
        return self._repo(repo).git.changed_files(pull.base, pull.head)

    def merge_pull(self, number: int, repo: str | None = None) -> str:
        """Merge it for real, and close it."""
        with self.lock:
            issue, git = self.issue(number, repo), self._repo(repo).git
            assert issue.pull is not None
            issue.pull.merge_commit = git.merge(issue.pull.base, issue.pull.head, f"Merge #{number}")
            issue.pull.merged, issue.is_open = True, False
            self.touch(issue)
            return issue.pull.merge_commit

    def git(self, repo: str | None = None) -> BareRepo:
        return self._repo(repo).git

    # The world behind both sides

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def touch(self, issue: Issue) -> None:
        """A later time than before, though clocks be coarse."""
        issue.updated_at = max(now(), issue.updated_at + timedelta(milliseconds=1))

    def put_label(self, issue: Issue, label: Label, by: str = OWN_LOGIN) -> None:
        if label not in issue.labels:  # there may be another of the same name
            issue.labels.append(label)
            issue.events.append(LabelEvent(self.next_id(), by, label.name, True))
        self.touch(issue)

    def take_label(self, issue: Issue, name: str, by: str = OWN_LOGIN) -> None:
        if issue.has(name):
            issue.labels = [label for label in issue.labels if label.name.casefold() != name.casefold()]
            issue.events.append(LabelEvent(self.next_id(), by, name, False))
        self.touch(issue)

    def _repo(self, full_name: str | None) -> Repo:
        if full_name is None:
            return next(iter(self.repos.values()))
        return self.repos[full_name.lower()]

    def _made_label(self, repo: Repo, name: str) -> Label:
        found = repo.label(name)
        if found is None:
            found = Label(self.next_id(), name)
            repo.labels.append(found)
        return found

    # The API: routing

    def _collect_routes(self) -> list[tuple[str, re.Pattern[str], Handler]]:
        found = []
        for name in dir(type(self)):
            marked = getattr(getattr(type(self), name), "route", None)
            if marked is not None:
                method, pattern = marked
                regex = re.sub(r"\{(\w+)\*\}", r"(?P<\1>.+)", pattern)
                regex = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", regex)
                found.append((method, re.compile(regex), getattr(self, name)))
        # Where two patterns fit, the one with the longer literal part is meant.
        return sorted(found, key=lambda entry: -len(re.sub(r"\(.*?\)", "", entry[1].pattern)))

    def _answer(self, call: Call) -> Answer:
        if not call.path.startswith(self.api + "/"):
            return self._git_answer(call)
        word, _, token = call.headers.get("authorization", "").partition(" ")
        if not self.token_works or (word, token) != (self.token_word, self.token):
            return self.error(Refusal(401, self.unauthorized_message))
        with self.lock:
            try:
                return self._route(call, call.path.removeprefix(self.api))
            except Refusal as refusal:
                return self.error(refusal)

    def _route(self, call: Call, path: str) -> Answer:
        for method, pattern, handler in self._routes:
            match = pattern.fullmatch(path)
            if match is None or method != call.method:
                continue
            parts = {name: unquote(value) for name, value in match.groupdict().items()}
            if "owner" not in parts:
                return handler(call, **parts)
            full_name = f"{parts.pop('owner')}/{parts.pop('name')}".lower()
            if full_name not in self.repos and full_name in self.old_names:
                return self.renamed(call, self.old_names[full_name])
            if full_name not in self.repos:
                raise Refusal(404, self.missing_message)
            return handler(call, self.repos[full_name], **parts)
        raise Refusal(404, self.missing_message)

    def _git_answer(self, call: Call) -> Answer:
        """Git's smart HTTP under /OWNER/NAME.git, for whoever gives the token as password."""
        match = re.fullmatch(r"/([^/]+/[^/]+)\.git(/.*)", call.path)
        if match is None:
            return Answer(404, b"<html>not found</html>", {"Content-Type": "text/html"})
        if not self.token_works or call.basic_password != self.token:
            return Answer(401, b"", {"WWW-Authenticate": 'Basic realm="forge"'})
        name = match[1].lower()
        repo = self.repos.get(name) or self.old_names.get(name)
        if repo is None or (repo.archived and "receive-pack" in str(call)):
            return Answer(404 if repo is None else 403)
        path = f"/{repo.full_name}.git{match[2]}"
        status, headers, body = http_backend(
            self.root, path, call.method, call.raw_query, call.headers, call.body
        )
        return Answer(status, body, dict(headers))

    # The API: what agrees

    missing_message: ClassVar[str]
    unauthorized_message: ClassVar[str]

    def error(self, refusal: Refusal) -> Answer:
        return Answer.of(refusal.status, self.error_body(refusal))

    def page(
        self, call: Call, rows: Sequence[Any], draw: Callable[[Any], Any], *, base: str | None = None
    ) -> Answer:
        """One page of a list, with the Link header that the forge sends. `base`: the URL that its links are under."""
        size = min(int(call.query.get(self.size_name) or self.default_size), self.largest_size)
        number = max(int(call.query.get("page") or 1), 1)
        shown = rows[(number - 1) * size : number * size]
        headers = self.list_headers(len(rows))
        if number * size < len(rows):
            query = urlencode({**call.query, "page": str(number + 1)})
            headers["Link"] = f'<{base or self.url + call.path}?{query}>; rel="next"'
        return Answer.of(200, [draw(row) for row in shown], headers)

    def list_headers(self, total: int) -> dict[str, str]:
        return {}

    def find(self, repo: Repo, number: str) -> Issue:
        issue = repo.issues.get(int(number)) if number.isdecimal() else None
        if issue is None:
            raise Refusal(404, self.missing_message)
        return issue

    def matching(self, call: Call, repo: Repo) -> list[Issue]:
        """The issues that state and since ask for, newest first; labels are each forge's own affair."""
        state, since = call.query.get("state", "open"), call.query.get("since")
        found = [
            issue for issue in repo.issues.values() if state == "all" or issue.is_open == (state == "open")
        ]
        if since:
            moment = datetime.fromisoformat(since)
            found = [issue for issue in found if issue.updated_at >= moment]
        return sorted(found, key=lambda issue: issue.number, reverse=True)

    def new_issue(self, repo: Repo, title: str, body: str, labels: list[Label]) -> Issue:
        issue = Issue(self.next_id(), repo.next_number(), title, body, OWN_LOGIN)
        for label in labels:
            self.put_label(issue, label)
        repo.issues[issue.number] = issue
        return issue

    def new_comment(self, issue: Issue, body: str) -> Comment:
        comment = Comment(self.next_id(), OWN_LOGIN, body)
        issue.comments.append(comment)
        self.touch(issue)
        return comment

    def comment_of(self, repo: Repo, identity: str) -> tuple[Issue, Comment]:
        for issue in repo.issues.values():
            for comment in issue.comments:
                if str(comment.id) == identity:
                    return issue, comment
        raise Refusal(404, self.missing_message)

    def open_pull_of(self, repo: Repo, head: str, base: str) -> Issue | None:
        for issue in repo.issues.values():
            if issue.pull and issue.is_open and (issue.pull.head, issue.pull.base) == (head, base):
                return issue
        return None

    @route("GET", "/user")
    def get_user(self, call: Call) -> Answer:
        return Answer.of(200, self.draw_user(OWN_LOGIN))

    @route("GET", "/repos/{owner}/{name}")
    def get_repo(self, call: Call, repo: Repo) -> Answer:
        return Answer.of(200, self.draw_repo(repo))

    @route("PATCH", "/repos/{owner}/{name}/issues/comments/{identity}")
    def patch_comment(self, call: Call, repo: Repo, identity: str) -> Answer:
        self.check_writable(repo)
        issue, comment = self.comment_of(repo, identity)
        comment.body = self.text(call, "body")
        comment.updated_at = now()
        self.touch(issue)
        return Answer.of(200, self.draw_comment(repo, issue, comment))

    @route("POST", "/repos/{owner}/{name}/issues/{number}/comments")
    def post_comment(self, call: Call, repo: Repo, number: str) -> Answer:
        self.check_writable(repo)
        issue = self.find(repo, number)
        comment = self.new_comment(issue, self.text(call, "body"))
        return Answer.of(201, self.draw_comment(repo, issue, comment))

    @route("GET", "/repos/{owner}/{name}/pulls/{number}")
    def get_pull(self, call: Call, repo: Repo, number: str) -> Answer:
        return Answer.of(200, self.draw_pull(repo, self.find_pull(repo, number)))

    @route("PATCH", "/repos/{owner}/{name}/pulls/{number}")
    def patch_pull(self, call: Call, repo: Repo, number: str) -> Answer:
        self.check_writable(repo)
        issue = self.find_pull(repo, number)
        issue.title = call.json.get("title", issue.title)
        issue.body = call.json.get("body", issue.body)
        self.touch(issue)
        return Answer.of(self.edited_status, self.draw_pull(repo, issue))

    edited_status: ClassVar[int]

    def find_pull(self, repo: Repo, number: str) -> Issue:
        issue = self.find(repo, number)
        if issue.pull is None:
            raise Refusal(404, self.missing_message)
        return issue

    def text(self, call: Call, key: str) -> str:
        """A required text of the body: one that is empty is none."""
        value = call.json.get(key) if isinstance(call.json, dict) else None
        if not isinstance(value, str) or not value:
            raise Refusal(422, f"[{key.title()}]: Required")
        return value

    def stamp(self, moment: datetime) -> str:
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")

    def etag(self, body: bytes, call: Call) -> str:
        return 'W/"' + hashlib.sha256(body + call.headers.get("authorization", "").encode()).hexdigest() + '"'

    def forget_label(self, repo: Repo, label: Label) -> None:
        """The label is deleted, and so is off every issue."""
        repo.labels.remove(label)
        for issue in repo.issues.values():
            issue.labels = [other for other in issue.labels if other is not label]

    # What a forge says of itself

    @abstractmethod
    def error_body(self, refusal: Refusal) -> dict[str, Any]: ...

    @abstractmethod
    def renamed(self, call: Call, repo: Repo) -> Answer: ...

    @abstractmethod
    def check_writable(self, repo: Repo) -> None: ...

    @abstractmethod
    def draw_user(self, login: str) -> dict[str, Any]: ...

    @abstractmethod
    def draw_repo(self, repo: Repo) -> dict[str, Any]: ...

    @abstractmethod
    def draw_comment(self, repo: Repo, issue: Issue, comment: Comment) -> dict[str, Any]: ...

    @abstractmethod
    def draw_pull(self, repo: Repo, issue: Issue) -> dict[str, Any]: ...
