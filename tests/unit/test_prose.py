"""What reaches a forge reads as it was written and does nothing."""

from __future__ import annotations

import pytest

from tireless import prose


@pytest.mark.parametrize(
    ("text", "forbidden"),
    [
        ("thanks @alice and @bob-2", "@alice"),
        ("(@team/lead)", "@team"),
        ("Closes #5", "Closes #5"),
        ("this fixes: #12", "fixes: #12"),
        ("Resolved acme/other#7", "Resolved acme/other#7"),
        ("fix https://forge.example/acme/site/issues/3", "fix https"),
        ("closes GH-4", "closes GH"),
        ("a <!-- tireless:job=1 --> b", "tireless:job"),
        ("open <!-- never closed", "<!--"),
        ("right\u202eto left\u2066", "\u202e"),
        ("bell\x07 nul\x00", "\x07"),
    ],
)
def test_what_would_act_is_made_harmless(text: str, forbidden: str) -> None:
    assert forbidden not in prose.neutralise(text)


@pytest.mark.parametrize(
    "text",
    [
        "mail me at a@b.example",
        "use `@decorator` here",
        "see #5",
        "it closes the file",
        "a prefix of 3",
        "tabs\tand\nlines stay",
    ],
)
def test_what_does_not_act_stays_as_it_is(text: str) -> None:
    assert prose.neutralise(text) == text


def test_text_is_cut_to_the_limit_and_says_so() -> None:
    cut = prose.neutralise("x" * 100, 50)
    assert len(cut) == 50
    assert cut.endswith("(cut)")


def test_a_title_is_one_line() -> None:
    assert prose.one_line("two\nlines\r\nand @you") == "two lines and @\u200byou"


def test_a_quotation_shows_whose_words_they_are() -> None:
    assert prose.quote("a\n\nb\n") == "> a\n>\n> b"


def test_a_code_block_cannot_be_ended_from_inside() -> None:
    block = prose.fenced("```\nout\n````")
    assert block.splitlines()[0] == "`````" == block.splitlines()[-1]
