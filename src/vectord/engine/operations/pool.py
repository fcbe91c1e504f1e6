"""The threads on which texts are tokenized, so that the event loop stays free. task.py calls this on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from vectord.engine.queue.admission import SHUT_DOWN
from vectord.errors import Unavailable
from vectord.text.sequence import TextOrPair

T = TypeVar("T")

# Short texts are tokenized on the event loop. 61 tokens take 57 us, about as long as the way to a thread and back
# (45 us): a lone request takes 93 us in the engine instead of 141, and 32 clients with one text each run at the same
# rate either way (28.5 k tokens/s; MiniLM, 2 cores).
INLINE_CHARACTERS = 2_000
INPUT_CHARACTERS = 32  # the cost of an input besides its length
ID_CHARACTERS = 4  # the cost of a token id
PART_CHARACTERS = 65_536  # a part of a request; a few ms of one thread
PART_INPUTS = 256
LONG_AT_ONCE = 8  # requests with more parts than threads; each holds all its tokens in memory until it ends


class EncoderPool:
    """Tokenizing threads, shared by all models."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._closed = False
        self._long = asyncio.Semaphore(LONG_AT_ONCE)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="vectord-tokenize")

    def close(self) -> None:
        """Callers that wait for a thread get Unavailable."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, characters: int, call: Callable[[], T]) -> T:
        """The result of `call`; on a thread if it works on more than INLINE_CHARACTERS."""
        if characters <= INLINE_CHARACTERS:
            return call()
        if self._closed:
            raise Unavailable(SHUT_DOWN)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable(SHUT_DOWN) from None
            raise

    async def spread(
        self,
        inputs: Sequence[TextOrPair],
        encode: Callable[[range], Sequence[T]],
        *,
        once: int = 0,
        each: int = 0,
    ) -> list[T]:
        """The results of `encode` for each part of `inputs`, joined in order.

        once, each: additional characters in every part, or in every input, such as a prompt. Long requests run in waves
        of one part a thread, LONG_AT_ONCE of them at a time, so that other requests run in between.
        """
        parts = list(_parts(inputs, each))
        if len(parts) <= self.workers:
            return await self._in_waves(parts, encode, once)
        async with self._long:
            return await self._in_waves(parts, encode, once)

    async def _in_waves(
        self, parts: Sequence[tuple[range, int]], encode: Callable[[range], Sequence[T]], once: int
    ) -> list[T]:
        encoded: list[T] = []
        for start in range(0, len(parts), self.workers):
            wave = [self.run(size + once, partial(encode, part)) for part, size in parts[start : start + self.workers]]
            if len(wave) == 1:  # the usual request; gather takes longer than its tokens
                encoded.extend(await wave[0])
                continue
            for result in await asyncio.gather(*wave, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
                encoded.extend(result)
        return encoded


def characters(inputs: Sequence[TextOrPair]) -> int:
    """The cost of tokenizing the inputs, in characters of text."""
    return sum(map(_characters, inputs))


def _characters(one: TextOrPair) -> int:
    if isinstance(one, str):
        return INPUT_CHARACTERS + len(one)
    if isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str):
        return INPUT_CHARACTERS + sum(map(len, one))
    return INPUT_CHARACTERS + ID_CHARACTERS * len(one)


def _parts(inputs: Sequence[TextOrPair], each: int = 0) -> Iterator[tuple[range, int]]:
    """Runs of inputs and their cost in characters, in order; a long input is a part of its own."""
    start = size = 0
    for index, one in enumerate(inputs):
        size += _characters(one) + each
        if size >= PART_CHARACTERS or index + 1 - start == PART_INPUTS:
            yield range(start, index + 1), size
            start, size = index + 1, 0
    if start < len(inputs):
        yield range(start, len(inputs)), size
