"""Texts to tokens, off the event loop. runner.py calls this on the loop; the work runs on a small pool of threads.

The encoder itself belongs to text/; what the engine needs of one is written down here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

from vectord.backends.base import Int32
from vectord.schema import Input, TextLength, TextOptions, Token

T = TypeVar("T")

# The one exception to "never on the loop": so little text is encoded where it is. 61 tokens take 57 us, which is what
# the way to a thread and back takes (45 us); a lone request is 93 us instead of 141 in the engine, and 32 clients of
# one text each run at the same rate either way (28.5 k tokens/s; MiniLM, 2 cores).
INLINE_CHARACTERS = 2_000
INPUT_CHARACTERS = 32  # what an input costs beside its length
ID_CHARACTERS = 4  # what a token id costs
PART_CHARACTERS = 65_536  # a part of a request; a few ms of one thread
PART_INPUTS = 256


class EncodedText(Protocol):
    """One text as the model reads it."""

    @property
    def ids(self) -> Int32: ...  # (n,)
    @property
    def type_ids(self) -> Int32: ...  # (n,)
    @property
    def length(self) -> TextLength: ...


class Encoder(Protocol):
    """Blocks; may be called from several threads at once. Raises InvalidRequest with field and index."""

    def encode(
        self,
        inputs: Sequence[Input],
        options: TextOptions,
        *,
        truncate: bool,
        field: str,
        part: range | None = None,
    ) -> Sequence[EncodedText]:
        """part: only these of the inputs; errors still name the place among all of them."""
        ...

    def tokenize(
        self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None
    ) -> Sequence[Sequence[Token]]: ...

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> Sequence[str]: ...


class EncoderPool:
    """Threads that tokenise, shared by all models."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="vectord-tokenize")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, characters: int, call: Callable[[], T]) -> T:
        """The result of `call`; on a thread if it is about more than a few characters."""
        if characters <= INLINE_CHARACTERS:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def encode(
        self, encoder: Encoder, inputs: Sequence[Input], options: TextOptions, *, truncate: bool, field: str
    ) -> list[EncodedText]:
        """One result an input, in order. Long requests go in waves of one part a thread, so others get their turn."""
        encode = partial(encoder.encode, inputs, options, truncate=truncate, field=field)
        encoded: list[EncodedText] = []
        parts = list(_parts(inputs))
        for start in range(0, len(parts), self.workers):
            wave = [self.run(size, partial(encode, part=part)) for part, size in parts[start : start + self.workers]]
            for result in await asyncio.gather(*wave, return_exceptions=True) if wave[1:] else [await wave[0]]:
                if isinstance(result, BaseException):
                    raise result
                encoded.extend(result)
        return encoded


def characters(inputs: Sequence[Input]) -> int:
    """How much work the inputs are, in characters of text."""
    return sum(map(_characters, inputs))


def _characters(one: Input) -> int:
    return INPUT_CHARACTERS + (len(one) if isinstance(one, str) else ID_CHARACTERS * len(one))


def _parts(inputs: Sequence[Input]) -> Iterator[tuple[range, int]]:
    """Runs of inputs and their size in characters, in order; one long input makes a part of its own."""
    start = size = 0
    for index, one in enumerate(inputs):
        size += _characters(one)
        if size >= PART_CHARACTERS or index + 1 - start == PART_INPUTS:
            yield range(start, index + 1), size
            start, size = index + 1, 0
    if start < len(inputs):
        yield range(start, len(inputs)), size
