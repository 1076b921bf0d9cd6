"""Log lines on stderr: one line an event, as svlogd and journald want it.

    2026-01-31T12:00:00Z WARNING runner claude_code 0[123] tireless.runner: claim lost job=…

The time is written only where nothing behind stderr adds it: on a terminal, or when asked for. A line break in
a message, and a traceback, becomes ` | `, except on a terminal. Secrets of the configuration are masked, and
whatever else looks like one.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from tireless.config import Config
from tireless.redact import Redactor


class LineFormatter(logging.Formatter):
    converter = staticmethod(time.gmtime)

    def __init__(self, timestamps: bool, fold: bool) -> None:
        stamp = "%(asctime)s " if timestamps else ""
        super().__init__(
            f"{stamp}%(levelname)s %(who)s[%(process)d] %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ"
        )
        self.who = "supervisor"
        self.redact = Redactor()
        self._fold = fold

    def format(self, record: logging.LogRecord) -> str:
        record.who = self.who
        record.process = os.getpid()
        text = self.redact(super().format(record))
        return " | ".join(text.splitlines()) if self._fold else text


class Logs:
    """The process's log set-up. A forked child has a copy, which `speaker` renames."""

    def __init__(self, timestamps: bool | None = None) -> None:
        """`timestamps`: None writes them on a terminal only."""
        self._secrets: set[str] = set()
        tty = sys.stderr.isatty()
        self._formatter = LineFormatter(tty if timestamps is None else timestamps, fold=not tty)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(self._formatter)
        logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)

    def speaker(self, name: str) -> None:
        self._formatter.who = name

    def apply(self, config: Config) -> Config:
        """Level and secrets as the configuration says; returns it."""
        logging.getLogger().setLevel(config.log_level.upper())
        # Those of before stay masked: what is about to be replaced is still in use for a moment.
        self._secrets |= set(config.secrets())
        self._formatter.redact = Redactor(self._secrets)
        return config
