"""What the environment may say of a real forge, and what is answered to what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.real_forge import KIND, REPO, TOKEN, TOKEN_FILE, URL, Wrong, target
from tireless.entities import Forge

SECRET = "s3cr3t-of-the-test"
GITEA = {KIND: "gitea", URL: "https://git.example.org/", TOKEN: SECRET, REPO: "acme/scratch"}


def test_nothing_is_set() -> None:
    assert target({"PATH": "/bin", "TIRELESS_TEST_POSTGRES": "18", KIND: ""}) is None


@pytest.mark.parametrize(
    ("kind", "url", "api", "host"),
    [
        ("github", "", "https://api.github.com", "github.com"),
        ("github", "https://github.com/", "https://api.github.com", "github.com"),
        ("github", "https://ghe.example.org", "https://ghe.example.org/api/v3", "ghe.example.org"),
        ("github", "https://acme.ghe.com", "https://api.acme.ghe.com", "acme.ghe.com"),
        ("gitea", "http://127.0.0.1:3000", "http://127.0.0.1:3000/api/v1", "127.0.0.1:3000"),
        ("forgejo", "https://e.org/forge/", "https://e.org/forge/api/v1", "e.org"),
    ],
)
def test_where_the_api_is(kind: str, url: str, api: str, host: str) -> None:
    found = target({**GITEA, KIND: kind, URL: url})
    assert found is not None
    assert (found.kind, found.api_url, found.host) == (Forge(kind), api, host)
    assert (found.config.base_url, found.ref.full_name) == (api, "acme/scratch")


def test_the_token_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    found = target({**GITEA, TOKEN: "", TOKEN_FILE: str(file)})
    assert found is not None
    assert found.token.reveal() == SECRET
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("change", "variable", "says"),
    [
        ({KIND: ""}, URL, "set TIRELESS_TEST_FORGE to github, gitea or forgejo"),
        ({KIND: "gitlab"}, KIND, "is 'gitlab'; set it to github, gitea or forgejo"),
        ({URL: ""}, URL, "is not set; set it to the gitea instance's root"),
        ({URL: "git.example.org"}, URL, "is 'git.example.org'; set it to a URL such as"),
        ({URL: f"https://u:{SECRET}@git.example.org"}, URL, "holds a user name; leave it out"),
        ({URL: "https://git.example.org/api/v1"}, URL, "set it to the instance's root, without /api/"),
        ({TOKEN: ""}, TOKEN_FILE, "nor TIRELESS_TEST_FORGE_TOKEN is set"),
        ({TOKEN_FILE: "/some/file"}, TOKEN, "are both set; unset one of them"),
        (
            {TOKEN: "", TOKEN_FILE: "/nonexistent"},
            TOKEN_FILE,
            "is '/nonexistent', which cannot be read (No such",
        ),
        ({TOKEN: f"{SECRET} {SECRET}"}, TOKEN, "is no token; a token is one word"),
        ({REPO: ""}, REPO, "is not set; set it to OWNER/NAME"),
        ({REPO: "scratch"}, REPO, "is 'scratch'; set it to OWNER/NAME"),
        ({REPO: "https://git.example.org/a/b"}, REPO, "set it to OWNER/NAME"),
    ],
)
def test_what_is_wrong_is_told(change: dict[str, str], variable: str, says: str) -> None:
    with pytest.raises(Wrong) as caught:
        target({**GITEA, **change})
    assert variable in str(caught.value)
    assert says in str(caught.value)
    assert SECRET not in str(caught.value)
