"""Faults to order: what the next matching requests get instead of, or on top of, the true answer."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Fault:
    """One order.

    times           how many requests it is for; None for all until cleared
    match           regular expression searched in "METHOD path?query"; None for any
    status, body    answered in place of the true answer; with `status` None the true answer is kept
    headers         set on the answer; a value of None takes the header away
    act             whether the request is really done although another answer is given
    delay           seconds before the answer (ends early when the forge closes)
    cut             bytes of the body to send before the connection is cut; the headers promise all of it
    slow            seconds between the body's bytes
    hang_up         close the connection without any answer
    """

    times: int | None = 1
    match: str | None = None
    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: bytes = b""
    act: bool = False
    delay: float = 0.0
    cut: int | None = None
    slow: float = 0.0
    hang_up: bool = False


class Faults:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: list[Fault] = []

    def order(self, fault: Fault) -> None:
        with self._lock:
            self._orders.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._orders.clear()

    def take(self, request: str) -> Fault | None:
        """The first order that fits this request, counted down."""
        with self._lock:
            for fault in self._orders:
                if fault.match is not None and not re.search(fault.match, request):
                    continue
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times <= 0:
                        self._orders.remove(fault)
                return fault
        return None
