"""What an HTTP answer means: every rule of tireless/forge/answer.py, without a socket."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.forge.answer import (
    LONGEST_LIMIT_SECONDS,
    Asked,
    Redirect,
    Reply,
    Unchanged,
    next_page,
    read_answer,
    retry_after,
)
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

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
REQUEST = Request("GET", "forge.example.org", "/repos/acme/site/issues")
DATE = "Sun, 01 Mar 2026 11:00:00 GMT"  # the forge's clock is an hour behind ours
EPOCH_AT_DATE = int((NOW - timedelta(hours=1)).timestamp())


def read(
    status: int,
    headers: dict[str, str] | None = None,
    body: Any = b"",
    *,
    conditional: bool = False,
    row: int = 0,
) -> Reply | Unchanged | Redirect | ForgeError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_answer(Asked(REQUEST, NOW, conditional, row), status, headers or {}, raw)


@pytest.mark.parametrize(
    ("status", "headers", "body", "kind"),
    [
        (200, {}, b"<html>welcome</html>", Broken),
        (200, {}, b'[{"number": 1', Broken),
        (200, {}, b"\xff\xfe\x00", Broken),
        (200, {}, b"[" * 100_000, Broken),
        (200, {"content-encoding": "gzip"}, b"[]", Broken),
        (304, {}, b"", Broken),
        (302, {}, b"", Broken),
        (300, {"location": "/x"}, b"", Broken),
        (101, {}, b"", Broken),
        (999, {}, b"", Broken),
        (400, {}, {"message": "bad"}, Refused),
        (401, {}, {"message": "Bad credentials"}, Unauthorized),
        (403, {}, {"message": "Resource not accessible by integration"}, Forbidden),
        (403, {"x-ratelimit-remaining": "17"}, {"message": "no"}, Forbidden),
        (404, {}, {"message": "Not Found"}, NotFound),
        (404, {"retry-after": "5"}, b"<html>", Broken),
        (408, {}, b"", Unreachable),
        (409, {}, {"message": "exists"}, Refused),
        (410, {}, {"message": "Issues are disabled"}, NotFound),
        (412, {}, b"", Refused),
        (413, {}, b"", Refused),
        (422, {}, {"message": "Validation Failed"}, Refused),
        (423, {}, {"message": "archived"}, Refused),
        (451, {}, b"", NotFound),
        (500, {}, b"<html>", Unreachable),
        (502, {}, b"<html>", Unreachable),
        (503, {}, b"", Unreachable),
        (503, {"retry-after": "soon"}, b"", Unreachable),
        (504, {}, b"", Unreachable),
    ],
)  # fmt: skip
def test_statuses(status: int, headers: dict[str, str], body: Any, kind: type[ForgeError]) -> None:
    answer = read(status, headers, body)
    assert type(answer) is kind
    assert answer.status == status


def test_success_carries_data_etag_and_next_page() -> None:
    headers = {"etag": 'W/"1"', "link": '<https://api.example.org/repositories/7/issues?page=2>; rel="next"'}
    answer = read(200, headers, [{"number": 1}])
    assert isinstance(answer, Reply)
    assert (answer.data, answer.etag, answer.next_page) == ([{"number": 1}], 'W/"1"', {"page": "2"})


@pytest.mark.parametrize(("status", "body"), [(204, b""), (200, b""), (200, b" \n"), (205, b"x")])
def test_success_without_a_body(status: int, body: bytes) -> None:
    answer = read(status, {}, body)
    assert isinstance(answer, Reply)
    assert answer.data is None


def test_an_empty_list_is_not_unchanged() -> None:
    assert isinstance(read(200, {}, [], conditional=True), Reply)
    assert isinstance(read(304, {}, b"", conditional=True), Unchanged)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_told_and_not_judged_here(status: int) -> None:
    answer = read(status, {"location": "/elsewhere"})
    assert answer == Redirect(REQUEST, status, "/elsewhere")


def limited(status: int, headers: dict[str, str], body: Any = b"", *, row: int = 0) -> Limited:
    answer = read(status, headers, body, row=row)
    assert isinstance(answer, Limited)
    return answer


@pytest.mark.parametrize("status", [403, 429, 503])
def test_retry_after_makes_a_limit(status: int) -> None:
    assert limited(status, {"retry-after": "7"}).retry_after_seconds == 7


@pytest.mark.parametrize("status", [403, 429])
def test_a_spent_budget_lasts_until_its_reset_by_the_forges_clock(status: int) -> None:
    headers = {"date": DATE, "x-ratelimit-remaining": "0", "x-ratelimit-reset": str(EPOCH_AT_DATE + 90)}
    found = limited(status, headers)
    assert (found.retry_after_seconds, found.scope) == (90, LimitScope.TOKEN)


def test_a_reset_in_the_past_still_waits_a_moment() -> None:
    headers = {"date": DATE, "x-ratelimit-remaining": "0", "x-ratelimit-reset": str(EPOCH_AT_DATE - 90)}
    assert limited(403, headers).retry_after_seconds == 1


def test_retry_after_goes_before_the_reset() -> None:
    headers = {"retry-after": "5", "x-ratelimit-remaining": "0", "x-ratelimit-reset": "4102444800"}
    assert limited(429, headers).retry_after_seconds == 5


@pytest.mark.parametrize(
    "message",
    [
        "You have exceeded a secondary rate limit.",
        "API RATE LIMIT exceeded",
        "triggered an abuse detection mechanism",
    ],
)
def test_a_403_that_speaks_of_a_rate_limit_waits_a_minute_and_more_each_time(message: str) -> None:
    waits = [limited(403, {}, {"message": message}, row=row).retry_after_seconds for row in range(4)]
    assert waits == [60, 120, 240, 480]


def test_a_bare_429_is_a_limit_of_the_host() -> None:
    found = limited(429, {}, b"<html>slow down</html>")
    assert (found.retry_after_seconds, found.scope) == (60, LimitScope.HOST)


def test_a_limit_has_an_upper_bound() -> None:
    assert limited(429, {"retry-after": "999999999"}).retry_after_seconds == LONGEST_LIMIT_SECONDS
    assert limited(429, {}, row=10_000).retry_after_seconds <= LONGEST_LIMIT_SECONDS


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 3 ", 3.0),
        ("Sun, 01 Mar 2026 11:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 11:00:00 GMT", 0.0),
        ("Sunday, 01-Mar-26 11:00:30 GMT", 30.0),
        ("Sun, 01 Mar 2026 10:59:59 GMT", None),  # already over
        ("-5", None),
        ("1.5", None),
        ("", None),
        ("soon", None),
        ("12345678901234567890", None),
        ("Sun, 99 Mar 2026 11:00:30 GMT", None),
        (None, None),
    ],
)
def test_retry_after_in_both_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after(value, NOW - timedelta(hours=1)) == seconds


def test_a_date_is_read_against_the_answers_own_date() -> None:
    headers = {"date": DATE, "retry-after": "Sun, 01 Mar 2026 11:00:30 GMT"}
    assert limited(429, headers).retry_after_seconds == 30
    no_date = {"retry-after": "Sun, 01 Mar 2026 12:00:20 GMT"}
    assert limited(429, no_date).retry_after_seconds == 20


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ('<https://x/y?page=3&per_page=2>; rel="next", <https://x/y?page=9>; rel="last"', {"page": "3"}),
        ('<https://x/y?page=1>; rel="prev", <https://x/y?page=3>; rel="next"', {"page": "3"}),
        ("<https://x/y?page=3>; rel=next", {"page": "3"}),
        ('<https://x/y?page=3>; title="a"; rel="first next"', {"page": "3"}),
        ('<https://x/y?after=Y3Vyc29y&per_page=2>; rel="next"', {"after": "Y3Vyc29y"}),
        ('<https://x/y?after=Y3Vyc29y&page=2>; rel="next"', {"page": "2", "after": "Y3Vyc29y"}),
        ('<https://x/y?page=3>; rel="last"', {}),
        ('<https://x/y?page=3>; rel="nextish"', {}),
        ('<https://x/y?page=-1>; rel="next"', {}),
        ('<https://x/y?page=0>; rel="next"', {}),
        ('<https://x/y?page=two>; rel="next"', {}),
        ('<https://[x/y?page=2>; rel="next"', {}),
        ('<https://x/y>; rel="next"', {}),
        ("garbage", {}),
        ("", {}),
    ],
)
def test_only_the_place_is_taken_from_a_next_link(link: str, page: dict[str, str]) -> None:
    assert next_page(link) == page


def test_reasons_of_a_422_are_kept() -> None:
    errors: list[Any] = [
        {"resource": "PullRequest", "code": "custom", "message": "A pull request already exists for acme:x."},
        {"resource": "Label", "code": "already_exists", "field": "name"},
        "plain",
        None,
        7,
    ]
    answer = read(422, {}, {"message": "Validation Failed", "errors": errors})
    assert isinstance(answer, Refused)
    assert answer.errors == (
        "A pull request already exists for acme:x.", "Label name already_exists", "plain"
    )  # fmt: skip


def test_an_error_names_method_path_host_and_status_and_shows_no_html() -> None:
    answer = read(500, {"content-type": "text/html; charset=utf-8"}, b"<html>secret stack trace</html>")
    text = str(answer)
    for part in ("GET", "/repos/acme/site/issues", "forge.example.org", "500", "31 bytes of text/html"):
        assert part in text
    assert "secret" not in text


def test_a_long_message_is_cut_and_kept_on_one_line() -> None:
    assert len(str(read(422, {}, {"message": "x\n" * 5000}))) < 500
    assert "\n" not in str(read(422, {}, {"message": "a\nb"}))


def test_only_what_can_never_succeed_is_not_retryable() -> None:
    assert {k.retryable for k in (Limited, Unreachable, Broken, Unauthorized)} == {True}
    assert {k.retryable for k in (Forbidden, NotFound, Refused)} == {False}


_VALUES = st.text(alphabet=st.characters(codec="latin-1"), max_size=40)
_NAMES = (
    "retry-after",
    "date",
    "link",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "location",
    "content-type",
)


@given(
    status=st.integers(100, 999),
    headers=st.dictionaries(st.sampled_from(_NAMES), _VALUES),
    body=st.binary(max_size=60) | st.sampled_from([b"null", b"[null]", b'{"message": 1, "errors": {}}']),
    conditional=st.booleans(),
)
def test_whatever_comes_is_a_value_or_an_error(
    status: int, headers: dict[str, str], body: bytes, conditional: bool
) -> None:
    answer = read_answer(Asked(REQUEST, NOW, conditional), status, headers, body)
    assert isinstance(answer, (Reply, Unchanged, Redirect, ForgeError))
    if isinstance(answer, Limited):
        assert 0 <= answer.retry_after_seconds <= LONGEST_LIMIT_SECONDS
