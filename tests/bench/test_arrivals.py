"""The open load of overload.py: it sends the given number of requests, and each ends in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import pytest
from bench.arrivals import Arrivals
from bench.exchange import Answer
from bench.http_load import Request

ANSWERS = (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd", b"HTTP/1.1 429 No\r\ncontent-length: 0\r\n\r\n")

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]


async def answers_of(serve: Serve, per_s: float, seconds: float, patience_s: float = 10.0) -> Sequence[Answer]:
    """The statuses of requests to a server that runs `serve` for each connection."""
    answers: list[Answer] = []
    connections: list[asyncio.Task[object] | None] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        requests = [Request(b"GET / HTTP/1.1\r\n\r\n", 1, 1)]
        arrivals = Arrivals(port, requests, per_s, patience_s, lambda request, answer: answers.append(answer))
        await arrivals.send(seconds)
        await arrivals.end()
        await asyncio.gather(*(task for task in connections if task is not None))
    return answers


async def test_every_request_ends_with_its_status() -> None:
    """A response may arrive in pieces, and no further requests are sent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for turn in range(10_000):
            await reader.readuntil(b"\r\n\r\n")
            answer, size = ANSWERS[turn % 2], (100, 7, 1)[turn % 3]
            for start in range(0, len(answer), size):
                writer.write(answer[start : start + size])
                await writer.drain()

    answers = await answers_of(serve, per_s=1000.0, seconds=0.3)
    assert {answer.status for answer in answers} == {200, 429}
    assert 2 <= len(answers) < 400  # 300 are due; a machine that others use sends fewer, and never more


@pytest.mark.parametrize(
    ("serve", "patience_s"),
    [(lambda reader, writer: reader.readuntil(b"\r\n\r\n"), 10.0), (lambda reader, writer: reader.read(), 0.1)],
    ids=["breaks", "never answers"],
)
async def test_a_connection_without_an_answer_ends(serve: Serve, patience_s: float) -> None:
    """The next request opens another. A server that never answers does not block the load generator."""
    answers = await answers_of(serve, per_s=200.0, seconds=0.1, patience_s=patience_s)
    assert answers
    assert {answer.status for answer in answers} == {0}


async def test_a_delayed_load_generator_sends_only_requests_that_were_due() -> None:
    """Requests due after the end are not sent."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(ANSWERS[0])

    sent: list[int] = []
    for held_s in (0.0, 0.3):
        asyncio.get_running_loop().call_later(0.05, _hold, held_s)
        sent.append(len(await answers_of(serve, per_s=500.0, seconds=0.1)))
    assert sent[0] == sent[1]


def _hold(seconds: float) -> None:
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        pass
