"""Text that goes from an agent, or from people's issues, to a forge; pure.

An agent repeats what strangers wrote. On the forge its words would act: mention people, close other issues,
pass for tireless's own hidden markers. Neutralised text reads the same and does nothing.
"""

from __future__ import annotations

import re
import unicodedata

# The smallest limits among the forges: GitHub's body is 65,536 characters, titles 256 and 255.
BODY_CHARS = 60_000
TITLE_CHARS = 240

_ZERO_WIDTH = "\u200b"
_MENTION = re.compile(r"(?<![\w`/])@(?=[A-Za-z0-9])")
_CLOSING = re.compile(
    r"\b(close[sd]?|fix(?:e[sd])?|resolve[sd]?)(\s*:?\s+)(?=(?:[\w.-]+/[\w.-]+)?#\d|https?://|GH-\d)",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_BIDI = dict.fromkeys([0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)])


def neutralise(text: str, limit: int = BODY_CHARS) -> str:
    """Text from others made harmless: no mention, no closing word with an issue behind it, no HTML comment, no
    control or bidirectional character; cut to `limit` characters."""
    text = _COMMENT.sub("", text.replace("\r\n", "\n"))
    text = text.replace("<!--", "&lt;!--")
    text = "".join(c for c in text.translate(_BIDI) if c in "\n\t" or unicodedata.category(c) != "Cc")
    text = _MENTION.sub(f"@{_ZERO_WIDTH}", text)
    text = _CLOSING.sub(lambda m: f"{m[1][0]}{_ZERO_WIDTH}{m[1][1:]}{m[2]}", text)
    return cut(text, limit)


def one_line(text: str, limit: int = TITLE_CHARS) -> str:
    """Neutralised and on one line: for titles and log lines."""
    return cut(" ".join(neutralise(text, limit * 4).split()), limit)


def cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    note = "… (cut)"
    return text[: max(limit - len(note), 0)] + note


def quote(text: str) -> str:
    """As a quotation, so that readers see whose words they are."""
    return "\n".join(f"> {line}" if line else ">" for line in text.strip().splitlines())


def fenced(text: str) -> str:
    """As a code block that the text itself cannot end."""
    longest = max((len(m[0]) for m in re.finditer(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.strip()}\n{fence}"
