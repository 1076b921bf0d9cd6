"""What git says, as values: pure, on recorded words."""

from __future__ import annotations

import pytest

from tireless.config import Secret
from tireless.workspace import DiskFull, GitError, GitFailed, Remote, RemoteRefused, RemoteUnreachable
from tireless.workspace.command import NO_ACCESS, Result, environment_for, failure, redact
from tireless.workspace.foreign import _is_ref_name
from tireless.workspace.leftovers import parse_raw
from tireless.workspace.mirror import push_answer
from tireless.workspace.remote import explain

URL = "https://git.example.org/acme/site.git"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"fatal: Authentication failed for '{URL}/'", RemoteRefused),
        (
            "fatal: could not read Username for 'https://git.example.org': terminal prompts disabled",
            RemoteRefused,
        ),
        (f"fatal: unable to access '{URL}/': The requested URL returned error: 403", RemoteRefused),
        (f"fatal: repository '{URL}/' not found", RemoteRefused),
        (
            "remote: Permission to acme/site.git denied to bot.; fatal: unable to access: error: 403",
            RemoteRefused,
        ),
        ("error: RPC failed; HTTP 413 curl 22 The requested URL returned error: 413", RemoteRefused),
        (f"fatal: unable to access '{URL}/': The requested URL returned error: 503", RemoteUnreachable),
        (f"fatal: unable to access '{URL}/': The requested URL returned error: 429", RemoteUnreachable),
        (f"fatal: unable to access '{URL}/': Could not resolve host: git.example.org", RemoteUnreachable),
        (
            f"fatal: unable to access '{URL}/': SSL certificate problem: self-signed certificate",
            RemoteUnreachable,
        ),
        ("error: RPC failed; curl 18 transfer closed; fatal: early EOF", RemoteUnreachable),
        ("fatal: the remote end hung up unexpectedly", RemoteUnreachable),
        ("error: object 12: hasDotgit; fatal: fsck error in packed object; fetch-pack: early EOF", GitFailed),
        ("error: unable to create temporary file: Permission denied; fatal: early EOF", GitFailed),
        ("fatal: couldn't find remote ref refs/heads/x", GitFailed),
    ],
)
def test_what_a_failure_says_about_the_remote(text: str, kind: type[GitError]) -> None:
    assert type(explain(GitFailed("git fetch", 128, text), URL)) is kind


def test_a_full_disk_is_nobody_s_refusal() -> None:
    result = Result(
        128, b"", "error: write error: No space left on device\nfatal: unable to access 'x': error: 403\n"
    )
    error = failure(["git", "fetch"], result, ())
    assert isinstance(error, DiskFull)
    assert explain(error, URL) is error


def test_an_error_shows_the_last_words_without_secrets() -> None:
    lines = "\n".join([f"line {i}" for i in range(50)] + ["fatal: t0ken and https://me:pw@h/x"])
    text = str(failure(["git", "fetch", "https://me:pw@h/x"], Result(128, b"", lines), ["t0ken"]))
    assert text.startswith("git fetch https://***@h/x ended with 128: line 39; ")
    assert text.endswith("fatal: *** and https://***@h/x")
    assert redact("nothing", ["", "x"]) == "nothing"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("*\tabc:refs/heads/b\t[new branch]", ("*", "[new branch]")),
        (" \tabc:refs/heads/b\t1..2", (" ", "1..2")),
        ("=\tabc:refs/heads/b\t[up to date]", ("=", "[up to date]")),
        ("!\tabc:refs/heads/b\t[rejected] (fetch first)", ("!", "[rejected] (fetch first)")),
        ("!\tabc:refs/heads/other\t[rejected]", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_answer_to_a_push(line: str, answer: tuple[str, str]) -> None:
    assert push_answer(f"To {URL}\n{line}\nDone\n", "refs/heads/b") == answer


def test_raw_diffs() -> None:
    raw = b":100644 000000 a b D\0gone\nfile\0:100644 120000 a b T\0link\0"
    assert parse_raw(raw) == [
        (b"gone\nfile", b"100644", b"000000", b"D"),
        (b"link", b"100644", b"120000", b"T"),
    ]
    assert parse_raw(b"") == []


def test_ref_names_lead_nowhere_else() -> None:
    assert _is_ref_name("refs/heads/tireless/issue-1")
    for name in (
        "HEAD",
        "/etc/passwd",
        "refs/../../x",
        "refs/heads/../x",
        "refs//x",
        "refs/heads/",
        "refs/a\nb",
        "refs",
    ):
        assert not _is_ref_name(name)


def test_the_token_is_bound_to_its_origin_and_not_shown() -> None:
    remote = Remote(URL, "me", Secret("t0ken"))
    access = remote.access()
    assert ("http.https://git.example.org/.extraHeader", "Authorization: Basic bWU6dDBrZW4=") in access.config
    assert "t0ken" not in repr(remote) + repr(access)
    assert "bWU6dDBrZW4=" not in repr(access)


def test_git_gets_an_environment_made_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_SSH_COMMAND", "LD_PRELOAD", "HTTPS_PROXY", "TIRELESS_DATABASE_URL"):
        monkeypatch.setenv(name, "x")
    environment = environment_for(NO_ACCESS)
    assert "x" not in environment.values()
    assert environment["GIT_ALLOW_PROTOCOL"] == "none"
    assert environment["HOME"] == "/dev/null"
    assert Remote(URL).access().env["HTTPS_PROXY"] == "x"
