"""What is wrong with a database's URL, found out where it is read instead of at the first connection; pure.

libpq reads a URL into parameters and looks at their values only when it connects. Its messages quote what they
complain of, which may be the password, or a part of it: `postgresql://me:pass/word@host` is read as the host `me` with
the port `pass`. So nothing of the URL is repeated here but the server's host and port, of one that cannot have been
read so (`server`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Conninfo

LOOKS_LIKE = "it looks like postgresql://user@host:5432/name"
_ESCAPE = "in a user or password write %3A for :, %2F for /, %40 for @ and %25 for %"
_SIGNS = ('"]"', '":"', '"/"')
_NUMBERS = (
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
)  # fmt: skip
_WORDS = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    "load_balance_hosts": ("disable", "random"),
}


def fault(url: str) -> str | None:
    """What is wrong with it and the way out; None if libpq can begin to connect with it. Also for a list of
    parameters, which is the other form that libpq takes."""
    try:
        parameters = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error as e:
        return f"{_without_quotes(str(e))}; {LOOKS_LIKE}; {_ESCAPE}"
    ports = parameters.get("port", "").split(",")
    if not all(port == "" or _is_port(port) for port in ports):
        return f"its port is no number between 1 and 65535; {LOOKS_LIKE}; {_ESCAPE}"
    hosts = len((parameters.get("hostaddr") or parameters.get("host", "")).split(","))
    if len(ports) not in (1, hosts):
        return f"it has {len(ports)} ports for {hosts} host{'s' if hosts > 1 else ''}; give one a host"
    for name in _NUMBERS:
        if name in parameters and not re.fullmatch(r"\s*-?[0-9]{1,9}\s*", parameters[name]):
            return f"its {name} is no whole number"
    for name, words in _WORDS.items():
        if name in parameters and parameters[name] not in words:
            return f"its {name} is none of {', '.join(words)}"
    return None


def server(url: str) -> str | None:
    """Host and port of the server that libpq asks by this URL, for people; None where a part of the password may have
    been read as one of them: then an @ stands in what was read as host, port or database."""
    usual = {
        option.keyword.decode(): option.val.decode() if option.val is not None else None
        for option in Conninfo.get_defaults()
    }
    try:
        found = {**usual, **conninfo_to_dict(url)}
    except psycopg.Error:
        return None
    hosts, ports = str(found.get("host") or found.get("hostaddr") or ""), str(found.get("port") or "5432")
    if "@" in f"{hosts}{ports}{found.get('dbname') or ''}":
        return None
    named = hosts.split(",")
    each = ports.split(",") * (len(named) if "," not in ports else 1)
    return ", ".join(
        f"{host or 'the local socket'} port {port}" for host, port in zip(named, each, strict=False)
    )


class _Source(Protocol):
    """config.DatabaseConfig, which is built on this module."""

    @property
    def url(self) -> str | None: ...
    @property
    def url_env(self) -> str | None: ...
    @property
    def url_file(self) -> Path | None: ...


def doubt(database: _Source, environ: Mapping[str, str]) -> str:
    """What to look at where there is no answer, for people."""
    if database.url is None:
        return "it is the embedded server; see its logs under state_dir"
    return f"is {source(database, environ)} right, and is it up?"


def source(database: _Source, environ: Mapping[str, str]) -> str:
    """Where the URL is from, for people."""
    if database.url_file is not None and _holds(database.url_file, database.url):
        return f"database.url_file {database.url_file}"
    if database.url_env is not None and environ.get(database.url_env) == database.url:
        return f"${database.url_env}"
    return "database.url"


def _holds(file: Path, url: str | None) -> bool:
    try:
        return file.read_text("utf-8").strip() == url
    except (OSError, UnicodeDecodeError):
        return True  # it did when it was read, or there would be no URL


def _is_port(text: str) -> bool:
    return re.fullmatch(r"\s*[0-9]{1,5}\s*", text) is not None and 1 <= int(text) <= 65535


def _without_quotes(message: str) -> str:
    """libpq's message less what it quotes of the URL; the signs that it expects stay."""
    if message.startswith('missing "="'):
        return "it is no URL and no list of parameters"
    less = re.sub(r':\s*".*"', "", message, flags=re.DOTALL)
    less = re.sub(
        r'"([]:/]"|.*")', lambda quoted: quoted[0] if quoted[0] in _SIGNS else "…", less, flags=re.DOTALL
    )
    return " ".join(less.split())
