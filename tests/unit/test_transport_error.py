"""What is said of a connection that could not be made."""

from __future__ import annotations

import socket

import pytest
import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError, ProtocolError, SSLError

from tireless.forge.errors import Request
from tireless.forge.http import _transport_error

POOL = urllib3.connection.HTTPSConnection("no.such.test")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            NameResolutionError("no.such.test", POOL, socket.gaierror(-2, "Name or service not known")),
            "Failed to resolve 'no.such.test' (Name or service not known)",
        ),
        (
            NewConnectionError(POOL, "Failed to establish a new connection: [Errno 111] Connection refused"),
            "Failed to establish a new connection: Connection refused",
        ),
        (ProtocolError("Connection aborted."), "ProtocolError: Connection aborted."),
        (
            SSLError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)"),
            "does not speak https; if it is to be asked by http, set api_url of its [[forge]]",
        ),
        (
            SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed (_ssl.c:1006)"),
            "its certificate is by nobody who is trusted here; set ca_file of its [[forge]]",
        ),
    ],
)
def test_it_is_said_without_names_of_classes_that_add_nothing(error: HTTPError, says: str) -> None:
    assert _transport_error(Request("GET", "no.such.test", "/x"), error).message == says
