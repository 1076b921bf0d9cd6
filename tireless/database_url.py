"""What is wrong with a database's URL, found out where it is read instead of at the first connection; pure.

libpq reads a URL into parameters and looks at their values only when it connects. Its messages quote what they
complain of, which may be the password, or a part of it: `postgresql://me:pass/word@host` is read as the host `me` with
the port `pass`. So nothing of the URL is ever repeated here.
"""

from __future__ import annotations

import re

import psycopg
from psycopg.conninfo import conninfo_to_dict

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
