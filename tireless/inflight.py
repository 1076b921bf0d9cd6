"""How many polls a forge host may have under way, so that one that hangs stands in nobody's way. Pure.

    it answers, within `SLOW_SECONDS`   as many as `per_host`
    nothing is known of it yet          two
    it did not answer, or slowly        one; and all such hosts together no more than half of the threads

The last poll counts. An answer is any that shows the host to be there: a limit or a missing permission too.
Safe for threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

Host = tuple[str, str]  # forge, host in lower case

SLOW_SECONDS = 3.0
_UNKNOWN = 2


class InFlight:
    def __init__(self, threads: int, per_host: int) -> None:
        self._lock = threading.Lock()
        self._threads = threads
        self._per_host = max(1, min(per_host, threads))
        self._count: dict[Host, int] = {}
        self._bound: dict[Host, int] = {}

    @property
    def per_unknown_host(self) -> int:
        return min(_UNKNOWN, self._per_host)

    @property
    def free(self) -> int:
        with self._lock:
            return max(0, self._threads - sum(self._count.values()))

    def places(self) -> Mapping[Host, int]:
        """How many more polls each known host may have; of the others see `per_unknown_host`."""
        with self._lock:
            doubtful = [host for host, bound in self._bound.items() if bound == 1 < self._per_host]
            room = max(1, self._threads // 2) - sum(self._count.get(host, 0) for host in doubtful)
            found = {}
            for host in {**self._bound, **self._count}:
                bound = self._bound.get(host, self.per_unknown_host)
                found[host] = max(0, bound - self._count.get(host, 0))
            for host in doubtful:
                found[host] = min(found[host], max(room, 0))
                room -= found[host]
            return found

    def begin(self, host: Host) -> None:
        with self._lock:
            self._count[host] = self._count.get(host, 0) + 1
            if host in self._bound:  # the doubtful take turns
                self._bound[host] = self._bound.pop(host)

    def ended(self, host: Host, seconds: float, *, answered: bool) -> None:
        """One of its polls is over, whatever came of it."""
        with self._lock:
            self._bound[host] = self._per_host if answered and seconds <= SLOW_SECONDS else 1

    def done(self, host: Host) -> None:
        """One of its polls has left its thread."""
        with self._lock:
            left = self._count.get(host, 0) - 1
            if left > 0:
                self._count[host] = left
            else:
                self._count.pop(host, None)
