"""migrate: bring the database's schema up to date."""

from __future__ import annotations

import psycopg

from tireless.ctl.commands import Group
from tireless.ctl.session import Exit, Session, bring_up_to_date
from tireless.store.migrate import Migration, pending, shipped
from tireless.store.queries import Connection

MORE = """\
A supervisor does the same when it starts, so this is for whoever wants to do it first, or under another
database user. Each migration is applied once, in order, in a transaction of its own; --check only looks.

examples
  tireless-ctl migrate
  tireless-ctl migrate --check     exit code 1 if something is missing
"""


def register(group: Group) -> None:
    command = group.add("migrate", run, "make the tables, or bring them up to date", MORE)
    command.add_argument("--check", action="store_true", help="change nothing; 1 if something is missing")


def run(session: Session) -> int:
    with session.url(prepare=False, create=not session.args.check) as url, session.connect(url) as conn:
        if session.args.check:
            return _check(session, _missing(conn))
        applied = bring_up_to_date(conn, session.config)
    names = [f"{m.version:04d}_{m.name}" for m in applied]
    text = f"applied {', '.join(names)}" if names else "nothing to do, the schema is up to date"
    session.out.give({"applied": names}, text)
    return Exit.OK


def _missing(conn: Connection) -> list[Migration]:
    try:
        return pending(conn, shipped())
    except psycopg.errors.UndefinedTable:
        return shipped()


def _check(session: Session, missing: list[Migration]) -> int:
    names = [f"{m.version:04d}_{m.name}" for m in missing]
    text = f"missing: {', '.join(names)}" if names else "the schema is up to date"
    session.out.give({"missing": names}, text)
    return Exit.REFUSED if names else Exit.OK
