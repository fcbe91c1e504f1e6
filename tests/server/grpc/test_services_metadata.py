"""The metadata of a call, and the status of every error."""

from __future__ import annotations

import pytest
from grpc import StatusCode

from vectord import errors
from vectord.errors import InvalidField, Overloaded, Unavailable
from vectord.products.common.errors import row_of
from vectord.products.tei.errors import ERRORS
from vectord.server.admission.gate import caller_of
from vectord.server.grpc.services import CODES, address_of, headers_of, trailers_of


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("ipv4:10.0.0.1:50000", "10.0.0.1"),
        ("ipv6:[::1]:50000", "::1"),
        ("ipv6:%5B2001:db8::1%5D:50000", "2001:db8::1"),
        ("unix:/tmp/socket", "unix:/tmp/socket"),
        ("unix:", "unix:"),
    ],
)
def test_a_client_is_its_address(peer, client):
    """As for HTTP, without the port."""
    assert address_of(peer) == client


@pytest.mark.parametrize("header", ["x-vectord-lane", "x-vectord-expect-fingerprint"])
def test_invalid_metadata_are_refused(header):
    """By name, without the value."""
    with pytest.raises(InvalidField) as caught:
        caller_of({header: "nonsense!"}, "unix:")
    assert header in caught.value.message
    assert "nonsense" not in caught.value.message


def test_values_outside_latin_1_are_accepted():
    """gRPC may pass any character, and a key check must handle it."""
    assert headers_of([("authorization", "Bearer ключ")]) == {"authorization": "Bearer ключ".encode().decode("latin-1")}


# --- statuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Unavailable("x"), StatusCode.UNAVAILABLE),
        (errors.InferenceFailed("x"), StatusCode.FAILED_PRECONDITION),
        (errors.OutOfMemory("x"), StatusCode.FAILED_PRECONDITION),
        (errors.ModelCannot("x"), StatusCode.FAILED_PRECONDITION),
        (errors.Overloaded("x", retry_after_s=1), StatusCode.RESOURCE_EXHAUSTED),
        (errors.Untokenizable("x"), StatusCode.INVALID_ARGUMENT),
        (errors.InvalidField("x"), StatusCode.INVALID_ARGUMENT),
        (errors.InputTooLong("x"), StatusCode.INVALID_ARGUMENT),
        (errors.EmptyInput("x"), StatusCode.INVALID_ARGUMENT),
        (errors.PayloadTooLarge("x"), StatusCode.INVALID_ARGUMENT),
        (errors.Unauthorized("x"), StatusCode.UNAUTHENTICATED),
        (errors.VectordError("x"), StatusCode.INTERNAL),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errors_have_teis_statuses(error, code):
    """TEI's where it has one."""
    assert row_of(CODES, error) is code


def test_permanent_errors_are_not_retried():
    """Clients retry UNAVAILABLE and RESOURCE_EXHAUSTED."""
    passing = {StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED}
    retried = {kind for kind in ERRORS if row_of(CODES, kind.__new__(kind)) in passing}
    assert retried == {kind for kind in ERRORS if issubclass(kind, Overloaded | Unavailable)}


def test_the_wait_is_in_grpcs_form():
    """Whole milliseconds, rounded up; absent if waiting does not help."""
    assert trailers_of(Overloaded("x", retry_after_s=1.2341)) == (("grpc-retry-pushback-ms", "1235"),)
    assert trailers_of(errors.EmptyInput("x")) == ()
