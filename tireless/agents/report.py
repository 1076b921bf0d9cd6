"""The agent's answer: files in its report directory, read with suspicion and checked.

    outcome.json    {"status": "done", "summary": TEXT} or {"status": "blocked", "question": TEXT}
    plan.json       {"summary": TEXT, "children": [{"key", "title", "body", "depends_on": [key, ...]}, ...]}
    findings.json   {"summary": TEXT, "findings": [{"title", "body", "severity", "path"}, ...]}

A bad file is a ReportError that names the file, the key, the value and the rule. Texts that are merely long are
cut, since an agent's hour is worth more than a title's last words. In outcome.json further keys are left
aside; in the other two they are refused, as each one would be part of an issue that somebody reads.

The directory was the agent's to write: what is read is a regular file with one name, by a descriptor that
follows no link, of bounded size. Parsing is pure.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from tireless.agents.base import clean_text
from tireless.entities import TirelessError

OUTCOME = "outcome.json"
PLAN = "plan.json"
FINDINGS = "findings.json"

MAX_FILE = 512 * 1024
MAX_TITLE = 200
MAX_TEXT = 60_000
MAX_KEY = 60
MAX_FINDINGS = 50

E = TypeVar("E", bound=StrEnum)


class ReportError(TirelessError):
    """The agent's report cannot be used; the text names file, key, value and rule."""


class Status(StrEnum):
    DONE = "done"
    BLOCKED = "blocked"


class Severity(StrEnum):
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class OutcomeReport:
    status: Status
    summary: str = ""
    question: str = ""  # set when blocked


@dataclass(frozen=True, slots=True)
class Child:
    key: str
    title: str
    body: str
    depends_on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PlanReport:
    """`children` are in an order in which each comes after those it depends on."""

    children: tuple[Child, ...]
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    title: str
    body: str
    severity: Severity = Severity.MEDIUM
    path: str = ""


@dataclass(frozen=True, slots=True)
class FindingsReport:
    findings: tuple[Finding, ...] = field(default_factory=tuple)
    summary: str = ""


def read_outcome(report_dir: Path) -> OutcomeReport | None:
    """None if the agent wrote none; ReportError if it wrote a bad one. So for the other two."""
    data = read_file(report_dir, OUTCOME)
    return None if data is None else parse_outcome(data)


def read_plan(report_dir: Path, max_children: int) -> PlanReport | None:
    data = read_file(report_dir, PLAN)
    return None if data is None else parse_plan(data, max_children)


def read_findings(report_dir: Path) -> FindingsReport | None:
    data = read_file(report_dir, FINDINGS)
    return None if data is None else parse_findings(data)


def clear(report_dir: Path) -> None:
    """Before a new run: an earlier run's answer must not be taken for this one's."""
    folder = _open_folder(report_dir)
    if folder is None:
        return
    try:
        for name in (OUTCOME, PLAN, FINDINGS):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
    except OSError as e:  # a directory of that name
        raise ReportError(f"{name} of an earlier run cannot be removed: {e.strerror}") from e
    finally:
        os.close(folder)


def read_file(report_dir: Path, name: str) -> bytes | None:
    """The file's content; None if there is none. ReportError if it is no plain file of bounded size."""
    folder = _open_folder(report_dir)
    if folder is None:
        return None
    try:
        # O_NONBLOCK: opening a named pipe must not wait for its writer.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ReportError(f"{name} cannot be opened: {e.strerror}; it is to be a regular file") from e
    finally:
        os.close(folder)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            raise ReportError(f"{name} is not a regular file with one name")
        if info.st_size > MAX_FILE:
            raise ReportError(f"{name} is larger than {MAX_FILE} bytes")
        return os.read(fd, MAX_FILE)
    finally:
        os.close(fd)


def _open_folder(report_dir: Path) -> int | None:
    try:
        return os.open(report_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise ReportError(f"the report directory cannot be opened: {e.strerror}") from e


def parse_outcome(data: bytes) -> OutcomeReport:
    row = _object(data, OUTCOME)
    status = _member(Status, row.get("status"), OUTCOME, "status")
    summary = _text(row, "summary", OUTCOME, required=status is Status.DONE)
    question = _text(row, "question", OUTCOME, required=status is Status.BLOCKED)
    return OutcomeReport(status, summary, question)


def parse_plan(data: bytes, max_children: int) -> PlanReport:
    row = _object(data, PLAN)
    _only(row, ("summary", "children"), PLAN, "")
    rows = _rows(row, "children", PLAN, max_children)
    if not rows:
        raise ReportError(f"{PLAN}: children is empty; a plan has at least one")
    children = [_child(item, f"children[{i}].") for i, item in enumerate(rows)]
    return PlanReport(_in_order(children), _text(row, "summary", PLAN, required=False))


def parse_findings(data: bytes) -> FindingsReport:
    row = _object(data, FINDINGS)
    _only(row, ("summary", "findings"), FINDINGS, "")
    rows = _rows(row, "findings", FINDINGS, MAX_FINDINGS)
    findings = tuple(_finding(item, f"findings[{i}].") for i, item in enumerate(rows))
    return FindingsReport(findings, _text(row, "summary", FINDINGS, required=False))


def _child(item: Any, at: str) -> Child:
    row = _mapping(item, PLAN, at)
    _only(row, ("key", "title", "body", "depends_on"), PLAN, at)
    key = _text(row, "key", PLAN, at=at)
    if len(key) > MAX_KEY:
        raise ReportError(f"{PLAN}: {at}key is {_shown(key)}; it has {MAX_KEY} characters at most")
    needed = row.get("depends_on", [])
    if not isinstance(needed, list) or not all(isinstance(k, str) for k in needed):
        raise ReportError(f"{PLAN}: {at}depends_on is {_shown(needed)}; it is a list of keys")
    body = _text(row, "body", PLAN, at=at)
    return Child(key, _title(row, PLAN, at), body, tuple(dict.fromkeys(k.strip() for k in needed)))


def _finding(item: Any, at: str) -> Finding:
    row = _mapping(item, FINDINGS, at)
    _only(row, ("title", "body", "severity", "path"), FINDINGS, at)
    severity = _member(Severity, row.get("severity", Severity.MEDIUM), FINDINGS, f"{at}severity")
    path = _text(row, "path", FINDINGS, at=at, required=False)
    return Finding(_title(row, FINDINGS, at), _text(row, "body", FINDINGS, at=at), severity, _one_line(path))


def _in_order(children: list[Child]) -> tuple[Child, ...]:
    """Each after those it depends on, else as written. ReportError on an unknown or repeated key, or a cycle."""
    by_key: dict[str, Child] = {}
    for child in children:
        if child.key in by_key:
            raise ReportError(f"{PLAN}: the key {_shown(child.key)} is used twice")
        by_key[child.key] = child
    for child in children:
        for key in child.depends_on:
            if key not in by_key:
                raise ReportError(
                    f"{PLAN}: {_shown(child.key)} depends on {_shown(key)}, which is no child's key"
                )
    ordered: list[Child] = []
    waiting = list(children)
    while waiting:
        placed = {child.key for child in ordered}
        ready = next((child for child in waiting if placed.issuperset(child.depends_on)), None)
        if ready is None:
            names = ", ".join(_shown(child.key) for child in waiting[:5])
            raise ReportError(f"{PLAN}: depends_on runs in a circle among {names}")
        ordered.append(ready)
        waiting.remove(ready)
    return tuple(ordered)


def _object(data: bytes, name: str) -> Mapping[str, Any]:
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as e:
        raise ReportError(f"{name} is not JSON: {clean_text(str(e), 200)}") from None
    return _mapping(value, name, "")


def _mapping(value: Any, name: str, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ReportError(f"{name}: {at.rstrip('.') or 'its content'} is {_shown(value)}; it is an object")
    return value


def _only(row: Mapping[str, Any], known: tuple[str, ...], name: str, at: str) -> None:
    for key in row:
        if key not in known:
            raise ReportError(f"{name}: unknown key {at}{clean_text(key, 80)}; known here: {', '.join(known)}")


def _rows(row: Mapping[str, Any], key: str, name: str, most: int) -> list[Any]:
    value = row.get(key)
    if not isinstance(value, list):
        raise ReportError(f"{name}: {key} is {_shown(value)}; it is a list")
    if len(value) > most:
        raise ReportError(f"{name}: {key} has {len(value)} entries; {most} at most")
    return value


def _text(row: Mapping[str, Any], key: str, name: str, at: str = "", required: bool = True) -> str:
    value = row.get(key, "")
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        raise ReportError(f"{name}: {at}{key} is {_shown(value)}; it is a text")
    text = clean_text(value, MAX_TEXT).strip()
    if required and not text:
        raise ReportError(f"{name}: {at}{key} is missing or empty")
    return text


def _title(row: Mapping[str, Any], name: str, at: str) -> str:
    return clean_text(_one_line(_text(row, "title", name, at=at)), MAX_TITLE)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _member(enum: type[E], value: Any, name: str, key: str) -> E:
    try:
        return enum(value)
    except ValueError:
        members = ", ".join(repr(str(m)) for m in enum)
        raise ReportError(f"{name}: {key} is {_shown(value)}; it is one of {members}") from None


def _shown(value: Any) -> str:
    return clean_text(repr(value), 100)
