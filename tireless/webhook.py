"""Deliveries of forges: a thread of the poller that makes a repository due for a poll at once.

Off unless `[webhook] listen` names an address. A delivery is a hint and nothing else: what it says of an issue is
thrown away, its repository is polled as if its time had come, and polling goes on without it. So a lost delivery costs
one poll interval, and a forged one, a poll.

    POST /KIND/HOST     KIND and HOST as in the [[forge]] entry whose secret signed it

    404   no such entry, or one without a secret
    411, 413, 415       no length, more than `webhook.max_kb`, not application/json
    401   the signature over the bytes as they came is not by the secret (compared in constant time)
    400   signed, but not what a forge sends
    200   taken in, or nothing to do: another event, a repository that is not tracked, a delivery seen before
    503   no database

Signatures: GitHub's X-Hub-Signature-256 is `sha256=` and hex, Gitea's X-Gitea-Signature bare hex; Forgejo sends
that and X-Forgejo-Signature. All are HMAC-SHA256. This process remembers the ids of the last `REMEMBERED` deliveries.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import psycopg_pool

from tireless.config import Config, Secret
from tireless.entities import Forge
from tireless.store import repos
from tireless.store.queries import Connection
from tireless.web import server
from tireless.web.app import TEXT, Answer
from tireless.web.service import Service

log = logging.getLogger(__name__)

REMEMBERED = 2048
CONNECTIONS = 1  # that it may have from `connect` at the same time

_SIGNATURES: Mapping[Forge, tuple[tuple[str, str], ...]] = {  # header, what stands before the hex
    Forge.GITHUB: (("x-hub-signature-256", "sha256="),),
    Forge.GITEA: (("x-gitea-signature", ""),),
    Forge.FORGEJO: (("x-forgejo-signature", ""), ("x-gitea-signature", "")),
}
_NAMES = {Forge.GITHUB: ("github",), Forge.GITEA: ("gitea",), Forge.FORGEJO: ("forgejo", "gitea")}

Headers = Mapping[str, str]  # names in lower case


def is_signed(kind: Forge, secret: Secret, headers: Headers, body: bytes) -> bool:
    """Whether the first of the forge's signature headers that is there holds the signature of `body`."""
    wanted = hmac.new(secret.reveal().encode(), body, hashlib.sha256).hexdigest()
    for name, prefix in _SIGNATURES[kind]:
        given = headers.get(name)
        if given is not None:
            return hmac.compare_digest(f"{prefix}{wanted}".encode(), given.strip().lower().encode())
    return False


def event_of(kind: Forge, headers: Headers) -> str:
    return next((headers[f"x-{name}-event"] for name in _NAMES[kind] if f"x-{name}-event" in headers), "")


def delivery_of(kind: Forge, headers: Headers) -> str:
    names = [f"x-{name}-delivery" for name in _NAMES[kind]]
    return next((headers[name][:200] for name in names if name in headers), "")


def repository_of(body: bytes) -> tuple[str, str] | None:
    """Owner and name of the repository that a delivery is about; None if it is none."""
    try:
        data: Any = json.loads(body)
        owner, _, name = data["repository"]["full_name"].partition("/")
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return (owner, name) if owner and name and "/" not in name else None


class Hooks:
    """What becomes of a delivery. Safe for threads."""

    def __init__(self, config: Config, connect: Callable[[], AbstractContextManager[Connection]]) -> None:
        self._config = config
        self._connect = connect
        self._lock = threading.Lock()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._one_at_a_time = threading.Lock()

    def secret_of(self, path: str) -> tuple[Forge, str, Secret] | None:
        """Kind, host and secret of the entry that a path names."""
        kind, _, host = path.strip("/").partition("/")
        for entry in self._config.forge:
            if entry.kind == kind and entry.host.casefold() == host.casefold():
                return (entry.kind, entry.host, entry.webhook_secret) if entry.webhook_secret else None
        return None

    def take(self, path: str, headers: Headers, body: bytes) -> Answer:
        found = self.secret_of(path)
        if found is None:
            return Answer(404, TEXT, "no forge with a webhook secret here\n")
        kind, host, secret = found
        if not is_signed(kind, secret, headers, body):
            log.warning("webhook refused forge=%s host=%s why=signature", kind, host)
            return Answer(401, TEXT, "the signature does not fit\n")
        if event_of(kind, headers) != "issues":
            return Answer(200, TEXT, "nothing to do\n")
        named = repository_of(body)
        if named is None:
            return Answer(400, TEXT, "names no repository\n")
        delivery = (f"{kind}:{host}", delivery_of(kind, headers))
        if delivery[1] and not self._is_new(delivery):
            return Answer(200, TEXT, "seen before\n")
        try:
            known = self._make_due(kind, host, *named)
        except (psycopg.Error, psycopg_pool.PoolTimeout) as e:
            self._forget(delivery)  # the forge may send it again
            log.warning("webhook not taken forge=%s host=%s error=%s", kind, host, type(e).__name__)
            return Answer(503, TEXT, "no database; the next poll will see it\n")
        return Answer(200, TEXT, "polled now\n" if known else "not tracked\n")

    def _make_due(self, kind: Forge, host: str, owner: str, name: str) -> bool:
        with self._one_at_a_time, self._connect() as conn:
            found = repos.find(conn, forge=kind, host=host, owner=owner, repo=name)
            for repo in found:
                repos.make_due(conn, repo.id)
        return bool(found)

    def _is_new(self, delivery: tuple[str, str]) -> bool:
        with self._lock:
            if delivery in self._seen:
                return False
            self._seen[delivery] = None
            if len(self._seen) > REMEMBERED:
                self._seen.popitem(last=False)
            return True

    def _forget(self, delivery: tuple[str, str]) -> None:
        with self._lock:
            self._seen.pop(delivery, None)


class Webhook(Service):
    """The listener. A changed configuration wants a new one, and the old one stopped first."""

    def __init__(self, config: Config, connect: Callable[[], AbstractContextManager[Connection]]) -> None:
        hooks = Hooks(config, connect)
        most = config.webhook.max_kb * 1024

        class Bound(_Handler):
            most_body = most
            most_bytes = server.HEAD_BYTES + most
            take = staticmethod(hooks.take)

        super().__init__(
            "webhooks",
            config.webhook.address,
            lambda address: server.Server(address, _nothing, handler=Bound),
            beyond_loopback="webhooks are taken beyond loopback; a proxy with TLS in front is better",
        )


def _nothing(path: str) -> Answer:
    return Answer(405, TEXT, "deliveries of a forge come by POST\n")


class _Handler(server.Handler):
    most_body = 0
    take: Callable[[str, Headers, bytes], Answer]

    def do_GET(self) -> None:
        self._send(_nothing(self.path), Allow="POST")

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_GET

    def do_POST(self) -> None:
        self._send(self._answer())

    def _answer(self) -> Answer:
        headers = {name.lower(): value for name, value in self.headers.items()}
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit()):
            return Answer(411, TEXT, "a delivery says how long it is\n")
        if len(length) > 12 or int(length) > self.most_body:
            return Answer(413, TEXT, "too large; see webhook.max_kb\n")
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return Answer(415, TEXT, "set the webhook's content type to application/json\n")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            return Answer(400, TEXT, "shorter than it says\n")
        return self.take(self.path.partition("?")[0], headers, body)
