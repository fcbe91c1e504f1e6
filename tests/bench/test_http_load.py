from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from bench.corpus import Corpus
from bench.http_load import BadAnswer, content_length, embedding_requests, run_load

CORPUS = Corpus(["one", "two words", "and three words"], [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]])
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


@contextmanager
def answering(answer: Callable[[int], bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A server on another thread: its port, and the bodies that it received. answer: number of the request -> bytes."""
    bodies: list[bytes] = []
    started: threading.Event = threading.Event()
    facts: dict[str, object] = {}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                bodies.append(await reader.readexactly(length))
                for piece in answer(len(bodies)).partition(b"\r\n\r\n"):  # head and body arrive apart
                    writer.write(piece)
                    await writer.drain()
        except asyncio.IncompleteReadError:
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        stop = asyncio.Event()
        facts.update(port=server.sockets[0].getsockname()[1], loop=asyncio.get_running_loop(), stop=stop)
        started.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield facts["port"], bodies  # type: ignore[misc]
    finally:
        facts["loop"].call_soon_threadsafe(facts["stop"].set)  # type: ignore[attr-defined]
        thread.join()


def test_every_counted_request_is_worth_its_texts_and_tokens() -> None:
    """Rates count responses: 6 requests use texts of 3, 4 and 5 tokens twice."""
    requests = embedding_requests(CORPUS, 1) * 2
    with answering(lambda _: OK) as (port, bodies):
        measured = run_load(port, requests, connections=1)
    assert (measured.requests, measured.texts, measured.tokens) == (6, 6, 24)
    assert len(measured.latencies_ms) == 6
    assert measured.requests_per_s == pytest.approx(6 / measured.elapsed_s)
    assert len(bodies) >= 7, "one request a connection warms up, uncounted"


def test_requests_carry_the_texts_in_their_order() -> None:
    """Every program gets the corpus in the same order."""
    with answering(lambda _: OK) as (port, bodies):
        run_load(port, embedding_requests(CORPUS, 1), connections=1)
    assert [b"one" in body for body in bodies[:3]] == [True, False, False]
    assert b"and three words" in bodies[2]


def test_several_texts_go_in_one_request() -> None:
    """Three texts in requests of two: one request; the last text is not sent."""
    (request,) = embedding_requests(CORPUS, 2)
    assert request.texts == 2
    assert request.tokens == 7
    assert request.payload.endswith(b'"input": ["one", "two words"]}')


def test_many_connections_are_kept_busy() -> None:
    """Requests in flight at the last counted response are answered and not counted."""
    requests = embedding_requests(CORPUS, 1) * 100
    with answering(lambda _: OK) as (port, bodies):
        measured = run_load(port, requests, connections=8)
    assert measured.requests == 300
    assert 300 + 8 <= len(bodies) <= 300 + 16


def test_a_refusal_is_not_counted_as_work() -> None:
    """A refusal is fast, and its figures would be meaningless."""
    refusal = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
    with (
        answering(lambda number: refusal if number == 4 else OK) as (port, _),
        pytest.raises(BadAnswer, match="status 429"),
    ):
        run_load(port, embedding_requests(CORPUS, 1) * 5, connections=1)


def test_a_round_ends_at_its_limit() -> None:
    """A slow server is measured by its responses until then."""
    with answering(lambda _: OK) as (port, _):
        measured = run_load(port, embedding_requests(CORPUS, 1) * 1_000_000, connections=1, limit_s=0.05)
    assert 0 < measured.requests < 1_000_000


def test_an_answer_of_unknown_length_is_an_error() -> None:
    """Endless reading would look like a slow server."""
    with pytest.raises(BadAnswer, match="without Content-Length"):
        content_length(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked")
