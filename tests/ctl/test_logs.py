"""logs: events from rows, agents' words from the run's files, nothing secret, and an end when the job ends."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from tests.ctl.conftest import TOKEN_VARIABLE, Ctl
from tests.support.forge import FakeForge
from tests.support.store import queued, running
from tireless.entities import AgentKind, Claim, JobState, Outcome, Usage
from tireless.store import claims, runs
from tireless.store.queries import Connection

TRANSCRIPTS = Path(__file__).parents[1] / "agent" / "transcripts"


def start_run(ctl: Ctl, conn: Connection, number: int = 7) -> tuple[Claim, UUID, Path]:
    """A running job with an agent run, and the directory of that run's files."""
    queued(conn, number)
    claim = running(conn)
    run_id = uuid4()
    runs.start(conn, claim, run_id, AgentKind.CLAUDE_CODE, host="here", session_id=None, resumed=False)
    place = ctl.state_dir / "work" / str(claim.job.id) / "run" / str(run_id)
    place.mkdir(parents=True)
    return claim, run_id, place


def end_run(conn: Connection, claim: Claim, run_id: UUID) -> None:
    runs.end(conn, run_id, "w1", Outcome.COMPLETED, detail=None, exit_code=0, usage=Usage())
    claims.finish(conn, claim, JobState.DELIVERED, [])


def test_events_and_transcript_in_both_forms(ctl: Ctl, conn: Connection) -> None:
    claim, run_id, place = start_run(ctl, conn)
    shutil.copy(TRANSCRIPTS / "claude_ok.jsonl", place / "transcript.jsonl")
    end_run(conn, claim, run_id)

    text = ctl("logs", "acme/site#7").ok().out
    document = ctl("logs", "acme/site#7", "--json").ok().json

    assert [line.split()[2] for line in text.splitlines()[:3]] == ["enqueued", "claimed", "started"]
    assert f"-- what claude_code said in run {str(run_id)[:8]} on here" in text
    assert "   tool " in text
    assert set(document) == {"job", "events", "runs"}
    (run,) = document["runs"]
    assert run["path"] == str(place / "transcript.jsonl")
    kinds = {line["kind"] for line in run["lines"]}
    assert {"init", "tool", "result"} <= kinds


def test_raw_is_the_stream_as_it_is(ctl: Ctl, conn: Connection) -> None:
    _, _, place = start_run(ctl, conn)
    shutil.copy(TRANSCRIPTS / "claude_ok.jsonl", place / "events.jsonl")
    answer = ctl("logs", "acme/site#7", "--raw").ok()
    assert answer.out == (TRANSCRIPTS / "claude_ok.jsonl").read_text()


def test_raw_without_a_transcript_here_says_where_it_ran(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 8)
    answer = ctl("logs", "acme/site#8", "--raw")
    assert (answer.code, answer.out) == (1, "")
    assert "has had no agent run yet" in answer.err
    claim = running(conn)
    runs.start(conn, claim, uuid4(), AgentKind.OPENCODE, host="elsewhere", session_id=None, resumed=False)
    answer = ctl("logs", "acme/site#8", "--raw").ok()
    assert "keeps what it says on its own machine; it has run on elsewhere since " in answer.err
    conn.execute(b"update agent_run set ended_at = now(), outcome = 'crashed'")
    answer = ctl("logs", "acme/site#8", "--raw")
    assert (answer.code, answer.out) == (1, "")
    assert "it ran on elsewhere" in answer.err


def test_a_run_that_has_said_nothing_yet_is_told_on_stderr(ctl: Ctl, conn: Connection) -> None:
    _, run_id, place = start_run(ctl, conn)
    conn.execute(b"update agent_run set started_at = now() - interval '130 seconds'")
    found = conn.execute(b"select started_at from agent_run").fetchone()
    assert found is not None
    line = (
        f"run {str(run_id)[:8]} of claude_code has said nothing yet; it has run on here since "
        f"{found[0].astimezone():%Y-%m-%d %H:%M:%S} (2m ago)\n"
    )
    for has_file in (False, True):
        if has_file:
            (place / "events.jsonl").touch()
        answer = ctl("logs", "acme/site#7").ok()
        assert answer.err == line
        assert "what claude_code said" not in answer.out
        answer = ctl("logs", "acme/site#7", "--raw").ok()
        assert (answer.out, answer.err) == ("", line)
    shutil.copy(TRANSCRIPTS / "claude_ok.jsonl", place / "events.jsonl")
    for argv in ([], ["--raw"]):
        assert ctl("logs", "acme/site#7", *argv).ok().err == ""


def test_one_document_does_not_go_with_following_or_raw(ctl: Ctl, conn: Connection) -> None:
    queued(conn, 7)
    assert ctl("logs", "acme/site#7", "--json", "-f").code == 64
    assert ctl("logs", "acme/site#7", "--json", "--raw").code == 64


def test_no_secret_is_printed(
    ctl: Ctl, conn: Connection, gitea: FakeForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "opaque-and-unguessable-token")
    monkeypatch.setenv("SOME_API_KEY", "another-unguessable-value")
    ctl.forge = gitea
    ctl.lines.append('[lane.claude_code]\nenv_from = ["SOME_API_KEY"]')
    _, _, place = start_run(ctl, conn)
    said = "opaque-and-unguessable-token another-unguessable-value ghp_0123456789abcdefghij0123456789abcdef"
    content = [{"type": "text", "text": f"I found {said}"}]
    line = json.dumps({"type": "assistant", "message": {"content": content}})
    (place / "events.jsonl").write_text(f"{line}\n")
    for argv in (["--raw"], [], ["--json"]):
        out = ctl("logs", "acme/site#7", *argv).ok().out
        assert "I found" in out
        for secret in said.split():
            assert secret not in out


def test_follow_prints_what_comes_and_ends_with_the_job(ctl: Ctl, conn: Connection) -> None:
    claim, run_id, place = start_run(ctl, conn)
    lines = (TRANSCRIPTS / "claude_ok.jsonl").read_text().splitlines(keepends=True)
    stream = place / "events.jsonl"
    stream.write_text(lines[0])
    command = [sys.executable, "-m", "tireless.ctl", "--config", str(ctl.write()), "logs", "acme/site#7", "-f"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        try:
            seen = read_until(follower, b"   init ")
            with stream.open("a") as f:
                f.writelines(lines[1:])
            seen += read_until(follower, b"   result ")
            shutil.move(stream, place / "transcript.jsonl")  # sealed under its reader
            end_run(conn, claim, run_id)
            rest, errors = follower.communicate(timeout=20)
            assert follower.returncode == 0, errors
            assert b"finished" in seen + rest
        finally:
            follower.kill()


def read_until(process: subprocess.Popen[bytes], wanted: bytes, timeout: float = 20.0) -> bytes:
    """What it prints up to and with `wanted`."""
    assert process.stdout is not None
    seen, deadline = b"", time.monotonic() + timeout
    while wanted not in seen:
        ready, _, _ = select.select([process.stdout], [], [], max(deadline - time.monotonic(), 0))
        chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
        assert chunk, f"{wanted!r} not within {timeout} s: {seen!r}"
        seen += chunk
    return seen
