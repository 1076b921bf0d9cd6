"""One redactor: known values, known shapes; text, bytes, log records; and sealed transcripts."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.agent.runs import Job, scripted_lane
from tireless.agents import runfiles
from tireless.agents.transcript import seal_transcript
from tireless.redact import MASK, RedactingFilter, Redactor, secrets_in

plain = Redactor()
A = "aB3" * 14


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"a ghp_{A} b", f"a {MASK} b"),
        (f"gho_{A},ghs_{A}", f"{MASK},{MASK}"),
        (f"github_pat_{A}_{A}", MASK),
        (f"glpat-{A[:20]}", MASK),
        (f"sk-ant-api03-{A}-{A}", MASK),
        (f"sk-ant-oat01-{A}", MASK),
        ("AKIAIOSFODNN7EXAMPLE", MASK),
        (f"xoxb-{A}", MASK),
        (f"eyJ{A}.{A}.{A}", MASK),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----", MASK),
        (json.dumps("-----BEGIN PRIVATE KEY-----\nMIIE+/=\n"), f'"{MASK}"'),
        ("Authorization: Bearer abcdefgh123", f"Authorization: Bearer {MASK}"),
        ("authorization: token abcdefgh123", f"authorization: token {MASK}"),
        ('{"Authorization": "Basic dXNlcjpwYXNz"}', f'{{"Authorization": "Basic {MASK}"}}'),
        ('{\\"x-api-key\\": \\"abcdefgh123\\"}', f'{{\\"x-api-key\\": \\"{MASK}\\"}}'),
        ("PRIVATE-TOKEN: abcdefgh123", f"PRIVATE-TOKEN: {MASK}"),
        ("https://bob:hunter2@forge.example/a.git", f"https://{MASK}@forge.example/a.git"),
        (f"https://x-access-token:{A}@github.com/a", f"https://{MASK}@github.com/a"),
        (f"https://{A}@github.com/a", f"https://{MASK}@github.com/a"),
        ("postgres://u:p@h/d", f"postgres://{MASK}@h/d"),
        ("https://forge.example:8080/a@b", "https://forge.example:8080/a@b"),
        (
            "mail bob@example.org about task-sk-1 and https://bob@h/",
            "mail bob@example.org about task-sk-1 and https://bob@h/",
        ),
        ("the authorization: none", "the authorization: none"),
        ("commit 0123456789abcdef0123456789abcdef01234567", "commit 0123456789abcdef0123456789abcdef01234567"),
    ],
)
def test_shapes(text: str, masked: str) -> None:
    assert plain(text) == masked
    assert plain(text.encode()) == masked.encode()
    assert plain(masked) == masked


def test_known_values_in_the_forms_in_which_they_travel() -> None:
    redact = Redactor(['p"ä/ss w\\rd', "longer-secret", "longer-secret-two", "short"])
    assert redact('x p"ä/ss w\\rd x') == f"x {MASK} x"
    assert redact(json.dumps('p"ä/ss w\\rd')) == f'"{MASK}"'
    assert redact("https://h/?q=p%22%C3%A4%2Fss%20w%5Crd") == f"https://h/?q={MASK}"
    assert redact("longer-secret-two longer-secret") == f"{MASK} {MASK}"
    assert redact("short") == "short"  # too short to be told from a word


@given(st.text(max_size=60), st.text(alphabet="abcXYZ019-_", min_size=8, max_size=30))
def test_a_known_value_never_gets_through(text: str, secret: str) -> None:
    redact = Redactor([secret])
    assert secret not in redact(f"{text}{secret}{text}").replace(MASK, "\0")
    assert secret.encode() not in redact(f"{text}{secret}".encode()).replace(MASK.encode(), b"\0")


def test_hostile_text_takes_no_time() -> None:
    for unit in ("-----BEGIN PRIVATE KEY-----", "://a:", "authorization: ", "sk-", "eyJaaaaaaaaaaaa.", "a:b@"):
        plain(unit * 50_000)


def test_secrets_of_an_environment() -> None:
    env = {
        "ANTHROPIC_API_KEY": "k1",
        "CLAUDE_CODE_OAUTH_TOKEN": "k2",
        "PATH": "/bin",
        "PASSWORD": "",
        "db_passwd": "k3",
    }
    assert secrets_in(env) == ("k1", "k2", "k3")


def test_log_records() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(RedactingFilter(Redactor(["hunter2-hunter2"])))
    logger = logging.getLogger("test_redact")
    logger.propagate = False
    logger.addHandler(handler)
    try:
        logger.warning("url=%s n=%d", "https://u:pw@h/", 5)
        logger.warning("bad format %d", "hunter2-hunter2")
        try:
            raise ValueError("hunter2-hunter2")
        except ValueError:
            logger.exception("failed")
    finally:
        logger.removeHandler(handler)
    text = out.getvalue()
    assert f"url=https://{MASK}@h/ n=5\n" in text
    assert f"bad format %d ('{MASK}',)" in text
    assert f"ValueError: {MASK}" in text
    assert "hunter2" not in text


class TestTranscripts:
    def events(self, run_dir: Path, data: bytes) -> None:
        (run_dir / runfiles.EVENTS).write_bytes(data)

    def test_a_secret_that_the_agent_printed(self, job: Job) -> None:
        steps = [{"do": "say", "text": "my key is canary-canary"}, {"do": "stderr", "text": f"ghp_{A}"}]
        job.run(scripted_lane(*steps))
        kept = seal_transcript(job.run_dir, Redactor(["canary-canary"]), 1_000_000)
        text = kept.read_text()
        assert f"my key is {MASK}" in text
        assert MASK in json.loads(text.splitlines()[-1])["stderr"]
        assert all(json.loads(line) for line in text.splitlines())
        names = {p.name for p in job.run_dir.iterdir()}
        assert names == {"transcript.jsonl", "exit.json"}
        assert kept.stat().st_mode & 0o777 == 0o600

    def test_head_and_tail_are_kept(self, tmp_path: Path) -> None:
        self.events(tmp_path, b"".join(b'{"n": %d}\n' % n for n in range(10_000)))
        lines = seal_transcript(tmp_path, plain, 2000).read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        [note] = [i for i, row in enumerate(rows) if row.get("type") == "tireless"]
        assert [r["n"] for r in rows[:note]] == list(range(note))
        assert rows[-1]["n"] == 9999
        assert rows[note]["cut_lines"] == 10_000 - (len(rows) - 1)
        assert sum(map(len, lines)) < 2200

    def test_a_long_line_is_cut_and_no_half_secret_left(self, tmp_path: Path) -> None:
        secret = "S" * 100
        for shift in range(0, 300, 25):
            start = 256 * 1024 + 8 * 1024 - shift
            self.events(tmp_path, b"x" * start + secret.encode() + b"y" * 2_000_000 + b"\n{}\n")
            data = seal_transcript(tmp_path, Redactor([secret]), 10_000_000).read_bytes()
            assert b"S" not in data
            assert data.endswith(b"{}\n")
            assert len(data) < 300_000

    def test_sealing_again_changes_nothing(self, tmp_path: Path) -> None:
        self.events(tmp_path, b'{"a": 1}\n')
        first = seal_transcript(tmp_path, plain, 1000).read_bytes()
        assert seal_transcript(tmp_path, plain, 1000).read_bytes() == first

    def test_a_run_that_printed_nothing(self, tmp_path: Path) -> None:
        assert seal_transcript(tmp_path, plain, 1000).read_bytes() == b""

    def test_no_newline_at_the_end(self, tmp_path: Path) -> None:
        self.events(tmp_path, b"x" * 1_000_000)
        assert len(seal_transcript(tmp_path, plain, 10_000_000).read_bytes()) < 300_000
