"""A proxy before a Postgres: it can be away, refuse, answer late, and it knows who knocked when.

It runs in one thread of the test's process and speaks TCP on 127.0.0.1; behind it is the unix socket of the
test's server.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Coroutine
from typing import Any, Self

from psycopg.conninfo import conninfo_to_dict

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy:
    """`round_trip`: seconds that are added to each message from a client, and so to each answer. `refusing`:
    connections are taken and closed at once. `silent`: sockets stay open and nothing goes through any more, as with a
    firewall that forgot the connection. `knocks`: when each connection came, on the monotonic clock."""

    def __init__(self, url: str, *, up: bool = True) -> None:
        parts = conninfo_to_dict(url)
        self._behind = f"{parts['host']}/.s.PGSQL.{parts.get('port', 5432)}"
        self._user, self._database = parts.get("user", "postgres"), parts["dbname"]
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = int(s.getsockname()[1])
        self.round_trip = 0.0
        self.refusing = False
        self.silent = False
        self.knocks: list[float] = []
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        if up:
            self.up()

    @property
    def url(self) -> str:
        return f"postgresql://{self._user}@127.0.0.1:{self.port}/{self._database}"

    def up(self) -> None:
        self._do(self._listen())

    def down(self) -> None:
        """Nobody listens any more, and what was open is cut."""
        self._do(self._shut())

    def cut(self) -> None:
        """What is open is cut; new connections are as welcome as before."""
        self._do(self._cut())

    def close(self) -> None:
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, what: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.knocks.append(time.monotonic())
        if self.refusing:
            writer.transport.abort()
            return
        try:
            inner = await asyncio.open_unix_connection(self._behind)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, inner[1]}
        try:
            await asyncio.gather(self._carry((reader, inner[1]), late=True), self._carry((inner[0], writer)))
        finally:
            self._open -= {writer, inner[1]}

    async def _carry(self, streams: Streams, *, late: bool = False) -> None:
        reader, writer = streams
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if late and self.round_trip:
                    await asyncio.sleep(self.round_trip)
                if self.silent:
                    continue
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.close()
