"""errors.py: every exception of httpx and every error response has its class."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vectord import errors as domain
from vectord.client import errors
from vectord.client.errors import (
    MAX_MESSAGE_CHARACTERS,
    BadRequest,
    ClientError,
    from_exception,
    from_response,
    retry_after_s,
)
from vectord.products.vectord.fields import ERRORS, render_error

NOW_S = 784111777.0  # Sun, 06 Nov 1994 08:49:37 GMT


def kinds_of_httpx(kind: type[httpx.RequestError] = httpx.RequestError) -> Iterator[type[httpx.RequestError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from kinds_of_httpx(one)


CLASSES = {
    errors.ConnectionFailed: "ConnectError ConnectTimeout ReadError WriteError CloseError NetworkError ProxyError "
    "ProtocolError RemoteProtocolError TransportError",
    errors.BadRequest: "UnsupportedProtocol LocalProtocolError",
    errors.Timeout: "TimeoutException ReadTimeout WriteTimeout PoolTimeout",
    errors.ServerFailed: "RequestError DecodingError TooManyRedirects",
}
EXPECTED = {name: kind for kind, names in CLASSES.items() for name in names.split()}


@pytest.mark.parametrize("kind", list(kinds_of_httpx()), ids=lambda kind: kind.__name__)
def test_every_exception_of_httpx_has_a_counterpart(kind):
    """A new exception of httpx fails this test until it is mapped."""
    error = from_exception(kind("http://user:secret@host"), "id-1")
    assert type(error) is EXPECTED[kind.__name__]
    assert (error.request_id, error.status) == ("id-1", None)
    assert "secret" not in str(error)


COUNTERPARTS = {
    domain.VectordError: errors.ServerFailed,
    domain.InvalidRequest: errors.BadRequest,
    domain.UnsupportedMediaType: errors.BadRequest,
    domain.NotAcceptable: errors.BadRequest,
    domain.PayloadTooLarge: errors.BadRequest,
    domain.ModelNotFound: errors.NotFound,
    domain.ModelCannot: errors.BadRequest,
    domain.FingerprintMismatch: errors.FingerprintChanged,
    domain.Unauthorized: errors.Unauthorized,
    domain.Forbidden: errors.Unauthorized,
    domain.NoSuchRoute: errors.NotFound,
    domain.MethodNotAllowed: errors.NotFound,
    domain.Overloaded: errors.Overloaded,
    domain.Unavailable: errors.Unavailable,
    domain.TimedOut: errors.Timeout,
    domain.UploadTooSlow: errors.Timeout,
    domain.InferenceTimedOut: errors.Timeout,
}


def made(kind: type[domain.VectordError]) -> domain.VectordError:
    if kind is domain.MethodNotAllowed:
        return kind("x", allowed=("GET",))
    return kind("x", retry_after_s=3.0) if kind in (domain.Overloaded, domain.Unavailable) else kind("x")


@pytest.mark.parametrize("kind", list(ERRORS), ids=lambda kind: kind.__name__)
def test_every_error_of_the_server_has_a_counterpart(kind):
    """As vectord's own API renders it. A new error fails this test until it is mapped."""
    rendered = render_error(made(kind))
    error = from_response(rendered.status, rendered.headers, rendered.body)
    assert type(error) is COUNTERPARTS[kind]
    assert (str(error), error.status) == ("x", rendered.status)
    assert getattr(error, "retry_after_s", 3.0) == 3.0


def test_an_error_keeps_the_fields_of_the_response():
    """And the request id of the server's log."""
    told = domain.InputTooLong("`inputs[1]` is long", field="inputs", index=1, limit=5, given=9)
    rendered = render_error(told)
    error = from_response(rendered.status, {"x-request-id": "id-1"}, rendered.body)
    assert isinstance(error, BadRequest)
    assert str(error).startswith(f"{told.message}. Send")
    assert (error.status, error.type, error.request_id) == (400, "input_too_long", "id-1")
    assert (error.field, error.index, error.limit, error.given) == ("inputs", 1, 5, 9)


GATEWAYS = {302: errors.ServerFailed, 408: errors.Timeout, 418: errors.BadRequest, 422: errors.BadRequest}
GATEWAYS |= {500: errors.Unavailable, 502: errors.Unavailable, 504: errors.Timeout, 599: errors.ServerFailed}


@pytest.mark.parametrize(("status", "kind"), GATEWAYS.items())
def test_statuses_of_gateways_have_a_class(status, kind):
    """Also without an error of vectord in the body. Ray's proxy sends 500 when a node dies, so it is tried again."""
    error = from_response(status, {}, b"<html>bad gateway</html>")
    assert type(error) is kind
    assert str(error) == f"The response has status {status} and is no error of vectord."


@given(st.integers(300, 599), st.binary(max_size=300) | st.sampled_from([b'{"error": "x"}', b"[" * 5000, b"\xff"]))
def test_any_body_gives_a_client_error(status, body):
    """Never another exception."""
    assert isinstance(from_response(status, {"retry-after": "\x00"}, body), ClientError)


def test_the_length_of_a_message_is_limited():
    """A broken server may send anything."""
    body = b'{"error": {"message": "%s"}}' % (b"x" * 10**6)
    assert len(str(from_response(400, {}, body))) == MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("1.5", 1.5),
        ("-4", 0.0),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sun, 06 Nov 1994 08:49:17 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("nan", None),
        ("1e999", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value, seconds):
    """Anything else counts as missing; a date in the past as now."""
    assert retry_after_s(value, NOW_S) == seconds
