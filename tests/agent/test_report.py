"""The agent's answer is read with suspicion: bad content is a clear error, bad files are not followed."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tireless.agents import report
from tireless.agents.report import ReportError, Severity, Status


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def child(key: str, *needs: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "title": f"Title {key}", "body": "Body", "depends_on": list(needs), **more}


def test_outcome() -> None:
    done = report.parse_outcome(encoded({"status": "done", "summary": " All well. ", "more": 1}))
    assert (done.status, done.summary, done.question) == (Status.DONE, "All well.", "")
    blocked = report.parse_outcome(encoded({"status": "blocked", "question": "Which one?"}))
    assert (blocked.status, blocked.question) == (Status.BLOCKED, "Which one?")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "outcome.json is not JSON"),
        (b"{", "outcome.json is not JSON"),
        (b"\xff\xfe\x00", "outcome.json is not JSON"),
        (b"[" * 100_000, "outcome.json is not JSON"),
        (b"[]", "its content is []; it is an object"),
        (b"{}", "status is None; it is one of 'done', 'blocked'"),
        (encoded({"status": "finished"}), "status is 'finished'; it is one of 'done', 'blocked'"),
        (encoded({"status": ["done"]}), "status is ['done']; it is one of"),
        (encoded({"status": "done"}), "summary is missing or empty"),
        (encoded({"status": "done", "summary": 5}), "summary is 5; it is a text"),
        (encoded({"status": "blocked"}), "question is missing or empty"),
        (encoded({"status": "blocked", "question": " \n"}), "question is missing or empty"),
    ],
)
def test_bad_outcome(data: bytes, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        report.parse_outcome(data)
    assert message in str(caught.value)
    assert str(caught.value).startswith("outcome.json")


def test_plan_in_the_order_of_its_dependencies() -> None:
    plan = {"summary": "S", "children": [child("c", "b", "a"), child("b", "a", "a"), child("a")]}
    parsed = report.parse_plan(encoded(plan), 5)
    assert [c.key for c in parsed.children] == ["a", "b", "c"]
    assert parsed.children[1].depends_on == ("a",)
    assert parsed.summary == "S"


@pytest.mark.parametrize(
    ("children", "message"),
    [
        ("x", "children is 'x'; it is a list"),
        ([], "children is empty"),
        ([child(str(i)) for i in range(4)], "children has 4 entries; 3 at most"),
        (["x"], "children[0] is 'x'; it is an object"),
        ([child("a"), child("a")], "the key 'a' is used twice"),
        ([child("a", "z")], "'a' depends on 'z', which is no child's key"),
        ([child("a", "a")], "runs in a circle among 'a'"),
        ([child("a", "b"), child("b", "a"), child("c")], "runs in a circle among 'a', 'b'"),
        ([child("a", labels=["admin"])], "unknown key children[0].labels"),
        ([child("")], "children[0].key is missing or empty"),
        ([child("k" * 61)], "60 characters at most"),
        ([{**child("a"), "depends_on": "b"}], "children[0].depends_on is 'b'; it is a list of keys"),
        ([{**child("a"), "title": ""}], "children[0].title is missing or empty"),
        ([{**child("a"), "title": None}], "children[0].title is None; it is a text"),
        ([{**child("a"), "body": ""}], "children[0].body is missing or empty"),
    ],
)
def test_bad_plan(children: Any, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        report.parse_plan(encoded({"children": children}), 3)
    assert message in str(caught.value)


def test_unknown_key_of_a_plan() -> None:
    with pytest.raises(ReportError, match=r"unknown key steps; known here: summary, children"):
        report.parse_plan(encoded({"steps": []}), 3)


def test_texts_that_are_long_are_cut_and_made_fit() -> None:
    title = "a\nb\0 " + "x" * 500
    parsed = report.parse_plan(encoded({"children": [{**child("a"), "title": title, "body": "y" * 99_000}]}), 3)
    assert parsed.children[0].title.startswith("a b x")
    assert len(parsed.children[0].title) == report.MAX_TITLE
    assert len(parsed.children[0].body) == report.MAX_TEXT


def test_findings() -> None:
    rows = [{"title": "T", "body": "B", "severity": "high", "path": "a.py"}, {"title": "T2", "body": "B2"}]
    first, second = report.parse_findings(encoded({"findings": rows})).findings
    assert (first.severity, first.path) == (Severity.HIGH, "a.py")
    assert (second.severity, second.path) == (Severity.MEDIUM, "")
    assert report.parse_findings(encoded({"findings": []})).findings == ()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"title": "T", "body": "B", "severity": "worst"},
            "findings[0].severity is 'worst'; it is one of 'low'",
        ),
        ({"title": "T"}, "findings[0].body is missing or empty"),
        ({"title": "T", "body": "B", "line": 5}, "unknown key findings[0].line"),
    ],
)
def test_bad_findings(row: Any, message: str) -> None:
    with pytest.raises(ReportError) as caught:
        report.parse_findings(encoded({"findings": [row]}))
    assert message in str(caught.value)


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=10),
        lambda v: (
            st.lists(v, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["status", "summary", "children", "findings", "key", "title", "body", "depends_on"]
                ),
                v,
            )
        ),
    ).map(encoded)
)
def test_anything_is_a_report_or_a_report_error(data: bytes) -> None:
    for parse in (report.parse_outcome, report.parse_findings, lambda d: report.parse_plan(d, 3)):
        with contextlib.suppress(ReportError):
            parse(data)


def test_no_file_is_no_report(tmp_path: Path) -> None:
    assert report.read_outcome(tmp_path) is None
    assert report.read_plan(tmp_path, 3) is None
    assert report.read_findings(tmp_path / "not-there") is None


def test_a_written_report_is_read(tmp_path: Path) -> None:
    (tmp_path / "outcome.json").write_bytes(encoded({"status": "done", "summary": "S"}))
    outcome = report.read_outcome(tmp_path)
    assert outcome is not None
    assert outcome.summary == "S"


def test_files_that_are_not_what_they_seem(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(encoded({"status": "done", "summary": "secret"}))
    place = tmp_path / "report"
    place.mkdir()
    target = place / "outcome.json"

    target.symlink_to(secret)
    with pytest.raises(ReportError, match=r"outcome\.json cannot be opened.*regular file"):
        report.read_outcome(place)
    target.unlink()
    os.link(secret, target)
    with pytest.raises(ReportError, match="not a regular file with one name"):
        report.read_outcome(place)
    target.unlink()
    os.mkfifo(target)
    with pytest.raises(ReportError, match="not a regular file"):  # and it does not wait for a writer
        report.read_outcome(place)
    target.unlink()
    target.mkdir()
    with pytest.raises(ReportError, match="not a regular file"):
        report.read_outcome(place)


def test_a_directory_that_was_replaced_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "outcome.json").write_bytes(encoded({"status": "done", "summary": "S"}))
    (tmp_path / "report").symlink_to("elsewhere")
    with pytest.raises(ReportError, match="report directory cannot be opened"):
        report.read_outcome(tmp_path / "report")


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with open(tmp_path / "outcome.json", "wb") as f:
        f.truncate(50_000_000_000)  # a sparse file: it is not read to its end
    with pytest.raises(ReportError, match=r"outcome\.json is larger than 524288 bytes"):
        report.read_outcome(tmp_path)


def test_an_earlier_answer_is_cleared(tmp_path: Path) -> None:
    for name in (report.OUTCOME, report.PLAN, report.FINDINGS):
        (tmp_path / name).write_text("x")
    report.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    report.clear(tmp_path)
