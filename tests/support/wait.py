"""Waiting for something that another process does: a look at short intervals, with a deadline."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    look: Callable[[], T | None], timeout: float = 10.0, what: str = "condition", *, every: float = 0.02
) -> T:
    """The first truthy answer of `look`, asked every so many seconds. AssertionError, naming `what`, after `timeout`
    seconds."""
    deadline = time.monotonic() + timeout
    while True:
        answer = look()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {what}")
        select.select([], [], [], every)
