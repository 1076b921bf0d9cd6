"""The status page and /metrics: a thread of the poller that shows rows to people and to Prometheus.

Off unless `[web] listen` names an address. It has no login and changes nothing: whoever reaches the address may
read titles, states, errors and costs. So it listens on loopback in every example, and says so in the log
where it is told to listen elsewhere; put a proxy with a login in front for others.

    /            lanes, live and finished jobs, repositories, open forge writes, workers
    /jobs/<id>   one job: its facts, agent runs, forge writes, events
    /healthz     200 "ok" when the database answers, 503 with the reason when it does not
    /metrics     Prometheus text format 0.0.4

Only GET and HEAD (405), only known paths (404), only for a Host that is ours (421), or one request with no single
Host (400). A database that is down, frozen or slow leads to 503 within 3 seconds, and never to a request that
hangs (looks.py). More than a few connections at once are refused with 503, slow ones are cut off (server.py).
Whatever strangers wrote is shown as text (markup.py), secrets are masked, and the pages' policy lets in nothing
but their own style.

It is not worth a poller: an address that is in use is a warning and is tried again, not an error.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from tireless.config import Config
from tireless.store.queries import Connection
from tireless.web import looks, server
from tireless.web.app import App

log = logging.getLogger(__name__)

CONNECTIONS = looks.AT_ONCE  # that it may have from `connect` at the same time

_RETRY_SECONDS = 10.0


class Web:
    """`connect` lends a connection that is in autocommit mode; it is called in threads of its own.

    A changed configuration wants a new Web, and the old one stopped first."""

    def __init__(
        self,
        config: Config,
        connect: Callable[[], AbstractContextManager[Connection]],
        *,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._address = config.web.address
        self._app = App(config, looks.Looks(connect))
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
            log.warning(
                "the status page has no login and listens beyond loopback address=%s:%d", *self._address
            )
        self._listen(self._address, said=False)
        self._thread = threading.Thread(target=self._serve, args=(self._address,), name="web", daemon=True)
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
            self._server = server.Server(address, self._app.answer)
        except (OSError, UnicodeError) as e:  # in use, not an address of ours, not a name
            if not said:
                log.warning("no status page for now address=%s:%d error=%s", *address, e)
        else:
            log.info("status page address=%s:%d", address[0], self._server.server_address[1])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"
