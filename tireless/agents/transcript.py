"""What is kept of a run: one file, masked and bounded, instead of the raw streams.

Called once the conclusion is on record. It may be called again: until the transcript is whole, the raw files
stay. Head and tail are kept, since the beginning shows the set-up and the end shows the outcome.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from tireless.agents import runfiles
from tireless.redact import Redactor

_LINE = 256 * 1024  # a longer line is cut
_OVERLAP = 8 * 1024  # of a cut line's end, in which half a secret could stand, nothing is kept
_STDERR = 64 * 1024


def seal_transcript(run_dir: Path, redactor: Redactor, max_bytes: int) -> Path:
    """Write transcript.jsonl and remove the raw files. OSError (a full disk) leaves them as they are."""
    target = run_dir / runfiles.TRANSCRIPT
    source = run_dir / runfiles.EVENTS
    if source.exists() or not target.exists():
        runfiles.write_file(target, _bounded(source, redactor, max_bytes) + _stderr(run_dir, redactor))
    for name in (runfiles.EVENTS, runfiles.STDERR, runfiles.PROMPT, runfiles.GUARD, runfiles.GUARD_LOG):
        with contextlib.suppress(FileNotFoundError):
            (run_dir / name).unlink()
    shutil.rmtree(run_dir / "etc", ignore_errors=True)
    return target


def _bounded(source: Path, redactor: Redactor, max_bytes: int) -> bytes:
    half = max_bytes // 2
    head: list[bytes] = []
    tail: deque[bytes] = deque()
    head_size = tail_size = cut_lines = cut_bytes = 0
    for line in _masked_lines(source, redactor):
        if not tail and head_size + len(line) <= half:
            head.append(line)
            head_size += len(line)
            continue
        tail.append(line)
        tail_size += len(line)
        while tail_size > half and tail:
            gone = len(tail.popleft())
            tail_size -= gone
            cut_bytes += gone
            cut_lines += 1
    note = [_note(cut_lines=cut_lines, cut_bytes=cut_bytes)] if cut_lines else []
    return b"".join([*head, *note, *tail])


def _masked_lines(source: Path, redactor: Redactor) -> Iterator[bytes]:
    try:
        f = open(source, "rb")  # noqa: SIM115  closed below; a run may have no stream
    except FileNotFoundError:
        return
    with f:
        while line := f.readline(_LINE + _OVERLAP):
            if line.endswith(b"\n") or len(line) < _LINE + _OVERLAP:
                yield redactor(line)
                continue
            skipped = 0
            while (rest := f.readline(1024 * 1024)) and not rest.endswith(b"\n"):
                skipped += len(rest)
            yield redactor(line)[:-_OVERLAP] + b"\n"
            yield _note(cut_from_the_line_above=skipped + len(rest) + _OVERLAP)


def _stderr(run_dir: Path, redactor: Redactor) -> bytes:
    try:
        with open(run_dir / runfiles.STDERR, "rb") as f:
            f.seek(0, 2)
            f.seek(max(0, f.tell() - _STDERR))
            text = f.read(_STDERR)
    except FileNotFoundError:
        return b""
    return _note(stderr=redactor(text.decode("utf-8", "replace"))) if text.strip() else b""


def _note(**row: object) -> bytes:
    return json.dumps({"type": "tireless", **row}).encode() + b"\n"
