"""systemd's notification protocol (sd_notify(3)), spoken over the socket in $NOTIFY_SOCKET.

Nothing is sent when that variable is unset, as under runit. A message is one datagram of `KEY=value` lines. A
socket is opened for each: messages are rare, and no descriptor stays open for a fork to inherit.

    READY=1                              poller and lanes are ready; again when a reload is complete
    RELOADING=1, MONOTONIC_USEC=…        the configuration is being read again (both in one message)
    STOPPING=1                           before anything is told to leave
    STATUS=…                             one line for `systemctl status`, sent when it changes
    WATCHDOG=1                           only from a turn of the main loop, three times in WATCHDOG_USEC
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping

log = logging.getLogger(__name__)

_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class Notifier:
    def __init__(self, address: str | None = None, watchdog_seconds: float | None = None) -> None:
        """`address` is a path, or a name in the abstract namespace with a leading `@`; None sends nothing.
        `watchdog_seconds`: how long systemd waits for a sign of life; None if it does not watch."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._every = watchdog_seconds / 3 if watchdog_seconds else None
        self._last_sign = float("-inf")
        self._last_status = ""
        self._warned = False

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Notifier:
        """What systemd asks for in `environ`, which loses these variables: they are for this process alone."""
        address, usec, pid = (environ.pop(name, "") for name in _VARIABLES)
        if address and address[0] not in "/@":
            log.warning("NOTIFY_SOCKET is neither a path nor an abstract name, nothing is sent: %r", address)
            address = ""
        watched = usec.isdigit() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address or None, int(usec) / 1e6 if watched else None)

    @property
    def watchdog_every(self) -> float | None:
        """The longest time in seconds between two turns that keeps the watchdog quiet; None if unwatched."""
        return self._every if self._address else None

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        if text != self._last_status:
            self._last_status = text
            self._send("STATUS=" + text.replace("\n", " "))

    def turned(self) -> None:
        """The main loop has turned. To be called from nowhere else: the watchdog is there to find it stuck."""
        now = time.monotonic()
        if self._every is not None and now - self._last_sign >= self._every:
            self._last_sign = now
            self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
                s.setblocking(False)  # a full queue must not stop the loop
                s.sendto("\n".join(lines).encode(), self._address)
        except OSError as e:
            if not self._warned:
                self._warned = True
                log.warning("systemd's notification socket does not take messages: %s", e)
