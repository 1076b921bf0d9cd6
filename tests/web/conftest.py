"""A real status page over a real database, asked over real HTTP."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from tireless.config import Config, ForgeConfig, Secret, WebConfig
from tireless.entities import AgentKind, Forge
from tireless.store import lanes
from tireless.store.queries import Connection
from tireless.web import Web

TOKEN = "forge-token-0123456789"
CONFIG = Config(
    web=WebConfig(listen="127.0.0.1:0"),
    forge=(
        ForgeConfig(
            Forge.GITEA, "git.example", api_url="http://git.example:3000/sub/api/v1", token=Secret(TOKEN)
        ),
    ),
)


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: str


@dataclass
class Site:
    web: Web
    host: str = "127.0.0.1"

    def ask(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: Any = None
    ) -> Reply:
        assert self.web.port is not None
        connection = http.client.HTTPConnection(self.host, self.web.port, timeout=15)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            answer = connection.getresponse()
            return Reply(
                answer.status,
                {key.lower(): value for key, value in answer.getheaders()},
                answer.read().decode(),
            )
        finally:
            connection.close()


@dataclass
class Rows:
    """Rows put straight into the tables: states that would take a supervisor to reach."""

    conn: Connection
    _number: int = field(default=0)

    def add(self, table: str, **values: Any) -> Any:
        """The id of a new row."""
        names = ", ".join(values)
        holes = ", ".join(f"%({name})s" for name in values)
        query = f"insert into {table} ({names}) values ({holes}) returning *"
        found = self.conn.execute(query.encode(), values).fetchone()
        assert found is not None
        return found[0]

    def job(self, **values: Any) -> Any:
        self._number += 1
        issue = {
            "forge": "gitea",
            "host": "git.example",
            "owner": "acme",
            "repo": "site",
            "number": self._number,
        }
        rest = {"title": "A title", "kind": "implement", "lane": "claude_code"}
        return self.add("job", **{**issue, **rest, **values})

    def running(self, **values: Any) -> Any:
        claim = {"state": "running", "claimed_by": "host/1", "claimed_lane": "claude_code", "slot": 1}
        found = self.job(**{**claim, "claim_expires_at": "2100-01-01 00:00Z", **values})
        self.conn.execute("update lane_slot set job_id = %s where lane = 'claude_code' and slot = 1", (found,))
        return found

    def finished(self, state: str = "delivered", at: str = "now()", **values: Any) -> Any:
        found = self.job(**values)
        self.conn.execute(
            f"update job set state = %s, phase = 'done', finished_at = {at} where id = %s".encode(),
            (state, found),
        )
        return found

    def write(self, **values: Any) -> Any:
        issue = {"forge": "gitea", "host": "git.example", "owner": "acme", "repo": "site", "number": 7}
        return self.add("forge_write", **{**issue, "op": "comment", **values})


Start = Callable[..., Site]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a page: `start(connect, config)`; stopped at the end."""
    started: list[Web] = []

    def begin(connect: Callable[[], AbstractContextManager[Connection]], config: Config = CONFIG) -> Site:
        web = Web(config, connect)
        started.append(web)
        web.start()
        return Site(web)

    yield begin
    for web in started:
        web.stop()


@pytest.fixture
def site(start: Start, database_url: str) -> Site:
    return start(lambda: psycopg.connect(database_url, autocommit=True))


@pytest.fixture
def rows(conn: Connection) -> Rows:
    for lane, cap in ((AgentKind.CLAUDE_CODE, 3), (AgentKind.OPENCODE, 2)):
        lanes.ensure(conn, lane, cap)
    return Rows(conn)
