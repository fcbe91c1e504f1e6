"""Makes messages of results: small ones on the event loop, large ones in a thread and only where there is room.

Called by services.py, as server/rendering.py is by handler.py: one process has one bound for both ports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vectord.errors import Overloaded
from vectord.schema import Result, TokenizeResult
from vectord.server.grpc.requests import Asked
from vectord.server.http.hardening.unsent import RETRY_S, Unsent
from vectord.server.http.rendering import AT_ONCE, SMALL_NUMBERS, numbers_of

BYTES_PER_NUMBER = 4
SMALL_BYTES = SMALL_NUMBERS * BYTES_PER_NUMBER
TOKENS_ON_LOOP = 1024  # 1 ms
BYTES_PER_TOKEN = 32


class Share:
    """What gRPC has of the room for answers: half of it at most, since nobody can be cut off to make some.

    grpc does not say how much of an answer its client has taken: an answer counts until its call is over.
    """

    def __init__(self, unsent: Unsent) -> None:
        self._unsent = unsent
        self._bytes = 0

    def check(self, n_bytes: int) -> None:
        """Raises Overloaded if so much more is too much."""
        if self._bytes and self._bytes + n_bytes > self._unsent.room_bytes // 2:
            message = "Too many large answers wait for gRPC clients that do not read them; try again."
            raise Overloaded(message, retry_after_s=RETRY_S)

    def hold(self, n_bytes: int) -> None:
        self._unsent.hold(n_bytes)
        self._bytes += n_bytes

    def give_back(self, n_bytes: int) -> None:
        self._unsent.give_back(n_bytes)
        self._bytes -= n_bytes


class Held:
    """The answers of one stream."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._bytes = 0

    def made(self, content: bytes) -> bytes:
        self._share.hold(len(content))
        self._bytes += len(content)
        return content

    def taken(self, content: bytes) -> None:
        self._share.give_back(len(content))
        self._bytes -= len(content)

    def end(self) -> None:
        if self._bytes:
            self._share.give_back(self._bytes)


class Writing:
    def __init__(self, unsent: Unsent) -> None:
        self._unsent = unsent
        self._share = Share(unsent)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def answer(self, asked: Asked, result: Result) -> bytes:
        """The message's bytes. Raises Overloaded where it is large and those before it are not read."""
        n_bytes = _size(result)
        if n_bytes <= SMALL_BYTES:
            return asked.written(result)
        self._share.check(n_bytes)
        async with self._unsent.room(n_bytes), self._turns:
            return await asyncio.to_thread(asked.written, result)

    @contextmanager
    def held(self) -> Iterator[Held]:
        """For the answers of a stream: counted from being made to being taken by grpc, or to the stream's end."""
        held = Held(self._share)
        try:
            yield held
        finally:
            held.end()

    def hold(self, content: bytes) -> Callable[[object], None]:
        """For an answer that grpc keeps from now on; what comes back is to be called when its call is over."""
        if len(content) <= SMALL_BYTES:
            return lambda _: None
        self._share.hold(len(content))
        return lambda _: self._share.give_back(len(content))


def _size(result: Result) -> int:
    """About; of answers that are never large 0."""
    if isinstance(result, TokenizeResult):
        tokens = sum(map(len, result.tokens))
        return max(tokens * BYTES_PER_TOKEN, SMALL_BYTES + 1) if tokens > TOKENS_ON_LOOP else 0
    return numbers_of(result) * BYTES_PER_NUMBER
