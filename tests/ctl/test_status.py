"""status and doctor: what is there, and what is in trouble."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ctl.conftest import TOKEN_VARIABLE, Ctl
from tests.support.forge import FakeForge
from tests.support.store import CC, queued, running, track
from tireless import process
from tireless.ctl import doctor, versions
from tireless.entities import JobState, NewWrite, PollResult, WorkerRole, WriteOp
from tireless.store import claims, repos, workers, writes
from tireless.store.queries import Connection


def test_status_in_both_forms(ctl: Ctl, conn: Connection) -> None:
    repo = track(conn)
    queued(conn, 1, 2, repo=repo)
    claim = running(conn)
    writes.add(conn, claim.job, [NewWrite(WriteOp.COMMENT, {})])
    (stuck,) = writes.add(conn, claim.job, [NewWrite(WriteOp.ADD_LABEL, {"name": "x"})])
    writes.refused(conn, stuck, "w1", "no")
    repos.record_poll(conn, repo.id, PollResult.FORBIDDEN, detail="the token may not read issues")
    workers.register(conn, process.worker_id("here", os.getpid()), "here", WorkerRole.RUNNER, CC, os.getpid())
    gone = process.worker_id("here", os.getpid()).rpartition("/")[0] + "/1"
    workers.register(conn, gone, "here", WorkerRole.POLLER, None, os.getpid())

    document = ctl("status", "--json").ok().json
    text = ctl("status").ok().out

    assert set(document) == {
        "now",
        "host",
        "lanes",
        "workers",
        "draining",
        "jobs",
        "after_fault",
        "writes",
        "repos",
        "sandbox",
    }
    assert document["jobs"]["pending"] == 1
    assert document["jobs"]["running"] == 1
    assert document["jobs"]["failed"] == 0
    assert document["writes"] == {"waiting": 1, "refused": 1}
    assert document["repos"]["tracked"] == 1
    assert document["repos"]["in_trouble"][0]["poll_result"] == "forbidden"
    assert document["draining"] == []
    assert {w["role"]: w["alive"] for w in document["workers"]} == {"runner": True, "poller": False}
    for words in (
        "1 pending, 1 running",
        "1 waiting, 1 refused",
        "the token may not read issues",
        "alive",
        "gone",
    ):
        assert words in text


def test_a_host_that_drains_is_shown_with_what_it_waits_for(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1, 2, 3)
    here = process.worker_id("here", os.getpid())
    there = "there/boot/1/2/3"
    for name, host in ((here, "here"), (there, "there")):
        workers.register(conn, name, host, WorkerRole.RUNNER, CC, 2)
        running(conn, name)
    conn.execute(
        b"update worker set seen_at = now() - interval '1 hour'"
    )  # while it works, its lease speaks for it
    assert ctl("status", "--json").ok().json["draining"] == []
    workers.say_draining(conn, there)
    conn.execute(b"update worker set draining_since = now() - interval '125 seconds' where host = 'there'")
    (draining,) = ctl("status", "--json").ok().json["draining"]
    assert (draining["host"], draining["jobs"]) == ("there", 1)
    text = ctl("status").ok().out
    assert re.search(
        r"^host there drains since \d.* \(2m ago\): it takes nothing new and waits for 1 job$", text, re.M
    )
    states = {line.split()[0]: line.split()[4] for line in text.splitlines() if " runner claude_code " in line}
    assert states == {"here": "alive", "there": "draining"}


def test_jobs_that_wait_after_a_fault_say_why(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 1, 2, repo=track(conn))
    assert "after a fault" not in ctl("status").ok().out
    for error in ("the first fault", "claude is not on PATH"):
        claims.transition(conn, running(conn), JobState.PENDING, error=error, delay_seconds=60)
    assert "\n2 jobs wait after a fault: claude is not on PATH\n" in ctl("status").ok().out + "\n"
    assert ctl("status", "--json").json["after_fault"] == {"jobs": 2, "newest": "claude is not on PATH"}


def test_doctor_says_that_no_work_begins_on_a_disk_with_too_little_room(ctl: Ctl) -> None:
    ctl.write("[runner]\nmin_free_mb = 1000000000")
    checks = {check["name"]: check for check in ctl("doctor", "--json").json["checks"]}
    assert checks["state_dir"]["level"] == "fail"
    assert "no work begins" in checks["state_dir"]["detail"]
    assert "work begins with 2000000000 (twice runner.min_free_mb)" in checks["state_dir"]["detail"]


def test_status_of_nothing(ctl: Ctl) -> None:
    text = ctl("status").ok().out
    assert "no worker: no supervisor has registered one; start tireless-supervisor" in text
    assert "no job yet" in text


# -- doctor ---------------------------------------------------------------------------------------------------


def cli(tmp_path: Path, code: int = 0) -> str:
    """A program that tells a version, and whether it was given a home of its own."""
    program = tmp_path / f"agent-{code}"
    body = f"import os, sys\nassert os.environ['HOME'] != '{Path.home()}'\nprint('9.9.9 (an agent)')\nsys.exit({code})"
    program.write_text(f"#!{sys.executable}\n{body}\n")
    program.chmod(0o755)
    return str(program)


def lanes(tmp_path: Path, code: int = 0) -> list[str]:
    command = f'command = ["{cli(tmp_path, code)}"]\nenv_from = ["SOME_API_KEY"]'
    return [f"[lane.{name}]\n{command}" for name in ("claude_code", "opencode")]


def checks(ctl: Ctl, code: int) -> dict[str, Any]:
    answer = ctl("doctor", "--json")
    assert answer.code == code, answer.out + answer.err
    assert set(answer.json) == {"ok", "checks"}
    assert answer.json["ok"] is (code == 0)
    return {check["name"]: check for check in answer.json["checks"]}


def test_a_healthy_machine(
    ctl: Ctl, forge: FakeForge, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "unguessable-value")
    ctl.forge = forge
    ctl.lines = lanes(tmp_path)
    track(conn)
    workers.register(conn, process.worker_id("here", os.getpid()), "here", WorkerRole.RUNNER, CC, os.getpid())

    found = checks(ctl, 0)

    forge_check = f"forge {forge.kind}:{forge.host}"
    for name in (
        "configuration",
        "database",
        "schema",
        "clock",
        "notifications",
        "git",
        "supervisor",
        forge_check,
    ):
        assert found[name]["level"] == "ok", found[name]
    assert found["lane claude_code"]["level"] == "ok"
    assert "9.9.9 (an agent)" in found["lane opencode"]["detail"]
    assert "the token is " in found[forge_check]["detail"]
    text = ctl("doctor").ok().out
    assert forge.token not in text
    assert "unguessable-value" not in text


@pytest.mark.parametrize("fault", ["token_missing", "token_bad", "forge_down", "cli_missing", "no_forge"])
def test_what_does_not_work_fails_by_name(
    ctl: Ctl, gitea: FakeForge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "x")
    ctl.forge = gitea
    ctl.lines = lanes(tmp_path)
    failing = f"forge gitea:{gitea.host}"
    if fault == "token_missing":
        monkeypatch.delenv(TOKEN_VARIABLE)
    elif fault == "token_bad":
        gitea.token_works = False
    elif fault == "forge_down":
        gitea.down()
    elif fault == "cli_missing":
        ctl.lines = ['[lane.claude_code]\ncommand = ["no-such-agent"]', lanes(tmp_path)[1]]
        failing = "lane claude_code"
    elif fault == "no_forge":
        ctl.forge = None
        failing = "forges"

    found = checks(ctl, 1)

    assert [name for name, check in found.items() if check["level"] == "fail"] == [failing]
    says = {
        "token_missing": f"${TOKEN_VARIABLE}, which is not set",
        "token_bad": f"the token is from the environment variable {TOKEN_VARIABLE}",
        "forge_down": gitea.host,
        "cli_missing": "no-such-agent is not on PATH (/",
        "no_forge": "add one with its token",
    }
    assert says[fault] in found[failing]["detail"]
    assert gitea.token not in ctl("doctor").out


def test_a_token_that_the_forge_refuses_is_told_with_its_file(
    ctl: Ctl, gitea: FakeForge, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(gitea.token)
    gitea.token_works = False
    ctl.forge = gitea
    text = ctl.write(*lanes(tmp_path)).read_text()
    ctl.path.write_text(text.replace(f'token_env = "{TOKEN_VARIABLE}"', f'token_file = "{file}"'))
    detail = checks(ctl, 1)[f"forge gitea:{gitea.host}"]["detail"]
    assert "401" in detail
    assert detail.endswith(f"; the token is from the file {file}")
    answer = ctl("repo", "add", f"gitea:{gitea.host}/acme/site")
    assert answer.code == 1
    assert f"the token is from the file {file}" in answer.err
    assert gitea.token not in detail + answer.err


def test_a_missing_cli_does_not_hide_that_its_key_is_not_set(ctl: Ctl) -> None:
    ctl.lines = ['[lane.claude_code]\ncommand = ["no-such-agent"]\nenv_from = ["SOME_API_KEY"]']
    check = checks(ctl, 1)["lane claude_code"]
    assert check["level"] == "fail"
    assert "no-such-agent is not on PATH" in check["detail"]
    assert check["detail"].endswith("; lane.claude_code.env_from names $SOME_API_KEY, not set here")


def test_what_may_be_a_key_in_the_place_of_its_variables_name_is_not_shown(ctl: Ctl) -> None:
    key = "ghp_AbCdEf0123456789AbCdEf0123456789"
    ctl.lines = [f'[lane.claude_code]\ncommand = ["no-such-agent"]\nenv_from = ["{key}"]']
    answer = ctl("doctor")
    assert "not shown, since it may be the secret itself" in " ".join(answer.out.split())
    assert key not in answer.out + answer.err


def waiting(tmp_path: Path, name: str, does: str) -> str:
    """An agent's CLI that does something in a shell before it tells its version."""
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{does}\necho '1.2.3 ({name})'\n")
    program.chmod(0o755)
    return f'[lane.{name}]\ncommand = ["{program}"]\nenv = {{KEY = "x"}}'


def test_each_line_is_there_when_it_is_known(ctl: Ctl, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ctl.lines = [waiting(tmp_path, "claude_code", f"read line < {pipe}"), waiting(tmp_path, "opencode", "")]
    command = [sys.executable, "-m", "tireless.ctl", "--config", str(ctl.write()), "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asked:
        try:
            assert asked.stdout is not None
            told: list[str] = []
            while not told or "lane opencode" not in told[-1]:
                told.append(asked.stdout.readline())
                assert told[-1], told
            assert any("notifications" in line for line in told), "what came before is there"
            assert not any("lane claude_code" in line for line in told), "it has not answered yet"
            pipe.write_text("go\n")
            assert "1.2.3 (claude_code)" in asked.stdout.read()
        finally:
            asked.kill()


def test_all_lanes_are_asked_at_once(ctl: Ctl, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # each end waits for the other to be opened
    ctl.lines = [
        waiting(tmp_path, "claude_code", f"echo > {pipe}"),
        waiting(tmp_path, "opencode", f"read line < {pipe}"),
    ]
    found = checks(ctl, 1)
    for lane in ("claude_code", "opencode"):
        assert f"1.2.3 ({lane})" in found[f"lane {lane}"]["detail"]


def test_who_does_not_answer_is_named(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (doctor, versions):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 1.0)
    ctl.lines = [waiting(tmp_path, "claude_code", "exec sleep 60"), waiting(tmp_path, "opencode", "")]
    found = checks(ctl, 1)
    said = f"{tmp_path}/claude_code gives no answer to --version within 1 s"
    assert (found["lane claude_code"]["level"], found["lane claude_code"]["detail"]) == ("warn", said)
    assert found["lane opencode"]["level"] == "ok"


def test_a_token_that_everybody_can_read_is_a_warning(ctl: Ctl, gitea: FakeForge, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(gitea.token)
    ctl.forge = gitea
    ctl.write(*lanes(tmp_path))
    ctl.path.write_text(
        ctl.path.read_text().replace(f'token_env = "{TOKEN_VARIABLE}"', f'token_file = "{file}"')
    )
    name = f"forge gitea:{gitea.host}"
    for mode, level in ((0o644, "warn"), (0o640, "ok"), (0o600, "ok")):
        file.chmod(mode)
        check = checks(ctl, 0)[name]
        assert (check["level"], "chmod o=" in check["detail"]) == (level, level == "warn")


def test_what_wants_a_look_is_a_warning(ctl: Ctl, gitea: FakeForge, tmp_path: Path) -> None:
    ctl.forge = gitea
    ctl.lines = lanes(tmp_path, code=3)
    found = checks(ctl, 0)
    assert found["lane claude_code"]["level"] == "warn"
    assert "does not tell its version" in found["lane claude_code"]["detail"]
    assert "SOME_API_KEY, not set here" in found["lane claude_code"]["detail"]
    assert found["supervisor"]["level"] == "warn"
    assert found["repositories"]["level"] == "warn"


def test_jobs_in_a_lane_that_nobody_works_are_a_warning(ctl: Ctl, conn: Connection) -> None:
    def said() -> str | None:
        found = {check["name"]: check for check in ctl("doctor", "--json").json["checks"]}
        check = found.get("runners claude_code")
        assert check is None or check["level"] == "warn"
        return check["detail"] if check is not None else None

    ctl.write("[lane.claude_code]\nenabled = false")
    workers.register(conn, "there/boot/1/2/3", "there", WorkerRole.POLLER, None, 2)
    assert said() is None  # no job waits for it
    queued(conn, 1, 2)
    assert said() == (
        f"2 jobs wait in a lane that starts nothing: not enabled in {ctl.path} of this host, and no runner of it is "
        "alive on another"
    )
    workers.register(conn, "there/boot/1/2/4", "there", WorkerRole.RUNNER, CC, 2)
    assert said() is None


def test_a_database_that_is_away_is_a_failed_check_among_others(
    tmp_path: Path, gitea: FakeForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "x")
    ctl = Ctl(tmp_path, "postgresql://ann:hunter22@127.0.0.1:1/tireless", gitea, lanes(tmp_path))
    found = checks(ctl, 1)
    assert found["database"]["level"] == "fail"
    assert found[f"forge gitea:{gitea.host}"]["level"] == "ok"
    assert "hunter22" not in ctl("doctor").out
