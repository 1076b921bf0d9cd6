"""Decoding is pure and total: any bytes, in any pieces, give the same events, and never an exception."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tireless.agents import adapter_for
from tireless.agents.base import Decoder, Ending, Event, EventKind
from tireless.agents.lines import LineSplitter, parse_object
from tireless.entities import AgentKind

TRANSCRIPTS = Path(__file__).with_name("transcripts")
RECORDED = b"".join(p.read_bytes() for p in sorted(TRANSCRIPTS.glob("*.jsonl")))

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
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
likely = st.sampled_from(WORDS) | values
rows = st.recursive(
    st.dictionaries(st.sampled_from(KEYS), likely, max_size=8),
    lambda inner: st.dictionaries(
        st.sampled_from(KEYS), inner | likely | st.lists(inner, max_size=3), max_size=8
    ),
    max_leaves=10,
).map(lambda row: json.dumps(row).encode())
typed = st.tuples(st.sampled_from(WORDS), rows).map(
    lambda pair: json.dumps({**json.loads(pair[1]), "type": pair[0]}).encode()
)
lines = st.binary(max_size=60) | rows | typed | st.sampled_from(RECORDED.splitlines())
streams = st.lists(lines, max_size=12).map(b"\n".join)


def decoded(kind: AgentKind, data: bytes, cuts: list[int]) -> tuple[list[Event], tuple[Any, ...]]:
    decoder = adapter_for(kind).decoder()
    bounds = [0, *sorted(c for c in cuts if c < len(data)), len(data)]
    events = [e for a, b in pairwise(bounds) for e in decoder.feed(data[a:b])]
    events += decoder.finish()
    return events, facts(decoder)


def facts(decoder: Decoder) -> tuple[Any, ...]:
    return decoder.usage, decoder.session_id, decoder.final_at, decoder.succeeded, decoder.lines


@pytest.mark.parametrize("kind", AgentKind)
@settings(max_examples=150, deadline=None)
@given(data=streams, cuts=st.lists(st.integers(0, 3000), max_size=8))
def test_pieces_make_no_difference(kind: AgentKind, data: bytes, cuts: list[int]) -> None:
    assert decoded(kind, data, cuts) == decoded(kind, data, [])


@pytest.mark.parametrize("kind", AgentKind)
@settings(max_examples=150, deadline=None)
@given(data=streams, code=st.none() | st.integers(-64, 255))
def test_anything_can_be_concluded(kind: AgentKind, data: bytes, code: int | None) -> None:
    adapter = adapter_for(kind)
    decoder = adapter.decoder()
    decoder.feed(data)
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
