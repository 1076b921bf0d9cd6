"""What the page refuses, and that nothing holds it up: neither a peer nor the database."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.wait import wait_until
from tests.web.conftest import CONFIG, Rows, Site, Start
from tireless.config import Config, ConfigError, WebConfig, parse
from tireless.store.connection import open_pool
from tireless.store.queries import Connection
from tireless.web import Web
from tireless.web.app import TEXT, Answer
from tireless.web.server import HEAD_BYTES, THREADS, Server, host_allowed


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:9", "127.0.0.1", "127.1.2.3:80", "[::1]:8421", "[::1]"]
)
def test_loopback_hosts_are_ours(site: Site, host: str) -> None:
    assert site.ask("/healthz", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8421",
            "10.0.0.1",
            "",
            "localhost:x",
        ),
        *("localhost, evil.example", "user@localhost", "[localhost]", "[fe80::1]", "::1", "http://localhost/"),
    ],
)
def test_other_hosts_are_refused(site: Site, rows: Rows, host: str) -> None:
    rows.running(title="A secret plan")
    answer = site.ask("/", headers={"Host": host})
    assert answer.status == 421
    assert "secret plan" not in answer.body


def test_the_host_it_listens_on_and_the_address_reached_are_ours() -> None:
    assert host_allowed("status.example:8421", "status.example", "192.0.2.7")
    assert host_allowed("STATUS.example", "status.example", "192.0.2.7")
    assert host_allowed("192.0.2.7:80", "0.0.0.0", "192.0.2.7")
    assert host_allowed("192.0.2.7", "::", "::ffff:192.0.2.7")
    assert not host_allowed("192.0.2.8", "0.0.0.0", "192.0.2.7")
    assert not host_allowed("evil.example", "0.0.0.0", "192.0.2.7")


@pytest.mark.parametrize("lines", [b"", b"Host: localhost\r\nHost: evil.example\r\n"])
def test_a_request_has_one_host(site: Site, lines: bytes) -> None:
    assert raw(site, b"GET / HTTP/1.1\r\n" + lines + b"\r\n").startswith(b"HTTP/1.0 400 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_it_is_for_reading_only(site: Site, method: str) -> None:
    answer = site.ask("/", method, body=b"x=1")
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_the_body(site: Site) -> None:
    head, get = site.ask("/metrics", "HEAD"), site.ask("/metrics")
    assert (head.status, head.body) == (200, "")
    assert abs(int(head.headers["content-length"]) - len(get.body)) < 20
    assert head.headers["content-type"] == get.headers["content-type"]


@pytest.mark.parametrize("path", ["/", "/nothing", "/metrics", "/healthz", "/jobs/x"])
def test_every_answer_carries_the_policy(site: Site, path: str) -> None:
    headers = site.ask(path).headers
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["server"].strip() == "tireless"


@pytest.mark.parametrize(
    "line", [b"<script>alert(1)</script>", b"BREW / HTTP/1.1", b"GET / HTTP/9.9", b"\x00\x01"]
)
def test_nonsense_is_refused_without_repeating_it(site: Site, line: bytes) -> None:
    answer = raw(site, line + b"\r\nHost: localhost\r\n\r\n")
    assert b"script" not in answer
    assert b"200" not in answer.partition(b"\r\n")[0]
    assert site.ask("/healthz").status == 200


def test_a_query_changes_nothing(site: Site) -> None:
    assert site.ask("/healthz?verbose=1").status == 200


# -- peers ------------------------------------------------------------------------------------------------


def test_more_connections_than_the_bound_are_refused_at_once(site: Site) -> None:
    port = site.web.port
    assert port is not None
    with contextlib.ExitStack() as idle:
        for _ in range(THREADS):
            idle.enter_context(socket.create_connection(("127.0.0.1", port)))
        began = time.monotonic()
        wait_until(lambda: raw(site, ASK).startswith(b"HTTP/1.0 503"), 5, "a refusal")
        assert time.monotonic() - began < 4
        assert len(_server_threads()) <= THREADS
    wait_until(lambda: raw(site, ASK).startswith(b"HTTP/1.0 200"), 5, "room again")


def test_readers_at_once_are_all_answered_and_bounded(site: Site, rows: Rows) -> None:
    rows.running()
    codes: list[int] = []
    most = 0

    def read() -> None:
        for _ in range(5):
            codes.append(site.ask("/").status)

    readers = [threading.Thread(target=read) for _ in range(THREADS)]
    for reader in readers:
        reader.start()
    while any(reader.is_alive() for reader in readers):
        most = max(most, sum(t.name == "web-look" for t in threading.enumerate()))
        readers[0].join(0.005)
    for reader in readers:
        reader.join()
    assert len(codes) == 5 * THREADS
    assert set(codes) <= {200, 503}
    assert codes.count(200) >= THREADS
    assert most <= 2


@pytest.fixture
def quick_server() -> Iterator[Server]:
    """A server that gives a connection half a second."""
    server = Server(("127.0.0.1", 0), lambda path: Answer(200, TEXT, "ok\n"), seconds=0.5)
    stop = threading.Event()
    thread = threading.Thread(target=server.serve_until, args=(stop,))
    thread.start()
    yield server
    stop.set()
    thread.join()


def test_a_peer_that_sends_byte_by_byte_is_cut_off(quick_server: Server) -> None:
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", quick_server.server_port), timeout=0.05) as peer:

        def dripping() -> bool:
            """One more byte; whether the other side is gone."""
            try:
                peer.send(b"G")
                return peer.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(dripping, 5, "the end of the connection")
    assert time.monotonic() - began < 3


def test_a_head_with_many_fields_is_refused(site: Site) -> None:
    assert raw(site, b"GET / HTTP/1.1\r\n" + b"X-Y: z\r\n" * 1000).startswith(b"HTTP/1.0 431 ")


@pytest.mark.parametrize(
    "head", [b"GET / HTTP/1.1\r\n" + b"X-Y: " + b"z" * 2 * HEAD_BYTES, b"GET /" + b"z" * 2 * HEAD_BYTES]
)
def test_a_head_beyond_its_bound_is_cut_off(site: Site, head: bytes) -> None:
    began = time.monotonic()
    assert raw(site, head) == b""
    assert time.monotonic() - began < 3


def test_stopped_it_listens_no_more(start: Start, database_url: str) -> None:
    site = start(lambda: psycopg.connect(database_url, autocommit=True))
    port = site.web.port
    assert port
    site.web.stop()
    assert site.web.port is None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    site.web.stop()


def test_off_by_default(start: Start) -> None:
    site = start(no_database, Config())
    assert site.web.port is None


def test_stopped_before_it_is_started() -> None:
    web = Web(CONFIG, no_database)
    web.stop()
    web.start()
    web.stop()
    assert web.port is None


def test_an_address_in_use_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        web = Web(Config(web=WebConfig(listen=f"127.0.0.1:{port}")), no_database, retry_seconds=0.05)
        web.start()
        assert web.port is None
    try:
        wait_until(lambda: web.port == port, 5, "the address")
    finally:
        web.stop()
    assert caplog.text.count("no status page for now") == 1


def test_beyond_loopback_is_said(caplog: pytest.LogCaptureFixture, start: Start) -> None:
    start(no_database, Config(web=WebConfig(listen="0.0.0.0:0")))
    assert "no login" in caplog.text


@pytest.mark.parametrize(
    "listen", ["8421", ":8421", "localhost", "localhost:", "localhost:x", "::1:80", "[::1]", "h:70000", ""]
)
def test_a_bad_address_is_a_configuration_error(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"web\.listen .* give HOST:PORT"):
        parse({"web": {"listen": listen}}, None)


def test_good_addresses() -> None:
    assert parse({"web": {"listen": "[::1]:8421"}}, None).web.address == ("::1", 8421)
    assert parse({"web": {"listen": "localhost:0"}}, None).web.address == ("localhost", 0)
    assert parse({}, None).web.address is None


# -- the database -----------------------------------------------------------------------------------------


def no_database() -> contextlib.AbstractContextManager[Connection]:
    return psycopg.connect("postgresql://someone:pass-word@127.0.0.1:1/x", connect_timeout=2)


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/jobs/00000000-0000-0000-0000-000000000001"])
def test_without_a_database_503_and_why(start: Start, path: str) -> None:
    began = time.monotonic()
    answer = start(no_database).ask(path)
    assert answer.status == 503
    assert "cannot be reached" in answer.body
    assert "pass-word" not in answer.body
    assert time.monotonic() - began < 2.5


def test_an_unreadable_connection_string_is_not_repeated(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    answer = start(lambda: psycopg.connect("postgresql://u:pass-word@[x")).ask("/healthz")
    assert answer.status == 503
    assert "pass-word" not in answer.body + caplog.text


def test_a_frozen_database_is_503_within_seconds_and_then_at_once(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as silent:  # connects, and never says a word
        url = f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/x"
        site = start(lambda: psycopg.connect(url, connect_timeout=30))
        askers = [threading.Thread(target=site.ask, args=("/",)) for _ in range(2)]
        began = time.monotonic()
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert 2 < time.monotonic() - began < 5
        began = time.monotonic()
        assert site.ask("/healthz").status == 503
        assert time.monotonic() - began < 1
    wait_until(
        lambda: not any(t.name == "web-look" for t in threading.enumerate()), 5, "the end of the late looks"
    )
    assert "cannot be reached" in site.ask("/healthz").body  # its places are free again


def test_a_locked_table_is_503_and_the_page_comes_back(site: Site, conn: Connection) -> None:
    with conn.transaction():
        conn.execute("lock table job in access exclusive mode")
        began = time.monotonic()
        answer = site.ask("/metrics")
        assert answer.status == 503
        assert "too slow" in answer.body
        assert time.monotonic() - began < 3.5
        assert site.ask("/healthz").status == 200
    assert site.ask("/metrics").status == 200


def test_an_empty_pool_is_503(start: Start, database_url: str) -> None:
    with open_pool(database_url, 1, timeout=0.2) as pool, pool.connection():
        answer = start(pool.connection).ask("/healthz")
        assert (answer.status, "cannot be reached" in answer.body) == (503, True)


def test_a_database_without_our_tables_says_so(start: Start, database_url: str, conn: Connection) -> None:
    conn.execute("drop table agent_run")
    answer = start(lambda: psycopg.connect(database_url, autocommit=True)).ask("/metrics")
    assert answer.status == 503
    assert "tireless-ctl migrate" in answer.body


def test_the_reason_is_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    site = start(no_database)
    for _ in range(3):
        site.ask("/metrics")
    assert caplog.text.count("nothing to show") == 1


def test_a_fault_of_our_own_is_500_without_its_text(start: Start) -> None:
    def broken() -> contextlib.AbstractContextManager[Connection]:
        raise RuntimeError("pass-word")

    answer = start(broken).ask("/")
    assert answer.status == 500
    assert "pass-word" not in answer.body


ASK = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def raw(site: Site, request: bytes) -> bytes:
    """The whole answer to bytes as they are."""
    assert site.web.port is not None
    with socket.create_connection(("127.0.0.1", site.web.port), timeout=5) as peer:
        with contextlib.suppress(OSError):
            peer.sendall(request)
        found = b""
        with contextlib.suppress(OSError):
            while part := peer.recv(65536):
                found += part
        return found


def _server_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if "process_request_thread" in t.name]
