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

from collections.abc import Callable
from contextlib import AbstractContextManager

from tireless.config import Config
from tireless.store.queries import Connection
from tireless.web import looks, server
from tireless.web.app import App
from tireless.web.service import RETRY_SECONDS, Service

CONNECTIONS = looks.AT_ONCE  # that it may have from `connect` at the same time


class Web(Service):
    """`connect` lends a connection that is in autocommit mode; it is called in threads of its own.

    A changed configuration wants a new Web, and the old one stopped first."""

    def __init__(
        self,
        config: Config,
        connect: Callable[[], AbstractContextManager[Connection]],
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        app = App(config, looks.Looks(connect))
        super().__init__(
            "status page",
            config.web.address,
            lambda address: server.Server(address, app.answer),
            beyond_loopback="the status page has no login and listens beyond loopback",
            retry_seconds=retry_seconds,
        )
