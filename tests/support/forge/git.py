"""Real bare repositories, and git's own smart-HTTP server over them (`git http-backend`, a CGI program)."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

_IDENTITY = {
    "GIT_AUTHOR_NAME": "seed",
    "GIT_AUTHOR_EMAIL": "seed@example.org",
    "GIT_COMMITTER_NAME": "seed",
    "GIT_COMMITTER_EMAIL": "seed@example.org",
}


def _environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """No configuration of the machine or of the user that runs the tests."""
    kept = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent", "LC_ALL": "C"}
    return {**kept, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, **_IDENTITY, **(extra or {})}


class BareRepo:
    def __init__(self, path: Path, default_branch: str) -> None:
        self.path = path
        self.default_branch = default_branch

    @classmethod
    def create(cls, path: Path, default_branch: str, files: Mapping[str, str | bytes] | None) -> BareRepo:
        """`files` become the first commit of the default branch; None leaves the repository empty. Of those with the
        same files git makes only the first: most tests begin with one."""
        made = _first(default_branch, None if files is None else tuple(files.items()))
        path.mkdir(parents=True)
        for name, content in made:
            if content is None:
                (path / name).mkdir()
            else:
                (path / name).write_bytes(content)
        return cls(path, default_branch)

    def git(self, *args: str, stdin: bytes = b"", check: bool = True) -> str:
        done = subprocess.run(
            ["git", *args], cwd=self.path, input=stdin, capture_output=True, env=_environment(), timeout=60
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"git {' '.join(args)}: {done.stderr.decode(errors='replace')}")
        return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""

    def sha(self, branch: str) -> str | None:
        return self.git("rev-parse", "-q", "--verify", f"refs/heads/{branch}^{{commit}}", check=False) or None

    def branches(self) -> dict[str, str]:
        lines = self.git(
            "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads"
        ).splitlines()
        return {name: sha for name, _, sha in (line.partition(" ") for line in lines)}

    def changed_files(self, base: str, head: str) -> list[str]:
        """What a pull request of `head` into `base` would change: the diff from their merge base."""
        return self.git("diff", "--name-only", f"refs/heads/{base}...refs/heads/{head}").splitlines()

    def commits(self, base: str, head: str) -> list[str]:
        """Subjects of the commits that `head` has over `base`, newest first."""
        return self.git("log", "--format=%s", f"refs/heads/{base}..refs/heads/{head}").splitlines()

    def read(self, branch: str, path: str) -> str | None:
        found = self.git("ls-tree", f"refs/heads/{branch}", "--", path)
        return self.git("show", f"refs/heads/{branch}:{path}") if found else None

    def files(self, branch: str) -> list[str]:
        return self.git("ls-tree", "-r", "--name-only", f"refs/heads/{branch}").splitlines()

    def commit(self, branch: str, files: Mapping[str, str | bytes], message: str) -> str:
        """A commit on `branch` that writes `files` over what is there, as another person's push would."""
        parent = self.sha(branch)
        script = f"commit refs/heads/{branch}\ncommitter seed <seed@example.org> now\n".encode() + _data(
            message
        )
        if parent is not None:
            script += f"from {parent}\n".encode()
        for name, content in files.items():
            script += f"M 100644 inline {name}\n".encode() + _data(content)
        self.git("fast-import", "--quiet", "--date-format=now", stdin=script)
        sha = self.sha(branch)
        assert sha is not None
        return sha

    def mergeable(self, base: str, head: str) -> bool:
        return bool(self._merged_tree(base, head))

    def merge(self, base: str, head: str, message: str) -> str:
        """A merge commit on `base`; RuntimeError on conflicts."""
        tree = self._merged_tree(base, head)
        ours, theirs = self.sha(base), self.sha(head)
        if not tree or ours is None or theirs is None:
            raise RuntimeError(f"{head} does not merge into {base}")
        commit = self.git("commit-tree", tree, "-p", ours, "-p", theirs, "-m", message)
        self.git("update-ref", f"refs/heads/{base}", commit, ours)
        return commit

    def _merged_tree(self, base: str, head: str) -> str:
        if self.sha(base) is None or self.sha(head) is None:
            return ""
        merged = self.git("merge-tree", "--write-tree", f"refs/heads/{base}", f"refs/heads/{head}", check=False)
        return merged.splitlines()[0] if merged else ""


@functools.cache
def _first(branch: str, files: tuple[tuple[str, str | bytes], ...] | None) -> list[tuple[str, bytes | None]]:
    """What such a repository consists of, directories (None) before what is in them."""
    with tempfile.TemporaryDirectory(prefix="tireless-repo-") as made:
        path = Path(made)
        repo = BareRepo(path, branch)
        repo.git("init", "-q", "--bare", "--template=", f"--initial-branch={branch}", ".")
        repo.git("config", "http.receivepack", "true")
        repo.git("config", "receive.fsckObjects", "true")
        if files is not None:
            repo.commit(branch, dict(files), "first commit")
        found = sorted(path.rglob("*"))
        return [(str(p.relative_to(path)), None if p.is_dir() else p.read_bytes()) for p in found]


def _data(content: str | bytes) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return b"data %d\n%s\n" % (len(raw), raw)


def http_backend(
    root: Path, repo_path: str, method: str, query: str, headers: Mapping[str, str], body: bytes
) -> tuple[int, list[tuple[str, str]], bytes]:
    """One request of smart HTTP. `repo_path`: path below `root`, with the service. `headers`: names in lower case."""
    environment = _environment(
        {
            "GIT_PROJECT_ROOT": str(root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": repo_path,
            "REQUEST_METHOD": method,
            "QUERY_STRING": query,
            "CONTENT_TYPE": headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
            "GIT_PROTOCOL": headers.get("git-protocol", ""),
            "REMOTE_USER": "token",
            "REMOTE_ADDR": "127.0.0.1",
        }
    )
    done = subprocess.run(
        ["git", "http-backend"], input=body, capture_output=True, env=environment, timeout=120
    )
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    fields = [tuple(line.split(": ", 1)) for line in head.decode("latin-1").split("\r\n") if ": " in line]
    status = 200
    answer: list[tuple[str, str]] = []
    for name, value in fields:
        if name.lower() == "status":
            status = int(value.split(" ")[0])
        else:
            answer.append((name, value))
    return status, answer, content
