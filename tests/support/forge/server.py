"""The HTTP side of a fake forge: one listener, a record of every request, faults, and git next to the API."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.forge.faults import Fault, Faults


@dataclass(frozen=True)
class Call:
    """A request as it came. `headers`: names in lower case. `json`: the decoded body, None if it is none. `client`: the
    address that it came from."""

    method: str
    path: str
    query: Mapping[str, str]
    raw_query: str
    headers: Mapping[str, str]
    body: bytes
    json: Any
    client: str

    def __str__(self) -> str:
        return f"{self.method} {self.path}" + (f"?{self.raw_query}" if self.raw_query else "")

    @property
    def basic_password(self) -> str | None:
        """The password of HTTP basic authentication, which is how git gives a token."""
        word, _, value = self.headers.get("authorization", "").partition(" ")
        if word.lower() != "basic":
            return None
        try:
            return base64.b64decode(value).decode().partition(":")[2]
        except ValueError:
            return None


@dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, status: int, data: Any, headers: Mapping[str, str] | None = None) -> Answer:
        body = json.dumps(data).encode()
        return cls(status, body, {"Content-Type": "application/json; charset=utf-8", **(headers or {})})


@dataclass(frozen=True)
class Recorded:
    """One request and the answer that it got; None where the connection was cut without one."""

    call: Call
    answer: Answer | None

    @property
    def status(self) -> int | None:
        return self.answer.status if self.answer is not None else None

    @property
    def method(self) -> str:
        return self.call.method

    @property
    def path(self) -> str:
        return self.call.path


class Server:
    """Listens until closed. `down` and `up` keep the port, so that clients find it again."""

    def __init__(
        self,
        answer: Callable[[Call], Answer],
        port: int = 0,
        tls: Path | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        """`tls`: a PEM file with certificate and key, for HTTPS."""
        self.answer = answer
        self.tls = tls
        self.faults = Faults()
        self.requests: list[Recorded] = []
        self.stopping = threading.Event()
        self._server: _Listener | None = None
        self.address, self.port = address, port
        self.up()

    def up(self) -> None:
        assert self._server is None
        self.stopping.clear()
        self._server = _Listener((self.address, self.port), _Handler)
        self._server.owner = self
        if self.tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_address[1]
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="forge", daemon=True)
        thread.start()

    def down(self) -> None:
        """Refuse connections and cut the open ones."""
        if self._server is not None:
            self.stopping.set()
            self._server.shutdown()
            self._server.server_close()
            self._server.cut_all()
            self._server = None

    @property
    def is_up(self) -> bool:
        return self._server is not None


class _Listener(ThreadingHTTPServer):
    owner: Server
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(self, *args: Any) -> None:
        self._open: set[Any] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        for request in list(self._open):
            with contextlib.suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that clients or faults cut are what the fake is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the body waits 40 ms for the peer to acknowledge the headers
    server: _Listener

    def _handle(self) -> None:
        owner = self.server.owner
        call = self._read_call()
        fault = owner.faults.take(str(call)) or Fault()
        if fault.delay:
            owner.stopping.wait(fault.delay)
        answer = owner.answer(call) if fault.status is None or fault.act else Answer(fault.status)
        if fault.status is not None:
            answer = Answer(fault.status, fault.body, {"Content-Type": "text/html"})
        for name, value in fault.headers.items():
            answer.headers.pop(name, None)
            if value is not None:
                answer.headers[name] = value
        owner.requests.append(Recorded(call, None if fault.hang_up else answer))
        if fault.hang_up:
            self.close_connection = True
            return
        self._send(answer, fault)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _handle

    def _read_call(self) -> Call:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self._read_body(headers)
        try:
            data = json.loads(body) if body else None
        except ValueError:
            data = None
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        client = str(self.client_address[0])
        return Call(self.command, parts.path, query, parts.query, headers, body, data, client)

    def _read_body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _send(self, answer: Answer, fault: Fault) -> None:
        body = b"" if answer.status in (204, 304) else answer.body
        given = {name.lower() for name in answer.headers}
        self.send_response_only(answer.status)
        if "date" not in given:
            self.send_header("Date", self.date_time_string())
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if "content-length" not in given and answer.status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault.cut is not None or "content-length" in given:
            self.wfile.write(body[: fault.cut])
            self.close_connection = True
        elif fault.slow:
            for i in range(len(body)):
                self.wfile.write(body[i : i + 1])
                if self.server.owner.stopping.wait(fault.slow):
                    break
        else:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The record of requests takes the place of a log."""
