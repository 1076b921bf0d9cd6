"""doctor: is everything there that tireless needs on this machine? Each check stands for itself."""

from __future__ import annotations

import re
import shlex
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tireless import embedded, standing
from tireless.agents import presence
from tireless.agents.base import AgentMissing
from tireless.agents.environment import lane_program
from tireless.agents.sandbox import Sandbox
from tireless.config import (
    Config,
    ConfigError,
    ForgeConfig,
    LaneConfig,
    SandboxMode,
    token_source,
    unset_variables,
    variable_shown,
)
from tireless.ctl import state_dir
from tireless.ctl.commands import Group
from tireless.ctl.output import Cell, clean, plural, seconds
from tireless.ctl.session import Exit, Session, clock, failure
from tireless.ctl.status import Picture, describe_sandbox, look, walls
from tireless.ctl.versions import ANSWER_SECONDS, Asked, asked, first_of, version_of
from tireless.entities import AgentKind, TirelessError
from tireless.forge import Forbidden, ForgeError, Unauthorized, client_for
from tireless.store import migrate
from tireless.store.connection import NoDatabase
from tireless.store.listen import Listener
from tireless.store.queries import Connection
from tireless.workspace import Room
from tireless.workspace.command import MIN_GIT

MORE = """\
`warn` works and wants a look, `fail` does not work. Exit code 1 if anything fails. It asks each forge who its
token belongs to, and makes and changes nothing; an embedded database that is there is started for the look.

examples
  tireless-ctl doctor
  tireless-ctl doctor --json | jq '.checks[] | select(.level != "ok")'
"""
LEAST_SERVER = 160000
FREE_WARN = 5 << 30  # bytes under the state directory
CLOCK_WARN_SECONDS = 5.0


class Level(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    level: Level
    detail: str


def register(group: Group) -> None:
    group.add("doctor", run, "is everything there that is needed on this machine", MORE)


def run(session: Session) -> int:
    """Each line is there as soon as it is known: what takes long is seen to."""
    tones = {Level.OK: "good", Level.WARN: "busy", Level.FAIL: "bad"}
    widths = (max(map(len, Level)), max(map(len, _names(session.config))))
    show = session.out.rows_as_they_come(["", "CHECK", "DETAIL"], widths)
    checks = []
    for check in _checks(session):
        checks.append(check)
        show([Cell(check.level.value, tones[check.level]), check.name, clean(check.detail)])
    failed = any(check.level is Level.FAIL for check in checks)
    document = {
        "ok": not failed,
        "checks": [{"name": c.name, "level": c.level.value, "detail": c.detail} for c in checks],
    }
    session.out.give(document, "")
    return Exit.REFUSED if failed else Exit.OK


def _checks(session: Session) -> Iterator[Check]:
    yield from _machine(session.config)
    yield from _database(session)
    yield from _agents(session.config)
    yield from _forges(session)


def _names(config: Config) -> list[str]:
    """The longest names of checks that there can be."""
    lanes = [name for kind in config.lane for name in (_lane_name(kind), _runners_name(kind))]
    return ["notifications", *lanes, *map(_forge_name, config.forge)]


def _lane_name(kind: AgentKind) -> str:
    return f"lane {kind}"


def _runners_name(lane: str) -> str:
    return f"runners {lane}"


def _forge_name(entry: ForgeConfig) -> str:
    return f"forge {entry.kind}:{entry.host}"


# -- this machine -----------------------------------------------------------------------------------------


def _machine(config: Config) -> Iterator[Check]:
    where = f"{config.path}" if config.path is not None else "no file, so the defaults"
    yield Check("configuration", Level.OK if config.path else Level.WARN, f"{where}; host {config.host}")
    yield _state_dir(config)
    yield _git()
    text, fine = describe_sandbox(config)
    walls = text.startswith("bubblewrap") or config.sandbox.mode is SandboxMode.NONE
    hint = "" if walls else "; install bubblewrap, so that agents see their workspace only"
    yield Check("sandbox", Level.FAIL if not fine else Level.OK if walls else Level.WARN, text + hint)


def _state_dir(config: Config) -> Check:
    place = config.state_dir
    fault = state_dir.fault(place)
    if fault is not None:
        return Check("state_dir", Level.FAIL, fault)
    room = Room(state_dir.there_of(place), config.runner.min_free_bytes)
    if room.tight:
        return Check("state_dir", Level.FAIL, f"{place}: no work begins: {room.to_begin}")
    made = "" if place.exists() else ", made at the first start"
    level = Level.WARN if room.free_bytes < FREE_WARN else Level.OK
    return Check("state_dir", level, f"{place}{made}; {room.free_bytes / (1 << 30):.1f} GiB free")


def _git() -> Check:
    found = shutil.which("git")
    if found is None:
        return Check("git", Level.FAIL, "not on PATH; install it")
    said = version_of([found])
    match = re.search(r"(\d+)\.(\d+)", said or "")
    least = ".".join(map(str, MIN_GIT))
    if match is None:
        return Check("git", Level.FAIL, f"{found} does not tell its version: {said}")
    old = (int(match[1]), int(match[2])) < MIN_GIT
    return Check(
        "git", Level.FAIL if old else Level.OK, f"{said}; it takes {least} or later" if old else f"{said}"
    )


# -- the database -----------------------------------------------------------------------------------------


def _database(session: Session) -> Iterator[Check]:
    """One check after the other, as far as they lead."""
    config = session.config
    try:
        if config.database.url is None and not embedded.was_made(config):
            embedded.demand_installed(config)
            text = f"none yet in {embedded.data_dir(config)}; tireless-ctl migrate or a supervisor makes it"
            yield Check("database", Level.WARN, text)
            return
        with session.url() as url, session.connect(url) as conn:
            yield _server(session.config, url, conn)
            schema = _schema(conn)
            yield schema
            if schema.level is not Level.OK:
                return
            yield _clocks(conn)
            yield _notifications(session.config, url)
            yield from _work(session, conn)
    except (NoDatabase, ConfigError) as e:
        yield Check("database", Level.FAIL, str(e))
    except psycopg.Error as e:
        yield Check("database", Level.FAIL, failure(e, config)[1])


def _server(config: Config, url: str, conn: Connection) -> Check:
    parts = conninfo_to_dict(url)
    where = f"{parts.get('host', 'the usual socket')}, database {parts.get('dbname', '?')}"
    version = conn.info.server_version
    kind = "configured" if config.database.url is not None else "embedded"
    text = f"{kind} Postgres {version // 10000}.{version % 10000} at {where}"
    if version < LEAST_SERVER:
        return Check("database", Level.WARN, f"{text}; tested with 16 and 18")
    return Check("database", Level.OK, text)


def _schema(conn: Connection) -> Check:
    try:
        migrate.check(conn)
    except migrate.SchemaTooOld as e:
        return Check("schema", Level.WARN, str(e))
    except TirelessError as e:
        return Check("schema", Level.FAIL, str(e))
    newest = migrate.shipped()[-1]
    return Check("schema", Level.OK, f"{newest.version:04d}_{newest.name}")


def _clocks(conn: Connection) -> Check:
    """Leases go by the database's clock, so a wrong one here does no harm but to the eye."""
    before = time.time()
    there = clock(conn).timestamp()
    apart = there - (before + time.time()) / 2
    level = Level.WARN if abs(apart) > CLOCK_WARN_SECONDS else Level.OK
    return Check("clock", level, f"{abs(apart):.1f} s {'behind' if apart > 0 else 'before'} the database's")


def _notifications(config: Config, url: str) -> Check:
    timeout = config.database.connect_timeout_seconds
    listener = Listener(url, (), timeout=timeout, name="tireless-ctl", wait=lambda _seconds, _fds: ())
    try:
        listener.wait(0)
        if listener.hears:
            return Check("notifications", Level.OK, "they arrive")
    finally:
        listener.close()
    pause = seconds(config.runner.wake_seconds)
    text = f"they do not arrive (a pooler in transaction mode?); work is picked up within {pause}"
    return Check("notifications", Level.WARN, text)


def _work(session: Session, conn: Connection) -> Iterator[Check]:
    picture = look(session, conn)
    alive = [w for w, is_alive in picture.workers if is_alive and w.host == session.config.host]
    text = plural(len(alive), "process") if len(alive) == 1 else f"{len(alive)} processes"
    yield Check("supervisor", Level.OK if alive else Level.WARN, f"{text} of this host alive")
    for host, lane, why in picture.waiting:
        level = Level.FAIL if host == session.config.host else Level.WARN
        yield Check(_runners_name(lane), level, f"those on {host} take no work: {why}")
    yield from _jobs_that_nobody_takes(session, picture)
    tracked = len(picture.repos)
    if not tracked:
        yield Check("repositories", Level.WARN, "none is tracked; tireless-ctl repo add")
        return
    bad = ", ".join(f"{r.ref} ({r.poll_result})" for r in picture.in_trouble)
    text = f"{plural(tracked, 'repository').replace('repositorys', 'repositories')} tracked"
    yield Check("repositories", Level.WARN if bad else Level.OK, f"{text}; in trouble: {bad}" if bad else text)


def _jobs_that_nobody_takes(session: Session, picture: Picture) -> Iterator[Check]:
    """A runner without its agent's program is a check of its own."""
    for lane in picture.lanes:
        off_in = standing.lane_off_in(session.config, lane.lane)
        stop = standing.no_taker(lane.lane, picture.alive, off_in)
        if stop is not None and stop.code != "agent_missing" and lane.pending > 0:
            verb = "waits" if lane.pending == 1 else "wait"
            text = f"{plural(lane.pending, 'job')} {verb} in a lane that starts nothing: {stop.why}"
            yield Check(_runners_name(lane.lane), Level.WARN, text)


# -- agents and forges ------------------------------------------------------------------------------------


def _agents(config: Config) -> Iterator[Check]:
    """All are asked at once: one that does not answer keeps no other waiting."""
    try:
        sandbox = walls(config)
    except ConfigError:  # that is a check of its own
        sandbox = Sandbox(config.sandbox)
    with ExitStack() as stack:
        questions: dict[Asked, tuple[AgentKind, LaneConfig, Sequence[str]]] = {}
        for kind, lane in config.lane.items():
            if lane.processes == 0:
                yield Check(_lane_name(kind), Level.OK, "not on this host")
                continue
            try:
                program = lane_program(lane, kind)
                presence.demand(lane, kind, sandbox)
            except AgentMissing as e:
                yield Check(_lane_name(kind), Level.FAIL, f"{e}{_unset(kind, lane)}")
                continue
            questions[stack.enter_context(asked(program.argv))] = (kind, lane, program.argv)
        while questions:
            question = first_of(list(questions))
            yield _agent(*questions.pop(question), question)


def _agent(kind: AgentKind, lane: LaneConfig, argv: Sequence[str], question: Asked) -> Check:
    version = question.answer()
    text = f"{argv[0]} {version}"
    if version is None:
        silent = f"gives no answer to --version within {ANSWER_SECONDS:g} s"
        text = f"{shlex.join(argv)} {silent if question.silent else 'does not tell its version'}"
    missing = _unset(kind, lane)
    if missing:
        text += missing
    elif not lane.env_from and not lane.env:
        text += f"; no key is passed to it: set lane.{kind}.env_from"
        return Check(_lane_name(kind), Level.WARN, text)
    return Check(_lane_name(kind), Level.WARN if missing or version is None else Level.OK, text)


def _unset(kind: AgentKind, lane: LaneConfig) -> str:
    missing = unset_variables(lane)
    names = ", ".join(map(variable_shown, missing))
    return f"; lane.{kind}.env_from names {names}, not set here" if missing else ""


def _forges(session: Session) -> Iterator[Check]:
    if not session.config.forge:
        yield Check("forges", Level.FAIL, "the configuration has no [[forge]]; add one with its token")
    for entry in session.config.forge:
        name = _forge_name(entry)
        try:
            text = _whose_token(session, entry)
        except (Unauthorized, Forbidden) as e:
            yield Check(name, Level.FAIL, f"{e}; the token is from {token_source(entry)}")
            continue
        except (ConfigError, ForgeError) as e:
            yield Check(name, Level.FAIL, str(e))
            continue
        open_to = _open_to_others(entry.token_file) if entry.token_file is not None else None
        yield Check(name, Level.WARN if open_to else Level.OK, f"{text}; {open_to}" if open_to else text)


def _open_to_others(file: Path) -> str | None:
    mode = stat.S_IMODE(file.stat().st_mode)
    if not mode & (stat.S_IROTH | stat.S_IWOTH):
        return None
    return f"{file} is open to every user of this machine (mode {mode:04o}); chmod o= {file}"


def _whose_token(session: Session, entry: ForgeConfig) -> str:
    client = client_for(session.forge(entry.kind, entry.host))
    try:
        login = client.own_login()
    finally:
        client.close()
    return f"the token is {login}'s" if login else "the token works; whose it is may not be asked (an app's)"
