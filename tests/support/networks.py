"""Hosts with a network each: namespaces joined by a bridge, made by the test and seen by nobody else.

    middle    the bridge, and on it ADDRESS, where a Postgres and a forge listen that are started inside
    hosts     each at the far end of a cable (a veth pair), with an address of its own

No packet leaves them: no namespace has a way out, and the machine's own network gets neither interface nor address.
A namespace has no name. It is there as long as a process or an open descriptor holds it, and its cables with it: so
nothing is left of it, however the test ends. It is a thread that enters one, and what that thread opens or starts is
inside: a listening socket, a program. Takes root, and iproute2.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

T = TypeVar("T")

ADDRESS = "10.213.0.1"
_BRIDGE = "02:00:00:00:00:01"  # not that of a port, which takes what is for it off the bridge too
_CLONE_NEWNET = 0x40000000


class NotAllowed(Exception):
    """Namespaces cannot be made here; the text says what is missing."""


class Namespace:
    """A network of its own, with a loopback that is up."""

    def __init__(self) -> None:
        self._fd = _in_a_thread(_unshare)
        self.ip("link set lo up")

    @property
    def path(self) -> str:
        """By which other processes find it."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def run(self, action: Callable[[], T]) -> T:
        """What `action` returns inside, in a thread of its own."""

        def inside() -> T:
            _call("setns", self._fd, _CLONE_NEWNET)
            return action()

        return _in_a_thread(inside)

    def ip(self, *commands: str) -> None:
        """Commands of ip(8). NotAllowed with its words if one fails."""
        argv = ["ip", "-batch", "-"]
        try:
            self.run(
                lambda: subprocess.run(
                    argv, input="\n".join(commands), text=True, check=True, capture_output=True
                )
            )
        except FileNotFoundError:
            raise NotAllowed("there is no program named ip (iproute2)") from None
        except subprocess.CalledProcessError as e:
            raise NotAllowed(f"ip {'; '.join(commands)}: {' '.join(e.stderr.split())}") from None

    def close(self) -> None:
        os.close(self._fd)


class Cable:
    """A host's way to the bridge. What the host has sent, or is sent, while it is out is lost without a word."""

    def __init__(self, middle: Namespace, number: int) -> None:
        self.host = Namespace()
        self.address = f"10.213.0.{number}"
        self._middle = middle
        self._port = f"port{number}"
        middle.ip(
            f"link add {self._port} type veth peer name eth0 netns {self.host.path}",
            f"link set {self._port} master bridge arp off up",  # off the bridge nobody is to answer on it
        )
        self.host.ip(f"address add {self.address}/24 dev eth0", "link set eth0 up")

    def pull(self) -> None:
        """Both ends see it: no carrier."""
        self._middle.ip(f"link set {self._port} down")

    def mute(self) -> None:
        """Neither end sees it, as with a switch in between that has hung up."""
        self._middle.ip(f"link set {self._port} nomaster")

    def mend(self) -> None:
        self._middle.ip(f"link set {self._port} master bridge up")


class Network:
    """The middle, and the cables that lead to it. NotAllowed if it cannot be made."""

    def __init__(self) -> None:
        self._spaces: list[Namespace] = []
        self._cables = 0
        self.middle = self._kept(Namespace())
        self.middle.ip(
            f"link add bridge address {_BRIDGE} type bridge",
            f"address add {ADDRESS}/24 dev bridge",
            "link set bridge up",
        )

    def cable(self) -> Cable:
        """To a new host."""
        self._cables += 1
        cable = Cable(self.middle, self._cables + 1)
        self._kept(cable.host)
        return cable

    def forget(self, address: str, port: int) -> None:
        """The middle ends its TCP connections of that address to that port, and tells the other end once. NotAllowed if
        the kernel cannot do that."""
        chosen = ["dst", address, "and", "sport", "=", f":{port}"]

        def inside() -> str:
            subprocess.run(["ss", "-tnK", *chosen], check=True, capture_output=True)
            left = subprocess.run(["ss", "-tnH", *chosen], check=True, capture_output=True, text=True)
            return left.stdout.strip()

        try:
            left = self.middle.run(inside)
        except FileNotFoundError:
            raise NotAllowed("there is no program named ss (iproute2)") from None
        if left:
            raise NotAllowed(f"ss -K ended nothing (INET_DIAG_DESTROY in the kernel): {left}")

    def _kept(self, space: Namespace) -> Namespace:
        self._spaces.append(space)
        return space

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for space in self._spaces:
            space.close()


def _in_a_thread(action: Callable[[], T]) -> T:
    """In a thread that ends with it: none that other code uses may stay in a namespace."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(action).result()


def _unshare() -> int:
    """A descriptor of a namespace that is new."""
    try:
        _call("unshare", _CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    except OSError as e:
        raise NotAllowed(f"no right to make a network namespace, or no such thing: {e.strerror}") from None


def _call(name: str, *args: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno))
