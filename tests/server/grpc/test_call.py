"""The metadata of a call."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")

from vectord.errors import InvalidField
from vectord.schema import Caller
from vectord.server.admission.gate import caller_of
from vectord.server.grpc.call import address_of, headers_of


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


def test_metadata_correspond_to_http_headers():
    """Lane, vector space and request id."""
    metadata = [
        ("x-vectord-lane", "bulk"),
        ("x-request-id", "mine"),
        ("x-vectord-expect-fingerprint", "0123abcd"),
        ("trace-bin", b"\xff"),
    ]
    assert caller_of(headers_of(metadata), "unix:") == Caller(
        client="unix:", lane="bulk", request_id="mine", expect_fingerprint="0123abcd"
    )


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
