"""What every command is given: its arguments, the configuration, the database, a way to answer."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

import psycopg

from tireless import database_url, embedded, standing
from tireless.config import Config, ConfigError, ForgeConfig, with_token
from tireless.ctl.output import Output
from tireless.entities import Forge, TirelessError
from tireless.store import connection, lanes, migrate, status, workers
from tireless.store.connection import NoDatabase, is_outage
from tireless.store.migrate import MigrationError, SchemaTooNew, SchemaTooOld
from tireless.store.queries import Connection
from tireless.store.workers import Worker


class Exit(IntEnum):
    OK = 0
    REFUSED = 1
    USAGE = 64
    NO_DATABASE = 69
    CONFIG = 78


class Refused(TirelessError):
    """It was not done; the text says why, and the way out. Exit code 1."""


class Usage(TirelessError):
    """An argument that says nothing. Exit code 64."""


@dataclass(frozen=True, slots=True)
class Session:
    args: argparse.Namespace
    config: Config
    out: Output

    @contextlib.contextmanager
    def url(self, prepare: bool = True, create: bool = False) -> Iterator[str]:
        """Where the database is. An embedded server that nobody else has started is started for this command (and
        brought up to date with `prepare`: nobody else can have done it), and stopped afterwards. One that was never
        made is made with `create` only: NoDatabase otherwise, a command that looks leaves nothing behind."""
        if self.config.database.url is not None:
            yield self.config.database.url
            return
        if not create and not embedded.was_made(self.config):
            raise NoDatabase(
                f"there is no database yet ({embedded.data_dir(self.config)} is not there, and no database.url is "
                "set); tireless-ctl migrate, repo add, or the first start of tireless-supervisor makes it"
            )
        with embedded.borrowed(self.config) as (url, started):
            if started and prepare:
                with self.connect(url) as conn:
                    bring_up_to_date(conn, self.config)
            yield url

    def connect(self, url: str) -> Connection:
        return connection.connect(
            url, timeout=self.config.database.connect_timeout_seconds, name="tireless-ctl"
        )

    @contextlib.contextmanager
    def database(self, create: bool = False) -> Iterator[Connection]:
        """A connection to a database whose schema this program can work with. With `create` one without any
        tables is given them; an older schema is left to `migrate`, since other hosts may work with it."""
        with self.url(create=create) as url, self.connect(url) as conn:
            if create and migrate.is_empty(conn):
                bring_up_to_date(conn, self.config)
            migrate.check(conn)
            yield conn

    @property
    def actor(self) -> str:
        """Who does this, as events tell it."""
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = str(os.geteuid())
        return f"tireless-ctl: {user} on {self.config.host}"

    def forge(self, forge: Forge, host: str) -> ForgeConfig:
        """The forge's entry with its token. ConfigError if there is none."""
        return with_token(self.config, self.config.forge_for(forge, host), os.environ)

    def is_alive(self, worker: Worker, now: datetime) -> bool:
        return standing.is_alive(worker, self.config.host, now)

    def living(self, conn: Connection) -> list[Worker]:
        """The processes that are there, of all hosts."""
        now = clock(conn)
        return [w for w in workers.of_host(conn) if self.is_alive(w, now)]


def clock(conn: Connection) -> datetime:
    """The time of everything in the database."""
    return status.now(conn)


def bring_up_to_date(conn: Connection, config: Config) -> list[migrate.Migration]:
    """The migrations that were missing, and a row for each lane."""
    applied = migrate.migrate(conn)
    for kind, lane in config.lane.items():
        lanes.ensure(conn, kind, lane.cap)
    return applied


def failure(error: TirelessError | psycopg.Error, config: Config | None) -> tuple[Exit, str]:
    """The exit code of an error, and what is said about it. Without a configuration it is the error of reading one."""
    text = " ".join(str(error).split()) if isinstance(error, psycopg.Error) else str(error)
    if isinstance(error, Usage):
        return Exit.USAGE, text
    if isinstance(error, NoDatabase):
        return Exit.NO_DATABASE, text
    if isinstance(error, ConfigError | SchemaTooNew | SchemaTooOld | MigrationError):
        return Exit.CONFIG, text
    if not isinstance(error, psycopg.Error):
        return Exit.REFUSED, text
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        # Raised by a URL that cannot be read; its text quotes the URL, password and all.
        return Exit.CONFIG, "database.url cannot be read as one; it looks like postgresql://user@host:5432/name"
    if is_outage(error):
        doubt = f"; {database_url.doubt(config.database, os.environ)}" if config is not None else ""
        return Exit.NO_DATABASE, f"no answer from the database: {text}{doubt}"
    return Exit.REFUSED, f"the database refuses: {text}"
