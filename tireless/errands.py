"""What the supervisor has done on the database, by forked children that do one thing and leave.

    prepare      once, before anything else: the embedded server if no URL is configured, the migrations, a row a
                 lane, and the claims of this host's dead processes taken back. Waits for the database up to
                 database.start_timeout_seconds
    release      a child has ended and nothing that it started is left: its claims are taken back, and what a poller
                 had begun to poll is due again
    apply_lanes  after HUP: a cap that the file now gives otherwise is written to the lane's row
    finish       the last: the embedded server is stopped

Each may be repeated. An error ends the child with its exit code: 69 no database, 78 a configuration or a schema
that cannot be used. Only `prepare` waits for a database; the supervisor tries the others again.

`release` and `apply_lanes` start the embedded server if it is gone (an out-of-memory kill, say): so it comes back.

Taking back. A claim is released only when nothing of its holder runs any more, in the database too: a statement
that it had sent before it died could claim another job, or hold the row that is to be released. An agent that
outlives its claim would work beside its successor. So `prepare` first ends what carries the job's mark
(TIRELESS_JOB) on this machine. What will not end in time keeps its claim until the lease is over. A holder of
another host, or of a pid namespace that cannot be seen from here, is left to its lease.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from tireless import database_url, embedded, process, proctree
from tireless.config import Config, ConfigError
from tireless.delivery import writes_for_end
from tireless.entities import Job, JobState, UnknownValue
from tireless.process import Exit, Leave
from tireless.store import claims, jobs, lanes, repos, workers, writes
from tireless.store.connection import NoDatabase, connect, is_outage, through_outage
from tireless.store.migrate import MigrationError, SchemaTooNew, migrate
from tireless.store.queries import Connection

log = logging.getLogger(__name__)

T = TypeVar("T")

KILL_SECONDS = 10.0  # how long what is left of a dead worker's job may take to die
_ALL = 1_000_000


def prepare(config: Config) -> None:
    _run(config, "prepare", lambda conn: _prepare(conn, config), wait=config.database.start_timeout_seconds)


def release(config: Config, worker: str, why: str) -> None:
    """Take back what `worker` held and forget it. Nothing of it may run any more."""
    _run(config, "release", lambda conn: _release(conn, config, worker, why))


def apply_lanes(config: Config, previous: Config | None) -> None:
    """Write the caps that differ from `previous` to their rows; with None, only make rows that are missing."""
    _run(config, "lanes", lambda conn: _apply_lanes(conn, config, previous))


def finish(config: Config) -> None:
    if config.database.url is None:
        embedded.stop(config)


def _prepare(conn: Connection, config: Config) -> None:
    for migration in migrate(conn):
        log.info("migrated version=%04d name=%s", migration.version, migration.name)
    for kind, lane in config.lane.items():
        lanes.ensure(conn, kind, lane.cap)
    adopt(conn, config)


def adopt(conn: Connection, config: Config) -> list[Job]:
    """Take back the claims of this host's dead processes; the jobs, as they are now."""
    taken: list[Job] = []
    for worker in workers.holders(conn):
        if process.is_dead(worker, config.host) is not True:
            continue
        try:
            ended = _end_leftovers(conn, worker)
        except UnknownValue as e:  # a newer program's job on another host hides what is held; the lease tells
            log.error("claims of a dead worker are left to the lease worker=%s why=%s", worker, e)
            continue
        if ended:
            taken += _release(conn, config, worker, "its process had died when the supervisor started")
        else:
            log.error("processes of a dead worker do not die, its claim is left to the lease worker=%s", worker)
    gone = [w.id for w in workers.of_host(conn, config.host) if process.is_dead(w.id, config.host) is True]
    held = set(workers.holders(conn))
    forgotten = [worker for worker in gone if worker not in held]
    for worker in forgotten:
        repos.due_again(conn, worker)
    workers.forget(conn, forgotten)
    return taken


def _end_leftovers(conn: Connection, worker: str) -> bool:
    """End what is left on this machine of the jobs that a dead worker holds; False if something will not end."""
    held = jobs.find(conn, states=[JobState.CLAIMED, JobState.RUNNING], limit=_ALL)
    return all(_kill_marked(job) for job in held if job.claimed_by == worker)


def _kill_marked(job: Job) -> bool:
    found = proctree.marked(str(job.id))
    if found:
        log.warning("ending what is left of a job job=%s processes=%d", job.id, len(found))
    return proctree.kill_all(lambda: proctree.marked(str(job.id)), KILL_SECONDS)


def _release(conn: Connection, config: Config, worker: str, why: str) -> list[Job]:
    workers.end_sessions(conn, worker)
    writes.unlock(conn, worker)
    taken = claims.release_claims(
        conn,
        [worker],
        why,
        writes_for=writes_for_end(config),
        backoff_seconds=config.lease.backoff_seconds,
        actor=f"supervisor of {config.host}",
    )
    if again := repos.due_again(conn, worker):
        log.info("polls that a dead poller had begun are due again count=%d", again)
    for job in taken:
        log.info("claim released job=%s issue=%s worker=%s state=%s", job.id, job.issue, worker, job.state)
    workers.forget(conn, [worker])
    return taken


def _apply_lanes(conn: Connection, config: Config, previous: Config | None) -> None:
    for kind, lane in config.lane.items():
        lanes.ensure(conn, kind, lane.cap)
        if previous is not None and previous.lane[kind].cap != lane.cap:
            lanes.set_cap(conn, kind, lane.cap)
            log.info("cap written lane=%s cap=%d was=%d", kind, lane.cap, previous.lane[kind].cap)


def _run(config: Config, name: str, action: Callable[[Connection], T], wait: float | None = None) -> T:
    """`action` on a connection of its own; through an outage for `wait` seconds, or else one try. Leave with the
    exit code that an error stands for."""

    def attempt() -> T:
        url = embedded.database_url(config, start=True)
        timeout = config.database.connect_timeout_seconds
        with connect(url, timeout=timeout, name=f"tireless {name}") as conn:
            return action(conn)

    try:
        if wait is None:
            return attempt()
        return through_outage(attempt, what=name, sleep=time.sleep, give_up_after=wait)
    except NoDatabase as e:
        raise Leave(Exit.NO_DATABASE, str(e)) from e
    except (SchemaTooNew, MigrationError) as e:
        raise Leave(Exit.CONFIG, str(e)) from e
    except psycopg.Error as e:
        raise _leave_for(e, config) from e


def _leave_for(error: psycopg.Error, config: Config) -> Exception:
    if is_outage(error):
        text = (
            f"no answer from the database: {one_line(error)}; {database_url.doubt(config.database, os.environ)}"
        )
        return Leave(Exit.NO_DATABASE, text)
    if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
        # Raised before there is a connection, by a URL that cannot be read; its text quotes the URL.
        return ConfigError("database.url cannot be read as one; it looks like postgresql://user@host:5432/name")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Leave(
            Exit.CONFIG, f"the database refuses its user something that tireless needs: {one_line(error)}"
        )
    return error


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
