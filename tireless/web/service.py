"""A server in a thread of its own: listens where it is told to, again later where it cannot, until it is stopped."""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Callable

from tireless.web import server

log = logging.getLogger(__name__)

RETRY_SECONDS = 10.0


class Service:
    """It is not worth a poller: an address that is in use is a warning and is tried again, not an error."""

    def __init__(
        self,
        name: str,
        address: tuple[str, int] | None,
        make: Callable[[tuple[str, int]], server.Server],
        *,
        beyond_loopback: str,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`address` None: never listens. `beyond_loopback`: what the log says where it listens elsewhere."""
        self._name = name
        self._address = address
        self._make = make
        self._beyond_loopback = beyond_loopback
        self._retry_seconds = retry_seconds
        self._server: server.Server | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def port(self) -> int | None:
        """The port that it listens on; None while it does not."""
        found = self._server
        return int(found.server_address[1]) if found is not None else None

    def start(self) -> None:
        """Listen, if the configuration says so, and return. Call it after the last fork."""
        if self._address is None or self._thread is not None or self._stop.is_set():
            return
        if not _is_loopback(self._address[0]):
            log.warning("%s address=%s:%d", self._beyond_loopback, *self._address)
        self._listen(self._address, said=False)
        self._thread = threading.Thread(target=self._serve, args=(self._address,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, for good; what is being answered goes on by itself for some seconds at most."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2.0)

    def _serve(self, address: tuple[str, int]) -> None:
        while not self._stop.is_set():
            found = self._server
            if found is not None:
                try:
                    found.serve_until(self._stop)
                finally:
                    self._server = None
                return
            self._stop.wait(self._retry_seconds)
            if not self._stop.is_set():
                self._listen(address, said=True)

    def _listen(self, address: tuple[str, int], *, said: bool) -> None:
        try:
            self._server = self._make(address)
        except (OSError, UnicodeError) as e:  # in use, not an address of ours, not a name
            if not said:
                log.warning("no %s for now address=%s:%d error=%s", self._name, *address, e)
        else:
            log.info("%s address=%s:%d", self._name, address[0], self._server.server_address[1])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"
