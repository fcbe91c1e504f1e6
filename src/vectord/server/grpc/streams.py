"""Streams of messages: responses in order, and texts that are ranked together. Called by services.py in each call's
task, on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

import numpy as np

from vectord.budget import Budget
from vectord.errors import EmptyInput, PayloadTooLarge
from vectord.schema import RerankRequest, RerankResult, Usage
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.messages import NAMES, NO_TEXTS, ParsedMessage, decode_message, metadata, ranks, truncation

T = TypeVar("T")

TEXT_OVERHEAD_BYTES = 256  # per text of a RankStream, in addition to its own bytes
STREAM_TOO_LARGE = "The texts of a stream may have at most {limit} bytes together."


async def in_order(
    received: AsyncIterator[bytes],
    answer: Callable[[bytes], Coroutine[Any, Any, T]],
    deliver: Callable[[T], Awaitable[object]],
    *,
    max_active: int,
    room: Budget,
) -> None:
    """Deliver the answer to each message, in order of the messages.

    At most `max_active` messages are being answered or delivered, and no more being answered than fit into `room`;
    meanwhile only the next message is read, so that the client waits. The first failure ends the stream, after the
    answers before it. In every case all tasks have ended on return.
    """
    places = asyncio.Semaphore(max_active)
    begun: asyncio.Queue[asyncio.Task[T] | None] = asyncio.Queue()
    tasks: set[asyncio.Task[Any]] = set()

    def begin(message: bytes) -> None:
        n_bytes = len(message)
        task = asyncio.create_task(answer(message))
        task.add_done_callback(lambda _: room.release(n_bytes))
        tasks.add(task)
        begun.put_nowait(task)

    async def read() -> None:
        try:
            async for message in received:
                await places.acquire()
                await room.wait(len(message))
                begin(message)
                del message  # the next one may take long
        finally:
            begun.put_nowait(None)

    reading = asyncio.create_task(read())
    tasks.add(reading)
    try:
        while (task := await begun.get()) is not None:
            await deliver(await task)
            tasks.remove(task)
            del task  # it has the response
            places.release()
        await reading
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class RankStream:
    """The texts of one RerankStream call. Each is a request of its own, possibly with another query."""

    def __init__(self, limit_bytes: int) -> None:
        """limit_bytes: of all texts together, since the response needs all of them."""
        self._room = Budget(limit_bytes)
        self._first: pb.RerankStreamRequest | None = None  # its raw_scores and return_text apply to the whole stream
        self._texts: list[str] = []
        self._scored: list[tuple[float, float, Usage]] = []  # score, logit and usage of each text

    def begin(self, content: bytes) -> Callable[[], ParsedMessage]:
        """What makes the request of the next message, on any thread. Called in the order of the messages.

        Raises MalformedBody, EmptyInput, PayloadTooLarge.
        """
        message = decode_message(pb.RerankStreamRequest, content)
        if not (message.query or message.text):
            raise EmptyInput("`text` cannot be empty", field="text", index=len(self._texts))
        if not self._room.hold(len(content) + TEXT_OVERHEAD_BYTES):
            raise PayloadTooLarge(STREAM_TOO_LARGE, limit=self._room.limit)
        if self._first is None:
            self._first = message
        self._texts.append(message.text)
        return partial(self._read, message, self._first.raw_scores)

    def _read(self, message: pb.RerankStreamRequest, raw: bool) -> ParsedMessage:
        request = RerankRequest(query=message.query, passages=[message.text], text=truncation(message), raw=raw)
        return ParsedMessage(request, self.add, {**NAMES, "passages": "text"})

    def add(self, result: RerankResult) -> None:
        """The result of the first message without a score."""
        logits = result.scores if result.logits is None else result.logits
        self._scored.append((float(result.scores[0]), float(logits[0]), result.usage))

    def response(self) -> bytes:
        """Raises EmptyInput for a stream without texts."""
        if self._first is None:
            raise EmptyInput(NO_TEXTS, field="texts")
        texts = self._texts if self._first.return_text else None
        scores, logits, usages = zip(*self._scored, strict=True)
        ranked = ranks(np.array(scores, np.float32), np.array(logits, np.float32), texts)
        content: bytes = pb.RerankResponse(ranks=ranked, metadata=metadata(*usages)).SerializeToString()
        return content
