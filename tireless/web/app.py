"""Paths -> answers. Everything that is shown is read in one look, then masked, then rendered."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from tireless.config import Config
from tireless.redact import Redactor
from tireless.store import status
from tireless.web import metrics, pages
from tireless.web.looks import Looks, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

TEXT = "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"

_JOB = re.compile(r"/jobs/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    content_type: str
    body: str


class App:
    def __init__(self, config: Config, looks: Looks) -> None:
        self._config = config
        self._looks = looks
        self._mask = Redactor(config.secrets())
        self._said: str | None = None  # why there was no database, the last time

    def answer(self, path: str) -> Answer:
        """What is at `path` (without a query). Never raises."""
        page: Callable[[], Answer]
        job = _JOB.fullmatch(path)
        if path == "/":
            page, html = self._overview, True
        elif job is not None:
            job_id = UUID(job[1])
            page, html = lambda: self._history(job_id), True
        elif path == "/healthz":
            page, html = self._health, False
        elif path == "/metrics":
            page, html = self._metrics, False
        else:
            return Answer(404, TEXT, "there is nothing here\n")
        try:
            found = page()
            self._said = None
            return found
        except Unavailable as e:
            reason = self._mask(str(e))
            if reason != self._said:  # said once, not at each scrape
                self._said = reason
                log.warning(
                    "the status page has nothing to show reason=%s cause=%s", reason, type(e.__cause__).__name__
                )
            return self._failed(503, "no database", reason, html)
        except Exception:
            log.exception("the status page failed path=%s", path)
            return self._failed(500, "error", "the page failed; the log says why", html)

    def _overview(self) -> Answer:
        view = masked(self._looks.look(status.overview), self._mask)
        return Answer(200, HTML, pages.overview_page(view, self.site_of, self._config))

    def _history(self, job_id: UUID) -> Answer:
        view = self._looks.look(lambda conn: status.history(conn, job_id))
        if view is None:
            return Answer(404, HTML, pages.error_page("no such job", "It may have been pruned.", refresh=False))
        return Answer(200, HTML, pages.history_page(masked(view, self._mask), self.site_of))

    def _health(self) -> Answer:
        self._looks.look(status.now)
        return Answer(200, TEXT, "ok\n")

    def _metrics(self) -> Answer:
        return Answer(200, metrics.CONTENT_TYPE, metrics.exposition(self._looks.look(status.numbers)))

    @staticmethod
    def _failed(code: int, title: str, text: str, html: bool) -> Answer:
        if html:
            return Answer(code, HTML, pages.error_page(title, text, refresh=True))
        return Answer(code, TEXT, f"{text}\n")

    def site_of(self, forge: str, host: str) -> str:
        """Where people see a forge instance. An `api_url` of the usual form tells it (another scheme, a port, a
        path in front); else it is https and the host's name, which is what a host name is to git and browser."""
        for entry in self._config.forge:
            if entry.kind == forge and entry.host.casefold() == host.casefold() and entry.api_url is not None:
                site, found, _ = entry.base_url.partition("/api/v")
                if found:
                    return site
        return f"https://{host}"


def masked(value: T, mask: Callable[[str], str]) -> T:
    """A frozen value with every text in it masked. The rows hold no secret that anybody put there on purpose."""

    def inner(part: Any) -> Any:
        if isinstance(part, str):
            return mask(part)
        if isinstance(part, tuple):
            return tuple(inner(item) for item in part)
        if dataclasses.is_dataclass(part) and not isinstance(part, type):
            changes = {f.name: inner(getattr(part, f.name)) for f in dataclasses.fields(part)}
            return dataclasses.replace(part, **changes)
        return part

    found: T = inner(value)
    return found
