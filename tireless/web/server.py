"""One HTTP server for a few readers, which nobody can hold up; what it answers is the App's.

A connection carries one request and lives SECONDS at most, counted over all of its bytes, however slowly they
come; its head has HEAD_BYTES at most. THREADS connections are served at once, and one more is answered 503
and closed at once. None of this waits in the thread that accepts.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tireless.web.app import TEXT, Answer
from tireless.web.style import STYLE_HASH

log = logging.getLogger(__name__)

THREADS = 8
SECONDS = 10.0
HEAD_BYTES = 16 * 1024

_POLICY = (
    f"default-src 'none'; style-src '{STYLE_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}
_BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"too many connections\n"
)
_ACCEPT_PAUSE_SECONDS = 0.1
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+))(?::[0-9]{1,5})?", re.ASCII)


def host_allowed(header: str, listen_host: str, reached_at: str) -> bool:
    """Whether a Host header is one that this server goes by: a loopback name, the host that it was told to listen
    on, or the very address that the connection reached. A page that re-points its own name at us (DNS rebinding)
    sends that name. The port is not looked at: a tunnel may end on another one."""
    found = _HOST.fullmatch(header.strip())
    if found is None:
        return False
    name = (found[1] or found[2]).casefold()
    if name in ("localhost", listen_host.casefold()):
        return True
    address = _address(name)
    return address is not None and (address.is_loopback or address == _address(reached_at))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[str], Answer],
        seconds: float = SECONDS,
        handler: type[Handler] | None = None,
    ) -> None:
        """OSError if it cannot listen there. `handler`: for another kind of requests than reading a page."""
        self.listen_host = address[0]
        self.answer = answer
        self.seconds = seconds
        self._places = threading.Semaphore(THREADS)
        family, _, _, _, resolved = socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        super().__init__((str(resolved[0]), int(resolved[1])), handler or Handler)

    def server_bind(self) -> None:
        # HTTPServer's own asks the DNS for its name, which nothing here needs and which may take long.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.listen_host, self.server_address[1]

    def serve_until(self, stop: threading.Event) -> None:
        """Accept until `stop` is set, then close. Unlike serve_forever with shutdown, it may be stopped before it
        has begun."""
        self.timeout = 0.1
        try:
            while not stop.is_set():
                self.handle_request()
        finally:
            self.server_close()

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except (
            OSError
        ):  # such as no descriptor left: what waits to be accepted stays, and would make a busy loop
            time.sleep(_ACCEPT_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.setblocking(False)
                request.send(_BUSY)
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread to be had
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the reader's affair; anything else is ours."""
        error = sys.exception()
        if isinstance(error, OSError):
            log.debug("status page connection ended error=%s", error)
        else:
            log.error("status page connection failed", exc_info=error)


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "tireless"
    sys_version = ""
    protocol_version = "HTTP/1.0"  # one request a connection
    most_bytes = HEAD_BYTES  # of a whole request

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._deadline = time.monotonic() + self.server.seconds
        self.rfile = io.BufferedReader(_Bounded(self.connection, self._deadline, self.most_bytes))

    def do_GET(self) -> None:
        refusal = self._refusal()
        self._send(refusal or self.server.answer(self.path.partition("?")[0]))

    do_HEAD = do_GET

    def _not_allowed(self) -> None:
        self._send(Answer(405, TEXT, "this page is for reading only: GET and HEAD\n"), Allow="GET, HEAD")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = _not_allowed

    def _refusal(self) -> Answer | None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            return Answer(400, TEXT, "a request has one Host header\n")
        if not host_allowed(hosts[0], self.server.listen_host, str(self.connection.getsockname()[0])):
            return Answer(421, TEXT, "not by this name; use the one that web.listen gives, or localhost\n")
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class finds wrong with a request, without repeating any of it."""
        self._send(Answer(int(code), TEXT, "bad request\n"))

    def _send(self, answer: Answer, **more: str) -> None:
        body = answer.body.encode("utf-8", "replace")
        self.connection.settimeout(max(self._deadline - time.monotonic(), 0.1))
        self.send_response(answer.code)
        for name, value in {**HEADERS, **more}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("status page request client=%s request=%r", self.client_address[0], args)


class _Bounded(io.RawIOBase):
    """What a peer sends, until the deadline (monotonic clock) and up to a number of bytes; then TimeoutError."""

    def __init__(self, connection: socket.socket, deadline: float, limit: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = limit

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0 or self._left <= 0:
            raise TimeoutError("the request is too slow, or too large")
        self._connection.settimeout(remaining)
        n = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= n
        return n
