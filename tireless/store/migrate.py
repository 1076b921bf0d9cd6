"""The migrator: schema/NNNN_name.sql, in order, each once, each in a transaction of its own.

One migrator at a time (an advisory lock; a second one waits and then finds nothing left to do). A file that was
applied is never edited: its checksum is compared. The first line of a file says `-- breaking: yes` or
`-- breaking: no`: whether a program that does not know the migration may go on with the schema. A program that
meets an unknown breaking one refuses (SchemaTooNew); an unknown harmless one it leaves alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from tireless.entities import TirelessError
from tireless.store.queries import Connection, rows, run

_LOCK = 7_412_365_218_001  # of tireless's migrators; any number that nobody else uses


class MigrationError(TirelessError):
    """The migrations, as files or as applied, are not in order."""


class SchemaTooNew(TirelessError):
    """A newer program has made a breaking change to this database. Exit code 78: upgrade this host."""


class SchemaTooOld(TirelessError):
    """The database lacks migrations that this program needs; `tireless-ctl migrate` applies them."""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    breaking: bool
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def shipped() -> list[Migration]:
    """The migrations that travel with this program (inside the wheel too)."""
    found = {
        entry.name: entry.read_text("utf-8")
        for entry in files("tireless.schema").iterdir()
        if entry.name.endswith(".sql")
    }
    return parse(found)


def parse(contents: dict[str, str]) -> list[Migration]:
    """File names and texts -> migrations in order; pure. MigrationError names the file that is wrong."""
    migrations: dict[int, Migration] = {}
    for name, sql in sorted(contents.items()):
        match = re.fullmatch(r"(\d{4})_([a-z0-9_]+)\.sql", name)
        if match is None:
            raise MigrationError(f"schema/{name}: a migration is named NNNN_name.sql")
        breaking = re.match(r"-- breaking: (yes|no)\n", sql)
        if breaking is None:
            raise MigrationError(
                f"schema/{name}: its first line must be '-- breaking: yes' or '-- breaking: no'"
            )
        version = int(match[1])
        if version in migrations:
            raise MigrationError(f"schema/{name}: version {version} is taken by {migrations[version].name}")
        migrations[version] = Migration(version, match[2], breaking[1] == "yes", sql)
    return [migrations[v] for v in sorted(migrations)]


def migrate(conn: Connection, migrations: Sequence[Migration] | None = None) -> list[Migration]:
    """Apply what is missing; the migrations that were applied. Raises MigrationError, SchemaTooNew."""
    ours = list(migrations) if migrations is not None else shipped()
    applied: list[Migration] = []
    # Each commits by itself, so a failure in the fifth leaves four. The lock is each transaction's, and what is still
    # missing is asked under it: a lock of the session would not hold through a pooler.
    while True:
        with conn.transaction():
            rows(conn, "migration_lock", {"key": _LOCK})
            run(conn, "create_schema_migration")
            missing = pending(conn, ours)
            if not missing:
                return applied
            _apply(conn, missing[0])
        applied.append(missing[0])


def pending(conn: Connection, ours: Sequence[Migration]) -> list[Migration]:
    """What is still to be applied, after checking what has been."""
    done = {r["version"]: r for r in rows(conn, "schema_migrations")}
    known = {m.version: m for m in ours}
    for version, row in sorted(done.items()):
        if version not in known:
            if row["breaking"]:
                raise SchemaTooNew(
                    f"the database has migration {version:04d}_{row['name']}, which this program does not know and "
                    "must not work with; upgrade tireless on this host"
                )
        elif known[version].checksum != row["checksum"]:
            raise MigrationError(
                f"schema/{version:04d}_{known[version].name}.sql is not the file that was applied on "
                f"{row['applied_at']:%Y-%m-%d}; put the original back and make a new migration of the change"
            )
    newest = max(done, default=0)
    missing = [m for m in ours if m.version not in done]
    for migration in missing:
        if migration.version < newest and newest in known:
            raise MigrationError(
                f"schema/{migration.version:04d}_{migration.name}.sql was never applied, but {newest:04d} was; "
                "give it a number above that"
            )
    return missing


def is_empty(conn: Connection) -> bool:
    """Whether no migration was ever applied."""
    try:
        return not rows(conn, "schema_migrations")
    except psycopg.errors.UndefinedTable:
        return True


def check(conn: Connection) -> None:
    """Whether this program can work with the database as it is. Raises SchemaTooNew, SchemaTooOld."""
    try:
        missing = pending(conn, shipped())
    except psycopg.errors.UndefinedTable:
        raise SchemaTooOld("the database is empty; run tireless-ctl migrate") from None
    if missing:
        names = ", ".join(f"{m.version:04d}_{m.name}" for m in missing)
        raise SchemaTooOld(f"the database lacks {names}; run tireless-ctl migrate")


def _apply(conn: Connection, migration: Migration) -> None:
    statement: Any = migration.sql.encode()
    try:
        with conn.cursor(row_factory=tuple_row) as cur:
            cur.execute(statement)
            run(
                conn,
                "add_schema_migration",
                {
                    "version": migration.version,
                    "name": migration.name,
                    "checksum": migration.checksum,
                    "breaking": migration.breaking,
                },
            )
    except psycopg.Error as e:
        if e.sqlstate is None:
            raise
        raise MigrationError(f"schema/{migration.version:04d}_{migration.name}.sql failed: {e}") from e
