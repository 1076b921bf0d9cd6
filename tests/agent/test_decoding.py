"""Decoding is pure and total: any bytes, in any pieces, give the same events, and never an exception."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tireless.agents import adapter_for
from tireless.agents.base import Decoder, Ending, Event, EventKind
from tireless.agents.lines import LineSplitter, parse_object
from tireless.entities import AgentKind

TRANSCRIPTS = Path(__file__).with_name("transcripts")
RECORDINGS = [p.read_bytes().splitlines() for p in sorted(TRANSCRIPTS.glob("*.jsonl"))]
RECORDED = b"".join(p.read_bytes() for p in sorted(TRANSCRIPTS.glob("*.jsonl")))

KEYS = [
    "type",
    "subtype",
    "message",
    "content",
    "usage",
    "error",
    "session_id",
    "sessionID",
    "result",
    "is_error",
    "api_error_status",
    "errors",
    "part",
    "tokens",
    "cost",
    "reason",
    "rate_limit_info",
    "status",
    "resetsAt",
    "modelUsage",
    "total_cost_usd",
    "num_turns",
    "state",
    "data",
    "statusCode",
    "responseHeaders",
    "responseBody",
    "permission_denials",
    "input",
    "cache",
    "id",
    "terminal_reason",
]
WORDS = [
    "system",
    "init",
    "api_retry",
    "assistant",
    "user",
    "rate_limit_event",
    "result",
    "success",
    "rejected",
    "step_start",
    "step_finish",
    "text",
    "tool_use",
    "tool_result",
    "error",
    "stop",
    "authentication_failed",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    200,
    400,
    401,
    402,
    404,
    429,
    529,
    1796029492,
    1796029492000,
    10**22,
    10**400,
    1e15,
    1e308,
    0.1,
    -0.5,
]
ODD = [
    float("nan"),
    float("inf"),
    float("-inf"),
    True,
    False,
    None,
    "",
    "\0",
    "\ud800",
    "é",
    "\x1b[31m",
    "x" * 3000,
]


class Fuzz:
    """Streams out of a seed: recorded lines, whole or with other values in some places; bytes; rows of keys and words
    that the decoders know. In plain Python: drawn from Hypothesis value by value, a row costs a hundred times what its
    decoding does."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def stream(self) -> bytes:
        return b"\n".join(self.line() for _ in range(self.random.randrange(13)))

    def line(self) -> bytes:
        kind = self.random.randrange(6)
        if kind == 0:
            return self.random.randbytes(self.random.randrange(60))
        if kind < 4:
            recorded = self.random.choice(self.random.choice(RECORDINGS))
            return recorded if kind == 1 else json.dumps(self.changed(json.loads(recorded))).encode()
        row = self.row(3)
        if kind == 4:
            row["type"] = self.random.choice(WORDS)
        return json.dumps(row).encode()

    def changed(self, value: Any) -> Any:
        """Like `value`, but for a place or two anywhere within."""
        if self.random.randrange(12) == 0:
            return self.value(2)
        if isinstance(value, int | float) and self.random.randrange(4) == 0:
            return self.random.choice(NUMBERS)
        if isinstance(value, dict):
            return {key: self.changed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.changed(inner) for inner in value]
        return value

    def row(self, depth: int) -> dict[str, Any]:
        return {self.random.choice(KEYS): self.value(depth - 1) for _ in range(self.random.randrange(9))}

    def value(self, depth: int) -> Any:
        kind = self.random.randrange(8 if depth > 0 else 4)
        if kind == 0:
            return self.random.choice(NUMBERS)
        if kind == 1:
            return self.random.choice(ODD)
        if kind < 4:
            return self.random.choice(WORDS)
        if kind < 6:
            return [self.value(depth - 1) for _ in range(self.random.randrange(4))]
        return self.row(depth)

    def cuts(self, size: int) -> list[int]:
        return [self.random.randrange(size + 1) for _ in range(self.random.randrange(9))]


seeds = st.integers(0, 2**64 - 1)  # Hypothesis keeps the one that failed


def decoded(kind: AgentKind, data: bytes, cuts: list[int]) -> tuple[list[Event], tuple[Any, ...]]:
    decoder = adapter_for(kind).decoder()
    bounds = [0, *sorted(c for c in cuts if c < len(data)), len(data)]
    events = [e for a, b in pairwise(bounds) for e in decoder.feed(data[a:b])]
    events += decoder.finish()
    return events, facts(decoder)


def facts(decoder: Decoder) -> tuple[Any, ...]:
    return decoder.usage, decoder.session_id, decoder.final_at, decoder.succeeded, decoder.lines


@pytest.mark.parametrize("kind", AgentKind)
@settings(max_examples=400, deadline=None)
@given(seed=seeds)
def test_pieces_make_no_difference(kind: AgentKind, seed: int) -> None:
    fuzz = Fuzz(seed)
    data = fuzz.stream()
    assert decoded(kind, data, fuzz.cuts(len(data))) == decoded(kind, data, [])


@pytest.mark.parametrize("kind", AgentKind)
@settings(max_examples=400, deadline=None)
@given(seed=seeds, code=st.none() | st.integers(-64, 255))
def test_anything_can_be_concluded(kind: AgentKind, seed: int, code: int | None) -> None:
    adapter = adapter_for(kind)
    decoder = adapter.decoder()
    decoder.feed(Fuzz(seed).stream())
    decoder.finish()
    conclusion = adapter.conclude(decoder, Ending(code))
    assert conclusion.detail
    for text in (conclusion.detail, conclusion.final_text or "", conclusion.session_id or ""):
        assert "\0" not in text
        text.encode("utf-8")  # fit for a text column
    assert conclusion.usage.cost_usd is None or 0 <= conclusion.usage.cost_usd < 1e15


@pytest.mark.parametrize("kind", AgentKind)
def test_one_byte_at_a_time(kind: AgentKind) -> None:
    data = RECORDED[:20_000]
    assert decoded(kind, data, list(range(len(data)))) == decoded(kind, data, [])


def test_offsets_are_those_of_the_file() -> None:
    decoder = adapter_for(AgentKind.CLAUDE_CODE).decoder()
    data = (TRANSCRIPTS / "claude_ok.jsonl").read_bytes()
    ends = [e.end for e in decoder.feed(data)]
    assert ends == [i + 1 for i, byte in enumerate(data) if byte == 0x0A]
    assert decoder.final_at == ends[-1]


def test_a_line_without_end_is_dropped_and_not_kept_in_memory() -> None:
    splitter = LineSplitter(max_line=100)
    for _ in range(1000):
        assert splitter.feed(b"x" * 50) == []
    assert sum(map(len, splitter._parts)) <= 100
    [cut, short] = splitter.feed(b"\nshort\n")
    assert (cut.data, cut.end) == (None, 50_001)
    assert (short.data, short.end) == (b"short", 50_007)


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b"9" * 10_000, b"\xff\xfe", b"[1]", b'"text"', b"null", b"", None]
)
def test_what_is_no_object(data: bytes | None) -> None:
    assert parse_object(data) is None


def test_an_unknown_event_changes_nothing() -> None:
    decoder = adapter_for(AgentKind.CLAUDE_CODE).decoder()
    decoder.feed((TRANSCRIPTS / "claude_ok.jsonl").read_bytes())
    before = decoder.usage, decoder.succeeded
    [event] = decoder.feed(b'{"type": "something_new", "usage": {"input_tokens": 5}}\n')
    assert event.kind is EventKind.OTHER
    assert (decoder.usage, decoder.succeeded) == before
