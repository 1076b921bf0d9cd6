"""doctor: is everything there that tireless needs on this machine? Each check stands for itself."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from tireless import embedded
from tireless.agents import presence
from tireless.agents.base import AgentMissing
from tireless.agents.environment import lane_program
from tireless.agents.sandbox import Sandbox
from tireless.config import Config, ConfigError, ForgeConfig, LaneConfig, SandboxMode
from tireless.ctl.commands import Group
from tireless.ctl.output import Cell, clean, plural, seconds
from tireless.ctl.session import Exit, Session, clock, failure
from tireless.ctl.status import describe_sandbox, look, walls
from tireless.entities import AgentKind, TirelessError
from tireless.forge import ForgeError, client_for
from tireless.store import migrate
from tireless.store.connection import NoDatabase
from tireless.store.listen import Listener
from tireless.store.queries import Connection
from tireless.workspace.command import MIN_GIT

MORE = """\
`warn` works and wants a look, `fail` does not work. Exit code 1 if anything fails. It asks each forge who its
token belongs to, and makes and changes nothing; an embedded database that is there is started for the look.

examples
  tireless-ctl doctor
  tireless-ctl doctor --json | jq '.checks[] | select(.level != "ok")'
"""
LEAST_SERVER = 160000
FREE_WARN, FREE_FAIL = 5 << 30, 500 << 20  # bytes under the state directory
CLOCK_WARN_SECONDS = 5.0
VERSION_SECONDS = 30.0


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
    checks = [*_machine(session.config), *_database(session), *_agents(session.config), *_forges(session)]
    failed = any(check.level is Level.FAIL for check in checks)
    tones = {Level.OK: "good", Level.WARN: "busy", Level.FAIL: "bad"}
    rows: list[list[Cell | str]] = [
        [Cell(c.level.value, tones[c.level]), c.name, clean(c.detail)] for c in checks
    ]
    document = {
        "ok": not failed,
        "checks": [{"name": c.name, "level": c.level.value, "detail": c.detail} for c in checks],
    }
    session.out.give(document, session.out.table(["", "CHECK", "DETAIL"], rows, fold=True))
    return Exit.REFUSED if failed else Exit.OK


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
    there = place if place.exists() else next(p for p in place.parents if p.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Check("state_dir", Level.FAIL, f"{there} is not writable for this user; set state_dir")
    free = shutil.disk_usage(there).free
    level = Level.FAIL if free < FREE_FAIL else Level.WARN if free < FREE_WARN else Level.OK
    made = "" if place.exists() else ", made at the first start"
    return Check("state_dir", level, f"{place}{made}; {free / (1 << 30):.1f} GiB free")


def _git() -> Check:
    found = shutil.which("git")
    if found is None:
        return Check("git", Level.FAIL, "not on PATH; install it")
    said = _version_of([found])
    match = re.search(r"(\d+)\.(\d+)", said or "")
    least = ".".join(map(str, MIN_GIT))
    if match is None:
        return Check("git", Level.FAIL, f"{found} does not tell its version: {said}")
    old = (int(match[1]), int(match[2])) < MIN_GIT
    return Check(
        "git", Level.FAIL if old else Level.OK, f"{said}; it takes {least} or later" if old else f"{said}"
    )


def _version_of(argv: list[str]) -> str | None:
    """The first line of `--version`; None if the program does not give one. It gets a home of its own, for temporary
    files too: OpenCode, when it does more than this, leaves a library of 5.5 MB among them each time."""
    with tempfile.TemporaryDirectory(prefix="tireless-doctor-", ignore_cleanup_errors=True) as home:
        quiet = {"DISABLE_AUTOUPDATER": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1", "LC_ALL": "C"}
        path = os.environ.get("PATH", os.defpath)
        said = _said([*argv, "--version"], {"PATH": path, "HOME": home, "TMPDIR": home, **quiet}, home)
    lines = [line.strip() for line in (said or "").splitlines() if line.strip()]
    return lines[0] if lines else None


def _said(argv: list[str], env: dict[str, str], cwd: str) -> str | None:
    """What a program prints; None if it does not end with 0 in time. However this is left, nothing of it runs on."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError:
        return None
    with child:
        try:
            said, _ = child.communicate(timeout=VERSION_SECONDS)
        except BaseException as e:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            if isinstance(e, subprocess.TimeoutExpired):
                return None
            raise
    return said if child.returncode == 0 else None


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
        yield Check("database", Level.FAIL, failure(e)[1])


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
        yield Check(f"runners {lane}", level, f"those on {host} take no work: {why}")
    tracked = len(picture.repos)
    if not tracked:
        yield Check("repositories", Level.WARN, "none is tracked; tireless-ctl repo add")
        return
    bad = ", ".join(f"{r.ref} ({r.poll_result})" for r in picture.in_trouble)
    text = f"{plural(tracked, 'repository').replace('repositorys', 'repositories')} tracked"
    yield Check("repositories", Level.WARN if bad else Level.OK, f"{text}; in trouble: {bad}" if bad else text)


# -- agents and forges ------------------------------------------------------------------------------------


def _agents(config: Config) -> Iterator[Check]:
    try:
        sandbox = walls(config)
    except ConfigError:  # that is a check of its own
        sandbox = Sandbox(config.sandbox)
    for kind, lane in config.lane.items():
        if lane.processes == 0:
            yield Check(f"lane {kind}", Level.OK, "not on this host")
        else:
            yield _agent(kind, lane, sandbox)


def _agent(kind: AgentKind, lane: LaneConfig, sandbox: Sandbox) -> Check:
    name = f"lane {kind}"
    try:
        program = lane_program(lane, kind)
        presence.demand(lane, kind, sandbox)
    except AgentMissing as e:
        return Check(name, Level.FAIL, str(e))
    version = _version_of(list(program.argv))
    text = f"{Path(program.argv[0])} {version}" if version else f"{program.argv[0]} does not tell its version"
    missing = [variable for variable in lane.env_from if variable not in os.environ]
    if missing:
        text += f"; lane.{kind}.env_from names {', '.join(missing)}, not set here"
    elif not lane.env_from and not lane.env:
        text += f"; no key is passed to it: set lane.{kind}.env_from"
        return Check(name, Level.WARN, text)
    return Check(name, Level.WARN if missing or version is None else Level.OK, text)


def _forges(session: Session) -> Iterator[Check]:
    if not session.config.forge:
        yield Check("forges", Level.FAIL, "the configuration has no [[forge]]; add one with its token")
    for entry in session.config.forge:
        name = f"forge {entry.kind}:{entry.host}"
        try:
            text = _whose_token(session, entry)
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
