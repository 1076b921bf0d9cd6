"""Forges: one client a forge over one HTTP core. The only place that speaks HTTP.

errors.py   what can go wrong, as types that tell the caller what to do
answer.py   what an HTTP answer means; pure
decode.py   JSON -> entities; pure
http.py     one exchange and its bounds: time, size, redirects, tries
gate.py     who may ask now
client.py   what is asked of a forge; github.py, gitea.py, forgejo.py where they differ
"""

from __future__ import annotations

import threading

from tireless.config import ForgeConfig
from tireless.entities import Forge
from tireless.forge.client import ForgeClient, hidden
from tireless.forge.errors import (
    Broken,
    CutOff,
    Forbidden,
    ForgeError,
    Limited,
    LimitScope,
    Moved,
    NotFound,
    Refused,
    Request,
    Unauthorized,
    Unreachable,
)
from tireless.forge.forgejo import ForgejoClient
from tireless.forge.gate import Gate, MemoryGate
from tireless.forge.gitea import GiteaClient
from tireless.forge.github import GitHubClient
from tireless.forge.http import Http, Pace

__all__ = [
    "Broken",
    "CutOff",
    "Forbidden",
    "ForgeClient",
    "ForgeError",
    "ForgejoClient",
    "Gate",
    "GitHubClient",
    "GiteaClient",
    "LimitScope",
    "Limited",
    "MemoryGate",
    "Moved",
    "NotFound",
    "Pace",
    "Refused",
    "Request",
    "Unauthorized",
    "Unreachable",
    "client_for",
    "hidden",
]

_CLIENTS: dict[Forge, type[ForgeClient]] = {
    Forge.GITHUB: GitHubClient,
    Forge.GITEA: GiteaClient,
    Forge.FORGEJO: ForgejoClient,
}
_GATE = MemoryGate()


def client_for(
    config: ForgeConfig,
    *,
    stop: threading.Event | None = None,
    gate: Gate | None = None,
    pace: Pace | None = None,
) -> ForgeClient:
    """The client of a forge instance. `stop` cuts waits short; the default gate is shared by this process."""
    kind = _CLIENTS[config.kind]
    http = Http(
        config.base_url,
        {"Accept": kind.accept, **kind.extra_headers},
        config.token,
        kind.token_word,
        gate or _GATE,
        stop or threading.Event(),
        pace or Pace(),
        str(config.ca_file) if config.ca_file is not None else None,
    )
    return kind(config, http)
