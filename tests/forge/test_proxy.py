"""A forge behind a proxy: the variables that say so, and a real one on loopback that forwards and tunnels."""

from __future__ import annotations

import base64
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.forge.conftest import QUICK
from tests.support.forge import FakeGitea
from tireless import proxies
from tireless.config import ConfigError
from tireless.forge import MemoryGate, Unreachable, client_for
from tireless.proxies import Proxy, proxy_for
from tireless.workspace.remote import Remote

PEM = Path(__file__).parent / "data" / "tls.pem"


@pytest.mark.parametrize(
    ("environment", "scheme", "url"),
    [
        ({}, "https", None),
        ({"https_proxy": "http://proxy:3128"}, "https", "http://proxy:3128"),
        ({"https_proxy": "http://proxy"}, "https", "http://proxy:1080"),
        ({"HTTPS_PROXY": "https://proxy"}, "https", "https://proxy:443"),
        ({"https_proxy": "proxy:3128"}, "https", "http://proxy:3128"),
        ({"https_proxy": "http://proxy:3128"}, "http", None),
        ({"http_proxy": "http://proxy:3128"}, "http", "http://proxy:3128"),
        ({"HTTP_PROXY": "http://proxy:3128"}, "http", None),
        ({"ALL_PROXY": "http://all"}, "http", "http://all:1080"),
        ({"all_proxy": "http://all", "https_proxy": "http://own"}, "https", "http://own:1080"),
        ({"https_proxy": "", "all_proxy": "http://all"}, "https", "http://all:1080"),
        ({"all_proxy": "http://all", "no_proxy": "forge.test"}, "https", None),
        ({"all_proxy": "http://all", "NO_PROXY": "other.test, .forge.test, forge.test:443"}, "https", None),
        ({"all_proxy": "http://all", "no_proxy": "test"}, "https", None),
        ({"all_proxy": "http://all", "no_proxy": "*"}, "https", None),
        ({"all_proxy": "http://all", "no_proxy": "forge.test:8443"}, "https", "http://all:1080"),
    ],
)
def test_by_which_proxy(environment: dict[str, str], scheme: str, url: str | None) -> None:
    found = proxy_for(environment, scheme, "forge.test", 443)
    assert (found.url if found is not None else None) == url


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_nothing_on_this_machine_is_asked_through_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_for({"all_proxy": "http://proxy:3128"}, "http", host, 80) is None
    monkeypatch.setenv("all_proxy", "http://proxy:3128")
    where = f"[{host}]" if ":" in host else host
    assert "all_proxy" not in Remote(f"http://{where}:3000/acme/site.git").access().env
    assert Remote("http://forge.test/acme/site.git").access().env["all_proxy"] == "http://proxy:3128"


def test_a_login_is_taken_out_of_the_url_and_shown_nowhere() -> None:
    found = proxy_for({"https_proxy": "http://me:p%40ss@proxy:3128"}, "https", "forge.test", 443)
    assert found == Proxy("http://proxy:3128", "me:p@ss")
    assert "p@ss" not in repr(found)


def test_no_proxy_may_name_an_address() -> None:
    environment = {"all_proxy": "http://all", "no_proxy": "10.0.0.1,fd00::1,[fd00::2]"}
    assert proxy_for(environment, "https", "fd00::1", 443) is None
    assert proxy_for(environment, "https", "fd00::2", 443) is None
    assert proxy_for(environment, "https", "10.0.0.1", 443) is None
    assert proxy_for(environment, "https", "fd00::3", 443) is not None


@pytest.mark.parametrize(
    ("exempt", "host", "direct"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("a.test,192.168.0.0/16", "192.168.7.7", True),
        ("a.test 192.168.0.0/16", "192.168.7.7", True),  # curl takes spaces too
        ("10.1.2.3/8", "10.9.9.9", True),  # with host bits, as curl has it
        ("10.0.0.0/31", "10.0.0.1", True),
        ("10.0.0.0/31", "10.0.0.2", False),
        ("fd00::/8", "fd12::3", True),
        ("fd00::/8", "[fd12::3]", True),
        ("fd00::/8", "fe80::1", False),
        ("10.0.0.0/8", "fd00::1", False),
        ("fd00::/8", "10.0.0.1", False),
        ("10.0.0.0/8", "ten.test", False),  # a name is not looked up
        ("10.0.0.0/33", "10.0.0.1", False),
        ("10.0.0.0/x", "10.0.0.1", False),
        ("FD00::0:1", "fd00::1", True),  # however it is written
        ("10.0.0.1:443", "10.0.0.1", True),
        ("10.0.0.1:80", "10.0.0.1", False),
        ("1", "10.0.0.1", False),  # an address has no domains above it
    ],
)
def test_no_proxy_may_name_a_network(exempt: str, host: str, direct: bool) -> None:
    found = proxy_for({"all_proxy": "http://all", "no_proxy": exempt}, "https", host, 443)
    assert (found is None) == direct


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_what_git_says_of_a_proxy_is_masked(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", f"{scheme}me:p%40ss@proxy:3128")
    assert {"p%40ss", "p@ss"} <= set(Remote("https://forge.test/acme/site.git").access().secrets)


def test_another_kind_of_proxy_is_refused_by_name_without_its_value() -> None:
    with pytest.raises(ConfigError, match=r"https_proxy names a proxy that is no URL"):
        proxy_for({"https_proxy": "http://[::1"}, "https", "forge.test", 443)
    with pytest.raises(
        ConfigError, match=r"ALL_PROXY names a proxy of the kind socks5://; give http://"
    ) as caught:
        proxy_for({"ALL_PROXY": "socks5://me:secret@proxy"}, "https", "forge.test", 443)
    assert "secret" not in str(caught.value)


class LoopbackProxy:
    """Takes one request a connection: forwards it, or opens a tunnel. `heads` are what it was asked."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            said = b""
            while b"\r\n\r\n" not in said:
                more = client.recv(65536)
                if not more:
                    return
                said += more
            self.heads.append(said.split(b"\r\n\r\n")[0])
            method, target, _ = said.split(b"\r\n", 1)[0].split(b" ")
            if method == b"CONNECT":
                host, _, port = target.decode().rpartition(":")
                with socket.create_connection((host, int(port))) as upstream:
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    self._pipe(client, upstream)
                return
            host, _, port = target.decode().split("/")[2].rpartition(":")
            path = "/" + target.decode().split("/", 3)[3]
            with socket.create_connection((host, int(port))) as upstream:
                upstream.sendall(said.replace(target, path.encode(), 1))
                self._pipe(client, upstream)

    @staticmethod
    def _pipe(one: socket.socket, other: socket.socket) -> None:
        ends = {one: other, other: one}
        while True:
            for ready in select.select(list(ends), [], [])[0]:
                data = ready.recv(65536)
                if not data:
                    return
                ends[ready].sendall(data)

    def close(self) -> None:
        with suppress(OSError):  # again
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


@pytest.fixture
def proxy() -> Iterator[LoopbackProxy]:
    running = LoopbackProxy()
    yield running
    running.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake on loopback stands for a forge on another machine."""
    monkeypatch.setattr(proxies, "is_loopback", lambda _: False)


@contextmanager
def asking(forge: FakeGitea, **options: Any) -> Iterator[Any]:
    client = client_for(replace(forge.config, **options), gate=MemoryGate(), pace=QUICK)
    yield client
    client.close()


@pytest.mark.usefixtures("elsewhere")
class TestThroughOne:
    def test_plain_http_is_forwarded_with_the_login(
        self, gitea: FakeGitea, proxy: LoopbackProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", f"http://me:secret@{proxy.address}")
        with asking(gitea) as client:
            assert client.get_repository(gitea.ref("acme/site")).default_branch == "main"
        line, *headers = proxy.heads[0].decode().casefold().split("\r\n")
        assert line == f"get {gitea.config.base_url}/repos/acme/site http/1.1"
        login = base64.b64encode(b"me:secret").decode().casefold()
        assert f"proxy-authorization: basic {login}" in headers

    def test_https_is_tunnelled_and_the_proxy_sees_no_token(
        self, tmp_path: Path, proxy: LoopbackProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HTTPS_PROXY", proxy.address)
        with FakeGitea(tmp_path / "forge", tls=PEM) as forge:
            forge.add_repo("acme/site", {"README.md": "hello\n"})
            with asking(forge, ca_file=PEM) as client:
                assert client.get_repository(forge.ref("acme/site")).default_branch == "main"
        assert [head.split(b" ")[0] for head in proxy.heads] == [b"CONNECT"]
        assert b"authorization" not in proxy.heads[0].lower()

    def test_a_proxy_that_is_not_there_is_a_forge_out_of_reach(
        self, gitea: FakeGitea, proxy: LoopbackProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        proxy.close()
        monkeypatch.setenv("http_proxy", f"http://me:secret@{proxy.address}")
        with asking(gitea) as client, pytest.raises(Unreachable) as caught:
            client.get_repository(gitea.ref("acme/site"))
        assert "secret" not in str(caught.value)
        assert "proxy" in str(caught.value).casefold()
