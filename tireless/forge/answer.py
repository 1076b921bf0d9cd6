"""What an HTTP answer of a forge means. Pure: status, headers and body in, a value or an error out.

    2xx, body is JSON     Reply      with the next page and the ETag as values
    204, or no body       Reply      with data None
    304, asked for        Unchanged
    3xx with Location     Redirect   for http.py to follow; it knows the origins
    anything else         an error of errors.py, returned and not raised

The rules (each is a test in tests/forge/test_answer.py):

* Retry-After is a number of seconds or an HTTP date, which is read against the answer's own Date, since the two
  clocks need not agree. Garbage and negatives count as absent.
* 403 and 429 are a limit if they carry Retry-After, or x-ratelimit-remaining 0 (then until x-ratelimit-reset), or
  speak of a rate limit (then at least 60 s, doubled for each such answer in a row). 429 is always a limit. Any
  other 403 is a missing permission.
* 503 with Retry-After is a limit too: the server has named the time.
* A next link is never followed: Gitea builds it from its ROOT_URL, which may be wrong behind a proxy, and GitHub
  lets it point to /repositories/ID. Only `page` and `after` are taken out of it. (`after` because GitHub refuses
  `page` on large sets: "please use cursor based pagination"; google/go-github issue 3565.)
* An error's body may be HTML from a proxy: then its text is not shown, only that it was no JSON. A 404 that is no
  JSON is nobody's word that something is gone: no forge answers so, only what stands before it. It is Broken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tireless.forge.errors import (
    Broken,
    Forbidden,
    ForgeError,
    Limited,
    LimitScope,
    NotFound,
    Refused,
    Request,
    Unauthorized,
    Unreachable,
)

UNNAMED_LIMIT_SECONDS = 60.0  # GitHub asks for at least a minute where a secondary limit names no time
LONGEST_LIMIT_SECONDS = 24 * 3600.0  # no forge limits for longer; more is a wrong clock or a hostile proxy
_MESSAGE_CHARS = 300


@dataclass(frozen=True, slots=True)
class Asked:
    """The facts about a request that its answer is read against.

    `now`: our clock, UTC; used only where the answer has no Date. `limits_in_a_row`: how many limits without a
    named time this host and token have answered before this one.
    """

    request: Request
    now: datetime
    conditional: bool = False
    limits_in_a_row: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """`data` is the decoded JSON, None without a body. `next_page`: what to add to our own query for the next page.

    `moved` is set by http.py when the answer came by a redirect.
    """

    request: Request
    status: int
    data: Any
    body: bytes
    etag: str | None = None
    next_page: Mapping[str, str] = field(default_factory=dict)
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Unchanged:
    """304, and it was asked for."""

    request: Request
    etag: str | None = None
    moved: bool = False


@dataclass(frozen=True, slots=True)
class Redirect:
    request: Request
    status: int
    location: str


Headers = Mapping[str, str]  # names in lower case


def read_answer(
    asked: Asked, status: int, headers: Headers, body: bytes
) -> Reply | Unchanged | Redirect | ForgeError:
    request = asked.request
    if status == 304:
        if asked.conditional:
            return Unchanged(request, headers.get("etag"))
        return Broken(request, status, "says not modified, which was not asked")
    if 200 <= status < 300:
        return _success(request, status, headers, body)
    if status in (301, 302, 303, 307, 308) and headers.get("location"):
        return Redirect(request, status, headers["location"])
    if 400 <= status < 600:
        return _failure(asked, status, headers, body)
    return Broken(request, status, "is a status that no forge answers")


def _success(request: Request, status: int, headers: Headers, body: bytes) -> Reply | Broken:
    if headers.get("content-encoding", "identity").lower() != "identity":
        return Broken(request, status, "is compressed, which was not asked")
    if not re.fullmatch(r"\s*[0-9]+\s*", headers.get("content-length", "0")):
        return Broken(request, status, "has a Content-Length that is no length")
    etag = headers.get("etag")
    following = next_page(headers.get("link", ""))
    if status in (204, 205) or not body.strip():
        return Reply(request, status, None, body, etag, following)
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return Broken(request, status, f"is not JSON but {_kind(headers, body)}")
    return Reply(request, status, data, body, etag, following)


def _failure(asked: Asked, status: int, headers: Headers, body: bytes) -> ForgeError:
    request = asked.request
    message, errors = error_text(headers, body)
    if status in (403, 429, 503):
        limit = _limit(asked, status, headers, message)
        if limit is not None:
            return limit
    if status == 401:
        return Unauthorized(request, status, message)
    if status == 403:
        return Forbidden(request, status, message)
    if status in (404, 410, 451):
        if body.strip() and not _is_json(body):
            return Broken(request, status, message)
        return NotFound(request, status, message)
    if status == 408 or status >= 500:
        return Unreachable(request, status, message)
    return Refused(request, status, message, errors)


def _limit(asked: Asked, status: int, headers: Headers, message: str) -> Limited | None:
    """The limit that this 403, 429 or 503 tells of; None if it tells of none."""
    date = _http_date(headers.get("date")) or asked.now
    told = retry_after(headers.get("retry-after"), date)
    spent = headers.get("x-ratelimit-remaining", "").strip() == "0"
    of_token = "x-ratelimit-limit" in headers or "x-ratelimit-remaining" in headers
    speaks = re.search(r"rate limit|abuse detection", message, re.IGNORECASE) is not None
    scope = LimitScope.TOKEN if of_token or speaks else LimitScope.HOST
    if told is not None:
        seconds = told
    elif status == 503:
        return None
    elif spent and (reset := _number(headers.get("x-ratelimit-reset"))) is not None:
        seconds = max(reset - date.timestamp(), 1.0)
    elif spent or speaks or status == 429:
        seconds = UNNAMED_LIMIT_SECONDS * 2 ** min(asked.limits_in_a_row, 6)
    else:
        return None
    return Limited(asked.request, status, message, min(seconds, LONGEST_LIMIT_SECONDS), scope)


def retry_after(value: str | None, date: datetime) -> float | None:
    """Seconds from the answer's `date` on; None for an absent, malformed or negative value."""
    if value is None:
        return None
    value = value.strip()
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    moment = _http_date(value)
    if moment is None or moment < date:
        return None
    return (moment - date).total_seconds()


def next_page(link: str) -> dict[str, str]:
    """`page` and `after` of the link with rel="next"; empty where there is none or it makes no sense."""
    for target, parameters in re.findall(r"<([^<>]*)>((?:\s*;\s*[^,;<]+)*)", link):
        if not re.search(r"\brel\s*=\s*\"?[^\";]*\bnext\b", parameters):
            continue
        try:
            query = parse_qs(urlsplit(target).query)
        except ValueError:
            return {}
        found = {name: query[name][-1] for name in ("page", "after") if name in query}
        if not re.fullmatch(r"[1-9][0-9]{0,8}", found.get("page", "1")):
            return {}
        return found
    return {}


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def error_text(headers: Headers, body: bytes) -> tuple[str, tuple[str, ...]]:
    """An error's message and its list of reasons, cut to a length fit for a row."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return (f"no JSON but {_kind(headers, body)}" if body.strip() else "no message", ())
    if not isinstance(data, dict):
        return "no message", ()
    message = data.get("message")
    raw = data.get("errors")
    reasons = tuple(filter(None, map(_reason, raw))) if isinstance(raw, list) else ()
    text = message if isinstance(message, str) and message.strip() else "no message"
    return _one_line(text), reasons[:5]


def _reason(error: object) -> str:
    """One entry of GitHub's `errors`: a text, or an object with message, or with resource, field and code."""
    if isinstance(error, str):
        return _one_line(error)
    if not isinstance(error, dict):
        return ""
    if isinstance(error.get("message"), str):
        return _one_line(error["message"])
    return _one_line(" ".join(str(error[k]) for k in ("resource", "field", "code") if error.get(k)))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_MESSAGE_CHARS]


def _kind(headers: Headers, body: bytes) -> str:
    kind = headers.get("content-type", "").split(";")[0].strip().lower()[:60]
    return f"{len(body)} bytes of {kind or 'unnamed content'}"


def _number(value: str | None) -> int | None:
    return int(value) if value is not None and re.fullmatch(r"\s*[0-9]{1,12}\s*", value) else None


def _http_date(value: str | None) -> datetime | None:
    if value is None:
        return None
    try:
        moment = parsedate_to_datetime(value)
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
