"""What httpx raises and what a server refuses with -> errors.py, each in one table. Called by sending.py."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType

import httpx
import msgspec

from vectord.client import errors
from vectord.client.errors import BadRequest, ClientError, TryLater

MAX_MESSAGE_CHARACTERS = 2000
LATE = "There was no whole answer within timeout_s."

# The rest: 4xx BadRequest, all others ServerFailed. Gateways send 502, vectord does not.
STATUSES: Mapping[int, type[ClientError]] = MappingProxyType(
    {
        401: errors.Unauthorized,
        403: errors.Unauthorized,
        404: errors.NotFound,
        405: errors.NotFound,
        406: errors.NotAcceptable,
        408: errors.Timeout,
        412: errors.FingerprintChanged,
        429: errors.Overloaded,
        502: errors.Unavailable,
        503: errors.Unavailable,
        504: errors.Timeout,
    }
)

# The nearest ancestor counts. A connection that was never made may be made later; an answer that did not come in time
# will take as long again.
EXCEPTIONS: Mapping[type[httpx.RequestError], tuple[type[ClientError], str]] = MappingProxyType(
    {
        httpx.RequestError: (errors.ServerFailed, "The server's answer cannot be read."),
        httpx.TransportError: (errors.ConnectionFailed, "The connection broke before there was an answer."),
        httpx.TimeoutException: (errors.Timeout, LATE),
        httpx.ConnectError: (errors.ConnectionFailed, "Nobody answers at this address."),
        httpx.ConnectTimeout: (errors.ConnectionFailed, "No connection was made in time."),
        httpx.LocalProtocolError: (errors.BadRequest, "A header of this request cannot be sent."),
        httpx.UnsupportedProtocol: (errors.BadRequest, "The address is none of HTTP."),
        httpx.ProxyError: (errors.ConnectionFailed, "The proxy makes no connection."),
    }
)


class Told(msgspec.Struct):
    """The body of a refusal, as far as it is one of vectord's."""

    message: str
    type: str | None = None
    field: str | None = None
    index: int | None = None
    limit: int | None = None
    given: int | None = None


class Refusal(msgspec.Struct):
    error: Told


_refusal = msgspec.json.Decoder(Refusal)


def failed(cause: httpx.RequestError, request_id: str) -> ClientError:
    """No answer."""
    kind, message = next(EXCEPTIONS[kind] for kind in type(cause).__mro__ if kind in EXCEPTIONS)
    return kind(message, request_id=request_id)


def late(request_id: str) -> ClientError:
    """No whole answer in time."""
    return errors.Timeout(LATE, request_id=request_id)


def too_large(limit_bytes: int, request_id: str) -> ClientError:
    """More of an answer than this client takes."""
    return errors.ServerFailed(
        f"The answer has more than max_answer_bytes, {limit_bytes}: ask for fewer texts a request, or allow more.",
        request_id=request_id,
    )


def refused(status: int, headers: Mapping[str, str], body: bytes) -> ClientError:
    """An answer with a status that is none of success."""
    told = _told(status, body)
    error = _kind(status)(
        told.message[:MAX_MESSAGE_CHARACTERS], status=status, type=told.type, request_id=headers.get("x-request-id")
    )
    if isinstance(error, BadRequest):
        error.field, error.index, error.limit, error.given = told.field, told.index, told.limit, told.given
    if isinstance(error, TryLater):
        error.retry_after_s = retry_after_s(headers.get("retry-after", ""), time.time())
    return error


def _kind(status: int) -> type[ClientError]:
    return STATUSES.get(status, errors.BadRequest if 400 <= status < 500 else errors.ServerFailed)


def _told(status: int, body: bytes) -> Told:
    try:
        return _refusal.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # a gateway's page, or another server
        return Told(f"The answer has status {status} and none of vectord's errors.")


def retry_after_s(value: str, now_unix_s: float) -> float | None:
    """Seconds that a Retry-After header asks for, which may also be a date; None: it says nothing."""
    try:
        wait_s = float(value)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(value).timestamp() - now_unix_s
        except (ValueError, OverflowError):
            return None
    return max(wait_s, 0.0) if math.isfinite(wait_s) else None
