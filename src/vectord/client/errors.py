"""Every way a call can fail, and how exceptions of httpx and error responses map to it.

    ClientError
    ├── BadRequest            the request cannot be answered, now or later
    ├── Unauthorized          the key is missing, wrong, or lacks the permission
    ├── NotFound              the model or the route does not exist
    ├── FingerprintChanged    vectors of another space than expected, or than the first ones of this call
    ├── TryLater              the retries, or the time for them, are used up
    │   ├── Overloaded            the server refuses work; retry_after_s is its estimate
    │   ├── Unavailable           the model is loading, or the server is shutting down
    │   └── ConnectionFailed      no connection, or it broke before the response was complete
    ├── Timeout               connected, but no complete response within timeout_s, or status 408 or 504
    └── ServerFailed          the server failed, its certificate is not trusted, or its response is invalid or too large

Errors of the calling code, such as a text that is not a string, are TypeError or ValueError.
"""

from __future__ import annotations

import math
import ssl
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType

import httpx
import msgspec

MAX_MESSAGE_CHARACTERS = 2000
UNTRUSTED = (
    "The server's certificate is not trusted: {why}. Name the PEM file of its authority in SSL_CERT_FILE, or pass a "
    "client of httpx that trusts it as `http`."
)
TIMED_OUT = "There was no complete response within timeout_s."


class ClientError(Exception):
    """Base of every failed call."""

    def __init__(
        self, message: str, *, status: int | None = None, type: str | None = None, request_id: str | None = None
    ) -> None:
        """status: of HTTP; None without a response. type: as in docs/api.md. request_id: also in the server's log."""
        super().__init__(message)
        self.status = status
        self.type = type
        self.request_id = request_id


class BadRequest(ClientError):
    """field: as in docs/api.md. index: of the item in the caller's list. limit, given: in the message's unit."""

    field: str | None = None
    index: int | None = None
    limit: int | None = None
    given: int | None = None


class Unauthorized(ClientError):
    pass


class NotFound(ClientError):
    pass


class FingerprintChanged(ClientError):
    pass


class TryLater(ClientError):
    """retry_after_s: from the server; None if it sent none."""

    retry_after_s: float | None = None


class Overloaded(TryLater):
    pass


class Unavailable(TryLater):
    pass


class ConnectionFailed(TryLater):
    pass


class Timeout(ClientError):
    pass


class ServerFailed(ClientError):
    pass


# Any other 4xx is a BadRequest, everything else ServerFailed. 502 comes from gateways, never from vectord. So does a
# 500 without vectord's fields: Ray's proxy sends it in place of 502, 503 and 504 when a node dies.
STATUSES: Mapping[int, type[ClientError]] = MappingProxyType(
    {
        401: Unauthorized,
        403: Unauthorized,
        404: NotFound,
        405: NotFound,
        408: Timeout,
        412: FingerprintChanged,
        429: Overloaded,
        502: Unavailable,
        503: Unavailable,
        504: Timeout,
    }
)

# The nearest ancestor counts. A failed connection may succeed later; a response that was too slow would be slow again.
EXCEPTIONS: Mapping[type[httpx.RequestError], tuple[type[ClientError], str]] = MappingProxyType(
    {
        httpx.RequestError: (ServerFailed, "The response cannot be read."),
        httpx.TransportError: (ConnectionFailed, "The connection broke before the response."),
        httpx.TimeoutException: (Timeout, TIMED_OUT),
        httpx.ConnectError: (ConnectionFailed, "No server answers at this address."),
        httpx.ConnectTimeout: (ConnectionFailed, "Connecting took too long."),
        httpx.LocalProtocolError: (BadRequest, "A header of this request cannot be sent."),
        httpx.UnsupportedProtocol: (BadRequest, "The address is not one of HTTP."),
        httpx.ProxyError: (ConnectionFailed, "The proxy does not connect."),
    }
)


class _ErrorFields(msgspec.Struct):
    message: str
    type: str | None = None
    field: str | None = None
    index: int | None = None
    limit: int | None = None
    given: int | None = None


class _ErrorBody(msgspec.Struct):
    error: _ErrorFields


_error_body = msgspec.json.Decoder(_ErrorBody)


def untrusted_certificate(cause: BaseException | None) -> str | None:
    """Why the server's certificate is not trusted; None if an exception has another cause."""
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return None if cause is None else cause.verify_message


def from_exception(cause: httpx.RequestError, request_id: str) -> ClientError:
    """The error for an exception of httpx."""
    if (why := untrusted_certificate(cause)) is not None:
        return ServerFailed(UNTRUSTED.format(why=why), request_id=request_id)
    kind, message = next(EXCEPTIONS[kind] for kind in type(cause).__mro__ if kind in EXCEPTIONS)
    return kind(message, request_id=request_id)


def from_response(status: int, headers: Mapping[str, str], body: bytes) -> ClientError:
    """The error for a response whose status is not a success."""
    kind = STATUSES.get(status, BadRequest if 400 <= status < 500 else ServerFailed)
    try:
        fields = _error_body.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a gateway, or another server
        fields = _ErrorFields(f"The response has status {status} and is no error of vectord.")
        kind = Unavailable if status == 500 else kind
    message = fields.message[:MAX_MESSAGE_CHARACTERS]
    error = kind(message, status=status, type=fields.type, request_id=headers.get("x-request-id"))
    if isinstance(error, BadRequest):
        error.field, error.index, error.limit, error.given = fields.field, fields.index, fields.limit, fields.given
    if isinstance(error, TryLater):
        error.retry_after_s = retry_after_s(headers.get("retry-after", ""), time.time())
    return error


def retry_after_s(value: str, now_unix_s: float) -> float | None:
    """The seconds of a Retry-After header, which may also be a date; None if it is neither."""
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(value).timestamp() - now_unix_s
        except (ValueError, OverflowError):
            return None
    return max(wait_s, 0.0) if math.isfinite(wait_s) else None
