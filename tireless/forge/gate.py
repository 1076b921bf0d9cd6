"""The gate: who may ask which host now. A limit is kept by (host, token), so that other hosts and tokens go on.

The default lives in this process. A caller may pass one that is kept in rows, so that every process obeys it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Gate(Protocol):
    def check(self, host: str, token_fingerprint: str) -> float:
        """Seconds to wait before this host may be asked with this token; 0 for now."""

    def limit(self, host: str, token_fingerprint: str, seconds: float) -> None:
        """The host has limited this token for `seconds` from now on."""


class MemoryGate:
    """A gate for the threads of one process, on the monotonic clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[tuple[str, str], float] = {}

    def check(self, host: str, token_fingerprint: str) -> float:
        with self._lock:
            return max(0.0, self._until.get((host, token_fingerprint), 0.0) - self._clock())

    def limit(self, host: str, token_fingerprint: str, seconds: float) -> None:
        key = (host, token_fingerprint)
        with self._lock:
            self._until[key] = max(self._until.get(key, 0.0), self._clock() + seconds)
