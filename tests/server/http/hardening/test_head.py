"""A request whose head can be read in two ways gets 400, on a real socket and from any ASGI server."""

from __future__ import annotations

import pytest
from tests.server.live import ask, connected, get, live, post

OFFER = b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"
LIVE = b"GET /health/live HTTP/1.1\r\n"
BODY = b'{"input": "x"}'
CHUNKS = b"e\r\n" + BODY + b"\r\n0\r\n\r\n"


def embed(*lines: bytes, body: bytes = BODY) -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"Host: localhost", *lines))
    return b"POST /v1/embed HTTP/1.1\r\n" + head + b"\r\n" + body


LENGTH = b"Content-Length: 14"
INVALID = {
    "no Host": LIVE + b"\r\n",
    "two Hosts": LIVE + b"Host: a\r\nHost: a\r\n\r\n",
    "a list of hosts": LIVE + b"Host: a, b\r\n\r\n",
    "a Host with a path": LIVE + b"Host: a/b\r\n\r\n",
    "a Host with a user": LIVE + b"Host: user@a\r\n\r\n",
    "a Host without a numeric port": LIVE + b"Host: a:http\r\n\r\n",
    "a Host with a broken address": LIVE + b"Host: [1:2]\r\n\r\n",
    "a Host outside ASCII": LIVE + b"Host: \xe9\r\n\r\n",
    "a user in the target": b"GET http://user@localhost/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2.0": b"GET /health/live HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /health/live HTTP/0.9\r\nHost: a\r\n\r\n",
    "HTTP/0.9 without a version": b"GET /health/live\r\n\r\n",
    "gzip, chunked": embed(b"Transfer-Encoding: gzip, chunked", body=CHUNKS),
    "gzip and chunked": embed(b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=CHUNKS),
    "identity": embed(b"Transfer-Encoding: identity", LENGTH),
    "chunks in HTTP/1.0": embed(b"Transfer-Encoding: chunked", body=CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "two equal lengths": embed(LENGTH, LENGTH),
    "a list of lengths": embed(LENGTH + b", 14"),
    "a length and chunks": embed(LENGTH, b"Transfer-Encoding: chunked", body=CHUNKS),
    "a folded line": embed(LENGTH, b"X-A: b\r\n c"),
    "a space before the colon": embed(LENGTH, b"X-A : b"),
    "two Authorizations": embed(LENGTH, b"Authorization: Bearer a", b"Authorization: Bearer b"),
    "two x-api-keys": embed(LENGTH, b"x-api-key: a", b"X-Api-Key: a"),
    "two Content-Types": embed(LENGTH, b"Content-Type: text/plain", b"Content-Type: application/json"),
    "two Content-Encodings": embed(LENGTH, b"Content-Encoding: gzip", b"Content-Encoding: gzip"),
    "two lanes": embed(LENGTH, b"x-vectord-lane: bulk", b"x-vectord-lane: interactive"),
}


@pytest.mark.parametrize("request_name", INVALID)
async def test_an_ambiguous_request_gets_400_and_ends_the_connection(request_name: str) -> None:
    """Whatever follows it on the connection is not read: it may be a part of it."""
    async with live() as server, connected(server) as client:
        client.send(INVALID[request_name], LIVE + b"Host: localhost\r\n\r\n")
        assert (await client.reply()).status == 400
        assert await client.closed()


VALID = {
    "HTTP/1.0 without Host": b"GET /health/live HTTP/1.0\r\n\r\n",
    "an empty Host": LIVE + b"Host:\r\n\r\n",
    "a Host in capitals with a port": LIVE + b"HOST: LocalHost:8000\r\n\r\n",
    "chunks": embed(b"Transfer-Encoding: Chunked", body=CHUNKS),
    "the key in two headers": embed(LENGTH, b"Authorization: Bearer k", b"x-api-key: k"),
    "repeated lists": embed(LENGTH, b"Accept: text/html", b"Accept: application/json", b"Cookie: a", b"Cookie: b"),
}


@pytest.mark.parametrize("request_name", VALID)
async def test_an_unambiguous_request_is_answered(request_name: str) -> None:
    async with live(api_key="k") if "key" in request_name else live() as server:
        assert (await ask(server, VALID[request_name])).status == 200


@pytest.mark.parametrize("other", ["x-api-key", "api-key", "x-goog-api-key"])
async def test_different_keys_in_two_headers_get_400(other: str) -> None:
    """A proxy may check the other one. A server without keys reads neither."""
    sent = {"authorization": "Bearer k", other: "other"}
    async with live(api_key="k") as server:
        assert (await ask(server, post(BODY, headers=sent))).status == 400
    async with live() as server:
        assert (await ask(server, post(BODY, headers=sent))).status == 200


async def test_the_host_of_an_absolute_target_replaces_the_header() -> None:
    """RFC 9112, 3.2.2. Otherwise a foreign host would be answered behind a harmless header."""
    async with live() as server:
        for target, header, status in (("evil.example", "localhost", 403), ("localhost:8000", "evil.example", 200)):
            request = get(f"http://{target}/health/live?a=b", {"host": header})
            assert (await ask(server, request)).status == status


@pytest.mark.parametrize("offer", [OFFER, OFFER.replace(b"close, Upgrade", b"Upgrade\r\nConnection: close")])
async def test_an_offered_upgrade_with_connection_close_is_answered(offer: bytes) -> None:
    """RFC 9110, 7.8: the offer is ignored, the request is answered, and the connection closes."""
    async with live() as server:
        for request in (LIVE + offer + b"Host: localhost\r\n\r\n", post(BODY).replace(b"host:", offer + b"host:")):
            async with connected(server) as client:
                client.send(request)
                assert (await client.reply()).status == 200
                assert await client.closed()
