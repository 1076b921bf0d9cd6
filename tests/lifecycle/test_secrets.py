"""Planted secrets, and an agent that says them wherever it can: they are found nowhere.

The agent knows all three: the forge's token and the database's URL too, as if it had broken out. It reads them from
files, so that nothing of the test's own (an issue, a script) repeats them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.rig import Rig
from tireless.entities import JobState
from tireless.store.queries import Connection

SETTINGS = """
[poller]
wake_seconds = 1
[runner]
wake_seconds = 1
[lease]
max_attempts = 2
backoff_seconds = 0.1
"""
KEY = "lane-key-canary-4f1d9b7a33c2"
PASSWORD = "database-canary-8e2c51d07ab9"
NewRig = Callable[..., Rig]


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Where the agent finds what it is to say."""
    path = tmp_path / "told"
    path.mkdir()
    return path


@pytest.fixture
def rig(database_url: str, told: Path) -> Iterator[Rig]:
    """A password in the URL, which the test's server does not ask for; a key in the lane's environment."""
    url = database_url.replace("://postgres@", f"://postgres:{PASSWORD}@")
    assert url != database_url
    made = Rig(
        url=url,
        settings=f'{SETTINGS}[sandbox]\nread_only = ["{told}"]\n',
        claude='cap = 2\nrunners = 2\nenv_from = ["CANARY_API_KEY"]',
        env={"CANARY_API_KEY": KEY},
    )
    plant(told, secrets_of(made))
    made.start()
    made.track()
    yield made
    made.close()


def secrets_of(rig: Rig) -> list[str]:
    token = rig.forge.config.token
    assert token is not None
    assert rig.url is not None
    return [token.reveal(), KEY, PASSWORD, rig.url]


def plant(told: Path, secrets: list[str]) -> None:
    """The files that the steps below use. Each secret stands in each, between words that must come through."""
    said = "before " + " and ".join(secrets) + " after"
    (told / "all").write_text(said + "\n")
    event = {"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": said}]}}
    final = {"type": "result", "subtype": "success", "is_error": False, "result": said, "num_turns": 1}
    (told / "stream").write_text(json.dumps(event) + "\n")
    (told / "final").write_text(json.dumps({**final, "total_cost_usd": 0.01}) + "\n")
    (told / "done").write_text(json.dumps({"status": "done", "summary": said}))
    (told / "blocked").write_text(json.dumps({"status": "blocked", "question": said}))
    child = {"key": "one", "title": said[:200], "body": said, "depends_on": []}
    (told / "plan").write_text(json.dumps({"summary": said, "children": [child]}))


def says(told: Path) -> list[dict[str, Any]]:
    """As a tool's output, in its own words, on standard error."""
    return [
        {"do": "shell", "command": f"cat {told}/all; env"},
        {"do": "emit", "file": f"{told}/stream"},
        {"do": "shell", "command": f"cat {told}/all >> /proc/$PPID/fd/2"},
    ]


def answers(told: Path, what: str, name: str = "outcome.json") -> dict[str, Any]:
    return {"do": "shell", "command": f"cp {told}/{what} $REPORT/{name}"}


WRITES = {"do": "write", "path": "app.txt", "text": "made by the agent\n"}
COMMIT = "git add -A && git -c user.name=A -c user.email=a@b commit -qm change"


def test_what_an_agent_says_of_secrets_comes_through_nowhere(rig: Rig, told: Path) -> None:
    crash = [*says(told), {"do": "exit", "code": 9}]
    hides = {"do": "shell", "command": f"cat {told}/all > key.txt && {COMMIT} && rm key.txt && {COMMIT}"}
    cases = {
        "delivered": rig.open_issue("A", *says(told), WRITES, answers(told, "done")),
        "blocked": rig.open_issue("B", *says(told), WRITES, answers(told, "blocked")),
        "planned": rig.open_issue(
            "C", *says(told), answers(told, "plan", "plan.json"), labels=["tireless", "tireless/plan"]
        ),
        "crashed": rig.open_issue("D", *crash, resume=crash),
        "committed": rig.open_issue("E", WRITES, hides, {"do": "done"}),
        "left": rig.open_issue(
            "F", WRITES, {"do": "shell", "command": f"cp {told}/all key.txt"}, {"do": "done"}
        ),
        "final": rig.open_issue(
            "G", WRITES, {"do": "emit", "file": f"{told}/final"}, {"do": "exit", "code": 0}
        ),
    }
    ended = {name: rig.wait_job(number, seconds=90) for name, number in cases.items()}
    rig.wait_settled()
    states = {name: job.state for name, job in ended.items()}
    failed = dict.fromkeys(("crashed", "committed", "left"), JobState.FAILED)
    good = dict.fromkeys(("delivered", "planned", "final"), JobState.DELIVERED)
    assert states == {**good, "blocked": JobState.BLOCKED, **failed}, rig.report()

    found = {place: text for place, text in everything(rig) if any(s in text for s in secrets_of(rig))}
    assert list(found) == [], found
    # What was to come through did, so that the look above was one at the right places.
    [pull] = [p for p in rig.forge.pulls() if p.pull and p.pull.head == ended["delivered"].branch]
    comments = [c.body for number in cases.values() for c in rig.forge.comments(number)]
    for texts in ([pull.body], comments, transcripts(rig)):
        assert any("before [redacted]" in text and "after" in text for text in texts)
    assert "made by the agent" in pushed(rig)
    for name in ("committed", "left"):
        assert "The work is not pushed" in (ended[name].last_error or "")
        assert "key.txt" in (ended[name].last_error or "")
        assert f"tireless/issue-{cases[name]}" not in rig.forge.git().branches()
    assert_closed_to_others(rig)


def everything(rig: Rig) -> Iterator[tuple[str, str]]:
    """What leaves the processes: logs, rows, the forge's record, transcripts and the other files of runs."""
    for supervisor in rig.supervisors:
        yield "log", supervisor.said()
    with rig.connection() as conn:
        for table in tables(conn):
            for row in conn.execute(f'select t::text from "{table}" t'.encode()):
                yield f"table {table}", row[0]
    for request in rig.forge.requests:
        yield f"request {request.call}", f"{request.call} {request.call.body!r}"
    for number in range(1, 200):
        try:
            issue = rig.forge.issue(number)
        except KeyError:
            break
        yield f"issue {number}", f"{issue.title}\n{issue.body}"
        for comment in rig.forge.comments(number):
            yield f"comment on {number}", comment.body
    yield "pushed", pushed(rig)
    for path in kept_files(rig):
        yield str(path), path.read_bytes().decode("utf-8", "replace")


def tables(conn: Connection) -> list[str]:
    found = conn.execute("select tablename from pg_tables where schemaname = 'public'").fetchall()
    assert len(found) > 8
    return [row[0] for row in found]


def pushed(rig: Rig) -> str:
    """The history of each branch of the forge's repository, with all that it changed."""
    return rig.forge.git().git("log", "--all", "-p", "-a", "-m", "--format=%an %ae %B")


def kept_files(rig: Rig) -> Iterator[Path]:
    """Files of the state directory but what is the agent's own to write, and git's objects."""
    own = {"home", "tmp", "report", "repo", "checkout", "objects"}
    for folder, folders, names in os.walk(rig.state_dir()):
        folders[:] = [
            name for name in folders if name not in own and not (Path(folder) / name / ".git").exists()
        ]
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                yield path


def transcripts(rig: Rig) -> list[str]:
    found = [p.read_text() for p in kept_files(rig) if p.name == "transcript.jsonl"]
    assert len(found) >= 7
    return found


def assert_closed_to_others(rig: Rig) -> None:
    """Nobody else gets in: what tireless writes is 0600 in directories of 0700, and so is what lies around the rest."""
    state = rig.state_dir()
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    open_ones = []
    for path in [p for run in state.glob("work/*/run") for p in (run, *run.rglob("*"))]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        if mode != (0o700 if path.is_dir() else 0o600):
            open_ones.append((str(path), oct(mode)))
    jobs = list(state.glob("work/*"))
    open_ones += [(str(p), oct(p.stat().st_mode)) for p in jobs if p.is_dir() and p.stat().st_mode & 0o077]
    assert jobs
    assert open_ones == []


def test_the_password_alone_is_a_secret_too(rig: Rig) -> None:
    assert PASSWORD in rig.config().secrets()
    assert urlsplit(rig.url or "").password == PASSWORD
