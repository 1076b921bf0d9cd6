"""HTML that cannot be broken into: every text becomes markup through here, and is escaped on the way; pure.

Issue titles, error texts and names come from strangers. What is shown of them is text: `<bdi>` keeps a
right-to-left override inside its own cell, control characters go, and a link is made only of http and https.
"""

from __future__ import annotations

import html
from urllib.parse import urlsplit

_CONTROL = {c: None for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"}
_VOID = frozenset({"meta"})


class Html(str):
    """Markup, and so not to be escaped again. Made by this module only, and of the page's own constants."""

    __slots__ = ()


def escape(value: object) -> Html:
    """A value as markup; Html as it is, None as nothing."""
    if isinstance(value, Html):
        return value
    return Html("" if value is None else html.escape(str(value).translate(_CONTROL), quote=True))


def el(name: str, /, *children: object, **attributes: str | None) -> Html:
    """An element. An attribute that is None is left out; a trailing underscore in its name is dropped."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def join(*parts: object, by: str = "") -> Html:
    return Html(escape(by).join(escape(part) for part in parts))


def strange(text: str, limit: int = 200) -> Html:
    """Text from outside: isolated from what stands around it, cut to `limit` characters."""
    shown = text if len(text) <= limit else text[: limit - 1] + "…"
    return el("bdi", shown)


def link(url: str | None, *children: object) -> Html:
    """A link out; its text alone if the URL is none that a link should have."""
    if url is None or not is_web_url(url):
        return join(*children)
    return el("a", *children, href=url, rel="noopener noreferrer")


def is_web_url(url: str) -> bool:
    """Whether it is http or https with a host, without a user, and without anything that a URL has no place for."""
    if any(c <= " " or c == "\x7f" for c in url):
        return False
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        return False
