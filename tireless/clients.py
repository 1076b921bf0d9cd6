"""The forge clients of a process that asks several forges from several threads."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from tireless.config import Config, ConfigError
from tireless.entities import IssueRef, RepoRef
from tireless.forge import ForgeClient, Gate, client_for
from tireless.process import ChildContext


class Clients:
    """Made when first needed and again after a reload. Safe for threads."""

    def __init__(self, ctx: ChildContext, gate: Gate) -> None:
        self._ctx = ctx
        self._gate = gate
        self._lock = threading.Lock()
        self._made_for: Config | None = None
        self._clients: dict[tuple[Any, str], ForgeClient] = {}

    def of(self, repo: RepoRef) -> ForgeClient:
        """ConfigError if no [[forge]] entry is for it."""
        with self._lock:
            config = self._ctx.config
            if self._made_for is not config:
                self._clients.clear()  # threads may still use the old ones; their connections close with them
                self._made_for = config
            key = (repo.forge, repo.host.casefold())
            if key not in self._clients:
                entry = config.forge_for(repo.forge, repo.host)
                self._clients[key] = client_for(entry, stop=self._ctx.stop_event, gate=self._gate)
            return self._clients[key]

    def of_issue(self, issue: IssueRef) -> ForgeClient:
        return self.of(issue.repo_ref)

    def limited(self) -> list[tuple[str, str, float]]:
        """The forges that have limited our token: kind, host, seconds that are left."""
        found = []
        for entry in self._ctx.config.forge:
            with contextlib.suppress(ConfigError):  # one that cannot be asked says so at its polls
                client = self.of(RepoRef(entry.kind, entry.host, "", ""))
                found.append((str(entry.kind), entry.host, client.limited_seconds()))
        return [limit for limit in found if limit[2] > 0]
