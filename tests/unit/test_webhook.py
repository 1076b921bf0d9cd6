"""Deliveries of forges: signatures over raw bytes, bounds, and nothing but a poll."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import urllib3

from tests.support.store import set_clock, track
from tests.support.wait import wait_until
from tireless.config import Config, ForgeConfig, Secret, WebhookConfig
from tireless.entities import Forge, RepoRef, TrackedRepo
from tireless.store import repos
from tireless.store.queries import Connection
from tireless.webhook import REMEMBERED, Hooks, Webhook, is_signed

SECRET = "it's a secret"
BODY = json.dumps({"action": "labeled", "repository": {"full_name": "acme/site"}}).encode()


def sign(body: bytes = BODY, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def headers(kind: str, delivery: str = "d-1", body: bytes = BODY, secret: str = SECRET) -> dict[str, str]:
    name = {"github": "GitHub", "gitea": "Gitea", "forgejo": "Forgejo"}[kind]
    hexed = sign(body, secret)
    signature = (
        ("X-Hub-Signature-256", f"sha256={hexed}") if kind == "github" else (f"X-{name}-Signature", hexed)
    )
    return {
        "Content-Type": "application/json",
        f"X-{name}-Event": "issues",
        f"X-{name}-Delivery": delivery,
        signature[0]: signature[1],
    }


def low(given: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in given.items()}


KINDS = ["github", "gitea", "forgejo"]
SIGNED = [ForgeConfig(Forge(k), f"{k}.test", token_env="T", webhook_secret=Secret(SECRET)) for k in KINDS]
CONFIG = Config(
    webhook=WebhookConfig(listen="127.0.0.1:0", max_kb=16),
    forge=(*SIGNED, ForgeConfig(Forge.GITEA, "quiet.test", token_env="T")),
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_signature_is_over_the_bytes_as_they_came(kind: str) -> None:
    forge, secret = Forge(kind), Secret(SECRET)
    good = low(headers(kind))
    assert is_signed(forge, secret, good, BODY)
    assert not is_signed(forge, secret, good, BODY + b"\n")
    assert not is_signed(forge, Secret("other"), good, BODY)
    assert not is_signed(forge, secret, {}, BODY)
    for name, value in good.items():
        if "signature" in name:
            for wrong in ("", value[:-1], "é" * 64, f"sha1={value}", "sha256=" + "0" * 64):
                assert not is_signed(forge, secret, {**good, name: wrong}, BODY)


def test_each_forge_signs_in_its_own_way_only() -> None:
    secret = Secret(SECRET)
    assert is_signed(Forge.FORGEJO, secret, {"x-gitea-signature": sign()}, BODY)
    assert not is_signed(Forge.GITEA, secret, {"x-forgejo-signature": sign()}, BODY)
    assert not is_signed(Forge.GITHUB, secret, {"x-hub-signature-256": sign()}, BODY)  # without sha256=
    assert not is_signed(Forge.GITHUB, secret, {"x-gitea-signature": sign()}, BODY)
    both = {"x-forgejo-signature": "0" * 64, "x-gitea-signature": sign()}
    assert not is_signed(Forge.FORGEJO, secret, both, BODY)


class World:
    """A listener, and what it did to the rows."""

    def __init__(self, conn: Connection, port: int) -> None:
        self.conn, self.port = conn, port
        self.repos = {kind: track(conn, RepoRef(Forge(kind), f"{kind}.test", "acme", "site")) for kind in KINDS}
        self.rest()

    def rest(self) -> None:
        self.conn.execute("update tracked_repo set next_poll_at = now() + interval '1 hour'")

    def due(self) -> list[TrackedRepo]:
        return [repo for repo, _ in repos.take_due(self.conn, 10)]

    def post(self, path: str, given: dict[str, str], body: bytes = BODY) -> int:
        url = f"http://127.0.0.1:{self.port}{path}"
        return urllib3.request("POST", url, body=body, headers=given, timeout=5, retries=False).status


@pytest.fixture
def world(conn: Connection, database_url: str) -> Iterator[World]:
    @contextlib.contextmanager
    def connect() -> Iterator[Connection]:
        with psycopg.connect(database_url, autocommit=True) as own:
            yield own

    hook = Webhook(CONFIG, connect)
    hook.start()
    port = wait_until(lambda: hook.port, 5, "it listens")
    yield World(conn, port)
    hook.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_a_signed_delivery_makes_its_repository_due_and_no_other(world: World, kind: str) -> None:
    world.conn.execute("listen tireless_poll")
    assert world.post(f"/{kind}/{kind}.test", headers(kind)) == 200
    assert [repo.id for repo in world.due()] == [world.repos[kind].id]
    assert next(world.conn.notifies(timeout=5)).channel == "tireless_poll"


def test_a_delivery_counts_once(world: World) -> None:
    path = "/gitea/gitea.test"
    assert world.post(path, headers("gitea")) == 200
    assert len(world.due()) == 1
    assert world.post(path, headers("gitea")) == 200
    assert world.due() == []
    assert world.post(path, headers("gitea", "d-2")) == 200
    assert len(world.due()) == 1


def test_what_is_not_right_does_nothing(world: World) -> None:
    good = headers("gitea")
    path = "/gitea/gitea.test"
    big = b"x" * (16 * 1024 + 1)
    odd = b'{"repository": []}'
    foreign = json.dumps({"repository": {"full_name": "other/repo"}}).encode()
    asked: list[tuple[int, str, dict[str, str], bytes]] = [
        (404, "/gitea/elsewhere.test", good, BODY),
        (404, "/github/gitea.test", good, BODY),
        (404, "/gitea/quiet.test", good, BODY),
        (404, "/", good, BODY),
        (401, path, headers("gitea", secret="guess"), BODY),
        (401, path, good, BODY + b" "),
        (413, path, headers("gitea", body=big), big),
        (415, path, {**good, "Content-Type": "application/x-www-form-urlencoded"}, BODY),
        (400, path, headers("gitea", body=odd), odd),
        (400, path, headers("gitea", body=b"["), b"["),
        (200, path, headers("gitea", "d-9", foreign), foreign),
        (200, path, {**good, "X-Gitea-Event": "push"}, BODY),
    ]
    for status, where, given, body in asked:
        assert world.post(where, given, body) == status, (where, given)
    assert world.due() == []
    for method in ("GET", "PUT", "DELETE"):
        assert urllib3.request(method, f"http://127.0.0.1:{world.port}{path}", timeout=5).status == 405
    assert world.post(path, good) == 200
    assert len(world.due()) == 1


def test_a_request_without_length_or_of_half_a_body_does_nothing(world: World) -> None:
    for head, status in (
        (b"", b"411"),
        (b"Content-Length: -5\r\n", b"411"),
        (b"Content-Length: 999\r\n", b"400"),
    ):
        with socket.create_connection(("127.0.0.1", world.port), timeout=5) as peer:
            peer.sendall(
                b"POST /gitea/gitea.test HTTP/1.0\r\nContent-Type: application/json\r\n" + head + b"\r\nabc"
            )
            peer.shutdown(socket.SHUT_WR)
            assert peer.recv(100).split()[1] == status
    assert world.due() == []


def test_without_a_database_the_forge_is_told_and_may_send_it_again() -> None:
    class Stub:
        def __enter__(self) -> Any:
            raise psycopg.OperationalError("refused")

        def __exit__(self, *_: object) -> None: ...

    hooks = Hooks(CONFIG, lambda: Stub())
    assert hooks.take("/gitea/gitea.test", low(headers("gitea")), BODY).code == 503
    assert hooks.take("/gitea/gitea.test", low(headers("gitea")), BODY).code == 503  # not "seen before"


def test_what_it_remembers_is_bounded(conn: Connection) -> None:
    set_clock(conn, None)
    hooks = Hooks(CONFIG, lambda: contextlib.nullcontext(conn))
    for n in range(REMEMBERED + 10):
        assert hooks._is_new(("gitea", str(n)))
    assert len(hooks._seen) == REMEMBERED
    assert not hooks._is_new(("gitea", str(REMEMBERED)))


def test_secrets_do_not_show() -> None:
    assert SECRET not in repr(CONFIG)
    assert SECRET in CONFIG.secrets()
