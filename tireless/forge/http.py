"""The one HTTP core under all forges: one origin, one token, bounded in time, size, redirects and tries.

* One exchange: connect within `connect_seconds`, the whole answer (headers and body, however slowly its bytes drip)
  within `answer_seconds`, a body of at most `body_bytes`, and exactly as long as its Content-Length says.
* Redirects are followed by hand, on the same origin only, `redirects` hops at most; reads on any code, writes on
  301, 307 and 308, with method and body kept. The token never goes to another origin: such a redirect is Broken.
* urllib3 neither retries nor redirects here: its Retry would sleep up to six hours on a Retry-After inside the call.
* Reads and idempotent writes are tried up to `tries` times within `total_seconds` together: after a limit, a 502, 503
  or 504, a connection error or a cut-off body. Nothing else is tried twice. A wait that does not fit into what is
  left of `total_seconds` is not begun: the error is raised at once and the caller reschedules.
* The gate is asked before each try, and told of each limit. A closed gate is `Limited` without a request.
* When `stop` is set a sleep ends at once and the last error is raised. A first try is still made, since a runner
  that drains has to announce what it has finished.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_attempt,
    stop_before_delay,
    stop_when_event_set,
)
from urllib3.connection import HTTPConnection, HTTPSConnection

import tireless
from tireless.config import Secret
from tireless.forge.answer import Asked, Redirect, Reply, Unchanged, read_answer
from tireless.forge.errors import Broken, CutOff, ForgeError, Limited, LimitScope, Request, Unreachable
from tireless.forge.gate import Gate
from tireless.proxies import proxy_for

log = logging.getLogger(__name__)

_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Pace:
    """The bounds of one call. Times in seconds."""

    connect_seconds: float = 4.0
    answer_seconds: float = 15.0
    total_seconds: float = 30.0
    tries: int = 3
    first_wait_seconds: float = 0.5  # doubled for each further one, with jitter
    redirects: int = 3
    body_bytes: int = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Call:
    """One request as it is to be sent. `target`: path and query on our origin."""

    request: Request
    target: str
    headers: Mapping[str, str]
    payload: bytes | None
    repeatable: bool

    @property
    def conditional(self) -> bool:
        return "If-None-Match" in self.headers


class Http:
    """Asks one forge instance. Safe to use from several threads."""

    def __init__(
        self,
        base_url: str,
        headers: Mapping[str, str],
        token: Secret | None,
        token_word: str,
        gate: Gate,
        stop: threading.Event,
        pace: Pace,
        ca_file: str | None = None,
    ) -> None:
        self._base = urlsplit(base_url)
        self._origin = _origin(base_url)
        self.host = self._base.netloc
        self._headers = {"User-Agent": f"tireless/{tireless.__version__}", **headers}
        self._token, self._token_word = token, token_word
        self.fingerprint = fingerprint(token)
        self._gate, self._stop, self._pace = gate, stop, pace
        self._limits_in_a_row = 0
        self._pool = _pool(base_url, ca_file)
        # A proxy is told the whole URL, unless it only tunnels.
        tunnels = self._pool.proxy is None or self._base.scheme == "https"
        self._through_proxy = "" if tunnels else f"{self._base.scheme}://{self.host}"

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        etag: str | None = None,
        repeatable: bool | None = None,
    ) -> Reply | Unchanged:
        """The answer, or one of errors.py. `path` is quoted already and relative to the base URL.

        `repeatable`: whether doing it twice is as good as once; by default everything but POST.
        """
        headers = dict(self._headers)
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if etag is not None:
            headers["If-None-Match"] = etag
        call = _Call(
            Request(method, self.host, self._base.path + path),
            self._target(path, query),
            headers,
            payload,
            method != "POST" if repeatable is None else repeatable,
        )
        failed: list[ForgeError] = []
        return self._retrying(call)(self._attempt, call, time.monotonic() + self._pace.total_seconds, failed)

    def etag_key(self, path: str, query: Mapping[str, str]) -> str:
        """What an ETag depends on beside the content: URL, Accept and token. A changed key voids a stored ETag."""
        url = f"{self._origin[0]}://{self.host}{self._target(path, query)}"
        parts = (url, self._headers.get("Accept", ""), self.fingerprint)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def limited_seconds(self) -> float:
        """How long the gate keeps this host closed to this token; 0 for not at all."""
        return self._gate.check(self.host, self.fingerprint)

    def close(self) -> None:
        self._pool.close()

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        return self._base.path + path + (f"?{urlencode(query)}" if query else "")

    def _retrying(self, call: _Call) -> Retrying:
        return Retrying(
            stop=stop_after_attempt(self._pace.tries)
            | stop_when_event_set(self._stop)
            | stop_before_delay(self._pace.total_seconds),
            wait=self._wait,
            sleep=sleep_using_event(self._stop),
            retry=retry_if_exception(lambda error: _try_again(error, call)),
            reraise=True,
        )

    def _wait(self, state: RetryCallState) -> float:
        pause = self._pace.first_wait_seconds * 2.0 ** (state.attempt_number - 1) * random.uniform(0.5, 1.0)
        error = state.outcome.exception() if state.outcome is not None else None
        return error.retry_after_seconds + pause / 10 if isinstance(error, Limited) else pause

    def _attempt(self, call: _Call, deadline: float, failed: list[ForgeError]) -> Reply | Unchanged:
        """One try. After a wait that `stop` has cut short none is made: what failed before is raised again."""
        if failed and self._stop.is_set():
            raise failed[-1]
        try:
            return self._try(call, deadline)
        except ForgeError as error:
            failed.append(error)
            raise

    def _try(self, call: _Call, deadline: float) -> Reply | Unchanged:
        closed = self._gate.check(self.host, self.fingerprint)
        if closed > 0:
            message = "not asked, since this host has limited this token"
            raise Limited(call.request, None, message, closed, LimitScope.TOKEN)
        answer = self._follow(call, deadline)
        if isinstance(answer, Limited):
            self._limits_in_a_row += 1
            self._gate.limit(self.host, self.fingerprint, answer.retry_after_seconds)
        else:
            self._limits_in_a_row = 0
        if isinstance(answer, ForgeError):
            raise answer
        return answer

    def _follow(self, call: _Call, deadline: float) -> Reply | Unchanged | ForgeError:
        """Exchange, and again at the place that a redirect names, while that is on our origin."""
        for hop in range(self._pace.redirects + 1):
            status, headers, body = self._exchange(call, deadline)
            asked = Asked(call.request, datetime.now(UTC), call.conditional, self._limits_in_a_row)
            answer = read_answer(asked, status, headers, body)
            if not isinstance(answer, Redirect):
                if hop and isinstance(answer, (Reply, Unchanged)):
                    return replace(answer, moved=True)
                return answer
            call = replace(call, target=self._redirected(call, answer))
            log.info(
                "forge redirect method=%s path=%s host=%s", call.request.method, call.request.path, self.host
            )
        return Broken(call.request, status, f"redirects more than {self._pace.redirects} times")

    def _redirected(self, call: _Call, answer: Redirect) -> str:
        """The path and query to ask next; Broken where we must not follow."""
        if call.request.method != "GET" and answer.status not in (301, 307, 308):
            raise Broken(call.request, answer.status, "redirects a write to a page")
        try:
            url = urljoin(f"{self._origin[0]}://{self.host}{call.target}", answer.location)
            parts, origin = urlsplit(url), _origin(url)
        except ValueError:
            raise Broken(call.request, answer.status, "redirects to what is no URL") from None
        if origin != self._origin:
            where = f"{origin[0]}://{origin[1]}"
            raise Broken(call.request, answer.status, f"redirects to another origin ({where}), not followed")
        return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def _exchange(self, call: _Call, deadline: float) -> tuple[int, dict[str, str], bytes]:
        left = deadline - time.monotonic()
        if left <= 0:
            raise Unreachable(call.request, None, f"no answer within {self._pace.total_seconds:.0f} s")
        timeout = urllib3.Timeout(
            connect=min(self._pace.connect_seconds, left), read=min(self._pace.answer_seconds, left)
        )
        headers = dict(call.headers)
        if self._token is not None:
            headers["Authorization"] = f"{self._token_word} {self._token.reveal()}"
        try:
            response = self._pool.urlopen(
                call.request.method,
                self._through_proxy + call.target,
                body=call.payload,
                headers=headers,
                retries=False,
                redirect=False,
                assert_same_host=False,  # of a proxy's pool, whose host is the proxy; a target is only a path here
                timeout=timeout,
                preload_content=False,
                decode_content=False,
            )
            body = self._read(call.request, response)
        except urllib3.exceptions.HTTPError as e:
            raise _transport_error(call.request, e) from None
        except ValueError:  # its text quotes the header
            raise Broken(
                call.request, None, "cannot be asked with this token: it fits into no header"
            ) from None
        log.debug("forge answer method=%s path=%s status=%d", call.request.method, call.target, response.status)
        return response.status, {k.lower(): v for k, v in response.headers.items()}, body

    def _read(self, request: Request, response: urllib3.BaseHTTPResponse) -> bytes:
        """The whole body. A connection whose body was not read to its end is closed, not used again."""
        complete = False
        try:
            parts: list[bytes] = []
            size = 0
            while chunk := response.read(_CHUNK):
                parts.append(chunk)
                size += len(chunk)
                if size > self._pace.body_bytes:
                    raise Broken(request, response.status, f"is longer than {self._pace.body_bytes} bytes")
            complete = True
            return b"".join(parts)
        finally:
            if not complete:
                response.close()
            response.release_conn()


def fingerprint(token: Secret | None) -> str:
    """Tells tokens apart without holding one."""
    if token is None:
        return "anonymous"
    return hashlib.sha256(token.reveal().encode()).hexdigest()[:16]


def _try_again(error: BaseException, call: _Call) -> bool:
    if isinstance(error, Limited) and error.status is None:
        return True  # the gate was closed and nothing was sent
    if not call.repeatable:
        return False
    if isinstance(error, Unreachable):
        return error.status in (None, 502, 503, 504)
    return isinstance(error, (Limited, CutOff))


def _transport_error(request: Request, error: urllib3.exceptions.HTTPError) -> ForgeError:
    cause = error.__cause__ or error.__context__
    if isinstance(error, http.client.IncompleteRead) or isinstance(cause, http.client.IncompleteRead):
        return CutOff(request, None, "the answer ends before its announced length")
    if isinstance(error, urllib3.exceptions.InvalidHeader):
        return Broken(request, None, "contradicts itself in its headers")
    refused = isinstance(
        error, urllib3.exceptions.NewConnectionError
    )  # which urllib3 counts among the timeouts
    if isinstance(error, urllib3.exceptions.TimeoutError) and not refused:
        return Unreachable(request, None, "no whole answer in time")
    return Unreachable(request, None, _in_words(error))


_WAYS_OUT = {
    "WRONG_VERSION_NUMBER": "does not speak https; if it is to be asked by http, set api_url of its [[forge]]",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is by nobody who is trusted here; set ca_file of its [[forge]]",
}


def _in_words(error: urllib3.exceptions.HTTPError) -> str:
    """What urllib3 says, without the names of classes before it and numbers within."""
    text = " ".join(str(error).split())[:200]
    for sign, way_out in _WAYS_OUT.items():
        if sign in text:
            return way_out
    said, stripped = re.subn(r"^\w+\(host=[^)]*\): ", "", text)
    return re.sub(r"\[Errno -?\d+\] ", "", said) if stripped else f"{type(error).__name__}: {text}"


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


class _TimedReader(io.RawIOBase):
    """Reads a socket until a deadline that holds for all reads together, not for each: slow bytes do not help."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, seconds: float) -> None:
        super().__init__()
        self._raw, self._sock = raw, sock
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        usual = self._sock.gettimeout()
        self._sock.settimeout(left)
        try:
            return self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(usual)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """Takes the socket's timeout, which urllib3 has just set to its read timeout, as the time of the whole answer."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        seconds = sock.gettimeout()
        if seconds is not None:
            self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock, seconds))


class _TimedHTTPConnection(HTTPConnection):
    response_class = _TimedResponse


class _TimedHTTPSConnection(HTTPSConnection):
    response_class = _TimedResponse


class _TimedHTTPPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _TimedHTTPConnection


class _TimedHTTPSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TimedHTTPSConnection


def _pool(base_url: str, ca_file: str | None) -> urllib3.HTTPConnectionPool:
    scheme, host, port = _origin(base_url)
    proxy = proxy_for(os.environ, scheme, host, port)
    if proxy is not None:
        manager = urllib3.ProxyManager(
            proxy.url,
            proxy_headers=urllib3.make_headers(proxy_basic_auth=proxy.login) if proxy.login else None,
            maxsize=8,
            cert_reqs="CERT_REQUIRED",
            ca_certs=ca_file,
        )
        manager.pool_classes_by_scheme = {"http": _TimedHTTPPool, "https": _TimedHTTPSPool}
        return manager.connection_from_host(host, port, scheme)
    if scheme == "https":
        return _TimedHTTPSPool(host, port, maxsize=8, cert_reqs="CERT_REQUIRED", ca_certs=ca_file)
    return _TimedHTTPPool(host, port, maxsize=8)
