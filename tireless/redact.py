"""One redactor for everything that leaves a process: log lines, errors, comments, transcripts.

It masks the values it was given (in the forms in which they travel: plain, percent-encoded, as JSON writes
them) and what is shaped like a known kind of token. It is not a reason to handle secrets less carefully: it is
what is left when something else went wrong.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping
from typing import AnyStr, overload
from urllib.parse import quote

MASK = "[redacted]"
_SHORTEST = 6  # a shorter value would mask ordinary words

_TOKENS = (
    r"\bgh[pousr]_[A-Za-z0-9]{16,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{20,}",
    r"\bgl(?:pat|ptt|dt|rt|cbt)-[A-Za-z0-9_\-.]{16,}",  # GitLab
    r"\bsk-[A-Za-z0-9][A-Za-z0-9_\-]{18,}",  # Anthropic (sk-ant-), OpenAI, OpenRouter
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\bxox[abeoprs]-[A-Za-z0-9\-]{10,}",  # Slack
    r"\bAIza[0-9A-Za-z_\-]{35}",  # Google
    r"\bhf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"\bnpm_[A-Za-z0-9]{30,}",
    r"\bpypi-[A-Za-z0-9_\-]{30,}",
    r"\beyJ[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}\.[A-Za-z0-9_\-]{10,}",  # a JSON web token
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[A-Za-z0-9+/=:,\-. \r\n]|\\[rn])*",
)
# Each keeps what comes before the secret: `keep` is the part that is not masked.
_CONTEXTS = (
    r"(?P<keep{n}>(?:[Pp]roxy-)?[Aa]uthorization[\"'\\]{{0,3}}\s{{0,3}}[:=]\s{{0,3}}[\"'\\]{{0,3}}"
    r"(?:(?:[Bb]asic|[Bb]earer|[Tt]oken)\s+)?)[^\s\"'\\,;]{{6,}}",
    r"(?P<keep{n}>(?:[Xx]-[Aa]pi-[Kk]ey|[Pp]rivate-[Tt]oken|PRIVATE-TOKEN|[Xx]-[Gg]it[a-z]+-[Tt]oken)"
    r"[\"'\\]{{0,3}}\s{{0,3}}[:=]\s{{0,3}}[\"'\\]{{0,3}})[^\s\"'\\,;]{{6,}}",
    r"(?P<keep{n}>://)[^/\s:@\"'<>\\]{{0,200}}:[^/\s@\"'<>\\]{{1,500}}(?=@)",
    r"(?P<keep{n}>://)[^/\s:@\"'<>\\]{{20,500}}(?=@)",  # a token where the user's name goes
)
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


class Redactor:
    """Pure and thread-safe. Masking twice is masking once."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}
        literals = [re.escape(form) for form in sorted(known, key=len, reverse=True)]
        contexts = [context.format(n=n) for n, context in enumerate(_CONTEXTS)]
        source = "|".join([*literals, *contexts, *_TOKENS])
        self._text = re.compile(source)
        self._bytes = re.compile(source.encode())

    @overload
    def __call__(self, text: str) -> str: ...
    @overload
    def __call__(self, text: bytes) -> bytes: ...
    def __call__(self, text: str | bytes) -> str | bytes:
        if isinstance(text, bytes):
            return self._bytes.sub(lambda m: _kept(m, b"") + MASK.encode(), text)
        return self._text.sub(lambda m: _kept(m, "") + MASK, text)


def _kept(match: re.Match[AnyStr], nothing: AnyStr) -> AnyStr:
    return next((part for part in match.groupdict().values() if part is not None), nothing)


def _forms(value: str) -> set[str]:
    return {value, quote(value, safe=""), json.dumps(value)[1:-1]}


def secrets_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values of an agent's environment that its variable's name calls secret."""
    return tuple(value for name, value in environment.items() if _SECRET_NAME.search(name) and value)


class RedactingFilter(logging.Filter):
    """Masks a record in place, message and traceback, before any handler formats it."""

    def __init__(self, redact: Redactor) -> None:
        super().__init__()
        self._redact = redact
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            message = record.getMessage()
        except Exception:  # a bad format string must not cost the line
            message = f"{record.msg} {record.args}"
        record.msg, record.args = self._redact(message), None
        if record.exc_info:
            record.exc_text = self._redact(self._formatter.formatException(record.exc_info))
            record.exc_info = None
        if record.stack_info:
            record.stack_info = self._redact(record.stack_info)
        return True
