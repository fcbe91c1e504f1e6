"""The steps that all operations share: reading and running texts, checks of counts, places of errors, and usage.

Belongs to the event loop; EncoderPool has the threads on which longer texts are tokenized.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeVar, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.engine.models.registry import UseModel
from vectord.engine.operations.decoding import Decoder, ImageRun
from vectord.engine.queue.admission import SHUT_DOWN
from vectord.engine.queue.runner import ModelRunner, RunResult
from vectord.errors import EmptyInput, InvalidRequest, TooManyInputs, Unavailable, VectordError
from vectord.schema import (
    AnswerKind,
    Caller,
    ChunkOptions,
    Lane,
    Media,
    Span,
    TextLength,
    TextLengths,
    Timings,
    Usage,
    media_of,
)
from vectord.text.sequence import QUERY_INDEX, Chunk, ReadRequest, TextOrPair, Texts, TokenizedTexts
from vectord.text.truncation import PIECE_CHARACTERS, split_at_spaces

T = TypeVar("T")

INLINE_NUMBERS = 262_144  # an array operation on more numbers runs on a thread: it takes about 1 ms of the loop
# Short texts are tokenized on the event loop: they take about as long as the way to a thread and back.
INLINE_CHARACTERS = 2_000
INPUT_CHARACTERS = 32  # the cost of an input besides its length
MAX_INLINE = INLINE_CHARACTERS // INPUT_CHARACTERS  # inputs
# The cost of a token id. It is decoded, and the text tokenized: 3 to 5 characters usually, up to 128 of cl100k_base.
ID_CHARACTERS = 32
MAX_PIECES = 4096  # of a list of ids, searched for texts: a scan of millions would block the event loop
PART_CHARACTERS = 65_536  # a part of a request; a few ms of one thread
PART_INPUTS = 256
# Of pixels of a request's images, which stay in memory until it ends: a file of 10 kB may become 10 MB.
MIN_PIXELS_BYTES, INPUT_PIXELS_BYTES = 2**31, 2**20  # at least for a request, and for each input that it may have
LONG_AT_ONCE = 8  # requests with more parts than threads; each holds all its tokens in memory until it ends


class Task(msgspec.Struct):
    """One request that the engine works on. Lives on the event loop."""

    caller: Caller
    pool: EncoderPool
    use: UseModel  # lifecycle.py's: acquires a loaded model
    max_inputs: int
    force_dimensions: bool = False  # for all requests
    tokenized: TokenizedTexts | None = None  # the inputs of this request, if a front-end has tokenized them
    # Its times so far, as Timings has them.
    began_s: float = msgspec.field(default_factory=time.perf_counter)
    queued_s: float = math.inf
    first_s: float = math.inf
    last_s: float = -math.inf
    tokenizing_s: float = 0.0
    # Shared by the parts of a MultiRequest: the models that have accepted one of them. The other parts would otherwise
    # be rejected for a queue that consists of their own siblings.
    entered: set[ModelRunner] | None = None

    def parts(self, count: int, lane: Lane | None) -> Iterator[Task]:
        """A task for each part of a MultiRequest. lane: theirs, unless the caller sets one."""
        caller, entered = replace(self.caller, lane=self.caller.lane or lane), set[ModelRunner]()
        return (replace(self, caller=caller, entered=entered) for _ in range(count))

    async def read(self, runner: ModelRunner, request: ReadRequest) -> Texts:
        if self.tokenized is not None and self.tokenized.fingerprint == runner.spec.fingerprint:
            self.tokenizing_s += self.tokenized.seconds
            return self.tokenized.texts
        if request.query is not None and runner.spec.listwise is not None:  # all inputs together
            began_s = time.perf_counter()
            texts = await self.pool.run(characters(request.inputs), partial(runner.encoder.read, request))
            self.tokenizing_s += time.perf_counter() - began_s
            return texts
        once, each = 0, len(request.options.prompt or "")
        if isinstance(request.query, str) and runner.spec.yes_no is not None:  # one text with the query for each input
            each = len(request.query) + len(request.instruction or "")
        elif request.query is not None:
            once = len(request.query) if isinstance(request.query, str) else characters([request.query])
        encode = partial(runner.encoder.read, request)
        parts = await self.encode_parts(request.inputs, encode, once=once, each=each)
        return parts[0] if len(parts) == 1 else Texts.join(parts)

    async def run(
        self,
        runner: ModelRunner,
        texts: Texts,
        kinds: frozenset[AnswerKind],
        *,
        partial: bool = False,
    ) -> RunResult:
        """`ModelRunner.run` for this caller, after its network of images for the images in texts. Errors have the index
        of the text's input."""
        failures: Mapping[int, VectordError] = {}
        entered = texts.images is not None  # not refused after its images have run
        if texts.images is not None:
            texts, failures = await self._with_features(runner, texts, texts.images, partial=partial)
        if self.entered is not None:
            entered = entered or runner in self.entered
            self.entered.add(runner)
        images = ImageRun(self.pool.decoder) if texts.undecoded else None
        try:
            ran = await runner.run(texts, kinds, self.caller, entered=entered, partial=partial, decode=images)
        except VectordError as error:
            if error.index is None:
                raise
            raise error.at(index=texts.indexes[error.index]) from error.__cause__
        finally:
            if images is not None:
                images.release()
                self.tokenizing_s += images.seconds
        self.queued_s, self.first_s = min(self.queued_s, ran.queued_s), min(self.first_s, ran.first_s)
        self.last_s = max(self.last_s, ran.last_s)
        return replace(ran, failures={**ran.failures, **failures}) if failures else ran

    async def _with_features(
        self, runner: ModelRunner, texts: Texts, images: Texts, *, partial: bool
    ) -> tuple[Texts, Mapping[int, VectordError]]:
        """The texts with the rows of their images, and the texts whose images failed."""
        assert runner.use_images is not None, "the encoder reads images with Pillow alone"
        async with runner.use_images() as reader:
            ran = await self.run(reader, images, frozenset({"dense"}), partial=partial)

        def place() -> Texts:
            features = np.zeros((len(texts.ids), runner.spec.feature_width), np.float32)
            if "dense" in ran.answers:
                rows = ran.rows("dense")
                features[texts.all_type_ids == 1] = rows if texts.shown is None else rows[texts.shown]
            return replace(texts, features=features, images=None, shown=None)

        failed = {images.indexes[i]: error for i, error in ran.failures.items()}
        failures = {i: failed[index] for i, index in enumerate(texts.indexes) if index in failed}
        return await compute(len(texts.ids) * runner.spec.feature_width, place), failures

    async def encode(self, inputs: Sequence[TextOrPair], encode: Callable[[range], Sequence[T]]) -> list[T]:
        """What `encode` makes of each input, in order."""
        return [*chain.from_iterable(await self.encode_parts(inputs, encode))]

    async def encode_parts(
        self, inputs: Sequence[TextOrPair], encode: Callable[[range], T], *, once: int = 0, each: int = 0
    ) -> list[T]:
        """`EncoderPool.spread`; counts its time. Raises TooManyInputs as soon as the images are too large together."""
        began_s = time.perf_counter()
        limit = max(MIN_PIXELS_BYTES, self.max_inputs * INPUT_PIXELS_BYTES)
        sizes: list[int] = []  # of what any thread has read so far

        def encode_part(part: range) -> T:
            encoded = encode(part)
            texts = [one for one in (encoded if isinstance(encoded, list) else [encoded]) if isinstance(one, Texts)]
            read = [one if one.images is None else one.images for one in texts]
            sizes.append(sum(image.rows_bytes for one in read for image in one.undecoded))
            if sum(sizes) > limit:  # without `given`: the rest is not read
                template = "{field}: the pixels of its images may have at most {limit} bytes together, resized."
                raise TooManyInputs(template, limit=limit)
            return encoded

        others = set(map(type, inputs)) - {str, tuple}
        # An image as the query costs as much as a part.
        has_images = once >= PART_CHARACTERS or (bool(others) and any(map(media_of, inputs)))
        if has_images:
            encoded = await self.pool.images.spread(inputs, encode_part, once=once, each=each)
        else:
            encoded = await self.pool.spread(inputs, encode, once=once, each=each)
        self.tokenizing_s += time.perf_counter() - began_s
        return encoded

    async def whole_lengths(
        self, runner: ModelRunner, inputs: Sequence[TextOrPair], lengths: TextLengths
    ) -> TextLengths:
        """`lengths` with the tokens of characters that were cut before the texts were tokenized."""
        whole = dict(lengths.details)
        for index, length in lengths.details.items():
            text = inputs[index]
            if not length.characters_cut or not isinstance(text, str):
                continue
            kept = len(text) - length.characters_cut
            # A tokenizer begins a word at a space anyway, so both counts are exact from there.
            space = max(text.rfind(" ", max(0, kept - PIECE_CHARACTERS), kept), 0)
            pieces = [text[space:kept], *(text[start:stop] for start, stop in split_at_spaces(text, space))]
            try:
                kept_tokens, *tokens = await self.encode(pieces, partial(runner.tokenizer.count, pieces))
            except VectordError as error:
                raise error.at(index=index) from error.__cause__
            whole[index] = TextLength(length.seen + sum(tokens) - kept_tokens, length.kept)
        return replace(lengths, details=whole)

    async def chunk(
        self, runner: ModelRunner, texts: Sequence[str], how: ChunkOptions | Sequence[Sequence[Span]]
    ) -> list[Sequence[Chunk]]:
        """The chunks of each text. how: options for all, or the client's spans for each. Raises TooManyInputs as soon
        as there are too many: a body may have a million."""
        counts: list[int] = []  # of the texts that any thread has chunked so far

        def chunk_part(part: range) -> list[Sequence[Chunk]]:
            chunked = []
            for index in part:
                own = how if isinstance(how, ChunkOptions) else how[index]
                try:
                    chunked.append(runner.tokenizer.chunk(texts[index], own, self.max_inputs - sum(counts)))
                except VectordError as error:
                    if error.field is not None:  # an option
                        raise
                    raise error.at(index=index) from error.__cause__
                counts.append(len(chunked[-1]))
                if sum(counts) > self.max_inputs:  # without `given`: the rest is not counted
                    raise TooManyInputs("{field} may hold at most {limit} chunks; got more.", limit=self.max_inputs)
            return chunked

        return await self.encode(texts, chunk_part)

    def check_count(self, field: str, count: int, what: str = "input") -> None:
        """`check_most`, and raises EmptyInput for none."""
        if count == 0:
            raise EmptyInput("{field} must hold at least one {what}.", field=field, what=what)
        self.check_most(field, count, what)

    def check_most(self, field: str, count: int, what: str = "input") -> None:
        """Raises TooManyInputs for more than one request may contain."""
        if count > self.max_inputs:
            template = "{field} may hold at most {limit} {what}s; got {given}."
            raise TooManyInputs(template, field=field, limit=self.max_inputs, given=count, what=what)


@contextmanager
def placing_errors(field: str | None = None, owners: Sequence[int] = ()) -> Iterator[None]:
    """Gives errors about the only text of a field its name, or errors about pieces of inputs the index of the input.

    owners: the input of each piece. The engine adds the field of inputs. An error at QUERY_INDEX gets the field
    `query`.
    """
    try:
        yield
    except VectordError as error:
        if error.field is not None or (error.index is None and not isinstance(error, InvalidRequest)):
            raise
        if error.index == QUERY_INDEX:
            raise error.at(field="query", index=None) from error.__cause__
        index = owners[error.index] if owners and error.index is not None else None
        raise error.at(field=field, index=index) from error.__cause__


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """All results, in order. The first failure cancels the rest; when this returns, all have ended."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def compute(numbers: int, call: Callable[[], T]) -> T:
    """The result of `call`, an array operation; on a thread if it works on many numbers."""
    return call() if numbers <= INLINE_NUMBERS else await asyncio.to_thread(call)


def usage_of(
    task: Task, lengths: TextLengths, inputs: Sequence[TextOrPair], ran: RunResult, *, further_tokens: int = 0
) -> Usage:
    """The request's tokens, characters and times up to now. inputs: as the client sent them."""
    ended_s = time.perf_counter()
    ran_any = task.last_s >= task.first_s
    return Usage(
        lengths=lengths,
        characters=sum(map(len, cast("Sequence[str]", inputs)))
        if set(map(type, inputs)) == {str}
        else sum(map(_count_characters, inputs)),
        timings=Timings(
            began_s=task.began_s,
            queued_s=task.queued_s if ran_any else ended_s,
            first_s=task.first_s if ran_any else ended_s,
            last_s=task.last_s if ran_any else ended_s,
            ended_s=ended_s,
            tokenizing_s=task.tokenizing_s,
        ),
        further_tokens=further_tokens,
        device=ran.device,
    )


class EncoderPool:
    """Tokenizing threads, shared by all models."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._closed = False
        self._long = asyncio.Semaphore(LONG_AT_ONCE)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="vectord-tokenize")

    @cached_property
    def images(self) -> EncoderPool:
        """Threads that read headers of images and PDFs, which may take seconds: texts do not wait for them."""
        return EncoderPool(self.workers)

    @cached_property
    def decoder(self) -> Decoder:
        """Further threads, which decode the images."""
        return Decoder(self.workers)

    def close(self) -> None:
        """Callers that wait for a thread get Unavailable."""
        for name in {"images", "decoder"} & vars(self).keys():
            getattr(self, name).close()
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
        self, inputs: Sequence[TextOrPair], encode: Callable[[range], T], *, once: int = 0, each: int = 0
    ) -> list[T]:
        """The results of `encode` for each part of `inputs`, in order.

        once, each: additional characters in every part, or in every input, such as a prompt. Long requests run in waves
        of one part a thread, LONG_AT_ONCE of them at a time, so that other requests run in between.
        """
        if len(inputs) <= MAX_INLINE and once + each * len(inputs) + characters(inputs) <= INLINE_CHARACTERS:
            return [encode(range(len(inputs)))]
        parts = list(_parts(inputs, each))
        if len(parts) <= self.workers:
            return await self._in_waves(parts, encode, once)
        async with self._long:
            return await self._in_waves(parts, encode, once)

    async def _in_waves(self, parts: Sequence[tuple[range, int]], encode: Callable[[range], T], once: int) -> list[T]:
        encoded: list[T] = []
        for start in range(0, len(parts), self.workers):
            wave = [self.run(size + once, partial(encode, part)) for part, size in parts[start : start + self.workers]]
            if len(wave) == 1:  # the usual request; gather takes longer than its tokens
                encoded.append(await wave[0])
                continue
            for result in await asyncio.gather(*wave, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
                encoded.append(result)
        return encoded


def _count_characters(one: TextOrPair) -> int:
    if isinstance(one, Media):
        return 0
    return len(one) if isinstance(one, str) else sum(len(piece) for piece in one if isinstance(piece, str))


def characters(inputs: Sequence[TextOrPair]) -> int:
    """The cost of tokenizing the inputs, in characters of text."""
    if set(map(type, inputs)) == {str}:
        return INPUT_CHARACTERS * len(inputs) + sum(map(len, cast("Sequence[str]", inputs)))
    return sum(map(_cost, inputs))


def _cost(one: TextOrPair) -> int:
    if isinstance(one, str):
        return INPUT_CHARACTERS + len(one)
    if isinstance(one, Media):  # it takes some ms to decode: a part of its own
        return PART_CHARACTERS
    few = [piece for piece in one[:MAX_PIECES] if not isinstance(piece, int)]
    pieces = sum(PART_CHARACTERS if isinstance(piece, Media) else len(piece) for piece in few)
    return INPUT_CHARACTERS + ID_CHARACTERS * len(one) + pieces


def _parts(inputs: Sequence[TextOrPair], each: int = 0) -> Iterator[tuple[range, int]]:
    """Runs of inputs and their cost in characters, in order; a long input is a part of its own."""
    whole = characters(inputs) + each * len(inputs)
    if 0 < len(inputs) <= PART_INPUTS and whole < PART_CHARACTERS:
        yield range(len(inputs)), whole
        return
    start = size = 0
    for index, one in enumerate(inputs):
        size += _cost(one) + each
        if size >= PART_CHARACTERS or index + 1 - start == PART_INPUTS:
            yield range(start, index + 1), size
            start, size = index + 1, 0
    if start < len(inputs):
        yield range(start, len(inputs)), size
