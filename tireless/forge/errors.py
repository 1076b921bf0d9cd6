"""What can go wrong when a forge is asked. Each error is a type that tells its caller what to do.

    Limited       wait `retry_after_seconds`; the forge has said so, or we know that it would
    Unreachable   no answer, or a server error: ask again later
    Broken        an answer that cannot be understood: ask again later, and show it to an operator
    Unauthorized  the token is not accepted: stop using it; the request itself may be good
    Forbidden     the token may not do this
    NotFound      404, 410 or 451: not there, or not for this token
    Moved         the issue lives in another repository now
    Refused       the forge understood and said no for good

`retryable` is that difference for the outbox of forge writes: False means that the same request can never succeed
unless somebody changes something on the forge. An error's text names method, path, host and status. It is made
from a `Request`, which holds no header and no query, so no token can get into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tireless.entities import IssueRef, RepoRef, TirelessError


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, as errors and logs tell it."""

    method: str
    host: str
    path: str

    def __str__(self) -> str:
        return f"{self.method} {self.path} on {self.host}"


class LimitScope(StrEnum):
    """Whom a limit holds for: everybody who asks that host from here, or the holder of the token."""

    HOST = "host"
    TOKEN = "token"


class ForgeError(TirelessError):
    """The base. `status` is None where there was no answer."""

    retryable = False

    def __init__(self, request: Request, status: int | None, message: str) -> None:
        self.request = request
        self.status = status
        self.message = message
        code = f" (status {status})" if status is not None else ""
        super().__init__(f"{request}{code}: {message}")


class Limited(ForgeError):
    """Asked too much, or a server that names the time when it will be back. Ask again after `retry_after_seconds`.

    Nothing was done, unless `status` is 503. `status` None: not even asked, since the gate is closed.
    """

    retryable = True

    def __init__(
        self, request: Request, status: int | None, message: str, retry_after_seconds: float, scope: LimitScope
    ) -> None:
        self.retry_after_seconds = retry_after_seconds
        self.scope = scope
        super().__init__(request, status, f"{message}; wait {retry_after_seconds:.0f} s")


class Unreachable(ForgeError):
    """No answer in time, a connection error, or a 5xx. A write may or may not have been done."""

    retryable = True


class Broken(ForgeError):
    """An answer that cannot be understood: HTML, cut-off JSON, a 304 that was not asked for, another origin."""

    retryable = True


class CutOff(Broken):
    """The body ended before its Content-Length or its last chunk."""


class Unauthorized(ForgeError):
    """401. Retryable, since the request waits for a good token; the token must not be used meanwhile."""

    retryable = True


class Forbidden(ForgeError):
    """403 that is no rate limit: a missing permission."""


class NotFound(ForgeError):
    """404, 410, 451."""


class Refused(ForgeError):
    """Any other 4xx: the forge will not do this as asked. `errors` is GitHub's list of reasons, where given."""

    def __init__(self, request: Request, status: int, message: str, errors: tuple[str, ...] = ()) -> None:
        self.errors = errors
        super().__init__(request, status, "; ".join((message, *errors)))


class Moved(ForgeError):
    """The issue was transferred: it is `issue` now, in the repository `to`."""

    def __init__(
        self, request: Request, status: int | None, to: RepoRef, issue: IssueRef | None = None
    ) -> None:
        self.to = to
        self.issue = issue
        super().__init__(request, status, f"moved to {issue or to}")
