"""A server that responds byte by byte, or endlessly, is bounded by timeout_s and max_answer_bytes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
from tests.client.fakes import FakeServer

from vectord.client import errors

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
BODY = b'{"status": "healthy", "states": {}, "version": "0"}'
LENGTH = b"content-length: %d\r\n" % len(BODY)
PACE_S = 0.02  # between two bytes: each read is in time, the whole of them takes a hundred times as long as is allowed


@contextmanager
def dripping(first: bytes, slowly: bytes) -> Iterator[str]:
    """The URL of a server that sends `first` at once, `slowly` byte by byte, and then the rest of an answer."""
    over = threading.Event()

    def serve(listener: socket.socket) -> None:
        with suppress(OSError), listener.accept()[0] as connection:
            connection.recv(65_536)
            connection.sendall(first)
            for byte in slowly:
                if over.wait(PACE_S):
                    return
                connection.sendall(bytes([byte]))
            connection.sendall(b"\r\n\r\n" + BODY)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=[listener])
        server.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            server.join()


@pytest.mark.parametrize(
    ("first", "slowly"),
    [(HEAD + LENGTH + b"x-slow: ", b"a" * 500), (HEAD + b"content-length: 10000\r\n\r\n", b"a" * 500)],
    ids=["headers", "body"],
)
def test_a_dripping_response_times_out(call, first, slowly):
    """timeout_s limits the whole response, not each read. There is no retry."""
    with dripping(first, slowly) as url, pytest.raises(errors.Timeout, match="within timeout_s"):
        call(url, "health", client={"timeout_s": 0.1})


def test_a_slow_response_within_the_timeout_succeeds(call):
    """Slowness alone is no error."""
    with dripping(HEAD + LENGTH + b"x-slow: ", b"aa") as url:
        assert call(url, "health", client={"timeout_s": 60.0}).ready


@pytest.mark.parametrize("told", [True, False], ids=["with its length", "in pieces"])
def test_a_response_that_is_too_large_is_an_error(call, told):
    """By its content-length, or when it exceeds the limit."""
    pieces = iter([b"x" * 600] * 3)

    class Pieces(httpx.AsyncByteStream):
        async def __aiter__(self):
            for piece in pieces:
                yield piece

    def server(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"content-length": "1200"} if told else {}, stream=Pieces())

    with pytest.raises(errors.ServerFailed, match="more than max_answer_bytes, 1000"):
        call(server, "health", client={"max_answer_bytes": 1000})
    assert len(list(pieces)) == (3 if told else 1)


def test_a_response_of_the_maximum_size_succeeds(call):
    """To the byte."""
    assert call(FakeServer([httpx.Response(200, content=BODY)]), "health", client={"max_answer_bytes": len(BODY)}).ready
