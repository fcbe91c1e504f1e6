"""Streams of messages: responses in order, limits on messages being received, and texts that are ranked together.

Called by services.py, in each call's own task on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from vectord.errors import EmptyInput, PayloadTooLarge, UploadTooSlow
from vectord.schema import RerankRequest, RerankResult, Result, Timings, Usage
from vectord.server.grpc import answers
from vectord.server.grpc import tei_pb2 as pb
from vectord.server.grpc.requests import NO_TEXTS, decode_message, truncation

T = TypeVar("T")

TEXT_OVERHEAD_BYTES = 256  # per text of a RankStream, in addition to its own bytes
NO_TEXT = "`text` cannot be empty"
STREAM_TOO_LARGE = "The texts of a stream may have at most {limit} bytes together."
MESSAGE_TOO_SLOW = "The message took too long to arrive."


async def in_order(
    messages: AsyncIterator[bytes],
    answer: Callable[[bytes], Coroutine[Any, Any, T]],
    deliver: Callable[[T], Awaitable[object]],
    *,
    max_active: int,
    limit_bytes: int,
) -> None:
    """Deliver the answer to each message, in order of the messages.

    At most `max_active` messages, or messages of `limit_bytes` together, are being answered or delivered; meanwhile
    only the next message is read, so that the client waits. The first failure ends the stream, after the answers before
    it. In every case all tasks have ended on return.
    """
    reading: asyncio.Task[bytes | None] | None = asyncio.create_task(_next(messages))
    answering: deque[tuple[asyncio.Task[T], int]] = deque()
    held_bytes = 0
    try:
        while reading is not None or answering:
            has_room = len(answering) < max_active and held_bytes < limit_bytes
            oldest = answering[0][0] if answering else None
            awaited = [task for task in (oldest, reading if has_room else None) if task is not None]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if oldest is not None and oldest.done():
                held_bytes -= answering.popleft()[1]
                await deliver(oldest.result())
            elif reading is not None and reading.done():
                message = reading.result()
                reading = None
                if message is not None:
                    answering.append((asyncio.create_task(answer(message)), len(message)))
                    held_bytes += len(message)
                    reading = asyncio.create_task(_next(messages))
    finally:
        tasks = [task for task, _ in answering] + ([reading] if reading is not None else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(messages: AsyncIterator[bytes]) -> bytes | None:
    """None at the end."""
    return await anext(messages, None)


class ReceiveSlots:
    """Limits how many messages are received at once: grpc holds each message until it is complete, and reports its size
    only then. Unread data stays in HTTP/2's flow control window, 64 kB per call.

    Slots are assigned in order of arrival. If others wait, a message that took longer than `grace_s` loses its slot.
    """

    def __init__(self, slots: int, grace_s: float, timeout_s: float | None = None) -> None:
        """timeout_s: the limit of a message if no other waits; None: unlimited, because streams may be idle."""
        self._grace_s = grace_s
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(slots)
        self._waiting = 0
        self._receiving: dict[asyncio.Timeout, float] = {}  # since when; oldest first
        self._timer: asyncio.TimerHandle | None = None

    async def read(self, messages: AsyncIterator[bytes]) -> bytes | None:
        """The next message, None at the end. Raises UploadTooSlow."""
        await self._acquire()
        try:
            async with asyncio.timeout(self._timeout_s) as scope:
                self._receiving[scope] = asyncio.get_running_loop().time()
                return await anext(messages, None)
        except TimeoutError:
            raise UploadTooSlow(MESSAGE_TOO_SLOW) from None
        finally:
            self._receiving.pop(scope, None)
            self._slots.release()

    async def each(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        while (message := await self.read(messages)) is not None:
            yield message

    async def _acquire(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        self._waiting += 1
        self._start_timer()
        try:
            await self._slots.acquire()
        finally:
            self._waiting -= 1

    def _start_timer(self) -> None:
        """Until the oldest message exceeds `grace_s`."""
        if self._timer is None and self._receiving:
            oldest_s = next(iter(self._receiving.values()))
            self._timer = asyncio.get_running_loop().call_at(oldest_s + self._grace_s, self._free_slots)

    def _free_slots(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        late = [scope for scope, since_s in self._receiving.items() if now_s - since_s >= self._grace_s]
        for scope in late[: self._waiting]:
            del self._receiving[scope]
            scope.reschedule(now_s)
        if self._waiting:
            self._start_timer()


class RankStream:
    """The texts of one RerankStream call. Each is a request of its own, possibly with another query."""

    def __init__(self, limit_bytes: int) -> None:
        """limit_bytes: of all texts together, since the response needs all of them."""
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._began_s = time.perf_counter()
        self._first: pb.RerankStreamRequest | None = None  # its raw_scores and return_text apply to the whole stream
        self._texts: list[str] = []
        self._characters = 0
        self._scores: list[float] = []
        self._logits: list[float] = []
        self._tokens = 0
        self._timings: list[Timings] = []

    def read(self, content: bytes) -> RerankRequest:
        """The request of the next message. Raises PayloadTooLarge."""
        message = decode_message(pb.RerankStreamRequest, content)
        if not (message.query or message.text):
            raise EmptyInput(NO_TEXT, field="text", index=len(self._texts))
        self._held_bytes += len(content) + TEXT_OVERHEAD_BYTES
        if self._held_bytes > self._limit_bytes:
            raise PayloadTooLarge(STREAM_TOO_LARGE, limit=self._limit_bytes)
        if self._first is None:
            self._first = message
        self._texts.append(message.text)
        self._characters += len(message.query) + len(message.text)
        return RerankRequest(
            query=message.query, passages=[message.text], text=truncation(message), raw=self._first.raw_scores
        )

    def add(self, result: Result) -> None:
        """The result of the first message without a score."""
        assert isinstance(result, RerankResult)
        self._scores.append(float(result.scores[0]))
        self._logits.append(float((result.scores if result.logits is None else result.logits)[0]))
        self._tokens += result.usage.tokens
        self._timings.append(result.usage.timings)

    def response(self) -> bytes:
        """Raises EmptyInput for a stream without texts."""
        if self._first is None:
            raise EmptyInput(NO_TEXTS, field="texts")
        texts = self._texts if self._first.return_text else None
        ranks = answers.ranks(np.array(self._scores, np.float32), np.array(self._logits, np.float32), texts)
        content: bytes = pb.RerankResponse(ranks=ranks, metadata=answers.metadata(self._usage())).SerializeToString()
        return content

    def _usage(self) -> Usage:
        timings = Timings(
            tokenizing_s=_mean([each.tokenizing_s for each in self._timings]),
            waiting_s=_mean([each.waiting_s for each in self._timings]),
            computing_s=_mean([each.computing_s for each in self._timings]),
            total_s=time.perf_counter() - self._began_s,
        )
        return Usage(lengths=(), characters=self._characters, timings=timings, further_tokens=self._tokens)


def _mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds)
