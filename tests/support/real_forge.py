"""A forge that the environment names, and a person's hands on a scratch repository of it.

    TIRELESS_TEST_FORGE             github, gitea or forgejo; without it there is no such forge
    TIRELESS_TEST_FORGE_URL         the instance's root, as a browser shows it; GitHub's own where it is left out
    TIRELESS_TEST_FORGE_TOKEN_FILE  a file with the token, or
    TIRELESS_TEST_FORGE_TOKEN       the token itself
    TIRELESS_TEST_FORGE_REPO        OWNER/NAME of a repository with at least one commit, which tests may write to

`Scratch` asks the API on a way of its own, so that what the client says it did is read back by something else.
All that a test makes bears the test's mark in its name, and goes by that mark at the end: branches and labels are
deleted, issues and pull requests too where the forge lets the token do it, and closed where it does not.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import urllib3

from tests.support.wait import wait_until
from tireless.config import ForgeConfig, Secret
from tireless.entities import Forge, IssueRef, RepoRef

T = TypeVar("T")

KIND = "TIRELESS_TEST_FORGE"
URL = "TIRELESS_TEST_FORGE_URL"
TOKEN = "TIRELESS_TEST_FORGE_TOKEN"
TOKEN_FILE = "TIRELESS_TEST_FORGE_TOKEN_FILE"
REPO = "TIRELESS_TEST_FORGE_REPO"

UNSET = f"{KIND} is not set; README.md, `Developing`, says how to point the suite at a real forge"
_GITHUB = "https://github.com"


class Wrong(Exception):
    """A variable that is missing or cannot be used. Its text names the variable and the way out, never the token."""


@dataclass(frozen=True, slots=True)
class Target:
    kind: Forge
    url: str  # of the instance's root, without a slash at the end
    token: Secret
    repo: str  # owner/name

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def api_url(self) -> str:
        if self.kind is not Forge.GITHUB:
            return f"{self.url}/api/v1"
        if self.host == "github.com" or self.host.endswith(".ghe.com"):
            return f"https://api.{self.host}"
        return f"{self.url}/api/v3"

    @property
    def config(self) -> ForgeConfig:
        return ForgeConfig(self.kind, self.host, api_url=self.api_url, token_env=TOKEN, token=self.token)

    @property
    def ref(self) -> RepoRef:
        owner, _, name = self.repo.partition("/")
        return RepoRef(self.kind, self.host, owner, name)


def target(env: Mapping[str, str]) -> Target | None:
    """What the environment names; None without TIRELESS_TEST_FORGE. Raises Wrong."""
    kind = env.get(KIND, "")
    if not kind:
        left = [name for name in (URL, TOKEN, TOKEN_FILE, REPO) if env.get(name)]
        if left:
            raise Wrong(
                f"{left[0]} is set and {KIND} is not; set {KIND} to github, gitea or forgejo, or unset both"
            )
        return None
    if kind not in set(Forge):
        raise Wrong(f"{KIND} is {kind!r}; set it to github, gitea or forgejo")
    return Target(Forge(kind), _url(env, kind), _token(env), _repo(env))


def _url(env: Mapping[str, str], kind: str) -> str:
    url = env.get(URL, "") or (_GITHUB if kind == Forge.GITHUB else "")
    if not url:
        raise Wrong(f"{URL} is not set; set it to the {kind} instance's root, such as https://git.example.org")
    parts = urlsplit(url)
    if "@" in parts.netloc:  # the value is not told: what is in front of the @ may be a password
        raise Wrong(f"{URL} holds a user name; leave it out of the URL and put the token into {TOKEN_FILE}")
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise Wrong(f"{URL} is {url!r}; set it to a URL such as https://git.example.org")
    if re.search(r"/api/v[0-9]+/?$", parts.path):
        raise Wrong(f"{URL} is {url!r}, where the API is; set it to the instance's root, without /api/…")
    return url.rstrip("/")


def _token(env: Mapping[str, str]) -> Secret:
    token, file = env.get(TOKEN, ""), env.get(TOKEN_FILE, "")
    if token and file:
        raise Wrong(f"{TOKEN} and {TOKEN_FILE} are both set; unset one of them")
    if not token and not file:
        raise Wrong(f"neither {TOKEN_FILE} nor {TOKEN} is set; set the first to a file that holds the token")
    if file:
        try:
            token = Path(file).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            why = e.strerror if isinstance(e, OSError) else "it is no text"
            raise Wrong(
                f"{TOKEN_FILE} is {file!r}, which cannot be read ({why}); name a readable file"
            ) from None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        source = f"{TOKEN_FILE} is {file!r}, whose contents are" if file else f"{TOKEN} is"
        raise Wrong(f"{source} no token; a token is one word of printable ASCII")
    return Secret(token)


def _repo(env: Mapping[str, str]) -> str:
    repo = env.get(REPO, "")
    if not repo:
        raise Wrong(f"{REPO} is not set; set it to OWNER/NAME of a repository that tests may write to")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repo):
        raise Wrong(f"{REPO} is {repo!r}; set it to OWNER/NAME")
    return repo


class Scratch:
    """A person on the scratch repository. `mark` is in the name of all that the test makes."""

    def __init__(self, target: Target, root: Path) -> None:
        self.target = target
        self.repo = target.ref
        self.mark = f"tt{uuid.uuid4().hex[:8]}"
        self._root = root
        self._http = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(total=30))
        self.numbers: set[int] = set()
        self._labels: set[str] = set()
        self._has_branches = False

    # The API, on another way than the client's

    def api(self, method: str, path: str, body: Any = None, *, allow: Iterable[int] = ()) -> Any:
        """The decoded answer to a call on the repository, None if it has none or its status is one of `allow`. `path`
        begins with a slash for a place outside of the repository."""
        base = self.target.api_url
        url = f"{base}{path}" if path.startswith("/") else f"{base}/repos/{self.target.repo}/{path}"
        word = "Bearer" if self._github else "token"
        headers = {"Authorization": f"{word} {self.target.token.reveal()}", "Content-Type": "application/json"}
        raw = None if body is None else json.dumps(body).encode()
        answer = self._http.request(method, url.rstrip("/"), body=raw, headers=headers, redirect=False)
        if answer.status in allow:
            return None
        if not 200 <= answer.status < 300:
            raise AssertionError(
                f"{method} {url}: {answer.status} {answer.data[:300].decode(errors='replace')}"
            )
        return json.loads(answer.data) if answer.data else None

    @property
    def _github(self) -> bool:
        return self.target.kind is Forge.GITHUB

    def settled(self, look: Callable[[], T | None], what: str, ready: Callable[[T], object] = bool) -> T:
        """The first answer of `look` that is `ready`: GitHub's lists come a little after its writes. Asked sparingly,
        since a real forge counts."""

        def ask() -> tuple[T] | None:
            found = look()
            return (found,) if found is not None and ready(found) else None

        local = urlsplit(self.target.url).hostname in ("127.0.0.1", "localhost")
        return wait_until(ask, 30, what, every=0.1 if local else 1.0)[0]

    # Issues, comments, labels

    def ref(self, number: int) -> IssueRef:
        self.numbers.add(number)
        repo = self.repo
        return IssueRef(repo.forge, repo.host, repo.owner, repo.repo, number)

    def title(self, text: str) -> str:
        return f"{text} ({self.mark})"

    def label_name(self, text: str) -> str:
        return f"{self.mark}/{text}"

    def open_issue(self, text: str, body: str = "", labels: Iterable[str] = ()) -> IssueRef:
        ref = self.ref(self.api("POST", "issues", {"title": self.title(text), "body": body})["number"])
        for name in labels:
            self.label(ref, name)
        return ref

    def issue(self, ref: IssueRef) -> dict[str, Any]:
        found: dict[str, Any] = self.api("GET", f"issues/{ref.number}")
        return found

    def close_issue(self, ref: IssueRef) -> None:
        self.api("PATCH", f"issues/{ref.number}", {"state": "closed"})

    def comments(self, ref: IssueRef) -> list[dict[str, Any]]:
        return list(self.api("GET", f"issues/{ref.number}/comments?per_page=100&limit=50"))

    def labels(self, ref: IssueRef) -> set[str]:
        return {label["name"] for label in self.issue(ref)["labels"]}

    def repository_label(self, name: str) -> dict[str, Any] | None:
        return next((label for label in self._repository_labels() if label["name"] == name), None)

    def _repository_labels(self) -> Iterator[dict[str, Any]]:
        for page in range(1, 100):
            found = self.api("GET", f"labels?per_page=100&limit=50&page={page}")
            yield from found
            if not found:
                return

    def label(self, ref: IssueRef, name: str) -> None:
        if name not in self._labels and self.repository_label(name) is None:
            self.api("POST", "labels", {"name": name, "color": "ededed" if self._github else "#ededed"})
        self._labels.add(name)
        self.api("POST", f"issues/{ref.number}/labels", {"labels": [name]})

    def unlabel(self, ref: IssueRef, name: str) -> None:
        [label] = [label for label in self.issue(ref)["labels"] if label["name"] == name]
        self.api("DELETE", f"issues/{ref.number}/labels/{self._label_key(label)}")

    def delete_label(self, name: str) -> None:
        self._labels.discard(name)
        label = self.repository_label(name)
        if label is not None:
            self.api("DELETE", f"labels/{self._label_key(label)}", allow=(404,))

    def _label_key(self, label: Mapping[str, Any]) -> str:
        return quote(label["name"], safe="") if self._github else str(label["id"])

    # Branches and pull requests

    def branch_name(self, text: str) -> str:
        """For a branch that somebody is going to make."""
        self._has_branches = True
        return f"{self.mark}/{text}"

    def branch(self, text: str) -> str:
        """A new branch, one commit ahead of the default branch, pushed by git."""
        name = self.branch_name(text)
        with tempfile.TemporaryDirectory(dir=self._root) as place:
            self.git("clone", "-q", "--depth=1", self._clone_url, place)
            Path(place, f"{self.mark}.txt").write_text(f"{name}\n")
            self.git("-C", place, "add", "-A")
            self.git("-C", place, "commit", "-q", "-m", f"A commit for a test ({self.mark})")
            self.git("-C", place, "push", "-q", "origin", f"HEAD:refs/heads/{name}")
        return name

    def branches(self) -> dict[str, str]:
        """Name and commit."""
        lines = [line.split("\t") for line in self.git("ls-remote", "--heads", self._clone_url).splitlines()]
        return {ref.removeprefix("refs/heads/"): commit for commit, ref in lines}

    def default_branch(self) -> str:
        """As git tells it."""
        [line] = re.findall(
            r"^ref: refs/heads/(\S+)\s+HEAD$", self.git("ls-remote", "--symref", self._clone_url), re.M
        )
        return str(line)

    def file(self, branch: str, path: str) -> str:
        with tempfile.TemporaryDirectory(dir=self._root) as place:
            self.git("clone", "-q", "--depth=1", "--branch", branch, self._clone_url, place)
            return Path(place, path).read_text()

    def pull(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = self.api("GET", f"pulls/{number}")
        return found

    @property
    def _clone_url(self) -> str:
        return f"{self.target.url}/{self.target.repo}.git"

    def git(self, *args: str) -> str:
        """Git with the token in its environment, and with no settings of this machine's."""
        basic = base64.b64encode(f"x-access-token:{self.target.token.reveal()}".encode()).decode()
        origin = urlsplit(self.target.url)
        settings = {
            f"http.{origin.scheme}://{origin.netloc}/.extraHeader": f"Authorization: Basic {basic}",
            "user.name": "tireless tests", "user.email": "tests@tireless.invalid", "credential.helper": "",
        }  # fmt: skip
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._root), "LC_ALL": "C"}
        env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
        env["GIT_CONFIG_COUNT"] = str(len(settings))
        for i, (key, value) in enumerate(settings.items()):
            env |= {f"GIT_CONFIG_KEY_{i}": key, f"GIT_CONFIG_VALUE_{i}": value}
        done = subprocess.run(["git", *args], env=env, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise AssertionError(f"git {' '.join(args)}: exit {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    # The end

    def close(self) -> None:
        """Takes away what bears the mark, as far as it can; the first failure is raised when all has been tried."""
        with contextlib.ExitStack() as stack:  # in the order from the bottom up
            stack.callback(self._http.clear)
            stack.callback(self._remove_labels)
            stack.callback(self.delete_branches)
            stack.callback(self._remove_issues)

    def _remove_issues(self) -> None:
        """Those that are known by number and those that the client or a supervisor made, pull requests included."""
        newest = self.api("GET", "issues?state=all&per_page=100&limit=50")
        found = {row["number"] for row in newest if self.mark in row["title"]}
        for number in sorted(found | self.numbers):
            gone = (404, 410)
            if not self._github:  # GitHub's API deletes none; Gitea's and Forgejo's do for who administers it
                self.api("DELETE", f"issues/{number}", allow=(403, *gone))
            self.api("PATCH", f"issues/{number}", {"state": "closed"}, allow=gone)

    def delete_branches(self) -> None:
        marked = [name for name in self.branches() if self.mark in name] if self._has_branches else []
        if marked:
            with tempfile.TemporaryDirectory(dir=self._root) as place:
                self.git("init", "-q", place)
                self.git(
                    "-C", place, "push", "-q", self._clone_url, *(f":refs/heads/{name}" for name in marked)
                )

    def _remove_labels(self) -> None:
        for label in list(self._repository_labels()):
            if self.mark in label["name"]:
                self.api("DELETE", f"labels/{self._label_key(label)}", allow=(404,))
