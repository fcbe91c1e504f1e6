"""The counts of soak and overload: a response is right, wrong, refused, late or missing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from bench.exchange import Answer, Connection
from bench.http_load import Request
from bench.overload import DEADLINE_S, Overloaded, with_deadline
from bench.overload import count as count_offered
from bench.soak import Soaked, count, request
from bench.soak_texts import Pool

from bench import soak_texts

POOL = Pool(["a", "b"], [3, 4], np.eye(2, dtype=np.float32))


def answer(*vectors: Sequence[float], status: int = 200) -> Answer:
    encoded = [base64.b64encode(np.array(vector, np.float32).tobytes()).decode() for vector in vectors]
    return Answer(status, json.dumps({"data": [{"embedding": text} for text in encoded]}).encode(), 0.01)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (answer([1, 0], [0, 1]), 0),
        (answer([0, 1], [1, 0]), 2),
        (answer([1, 0], [1, 0]), 1),
        (answer([1, 0]), 2),
        (answer([1, 0], [float("nan"), 1]), 1),
    ],
    ids=["right", "swapped", "one twice", "one missing", "not a number"],
)
def test_wrong_vectors_are_found(given: Answer, wrong: int) -> None:
    """Each text has its vector in its place."""
    found = Soaked()
    count(found, POOL, [0, 1], given)
    assert (found.answered, found.wrong, found.refused, found.unanswered) == (1, wrong, 0, 0)


def test_refusals_and_silence_are_not_answers() -> None:
    """Neither counts as answered."""
    found = Soaked()
    count(found, POOL, [0], Answer(429, b"", 0.01))
    count(found, POOL, [0], Answer(0, b"", 60.0))
    assert (found.refused, found.unanswered, found.texts) == (1, 1, 0)


@pytest.mark.parametrize(
    ("status", "latency_s", "kind"),
    [
        (200, 0.1, "good"),
        (200, DEADLINE_S + 0.1, "late"),
        (504, 0.1, "late"),
        (429, 0.1, "refused"),
        (503, 0.1, "refused"),
        (500, 0.1, "other"),
        (0, 0.1, "unanswered"),
    ],
)
def test_each_request_has_one_outcome(status: int, latency_s: float, kind: str) -> None:
    """Goodput counts only responses in time."""
    found = Overloaded(offered_per_s=1.0)
    count_offered(found, Request(b"", 1, 7), Answer(status, b"", latency_s))
    assert {name: getattr(found, name) for name in ("good", "late", "refused", "other", "unanswered")} == {
        **dict.fromkeys(("good", "late", "refused", "other", "unanswered"), 0),
        kind: 1,
    }


def test_a_request_names_its_deadline_once() -> None:
    """In its header; its body is unchanged."""
    payload = request(["a\r\n\r\nb"])
    sent = with_deadline(Request(payload, 1, 1)).payload
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.count(b"x-vectord-timeout-ms: 2000") == 1
    assert body == payload.partition(b"\r\n\r\n")[2]


async def test_an_answer_comes_whole_and_a_broken_connection_is_none() -> None:
    """In whatever pieces it arrives; after a loss the next question goes over a new connection."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        await reader.readuntil(b"\r\n\r\n")
        if served == 2:
            for piece in (b"HTTP/1.1 429 Too", b" Many\r\nContent-Length: 4\r\n\r", b"\nab", b"cd"):
                writer.write(piece)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        connection = Connection(server.sockets[0].getsockname()[1], 5.0)
        first, second = [await connection.ask(b"GET / HTTP/1.1\r\n\r\n") for _ in range(2)]
        connection.close()
    assert (first.status, second.status, second.body) == (0, 429, b"abcd")


def test_a_pool_has_the_vector_of_each_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made with the default model: truncated texts too."""
    monkeypatch.setattr(soak_texts, "HARD", ("word " * 1000,))
    monkeypatch.setattr(soak_texts, "every_length", lambda corpus: ["a bird"])
    corpus = SimpleNamespace(texts=["a bird sings"])
    pool = soak_texts.make_pool(SimpleNamespace(corpus=corpus, backend="openvino"))  # type: ignore[arg-type]
    assert pool.texts == ["a bird sings", "a bird", "word " * 1000]
    assert pool.tokens[:2] == [5, 4] and pool.tokens[2] < 1000
    assert np.allclose(np.linalg.norm(pool.vectors, axis=1), 1)
