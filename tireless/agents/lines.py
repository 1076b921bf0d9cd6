"""Bytes in any pieces -> lines -> JSON objects. Pure, total, bounded in memory.

A line ends at a newline and nowhere else, so the pieces in which the bytes come make no difference. A line
longer than `max_line` is dropped and counted; what was kept of it is thrown away at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

MAX_LINE = 16 * 1024 * 1024  # a tool's result with an image in it is some megabytes


@dataclass(frozen=True, slots=True)
class Line:
    """`end` is the offset after the line. `data` is None where the line was too long to keep."""

    data: bytes | None
    end: int


class LineSplitter:
    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max = max_line
        self._parts: list[bytes] = []
        self._held = 0
        self._cutting = False
        self._offset = 0

    def feed(self, data: bytes) -> list[Line]:
        lines: list[Line] = []
        pieces = data.split(b"\n")
        for piece in pieces[:-1]:
            self._hold(piece)
            self._offset += 1
            lines.append(self._take())
        self._hold(pieces[-1])
        return lines

    def finish(self) -> list[Line]:
        """The rest after the last newline, if there is any."""
        return [self._take()] if self._held or self._cutting else []

    def _hold(self, piece: bytes) -> None:
        self._offset += len(piece)
        if self._cutting or not piece:
            return
        self._held += len(piece)
        if self._held > self._max:
            self._cutting = True
            self._parts.clear()
            self._held = 0
        else:
            self._parts.append(piece)

    def _take(self) -> Line:
        data = None if self._cutting else b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        self._cutting = False
        return Line(data, self._offset)


def parse_object(data: bytes | None) -> dict[str, Any] | None:
    """The JSON object of a line, or None. RecursionError: a line of brackets only is no object either.

    What does not begin as an object is not parsed at all: an agent may print a million lines of anything.
    """
    if data is None or not data.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
