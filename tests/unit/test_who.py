"""Who may start work, and whose words count: the rules, with a forge that answers from a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.store import REPO, issue
from tireless.config import Standing, UnknownAsker, WhoConfig
from tireless.entities import Comment, Issue, Labelling
from tireless.forge import Forbidden, ForgeClient, Request
from tireless.store.intake import BODY_CHARS
from tireless.store.refusals import JobText
from tireless.who import MOST_ASKED, Askers

SET_AT = datetime(2026, 6, 1, 12, tzinfo=UTC)
REQUEST = Request("GET", "forge.test", "/")


class Client:
    """`roles`: what the forge says; a login that is not in it is kept secret. `set_by`: None for an untold setter."""

    def __init__(self, set_by: str | None = "ann", *, is_bot: bool = False, **roles: str) -> None:
        self.set_by, self.is_bot, self.roles = set_by, is_bot, roles
        self.asked: list[str] = []

    def last_labelling(self, *_: Any) -> Labelling | None:
        self.asked.append("history")
        return None if self.set_by is None else Labelling(7, self.set_by, self.is_bot, SET_AT)

    def user_role(self, repo: Any, login: str) -> str:
        assert repo == REPO
        self.asked.append(login)
        if login not in self.roles:
            raise Forbidden(REQUEST, 403, "for admins")
        return self.roles[login]

    def own_login(self) -> str:
        return "Tireless-Bot"


def askers(client: Client, **config: Any) -> Askers:
    made: ForgeClient = client  # type: ignore[assignment]
    return Askers(WhoConfig(**config), "tireless", made, issue(1).ref)


@pytest.mark.parametrize(
    ("role", "require", "entitled"),
    [
        ("admin", Standing.WRITE, True),
        ("write", Standing.WRITE, True),
        ("triage", Standing.WRITE, False),
        ("triage", Standing.TRIAGE, True),
        ("read", Standing.TRIAGE, False),
        ("none", Standing.WRITE, False),
        ("none", Standing.ANYONE, True),
    ],
)
def test_the_forges_word_decides(role: str, require: Standing, entitled: bool) -> None:
    assert askers(Client(ann=role), require=require).judge().entitled is entitled


def test_nothing_is_asked_where_anyone_may() -> None:
    client = Client()
    assert askers(client, require=Standing.ANYONE).judge().entitled
    assert client.asked == []


def test_who_is_listed_or_ourselves_is_not_asked_about() -> None:
    for client, config in (
        (Client("Ann"), {"allow": ("ann",)}),
        (Client("tireless-bot"), {}),
        (Client("renovate[bot]", is_bot=True), {"bots": ("renovate[bot]",)}),
    ):
        judged = askers(client, **config).judge()
        assert judged.entitled
        assert judged.labelling is not None
        assert client.asked == ["history"]


def test_a_bot_does_not_count_whatever_it_may_do() -> None:
    judged = askers(Client("ci", is_bot=True, ci="admin")).judge()
    assert not judged.entitled
    assert "`ci`, a bot" in judged.why


@pytest.mark.parametrize("client", [Client(None), Client(""), Client("ann")], ids=["setter", "gone", "role"])
def test_what_is_not_told_is_the_operators_choice(client: Client) -> None:
    judged = askers(client).judge()
    assert not judged.entitled
    assert "who.allow" in judged.why
    assert judged.why[0].isupper()
    assert askers(client, unknown=UnknownAsker.ALLOW).judge().entitled


def said(title: str = "Now", body: str = "now", author: str = "eve") -> Issue:
    found = issue(1)
    return Issue(found.ref, title, body, found.labels, True, False, author, found.url)


def test_a_changed_text_counts_only_if_its_author_may_write() -> None:
    kept = JobText("Then", "then", "eve", SET_AT)
    stranger, writer = askers(Client(eve="read")), askers(Client(eve="write"))
    assert stranger.text(said(), kept).title == "Then"
    assert stranger.text(said(), kept).body == "then"
    assert writer.text(said(), kept).body == "now"
    assert stranger.text(said(), None).body == "now"  # an older program's job


def test_an_unchanged_text_costs_no_question_though_it_was_cut() -> None:
    client = Client(eve="write")
    whole = "x" * (BODY_CHARS + 50)
    kept = JobText("Now", "x" * BODY_CHARS, "eve", SET_AT)
    assert len(askers(client).text(said(body=whole), kept).body) == BODY_CHARS
    assert client.asked == []


def comment(author: str, minutes: float, edited: float | None = None) -> Comment:
    made = SET_AT + timedelta(minutes=minutes)
    changed = made if edited is None else SET_AT + timedelta(minutes=edited)
    return Comment(1, author, "words", "", made, changed)


def test_late_comments_count_only_from_those_who_may_write() -> None:
    client = Client(eve="read", ann="write")
    early, late, changed = comment("eve", -1), comment("eve", 1), comment("eve", -1, edited=1)
    same, good, dateless = comment("eve", 0), comment("ann", 1), Comment(1, "eve", "words", "")
    found = askers(client).remarks([early, late, changed, same, good, dateless], SET_AT)
    assert found == [early, good]
    assert client.asked.count("eve") == 1
    assert askers(client).remarks([late], None) == [late]


def test_a_crowd_does_not_make_a_thousand_questions() -> None:
    crowd = [comment(f"user{n}", 1) for n in range(MOST_ASKED + 30)]
    client = Client()
    client.roles = {c.author: "write" for c in crowd}
    assert len(askers(client).remarks(crowd, SET_AT)) == MOST_ASKED
    assert len(client.asked) == MOST_ASKED
