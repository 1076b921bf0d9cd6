"""One JSON document, or text for people: aligned columns, colour on a terminal only.

Titles, error texts and agents' words come from strangers: what would move a terminal's cursor, recolour it or turn
its text around is replaced before it is printed. In JSON it is escaped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

_COLOURS = {
    "bad": "31",  # red
    "good": "32",
    "busy": "33",
    "dim": "2",
}
_UNSEEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}  # control, format (bidirectional too), private, line breaks
_GAP = "  "
_WORKER_ID = re.compile(r"(\S)/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/\d+/(\d+)/\d+\b")
_LEAST_FOLD = 20  # a narrower column is cut instead


@dataclass(frozen=True, slots=True)
class Cell:
    """A word of a table, with what it says about itself: bad, good, busy, dim."""

    text: str
    tone: str | None = None


class Output:
    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        terminal = not as_json and sys.stdout.isatty()
        self._colour = terminal and not os.environ.get("NO_COLOR")
        # In characters; $COLUMNS goes before what the terminal tells. What is piped is not cut.
        self._width = shutil.get_terminal_size().columns if terminal else None

    def give(self, document: Any, text: str) -> None:
        """The answer of a command: `document` for programs, `text` for people."""
        if self.as_json:
            print(json.dumps(document, indent=2, ensure_ascii=not _utf8()))
        elif text:
            print(text)

    def fit(self, text: str) -> str:
        """As much of a line as the terminal shows on one."""
        return text if self._width is None else _cut(text, self._width)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Cell | str]], fold: bool = False) -> str:
        """Aligned columns. Those on the right are cut where the terminal ends, with `fold` the last one goes on
        below itself instead."""
        texts = [[clean(_cell(cell).text) or "-" for cell in row] for row in rows]
        widths = [max(_columns(t) for t in column) for column in zip(head, *texts, strict=True)]
        widths = _fitted(widths, self._width)
        lines = [self._head(head, widths), *(line for row in rows for line in self._row(row, widths, fold))]
        return "\n".join(lines)

    def rows_as_they_come(
        self, head: Sequence[str], widths: Sequence[int]
    ) -> Callable[[Sequence[Cell | str]], None]:
        """Print a table's head, and each row when it is given, at once, its last column going on below itself. The
        widths of the columns before that one are known beforehand. In JSON nothing is printed."""
        fitted = _fitted([*widths, self._width or sys.maxsize], self._width)

        def show(row: Sequence[Cell | str]) -> None:
            if not self.as_json:
                print("\n".join(self._row(row, fitted, fold=self._width is not None)), flush=True)

        if not self.as_json:
            print(self._head(head, fitted), flush=True)
        return show

    def _head(self, head: Sequence[str], widths: Sequence[int]) -> str:
        return _line(list(head), widths, [self.paint("dim")] * len(head))

    def _row(self, row: Sequence[Cell | str], widths: Sequence[int], fold: bool) -> list[str]:
        cells = [_cell(cell) for cell in row]
        shown = [clean(cell.text) or "-" for cell in cells]
        first, *more = _folded(shown[-1], widths[-1]) if fold else [shown[-1]]
        lines = [_line([*shown[:-1], first], widths, [self.paint(cell.tone) for cell in cells])]
        return lines + [_line([*[""] * (len(shown) - 1), part], widths, [""] * len(shown)) for part in more]

    def facts(self, pairs: Sequence[tuple[str, Any]]) -> str:
        """Names and values, one a line; what is None is left out."""
        shown = [(name, value) for name, value in pairs if value is not None]
        width = max((len(name) for name, _ in shown), default=0)
        return "\n".join(f"{name:<{width}}{_GAP}{clean(str(value))}" for name, value in shown)

    def paint(self, tone: str | None) -> str:
        """The escape code of a tone, or nothing."""
        return _COLOURS[tone] if self._colour and tone else ""


def _cell(cell: Cell | str) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _line(texts: Sequence[str], widths: Sequence[int], codes: Sequence[str]) -> str:
    parts = []
    for i, (whole, width, code) in enumerate(zip(texts, widths, codes, strict=True)):
        if width == 0:
            break
        text = _cut(whole, width)
        padding = " " * (width - _columns(text)) if i + 1 < len(texts) else ""
        parts.append((f"\x1b[{code}m{text}\x1b[0m" if code else text) + padding)
    return _GAP.join(parts)


def _fitted(widths: Sequence[int], limit: int | None) -> list[int]:
    """The widths of columns that fit beside each other: those on the left get theirs first; 0: not shown."""
    if limit is None:
        return list(widths)
    left, fitted = limit, []
    for width in widths:
        fitted.append(max(min(width, left), 0))
        left -= width + len(_GAP)
    return fitted


def _folded(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) if width >= _LEAST_FOLD else [text]


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return len(text) if text.isascii() else sum(map(_column, text))


def _column(c: str) -> int:
    return 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


def _cut(text: str, width: int) -> str:
    if _columns(text) <= width:
        return text
    shown, left = "", width - 1
    for c in text:
        left -= _column(c)
        if left < 0:
            break
        shown += c
    return shown + "…"


def _utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def clean(text: str, limit: int | None = None) -> str:
    """On one line, and without anything that acts on a terminal."""
    shown = "".join(
        " " if c in "\n\t\r" else "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNSEEN else c
        for c in text
    )
    if limit is not None and len(shown) > limit:
        return shown[: limit - 1] + "…"
    return shown


def short_ids(text: str) -> str:
    """Names of workers (process.WorkerId) as people read them: HOST/PID."""
    return _WORKER_ID.sub(r"\1/\2", text)


def plural(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def seconds(value: float) -> str:
    """A length of time in its largest fitting units: 45s, 12m, 3h 5m, 2d 4h."""
    whole = int(max(value, 0))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60}m" if whole % 3600 >= 60 else f"{whole // 3600}h"
    return f"{whole // 86400}d {whole % 86400 // 3600}h" if whole % 86400 >= 3600 else f"{whole // 86400}d"


def age(moment: datetime | None, now: datetime) -> str:
    """How long ago, or how far ahead, by the database's clock."""
    if moment is None:
        return "never"
    delta = now - moment
    return (
        f"{seconds(delta.total_seconds())} ago"
        if delta >= timedelta(0)
        else f"in {seconds(-delta.total_seconds())}"
    )


def when(moment: datetime | None) -> str | None:
    """In this terminal's zone, to the second."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment is not None else None


def detail_text(detail: Mapping[str, Any]) -> str:
    """The detail of an event on one line."""
    return " ".join(f"{key}={_word(value)}" for key, value in detail.items() if value is not None)


def _word(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False) if " " in text and isinstance(value, str) else text
