"""What reaches a terminal, and which repository a text names."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest

from tireless.config import Config, ForgeConfig
from tireless.ctl.lookup import RepoPattern, full_ref, parse_issue, parse_repo
from tireless.ctl.output import Cell, Output, age, clean, detail_text, seconds
from tireless.ctl.session import Usage
from tireless.entities import Forge, RepoRef

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


class Terminal:
    """Enough of a stdout to be asked what it is."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_columns_are_aligned_and_the_last_is_not_padded() -> None:
    text = Output(as_json=False).table(
        ["A", "LONG HEAD", "B"], [["aa", "b", "c"], ["a", Cell("bb", "bad"), ""]]
    )
    assert text.splitlines() == ["A   LONG HEAD  B", "aa  b          c", "a   bb         -"]


def wide(monkeypatch: pytest.MonkeyPatch, columns: int) -> Output:
    """What a terminal of so many columns is written to with."""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    with monkeypatch.context() as for_now:
        for_now.setattr(sys, "stdout", Terminal())
        return Output(as_json=False)


@pytest.mark.parametrize(
    ("columns", "lines"),
    [
        (14, ["JOB  N  TITLE", "a1   7  a tit…", "b2   8  日本…"]),
        (9, ["JOB  N  …", "a1   7  …", "b2   8  …"]),
        (6, ["JOB  N", "a1   7", "b2   8"]),
        (80, ["JOB  N  TITLE", "a1   7  a title that is long", "b2   8  日本語日本語"]),
    ],
)
def test_a_table_is_cut_where_the_terminal_ends(
    monkeypatch: pytest.MonkeyPatch, columns: int, lines: list[str]
) -> None:
    rows = [["a1", "7", "a title that is long"], ["b2", "8", "日本語日本語"]]
    out = wide(monkeypatch, columns)
    assert out.table(["JOB", "N", "TITLE"], rows).splitlines() == lines
    assert out.fit("x" * 100) == "x" * (columns - 1) + "…"


def test_what_must_be_read_in_full_goes_on_below(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["git", "not on PATH; install it, please"]]
    text = wide(monkeypatch, 32).table(["CHECK", "DETAIL"], rows, fold=True)
    assert text.splitlines() == ["CHECK  DETAIL", "git    not on PATH; install it,", "       please"]


def test_rows_are_shown_as_they_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    show = wide(monkeypatch, 32).rows_as_they_come(["CHECK", "DETAIL"], [5])
    assert capsys.readouterr().out == "CHECK  DETAIL\n"
    show(["git", "not on PATH; install it, please"])
    assert capsys.readouterr().out == "git    not on PATH; install it,\n       please\n"
    Output(as_json=True).rows_as_they_come(["CHECK"], [])(["git"])
    assert capsys.readouterr().out == ""


def test_what_is_piped_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    assert "x" * 50 in Output(as_json=False).table(["TITLE"], [["x" * 50]])


def test_colour_is_for_terminals_and_does_not_move_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    coloured = Output(as_json=False).table(["A", "B"], [[Cell("x", "bad"), "y"]])
    assert coloured.splitlines()[1] == "\x1b[31mx\x1b[0m  y"
    assert "\x1b" not in Output(as_json=True).table(["A"], [[Cell("x", "bad")]])
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in Output(as_json=False).table(["A"], [[Cell("x", "bad")]])


@pytest.mark.parametrize("evil", ["\x1b[2J", "\x07", "\x9b31m", "\u202e", "\u200b", "\x00", "\u2028", "\ud800"])
def test_nothing_that_acts_on_a_terminal_is_left(evil: str) -> None:
    shown = clean(f"a{evil}b")
    assert shown.isprintable()
    assert (shown[0], shown[-1]) == ("a", "b")


def test_long_text_is_cut() -> None:
    assert clean("x" * 10, 5) == "xxxx…"
    assert clean("a\nb\tc") == "a b c"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0s"),
        (-3, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (3600, "1h"),
        (3900, "1h 5m"),
        (86400, "1d"),
        (93600, "1d 2h"),
    ],
)
def test_lengths_of_time(value: float, text: str) -> None:
    assert seconds(value) == text


def test_ages() -> None:
    assert age(None, NOW) == "never"
    assert age(NOW - timedelta(minutes=5), NOW) == "5m ago"
    assert age(NOW + timedelta(minutes=5), NOW) == "in 5m"


def test_details_of_events() -> None:
    assert (
        detail_text({"why": "two words", "seq": 3, "none": None, "list": [1]})
        == 'why="two words" seq=3 list=[1]'
    )


# -- names of repositories --------------------------------------------------------------------------------

CONFIG = Config(
    forge=(
        ForgeConfig(Forge.GITHUB, "github.com", token_env="A"),
        ForgeConfig(Forge.GITEA, "git.example.org:3000", token_env="B"),
        ForgeConfig(Forge.FORGEJO, "example.org", api_url="https://example.org/code/api/v1", token_env="C"),
    )
)


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("github:github.com/acme/site", RepoRef(Forge.GITHUB, "github.com", "acme", "site")),
        ("github.com/acme/site", RepoRef(Forge.GITHUB, "github.com", "acme", "site")),
        ("GitHub.com/acme/site.js", RepoRef(Forge.GITHUB, "github.com", "acme", "site.js")),
        ("https://github.com/acme/site.git", RepoRef(Forge.GITHUB, "github.com", "acme", "site")),
        ("https://github.com/acme/site/issues/7", RepoRef(Forge.GITHUB, "github.com", "acme", "site")),
        ("git@github.com:acme/site.git", RepoRef(Forge.GITHUB, "github.com", "acme", "site")),
        ("ssh://git@github.com:22/acme/site.git", RepoRef(Forge.GITHUB, "github.com", "acme", "site")),
        (
            "https://git.example.org:3000/acme/site",
            RepoRef(Forge.GITEA, "git.example.org:3000", "acme", "site"),
        ),
        ("gitea:git.example.org:3000/acme/site", RepoRef(Forge.GITEA, "git.example.org:3000", "acme", "site")),
        ("https://example.org/code/acme/site", RepoRef(Forge.FORGEJO, "example.org", "acme", "site")),
        ("gitea:not.configured/acme/site", RepoRef(Forge.GITEA, "not.configured", "acme", "site")),
    ],
)
def test_ways_to_write_a_repository(text: str, ref: RepoRef) -> None:
    assert full_ref(parse_repo(text, CONFIG), CONFIG) == ref


@pytest.mark.parametrize("text", ["acme/site", "not.configured/acme/site"])
def test_what_could_be_on_several_forges_is_not_guessed(text: str) -> None:
    with pytest.raises(Usage, match="write FORGE:HOST/acme/site"):
        full_ref(parse_repo(text, CONFIG), CONFIG)


@pytest.mark.parametrize(
    "text", ["", "acme", "a/b/c/d", "acme/", "/site", "a b/c", "https:///x/y", "https://h"]
)
def test_what_is_no_repository(text: str) -> None:
    with pytest.raises(Usage):
        parse_repo(text, CONFIG)


def test_issues() -> None:
    found = parse_issue("gitea:forge.test/acme/site#7", CONFIG)
    assert found is not None
    assert (found.repo, found.number) == (RepoPattern(Forge.GITEA, "forge.test", "acme", "site"), 7)
    assert parse_issue("0a1b", CONFIG) is None
