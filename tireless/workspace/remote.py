"""A repository on a forge: how git gets at it, and what its answers mean.

The token is in the environment of the one git process that needs it (http.<origin>.extraHeader by
GIT_CONFIG_VALUE_n) and nowhere else. It is bound to the remote's origin and redirects are not followed, so it
cannot reach another server. Git must ask for nothing: without a token, or with one that the server does not
take, it fails at once.
"""

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tireless import proxies
from tireless.config import Secret
from tireless.workspace.command import Access
from tireless.workspace.errors import BadRemote, DiskFull, GitError, GitFailed, RemoteRefused, RemoteUnreachable

# A machine behind a proxy or with its own authorities says so by these; they hold for http commands only.
_NETWORK_ENV = (*proxies.VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR")

# A server that counts objects keeps the line alive with a few bytes every 5 s; less than 1 byte a second for
# this long is a dead line, also for a git whose runner is gone.
_DEAD_LINE_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Remote:
    """Where a repository is fetched from and pushed to. BadRemote unless `url` is plain http or https."""

    url: str
    user: str = "x-access-token"
    token: Secret | None = None
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadRemote(f"remote {_without_user(self.url)!r}: give an http or https URL")
        if "@" in parts.netloc:
            raise BadRemote(f"remote {_without_user(self.url)!r}: give the URL without a user in it")
        if re.search(r"[\s\x00-\x1f\x7f]", self.url):
            raise BadRemote(f"remote {self.url!r}: white space has no place in a URL")

    @property
    def origin(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}/"

    def access(self) -> Access:
        config = [
            ("http.followRedirects", "false"),
            ("http.lowSpeedLimit", "1"),
            ("http.lowSpeedTime", str(_DEAD_LINE_SECONDS)),
        ]
        secrets: tuple[str, ...] = ()
        if self.token is not None:
            token = self.token.reveal()
            basic = base64.b64encode(f"{self.user}:{token}".encode()).decode()
            config.append((f"http.{self.origin}.extraHeader", f"Authorization: Basic {basic}"))
            secrets = (basic, token)
        if self.ca_file is not None:
            config.append(("http.sslCAInfo", str(self.ca_file)))
        direct = proxies.VARIABLES if proxies.is_loopback(urlsplit(self.url).hostname or "") else ()
        network = {name: os.environ[name] for name in _NETWORK_ENV if name in os.environ and name not in direct}
        secrets += proxies.secrets(os.environ)
        return Access("http:https", tuple(config), network, secrets)


_REFUSED = re.compile(
    r"Authentication failed"
    r"|could not read (Username|Password)"
    r"|(returned error:|HTTP) (30\d|400|401|403|404|405|410|413|423|451)\b"
    r"|repository '.*' not found"
    r"|[Pp]ermission (to .* )?denied|[Aa]ccess denied|not authorized",
)
_UNREACHABLE = re.compile(
    r"unable to access|[Cc]ould not resolve|[Ff]ailed to connect|[Cc]onnection (refused|reset|timed out)"
    r"|(returned error:|HTTP) (408|429|5\d\d)\b|RPC failed|early EOF|unexpected disconnect|hung up unexpectedly"
    r"|the remote end hung up|bad line length|invalid server response|too slow|timed out"
    r"|unexpected flush|expected flush|protocol error|not valid: is this a git repository",
)
_OUR_SIDE = re.compile(r"fsck error|unable to (create|write)|unable to open|[Pp]ermission denied \(")


def explain(error: GitFailed, url: str) -> GitError:
    """What a failed fetch or push says about the remote; the error itself where it says nothing. Pure.

    It goes by git's own words (LC_ALL=C), since git has one exit code for them all.
    """
    text = error.stderr
    if isinstance(error, DiskFull) or _OUR_SIDE.search(text):
        return error
    shown = _without_user(url)
    if _REFUSED.search(text):
        return RemoteRefused(shown, text + _hint(text))
    if _UNREACHABLE.search(text):
        return RemoteUnreachable(shown, text)
    return error


def _hint(text: str) -> str:
    if re.search(r"returned error: 30\d", text):
        return " (it answers with a redirect: the repository may have moved; see its clone URL)"
    if re.search(r"could not read Username|Authentication failed|error: 401", text):
        return " (no token that it accepts)"
    return ""


def _without_user(url: str) -> str:
    return re.sub(r"(?<=://)[^/@]*@", "", url)
