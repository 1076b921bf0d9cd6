"""The migrator: in order, once, and a clear word where files and database disagree."""

from __future__ import annotations

import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import postgres
from tests.support.store import scalar
from tests.support.wait import wait_until
from tireless.store import migrate
from tireless.store.migrate import Migration, MigrationError, SchemaTooNew, SchemaTooOld
from tireless.store.queries import Connection

ROOT = Path(__file__).parents[2]


@pytest.fixture
def empty(pg_server: postgres.Server) -> Iterator[Connection]:
    with pg_server.database(empty=True) as url, psycopg.connect(url, autocommit=True) as connection:
        yield connection


def step(version: int, sql: str | None = None, *, breaking: bool = False) -> Migration:
    return Migration(version, f"step_{version}", breaking, sql or f"create table t{version} (a int);")


def tables(conn: Connection) -> set[str]:
    found = conn.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
    return {name for (name,) in found}


def test_the_shipped_ones_are_unique_ascending_and_without_gap() -> None:
    versions = [m.version for m in migrate.shipped()]
    assert versions == list(range(1, len(versions) + 1))
    names = sorted(p.stem for p in (ROOT / "schema").glob("*.sql"))
    assert names == [f"{m.version:04d}_{m.name}" for m in migrate.shipped()]


def test_a_fresh_database_gets_everything_once(empty: Connection) -> None:
    assert migrate.migrate(empty) == migrate.shipped()
    assert migrate.migrate(empty) == []
    migrate.check(empty)
    assert {"job", "lane", "lane_slot", "tracked_repo", "schema_migration"} <= tables(empty)


def test_a_program_says_what_an_old_database_lacks(empty: Connection) -> None:
    with pytest.raises(SchemaTooOld, match="is empty; run tireless-ctl migrate"):
        migrate.check(empty)
    migrate.migrate(empty, [])
    with pytest.raises(SchemaTooOld, match="lacks 0001_queue"):
        migrate.check(empty)


@pytest.mark.parametrize(
    ("name", "sql", "word"),
    [
        ("1_x.sql", "-- breaking: no\n", "NNNN_name.sql"),
        ("0002-x.sql", "-- breaking: no\n", "NNNN_name.sql"),
        ("0002_x.sql", "select 1;\n", "first line"),
        ("0002_x.sql", "-- breaking: maybe\n", "first line"),
        ("0001_other.sql", "-- breaking: no\n", "version 1 is taken by"),
    ],
)
def test_a_file_that_is_wrong_is_named(name: str, sql: str, word: str) -> None:
    with pytest.raises(MigrationError, match=f"schema/{name}.*{word}|schema/0001_queue.*taken"):
        migrate.parse({"0001_queue.sql": "-- breaking: no\n", name: sql})


def test_files_are_applied_in_the_order_of_their_numbers() -> None:
    text = "-- breaking: {}\n"
    found = migrate.parse({"0010_b.sql": text.format("yes"), "0002_a.sql": text.format("no")})
    assert [(m.version, m.name, m.breaking) for m in found] == [(2, "a", False), (10, "b", True)]


def test_an_edited_file_is_refused(empty: Connection) -> None:
    migrate.migrate(empty, [step(1)])
    with pytest.raises(MigrationError, match=r"0001_step_1\.sql is not the file that was applied"):
        migrate.migrate(empty, [step(1, "create table t1 (b int);"), step(2)])
    assert "t2" not in tables(empty)


def test_a_number_that_was_passed_over_is_refused(empty: Connection) -> None:
    migrate.migrate(empty, [step(1), step(3)])
    with pytest.raises(MigrationError, match=r"0002_step_2\.sql was never applied, but 0003 was"):
        migrate.migrate(empty, [step(1), step(2), step(3)])
    assert "t2" not in tables(empty)


def test_an_unknown_newer_migration_stops_an_older_program_only_if_it_breaks(empty: Connection) -> None:
    migrate.migrate(empty, [step(1), step(2)])
    assert migrate.migrate(empty, [step(1)]) == []
    migrate.migrate(empty, [step(1), step(2), step(3, breaking=True)])
    with pytest.raises(SchemaTooNew, match="0003_step_3, which this program does not know"):
        migrate.migrate(empty, [step(1), step(2)])


def test_the_check_of_a_program_at_start_goes_by_the_same_rule(empty: Connection) -> None:
    migrate.migrate(empty)
    migrate.migrate(empty, [*migrate.shipped(), step(9000)])
    migrate.check(empty)
    migrate.migrate(empty, [*migrate.shipped(), step(9000), step(9001, breaking=True)])
    with pytest.raises(SchemaTooNew):
        migrate.check(empty)


def test_a_failing_migration_leaves_those_before_it_and_nothing_of_itself(empty: Connection) -> None:
    broken = step(2, "create table half (a int); select no_such_function();")
    with pytest.raises(MigrationError, match=r"0002_step_2\.sql failed: .*no_such_function"):
        migrate.migrate(empty, [step(1), broken, step(3)])
    assert tables(empty) == {"schema_migration", "t1"}
    assert migrate.migrate(empty, [step(1), step(2), step(3)]) == [step(2), step(3)]


def test_of_two_migrators_one_waits_and_finds_nothing_to_do(pg_server: postgres.Server) -> None:
    with pg_server.database(empty=True) as url:
        done: list[list[Migration]] = []

        def rival() -> None:
            with psycopg.connect(url, autocommit=True, application_name="rival") as conn:
                done.append(migrate.migrate(conn, [step(1)]))

        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("select pg_advisory_lock(%s)", (migrate._LOCK,))
            thread = threading.Thread(target=rival)
            thread.start()
            waiting = (
                "select 1 from pg_stat_activity where application_name = 'rival' and wait_event_type = 'Lock'"
            )
            wait_until(lambda: scalar(conn, waiting), what="the rival waits")
            migrate.migrate(conn, [step(1)])
            conn.execute("select pg_advisory_unlock(%s)", (migrate._LOCK,))
            thread.join(10)
        assert done == [[]]


def test_the_lock_is_let_go_after_a_failure(empty: Connection) -> None:
    with pytest.raises(MigrationError):
        migrate.migrate(empty, [step(1, "nonsense")])
    assert scalar(empty, "select count(*) from pg_locks where locktype = 'advisory'") == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    code = f"from setuptools.build_meta import build_wheel; print(build_wheel({str(out)!r}))"
    # From a copy: setuptools leaves its build directory beside pyproject.toml.
    tree = tmp_path_factory.mktemp("tree") / "src"
    copy = (
        "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2],"
        " ignore=shutil.ignore_patterns('.*', 'tests', '__pycache__', '*.egg-info'))"
    )
    subprocess.run([sys.executable, "-c", copy, str(ROOT), str(tree)], check=True)
    (tree / "README.md").touch()
    subprocess.run([sys.executable, "-c", code], cwd=tree, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def test_an_installed_copy_carries_schema_and_queries(wheel: Path, pg_server: postgres.Server) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tireless/schema/0001_queue.sql" in names
    shipped = {f"tireless/store/sql/{p.name}" for p in (ROOT / "tireless/store/sql").glob("*.sql")}
    assert shipped <= set(names)
    with pg_server.database(empty=True) as url:
        code = (
            "import psycopg, tireless; from tireless.store import migrate\n"
            f"assert {str(wheel)!r} in tireless.__file__, tireless.__file__\n"
            f"print(len(migrate.migrate(psycopg.connect({url!r}, autocommit=True))))"
        )
        run = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONPATH": str(wheel), "PATH": "/usr/bin:/bin"},
            cwd=wheel.parent,
            capture_output=True,
            text=True,
        )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(len(migrate.shipped()))
