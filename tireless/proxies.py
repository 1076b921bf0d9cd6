"""Which proxy stands between this machine and a forge: by the variables that git reads too, so that both go one way.

    https_proxy, HTTPS_PROXY, http_proxy    for that kind of URL (not HTTP_PROXY, which a CGI's client can set)
    all_proxy, ALL_PROXY                    for both
    no_proxy, NO_PROXY                      no proxy for these: hosts, with or without a port, domains, networks
                                            (10.0.0.0/8, for hosts that are written as addresses), or * for all

What is on this machine is never asked through a proxy, which would look for it on its own.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import SplitResult, unquote, urlsplit

from tireless.config import ConfigError

VARIABLES = (
    "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Proxy:
    """An http or https proxy; `login` is user:password, if it wants one."""

    url: str
    login: str | None = field(default=None, repr=False)


def proxy_for(environment: Mapping[str, str], scheme: str, host: str, port: int) -> Proxy | None:
    """The proxy for an origin; None if it is to be reached directly. ConfigError if it is none that can be used."""
    named = {"https": ("https_proxy", "HTTPS_PROXY"), "http": ("http_proxy",)}[scheme]
    variable = _first(environment, (*named, "all_proxy", "ALL_PROXY"))
    exempt = environment.get(_first(environment, ("no_proxy", "NO_PROXY")) or "", "")
    if variable is None or is_loopback(host) or _is_exempt(exempt, host, port):
        return None
    parts = _parts(environment[variable])
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        # Without the value, which may hold a password.
        kind = f"of the kind {parts.scheme}://" if parts is not None else "that is no URL"
        raise ConfigError(
            f"{variable} names a proxy {kind}; "
            f"give http://host:port or https://host:port, or put {host} into no_proxy"
        )
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    where = parts.netloc.rpartition("@")[2]
    if parts.port is None:
        where += ":1080" if parts.scheme == "http" else ":443"  # as curl has it, and so git
    return Proxy(f"{parts.scheme}://{where}", login)


def secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The passwords of proxies, as they are written and as they are meant: to be masked wherever git speaks."""
    written = [parts.password for name in VARIABLES if (parts := _parts(environment.get(name, ""))) is not None]
    return tuple(form for word in written if word for form in dict.fromkeys((word, unquote(word))))


def _parts(value: str) -> SplitResult | None:
    """Of a proxy's URL, which may lack its scheme; None if it is none."""
    try:
        parts = urlsplit(value.strip() if "://" in value else f"http://{value.strip()}")
        _ = parts.port, parts.hostname
    except ValueError:
        return None
    return parts


def is_loopback(host: str) -> bool:
    address = _address(host)
    return address.is_loopback if address is not None else host.casefold() == "localhost"


def _is_exempt(exempt: str, host: str, port: int) -> bool:
    address = _address(host)
    for entry in re.split(r"[,\s]+", exempt.casefold()):
        whole = entry.strip("[]")
        if entry == "*" or whole == host.casefold().strip("[]"):
            return True
        if address is not None and _is_in(address, whole):
            return True
        name, _, only_port = entry.removeprefix("*").removeprefix(".").partition(":")
        within = host.casefold() == name or (address is None and host.casefold().endswith(f".{name}"))
        if name and within and only_port in ("", str(port)):
            return True
    return False


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """Of a host that is written as one; names are not looked up for this."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _is_in(address: IPv4Address | IPv6Address, network: str) -> bool:
    """Whether the network, as ADDRESS/BITS, or a single address, holds it."""
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if environment.get(name)), None)
