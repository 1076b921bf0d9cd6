"""What every command shares: exit codes, errors with a way out, help, the database that it finds or starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ctl.conftest import Ctl
from tests.support import postgres
from tests.support.store import queued, track
from tireless import embedded
from tireless.ctl.cli import main, parser
from tireless.store.queries import Connection

ROOT = Path(__file__).parents[2]
COMMANDS = ["migrate", "repo list", "lane list", "jobs", "status"]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_database_is_69(tmp_path: Path, command: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"postgresql://ann:hunter22@127.0.0.1:{taken.getsockname()[1]}/tireless"
        answer = Ctl(tmp_path, url)(*command.split())
    assert (answer.code, answer.out) == (69, "")
    assert "no answer from the database" in answer.err
    assert "hunter22" not in answer.err


@pytest.mark.parametrize("where", ["database.url", "$TIRELESS_DATABASE_URL", "database.url_file"])
def test_who_does_not_answer_is_named_with_where_the_url_is_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Something that listens, and is no Postgres."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        url = f"postgresql://ann:hunter22@127.0.0.1:{port}/tireless"
        ctl = Ctl(tmp_path, url if where == "database.url" else None)
        if where == "$TIRELESS_DATABASE_URL":
            monkeypatch.setenv("TIRELESS_DATABASE_URL", url)
        elif where == "database.url_file":
            (tmp_path / "url").write_text(url)
            ctl.lines = [f'[database]\nurl_file = "{tmp_path / "url"}"\nconnect_timeout_seconds = 2']
            where = f"database.url_file {tmp_path / 'url'}"
        answer = ctl("jobs")
        (checked,) = (c for c in ctl("doctor", "--json").json["checks"] if c["name"] == "database")
    assert (answer.code, answer.out) == (69, "")
    for said in (answer.err, checked["detail"]):
        assert f": 127.0.0.1 port {port}; is {where} right, and is it up?" in said
        assert "hunter22" not in said


def test_a_url_that_cannot_be_read_is_78_and_not_repeated(tmp_path: Path) -> None:
    answer = Ctl(tmp_path, "postgresql://ann:hunter22@host/tireless?nonsense=1")("jobs")
    assert answer.code == 78
    assert "database.url cannot be used: invalid URI query parameter; it looks like postgresql://" in answer.err
    assert "hunter22" not in answer.err


def test_a_bad_configuration_is_78_and_names_the_key(ctl: Ctl) -> None:
    ctl.write("[lane.claude_code]\ncapp = 3\nrunners = -1")
    answer = ctl("status")
    assert answer.code == 78
    first, second = answer.err.splitlines()
    assert first == f"tireless-ctl: {ctl.path}: unknown key lane.claude_code.capp; did you mean cap?"
    assert second.startswith(f"tireless-ctl: {ctl.path}: lane.claude_code.runners is -1; ")


def test_a_missing_configuration_is_78(tmp_path: Path) -> None:
    ctl = Ctl(tmp_path, None)
    ctl.write()
    missing = str(tmp_path / "none.toml")
    answer = ctl("--config", missing, "jobs")
    assert answer.code == 78
    assert missing in answer.err


def test_an_empty_database_is_78_until_it_is_migrated(tmp_path: Path, pg_server: postgres.Server) -> None:
    with pg_server.database(empty=True) as url:
        ctl = Ctl(tmp_path, url)
        for argv in (["jobs"], ["status"], ["repo", "list"], ["logs", "acme/site#1"]):
            answer = ctl(*argv)
            assert answer.code == 78
            assert "run tireless-ctl migrate" in answer.err
        assert ctl("migrate", "--check", "--json").code == 1
        assert ctl("migrate", "--json").ok().json["applied"][0] == "0001_queue"
        assert ctl("migrate", "--json").ok().json == {"applied": []}
        assert ctl("migrate", "--check", "--json").ok().json == {"missing": []}
        assert len(ctl("lane", "list", "--json").ok().json) == 2


def test_the_first_repository_gives_an_empty_database_its_tables(
    tmp_path: Path, pg_server: postgres.Server
) -> None:
    with pg_server.database(empty=True) as url:
        ctl = Ctl(tmp_path, url)
        ctl("repo", "add", "github:github.com/acme/site", "--offline").ok()
        assert len(ctl("lane", "list", "--json").ok().json) == 2


def test_doctor_goes_no_further_than_the_schema(tmp_path: Path, pg_server: postgres.Server) -> None:
    with pg_server.database(empty=True) as url:
        found = {c["name"]: c for c in Ctl(tmp_path, url)("doctor", "--json").json["checks"]}
    assert found["database"]["level"] == "ok"
    assert found["schema"]["detail"] == "the database is empty; run tireless-ctl migrate"
    assert not {"clock", "notifications", "supervisor"} & set(found)


def test_a_newer_breaking_schema_is_78_and_a_harmless_one_goes_on(ctl: Ctl, conn: Connection) -> None:
    insert = (
        "insert into schema_migration (version, name, checksum, breaking) values (9999, 'later', 'x', false)"
    )
    conn.execute(insert.encode())
    ctl("status").ok()
    conn.execute("update schema_migration set breaking = true where version = 9999")
    answer = ctl("status")
    assert answer.code == 78
    assert "upgrade tireless on this host" in answer.err


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["jobs", "--nonsense"], ["show"], ["repo"]])
def test_a_bad_command_line_is_64(ctl: Ctl, argv: list[str]) -> None:
    answer = ctl(*argv)
    assert (answer.code, answer.out) == (64, "")
    assert "usage: tireless-ctl" in answer.err
    assert "try --help" in answer.err


def test_help_teaches_with_examples_and_lists_the_exit_codes(ctl: Ctl) -> None:
    text = ctl("--help").ok().out
    for word in ("first steps", "every day", "exit codes", "64", "69", "78", "JOB is an id"):
        assert word in text
    for command in (
        "repo add",
        "repo set",
        "lane cap",
        "lane hold",
        "jobs",
        "logs",
        "retry",
        "cancel",
        "doctor",
    ):
        assert "examples\n  tireless-ctl " in ctl(*command.split(), "--help").ok().out


def test_lists_and_the_commands_of_jobs_go_by_two_names(ctl: Ctl, conn: Connection) -> None:
    issue = f"{queued(conn, 1, repo=track(conn))[0].issue.repo_ref.full_name}#1"
    for one, other in (
        ("jobs --json", "job list --json"),
        ("jobs --state live --json", "job list --state live --json"),
        ("repos --json", "repo list --json"),
        ("lanes", "lane list"),
        (f"show {issue} --json", f"job show {issue} --json"),
        (f"logs {issue}", f"job logs {issue}"),
        (f"explain {issue} --json", f"job explain {issue} --json"),
    ):
        assert ctl(*one.split()).ok().out == ctl(*other.split()).ok().out != "", one
    assert ctl("job", "cancel", issue).ok().out.endswith("cancelled\n")
    assert ctl("cancel", issue).ok().out.endswith("was cancelled already\n")
    ctl("job", "retry", issue).ok()


def test_every_command_takes_json_before_and_after_its_name() -> None:
    for command in ("migrate", "status", "jobs", "doctor"):
        for argv in (["--json", command], [command, "--json"]):
            assert parser().parse_args(argv).json is True
        assert not hasattr(parser().parse_args([command]), "json")


def test_the_program_of_the_checkout_runs_anywhere(ctl: Ctl, tmp_path: Path) -> None:
    (tmp_path / "tireless").mkdir()  # no package to be picked up
    link = tmp_path / "ctl"
    link.symlink_to(ROOT / "bin" / "tireless-ctl")
    command = [str(link), "--config", str(ctl.write()), "lane", "list"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("LANE")


def test_a_reader_that_goes_away_is_no_error(ctl: Ctl) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "tireless.ctl", "--config", str(ctl.write()), "jobs"]
    try:
        ran = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False, timeout=60)
    finally:
        os.close(write_end)
    assert (ran.returncode, ran.stderr) == (0, b"")


# -- without a URL --------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Ctl:
    """tireless-ctl without a database URL: everything lives under its state directory."""
    return Ctl(tmp_path_factory.mktemp("own"), None)


def test_it_starts_the_embedded_server_for_itself_and_stops_it(own: Ctl) -> None:
    from tireless import config

    ref = "github:github.com/acme/site"
    own("repo", "add", ref, "--offline").ok()
    loaded = config.load(own.path, {})
    assert embedded.postmaster_pid(loaded) is None
    assert own("repo", "list", "--json").ok().json[0]["repo"] == ref
    assert embedded.postmaster_pid(loaded) is None


def test_it_leaves_a_supervisors_server_alone(own: Ctl) -> None:
    from tireless import config

    own.write()
    loaded = config.load(own.path, {})
    embedded.start(loaded)
    try:
        pid = embedded.postmaster_pid(loaded)
        answer = own("migrate", "--json").ok()
        assert answer.json["applied"][0] == "0001_queue"
        assert embedded.postmaster_pid(loaded) == pid
    finally:
        embedded.stop(loaded)


def test_an_unusable_state_directory_is_78(tmp_path: Path) -> None:
    ctl = Ctl(tmp_path, None)
    ctl.state_dir.write_text("a file")
    answer = ctl("jobs")
    assert answer.code == 78
    assert f"state_dir {ctl.state_dir} cannot be used" in answer.err


def test_a_command_that_looks_makes_no_database(own: Ctl) -> None:
    for argv in (["status"], ["jobs"], ["repo", "list"], ["lane", "pause", "cc"], ["migrate", "--check"]):
        answer = own(*argv)
        assert (answer.code, answer.out) == (69, "")
        assert f"there is no database yet ({own.state_dir / 'postgres'} is not there" in answer.err
        assert "tireless-ctl migrate" in answer.err
    found = {c["name"]: c for c in own("doctor", "--json").json["checks"]}
    assert found["database"]["level"] == "warn"
    assert not own.state_dir.exists()


def test_without_a_configuration_it_says_where_it_looked(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tireless.config.DEFAULT_PATHS", (f"{ctl.root}/none.toml",))
    monkeypatch.setenv("TIRELESS_DATABASE_URL", str(ctl.url))
    assert main(["jobs"]) == 0
    said = f"no configuration found (looked at $TIRELESS_CONFIG, {ctl.root}/none.toml); using defaults\n"
    assert capsys.readouterr().err == said
    assert "no configuration found" not in ctl("jobs").ok().err
