"""Serializes results: small ones on the event loop, large ones in a thread and only if there is room.

Called by services.py. HTTP and gRPC share one bound per process (hardening/write_backpressure.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vectord.errors import Overloaded
from vectord.schema import Result, TokenizeResult
from vectord.server.grpc.requests import ParsedMessage
from vectord.server.http.answer import SMALL_NUMBERS, THREADS, count_numbers
from vectord.server.http.hardening.write_backpressure import RETRY_S, WriteBackpressure

BYTES_PER_NUMBER = 4
SMALL_BYTES = SMALL_NUMBERS * BYTES_PER_NUMBER
TOKENS_ON_LOOP = 1024  # 1 ms
BYTES_PER_TOKEN = 32
NO_ROOM = "Too many large responses wait for gRPC clients that do not read them; try again."


class GrpcShare:
    """gRPC's part of the room for responses: at most half of it, since a gRPC client cannot be aborted to make room.

    grpc does not report how much of a response its client has read, so a response counts until its call ends.
    """

    def __init__(self, backpressure: WriteBackpressure) -> None:
        self._backpressure = backpressure
        self._bytes = 0

    def check(self, n_bytes: int) -> None:
        """Raises Overloaded if there is no room for `n_bytes` more."""
        if self._bytes and self._bytes + n_bytes > self._backpressure.room_bytes // 2:
            raise Overloaded(NO_ROOM, retry_after_s=RETRY_S)

    def hold(self, n_bytes: int) -> None:
        self._backpressure.hold(n_bytes)
        self._bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        self._backpressure.give_back(n_bytes)
        self._bytes -= n_bytes


class StreamBytes:
    """The unread responses of one stream."""

    def __init__(self, share: GrpcShare) -> None:
        self._share = share
        self._bytes = 0

    def add(self, content: bytes) -> bytes:
        self._share.hold(len(content))
        self._bytes += len(content)
        return content

    def remove(self, content: bytes) -> None:
        self._share.give_back(len(content))
        self._bytes -= len(content)

    def end(self) -> None:
        if self._bytes:
            self._share.give_back(self._bytes)


class Writing:
    def __init__(self, backpressure: WriteBackpressure) -> None:
        self._backpressure = backpressure
        self._share = GrpcShare(backpressure)
        self._threads = asyncio.Semaphore(THREADS)

    async def write(self, message: ParsedMessage, result: Result) -> bytes:
        """The response's bytes. Raises Overloaded if it is large and clients do not read earlier ones."""
        n_bytes = _estimated_bytes(result)
        if n_bytes <= SMALL_BYTES:
            return message.write(result)
        self._share.check(n_bytes)
        async with self._backpressure.room(n_bytes), self._threads:
            return await asyncio.to_thread(message.write, result)

    @contextmanager
    def stream(self) -> Iterator[StreamBytes]:
        """Counts each response of a stream until grpc has sent it or the stream ends."""
        held = StreamBytes(self._share)
        try:
            yield held
        finally:
            held.end()

    def hold(self, content: bytes) -> Callable[[object], None]:
        """Count a response from now on; the returned function ends that when the call ends."""
        if len(content) <= SMALL_BYTES:
            return lambda _: None
        self._share.hold(len(content))
        return lambda _: self._share.give_back(len(content))


def _estimated_bytes(result: Result) -> int:
    """0 for responses that are never large."""
    if isinstance(result, TokenizeResult):
        tokens = sum(map(len, result.tokens))
        return max(tokens * BYTES_PER_TOKEN, SMALL_BYTES + 1) if tokens > TOKENS_ON_LOOP else 0
    return count_numbers(result) * BYTES_PER_NUMBER
