"""The HTTP core over a real socket: bounds of time, size, redirects and tries, and where the token goes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.forge.conftest import QUICK
from tests.support.forge import FakeGitea, FakeGitHub
from tests.support.wait import wait_until
from tireless.entities import IssuePage
from tireless.forge import (
    Broken,
    CutOff,
    ForgeClient,
    ForgeError,
    Limited,
    MemoryGate,
    NotFound,
    Pace,
    Unauthorized,
    Unreachable,
    client_for,
)


def poll(forge: FakeGitea | FakeGitHub, client: ForgeClient) -> IssuePage:
    return client.list_opted_in_issues(forge.ref("acme/site"), "tireless")


def fails_with(kind: type[ForgeError], forge: FakeGitea, client: ForgeClient) -> Any:
    with pytest.raises(ForgeError) as caught:
        poll(forge, client)
    assert type(caught.value) is kind, caught.value
    assert forge.token not in str(caught.value)
    return caught.value


class TestTries:
    def test_503_then_success(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.fail(2, status=503)
        assert poll(gitea, gitea_client).issues == ()
        assert len(gitea.requests) == 3

    @pytest.mark.parametrize("order", [{"status": 503}, {"status": 502}, {"status": 504}, {"hang_up": True}])
    def test_tried_three_times_and_no_more(
        self, gitea: FakeGitea, gitea_client: ForgeClient, order: dict[str, Any]
    ) -> None:
        gitea.fail(None, **order)
        fails_with(Unreachable, gitea, gitea_client)
        assert len(gitea.requests) == 3

    def test_429_is_tried_again_after_its_time_but_bounded(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        gitea.fail(None, status=429, headers={"Retry-After": "1"})
        began = time.monotonic()
        found = fails_with(Limited, gitea, gitea_client)
        assert 2.0 <= time.monotonic() - began < QUICK.total_seconds
        assert len(gitea.requests) == 3
        assert found.retry_after_seconds == 1

    def test_429_then_success(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.fail(1, status=429, headers={"Retry-After": "0"})
        assert poll(gitea, gitea_client).issues == ()
        assert len(gitea.requests) == 2

    @pytest.mark.parametrize("status", [403, 429, 503])
    def test_a_long_retry_after_is_raised_at_once(
        self, gitea: FakeGitea, gitea_client: ForgeClient, status: int
    ) -> None:
        gitea.fail(None, status=status, headers={"Retry-After": "3600"})
        began = time.monotonic()
        found = fails_with(Limited, gitea, gitea_client)
        assert time.monotonic() - began < 1
        assert found.retry_after_seconds == 3600
        assert len(gitea.requests) == 1

    def test_a_malformed_retry_after_is_no_crash(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.fail(1, status=429, headers={"Retry-After": "not a date; \x7f"})
        assert fails_with(Limited, gitea, gitea_client).retry_after_seconds == 60

    @pytest.mark.parametrize("status", [400, 404, 409, 410, 422, 451, 500])
    def test_asked_once(self, gitea: FakeGitea, gitea_client: ForgeClient, status: int) -> None:
        gitea.fail(None, status=status)
        with pytest.raises(ForgeError):
            poll(gitea, gitea_client)
        assert len(gitea.requests) == 1

    def test_a_creation_is_never_sent_twice(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        number = gitea.open_issue("x")
        gitea.fail(None, hang_up=True, act=True, status=503, match="POST")
        with pytest.raises(Unreachable):
            gitea_client.create_comment(gitea.issue_ref(number), "hello")
        assert len(gitea.asked("POST")) == 1
        assert len(gitea.comments(number)) == 1

    def test_an_idempotent_write_is_tried_again(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        number = gitea.open_issue("x")
        comment = gitea.comment(number, "old", author="tireless-bot")
        gitea.fail(1, status=503, match="PATCH")
        gitea_client.edit_comment(gitea.issue_ref(number), comment, "new")
        assert len(gitea.asked("PATCH")) == 2
        assert gitea.comments(number)[0].body == "new"

    def test_a_refused_connection(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.down()
        found = fails_with(Unreachable, gitea, gitea_client)
        assert "refused" in str(found)
        gitea.up()
        assert poll(gitea, gitea_client).issues == ()

    def test_a_kept_connection_that_the_forge_has_closed(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        poll(gitea, gitea_client)
        gitea.down()
        gitea.up()
        assert poll(gitea, gitea_client).issues == ()

    def test_401_is_not_tried_again(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.token_works = False
        fails_with(Unauthorized, gitea, gitea_client)
        assert len(gitea.requests) == 1


class TestStop:
    @pytest.mark.parametrize(
        ("status", "headers", "kind"), [(429, {"Retry-After": "20"}, Limited), (503, {}, Unreachable)]
    )
    def test_stop_ends_a_wait_and_no_further_try_is_made(
        self, gitea: FakeGitea, status: int, headers: dict[str, str], kind: type[ForgeError]
    ) -> None:
        stop = threading.Event()
        client = client_for(gitea.config, stop=stop, gate=MemoryGate(), pace=Pace(first_wait_seconds=20))
        gitea.fail(None, status=status, headers=headers)
        caught: list[ForgeError] = []

        def ask() -> None:
            try:
                poll(gitea, client)
            except ForgeError as e:
                caught.append(e)

        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: gitea.requests, 5, "the first try")
        stop.set()
        asking.join(5)
        assert not asking.is_alive()
        assert [(type(e), e.status) for e in caught] == [(kind, status)]
        assert len(gitea.requests) == 1
        client.close()

    def test_a_first_try_is_made_while_draining(self, gitea: FakeGitea) -> None:
        stop = threading.Event()
        stop.set()
        client = client_for(gitea.config, stop=stop, gate=MemoryGate())
        assert poll(gitea, client).issues == ()
        gitea.fail(None, status=503)
        with pytest.raises(Unreachable):
            poll(gitea, client)
        assert len(gitea.requests) == 2
        client.close()


class TestGate:
    def test_a_limit_closes_the_gate_for_that_host_and_token_only(self, tmp_path: Path) -> None:
        gate = MemoryGate()
        with FakeGitea(tmp_path / "a") as one, FakeGitea(tmp_path / "b") as other:
            for forge in (one, other):
                forge.add_repo("acme/site")
            one.fail(1, status=429, headers={"Retry-After": "3600"})
            first, second = client_for(one.config, gate=gate), client_for(other.config, gate=gate)
            with pytest.raises(Limited):
                poll(one, first)
            with pytest.raises(Limited) as caught:
                poll(one, first)
            assert caught.value.status is None
            assert 3590 < caught.value.retry_after_seconds <= 3600
            assert len(one.requests) == 1
            assert poll(other, second).issues == ()
            first.close()
            second.close()

    def test_the_gate_opens_by_itself(self) -> None:
        clock = [100.0]
        gate = MemoryGate(lambda: clock[0])
        gate.limit("h", "t", 30)
        gate.limit("h", "t", 5)  # a shorter one does not open it sooner
        assert gate.check("h", "t") == 30
        assert gate.check("h", "u") == gate.check("i", "t") == 0
        clock[0] = 131.0
        assert gate.check("h", "t") == 0

    def test_unnamed_limits_grow_and_a_success_ends_the_row(self, gitea: FakeGitea) -> None:
        class OpenGate:
            def check(self, host: str, token_fingerprint: str) -> float:
                return 0.0

            def limit(self, host: str, token_fingerprint: str, seconds: float) -> None:
                limits.append(seconds)

        limits: list[float] = []
        client = client_for(gitea.config, gate=OpenGate(), pace=QUICK)
        for _ in range(3):
            gitea.fail(1, status=429)
            with pytest.raises(Limited):
                poll(gitea, client)
        poll(gitea, client)
        gitea.fail(1, status=429)
        with pytest.raises(Limited):
            poll(gitea, client)
        assert limits == [60, 120, 240, 60]
        client.close()


class TestBrokenAnswers:
    @pytest.mark.parametrize(
        "body",
        [
            b"<html><body>Sign in</body></html>",
            b'[{"number": 1, "title": "x", "sta',
            b'{"message": "not a list"}',
            b"null",
            b'[{"number": 1}]',
            b'[1, "x"]',
            b"",
        ],
    )
    def test_not_understandable(self, gitea: FakeGitea, gitea_client: ForgeClient, body: bytes) -> None:
        gitea.fail(1, status=200, body=body)
        fails_with(Broken, gitea, gitea_client)

    def test_null_rows_matter_only_where_a_missing_row_does(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        number = gitea.open_issue("One")
        gitea.fail(2, status=200, body=b"[null, null]")
        fails_with(Broken, gitea, gitea_client)
        assert gitea_client.list_comments(gitea.issue_ref(number)) == []

    def test_a_body_of_more_than_10_mb_is_not_read_to_its_end(
        self, gitea: FakeGitea, gitea_client: ForgeClient
    ) -> None:
        gitea.fail(1, status=200, body=b"[" + b" " * (11 * 1024 * 1024) + b"]")
        assert "longer than" in str(fails_with(Broken, gitea, gitea_client))
        assert poll(gitea, gitea_client).issues == ()

    @pytest.mark.parametrize("cut", [0, 1, 10])
    def test_a_cut_off_body_is_noticed_and_asked_for_again(
        self, gitea: FakeGitea, gitea_client: ForgeClient, cut: int
    ) -> None:
        gitea.open_issue("x", labels=["tireless"])
        gitea.fail(1, cut=cut)
        assert len(poll(gitea, gitea_client).issues) == 1
        gitea.fail(None, cut=cut)
        fails_with(CutOff, gitea, gitea_client)

    def test_a_content_length_that_is_too_long(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.fail(None, status=200, body=b"[]", headers={"Content-Length": "9"})
        fails_with(CutOff, gitea, gitea_client)

    def test_a_content_length_that_is_too_short(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.fail(1, status=200, body=b'[{"number": 1}]', headers={"Content-Length": "5"})
        fails_with(Broken, gitea, gitea_client)
        assert poll(gitea, gitea_client).issues == ()

    @pytest.mark.parametrize("length", ["-4", "many", "3, 4"])
    def test_a_content_length_that_is_none(
        self, gitea: FakeGitea, gitea_client: ForgeClient, length: str
    ) -> None:
        gitea.fail(None, status=200, body=b"[]", headers={"Content-Length": length})
        fails_with(Broken, gitea, gitea_client)

    def test_a_304_that_was_not_asked_for(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        gitea.fail(1, status=304)
        fails_with(Broken, gitea, gitea_client)


class TestTime:
    PACE = replace(QUICK, answer_seconds=0.4, tries=1)

    def test_slow_bytes_end_at_the_deadline_of_the_whole_answer(self, gitea: FakeGitea) -> None:
        client = client_for(gitea.config, gate=MemoryGate(), pace=self.PACE)
        gitea.fail(1, status=200, body=b" " * 100, slow=0.1)  # each byte well within the time of one read
        began = time.monotonic()
        fails_with(Unreachable, gitea, client)
        assert time.monotonic() - began < 2
        assert poll(gitea, client).issues == ()
        client.close()

    def test_a_byte_just_before_the_deadline_buys_no_further_wait(self, gitea: FakeGitea) -> None:
        client = client_for(gitea.config, gate=MemoryGate(), pace=replace(self.PACE, answer_seconds=2))
        gitea.fail(1, status=200, body=b" " * 9, slow=1.8)
        began = time.monotonic()
        fails_with(Unreachable, gitea, client)
        assert time.monotonic() - began < 3.2  # the next byte comes at 3.6 s
        client.close()

    def test_a_late_answer(self, gitea: FakeGitea) -> None:
        client = client_for(gitea.config, gate=MemoryGate(), pace=self.PACE)
        gitea.fail(1, delay=5)
        began = time.monotonic()
        fails_with(Unreachable, gitea, client)
        assert time.monotonic() - began < 2
        client.close()

    def test_all_tries_together_end_in_time(self, gitea: FakeGitea) -> None:
        pace = Pace(answer_seconds=0.5, total_seconds=1.2, tries=10, first_wait_seconds=0.01)
        client = client_for(gitea.config, gate=MemoryGate(), pace=pace)
        gitea.fail(None, delay=5)
        began = time.monotonic()
        fails_with(Unreachable, gitea, client)
        assert time.monotonic() - began < 2
        client.close()

    def test_the_defaults_keep_a_call_within_30_s(self) -> None:
        pace = Pace()
        assert pace.total_seconds == 30
        assert pace.tries == 3
        assert pace.connect_seconds + pace.answer_seconds < pace.total_seconds
        assert pace.body_bytes == 10 * 1024 * 1024


class TestRedirects:
    def to(self, gitea: FakeGitea, location: str, status: int = 301, times: int | None = 1) -> None:
        gitea.fail(times, status=status, headers={"Location": location}, match="acme/old")

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    def test_followed_on_the_same_origin_with_the_token(
        self, gitea: FakeGitea, gitea_client: ForgeClient, status: int
    ) -> None:
        self.to(gitea, "/api/v1/repos/acme/site", status)
        assert gitea_client.get_repository(gitea.ref("acme/old")).ref == gitea.ref("acme/site")

    def test_an_absolute_url_of_the_same_origin(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        self.to(gitea, f"{gitea.url.upper()}/api/v1/repos/acme/site".replace("/API", "/api"))
        assert gitea_client.get_repository(gitea.ref("acme/old")).ref == gitea.ref("acme/site")

    def test_a_place_with_odd_characters(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        self.to(gitea, "/api/v1/repos/acme/sit\xe9 \x01?a=\xe9")
        with pytest.raises(NotFound):
            gitea_client.get_repository(gitea.ref("acme/old"))

    @pytest.mark.parametrize("status", [301, 307])
    def test_another_origin_never_gets_a_request(
        self, gitea: FakeGitea, gitea_client: ForgeClient, tmp_path: Path, status: int
    ) -> None:
        with FakeGitea(tmp_path / "other") as other:
            other.add_repo("acme/site")
            for location in (f"{other.api_url}/repos/acme/site", f"//{other.host}/api/v1/repos/acme/site"):
                self.to(gitea, location, status)
                with pytest.raises(Broken, match="another origin") as caught:
                    gitea_client.get_repository(gitea.ref("acme/old"))
                assert gitea.token not in str(caught.value)
            assert other.requests == []

    @pytest.mark.parametrize(
        "location",
        [
            "https://{host}/api/v1/repos/acme/site",
            "http://x:y@127.0.0.1:1/",
            "file:///etc/passwd",
            "http://[",
            "http://h:x/",
        ],
    )
    def test_odd_places_are_not_followed(
        self, gitea: FakeGitea, gitea_client: ForgeClient, location: str
    ) -> None:
        self.to(gitea, location.replace("{host}", gitea.host))
        with pytest.raises(Broken):
            gitea_client.get_repository(gitea.ref("acme/old"))
        assert len(gitea.requests) == 1

    def test_three_hops_and_no_more(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        self.to(gitea, "/api/v1/repos/acme/old", times=3)
        gitea.add_repo("acme/old")
        assert gitea_client.get_repository(gitea.ref("acme/old")).ref == gitea.ref("acme/old")
        self.to(gitea, "/api/v1/repos/acme/old", times=None)
        with pytest.raises(Broken, match="more than 3"):
            gitea_client.get_repository(gitea.ref("acme/old"))
        assert len(gitea.requests) == 8

    @pytest.mark.parametrize("status", [301, 307, 308])
    def test_a_write_is_followed_with_method_and_body(
        self, gitea: FakeGitea, gitea_client: ForgeClient, status: int
    ) -> None:
        self.to(gitea, "/api/v1/repos/acme/site/issues/1/comments", status)
        number = gitea.open_issue("x")
        gitea_client.create_comment(replace(gitea.issue_ref(number), repo="old"), "hello")
        assert [c.body for c in gitea.comments(number)] == ["hello"]

    @pytest.mark.parametrize("status", [302, 303])
    def test_a_write_that_is_sent_to_a_page_is_broken(
        self, gitea: FakeGitea, gitea_client: ForgeClient, status: int
    ) -> None:
        self.to(gitea, "/user/login", status)
        number = gitea.open_issue("x")
        with pytest.raises(Broken):
            gitea_client.create_comment(replace(gitea.issue_ref(number), repo="old"), "hello")
        assert len(gitea.requests) == 1


class TestTls:
    PEM = Path(__file__).parent / "data" / "tls.pem"  # made for these tests: 127.0.0.1, signed by itself

    @pytest.fixture
    def secure(self, tmp_path: Path) -> Iterator[FakeGitea]:
        with FakeGitea(tmp_path / "forge", tls=self.PEM) as running:
            running.add_repo("acme/site")
            yield running

    def test_a_certificate_that_ca_file_vouches_for(self, secure: FakeGitea) -> None:
        client = client_for(replace(secure.config, ca_file=self.PEM), gate=MemoryGate(), pace=QUICK)
        secure.open_issue("One", labels=["tireless"])
        assert len(poll(secure, client).issues) == 1
        assert (
            client.get_repository(secure.ref("acme/site")).clone_url == f"https://{secure.host}/acme/site.git"
        )
        client.close()

    def test_one_that_nobody_vouches_for_gets_no_request(self, secure: FakeGitea) -> None:
        client = client_for(secure.config, gate=MemoryGate(), pace=replace(QUICK, tries=1))
        assert "its certificate is by nobody who is trusted here; set ca_file" in str(
            fails_with(Unreachable, secure, client)
        )
        assert secure.requests == []
        client.close()

    def test_slow_bytes_end_in_time_here_too(self, secure: FakeGitea) -> None:
        pace = replace(QUICK, answer_seconds=0.5, tries=1)
        client = client_for(replace(secure.config, ca_file=self.PEM), gate=MemoryGate(), pace=pace)
        secure.fail(1, status=200, body=b" " * 100, slow=0.1)
        began = time.monotonic()
        fails_with(Unreachable, secure, client)
        assert time.monotonic() - began < 3
        assert poll(secure, client).issues == ()
        client.close()


class TestSecrets:
    def test_the_token_is_in_the_header_and_nowhere_else(
        self, gitea: FakeGitea, gitea_client: ForgeClient, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("DEBUG")
        gitea.fail(1, status=500)
        found = fails_with(Unreachable, gitea, gitea_client)
        poll(gitea, gitea_client)
        assert all(r.call.headers["authorization"] == f"token {gitea.token}" for r in gitea.requests)
        assert all(gitea.token not in str(r.call) for r in gitea.requests)
        assert gitea.token not in repr(found) + caplog.text + repr(vars(found))

    def test_each_forge_has_its_word_before_the_token(
        self, github: FakeGitHub, github_client: ForgeClient
    ) -> None:
        poll(github, github_client)
        headers = github.requests[0].call.headers
        assert headers["authorization"] == f"Bearer {github.token}"
        assert headers["user-agent"].startswith("tireless/")
        assert headers["accept"] == "application/vnd.github+json"

    def test_errors_name_what_was_asked(self, gitea: FakeGitea, gitea_client: ForgeClient) -> None:
        with pytest.raises(NotFound) as caught:
            gitea_client.get_repository(gitea.ref("acme/none"))
        text = str(caught.value)
        for part in ("GET", "/api/v1/repos/acme/none", gitea.host, "404", "couldn't be found"):
            assert part in text
