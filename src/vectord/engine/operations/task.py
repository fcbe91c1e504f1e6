"""What the operations of the engine (embedding, reranking, classifying, documents) know beside their request."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

from vectord.engine.models.registry import ServedModel
from vectord.engine.operations.encoding import EncoderPool
from vectord.engine.queue.batch import Kind
from vectord.engine.queue.runner import ModelRunner, Ran, Text
from vectord.errors import EmptyInput, TooManyInputs, VectordError
from vectord.schema import Caller, Input, Lane, TextLength, Timings, Usage
from vectord.text.encoded import Chunk

T = TypeVar("T")
Use: TypeAlias = Callable[[ServedModel], AbstractAsyncContextManager[ModelRunner]]

INLINE_NUMBERS = 262_144  # work on more numbers than this is done on a thread: about 1 ms of the loop
PARTS_AT_ONCE = 128  # of requests that came as one: several batches of short texts, and 20 ms if they end together
PARTS_PER_TURN = 16  # that begin before others get their turn on the loop: 5 ms


@dataclass(slots=True)
class Task:
    """One request under way. Lives on the event loop."""

    caller: Caller
    pool: EncoderPool
    use: Use  # lifecycle.py's: what can be refused without the model is refused before it is asked for
    max_inputs: int
    started_s: float = field(default_factory=time.perf_counter)
    tokenized_s: float = 0.0  # spent on making tokens so far
    began_s: float = math.inf  # when the first text began to wait for a forward
    forwards_s: tuple[float, float] = (math.inf, -math.inf)  # from the begin of the first to the end of the last
    # Shared by requests that came as one: the models that have let one of them in. Those behind it find their own
    # siblings ahead of them, and would be refused for a wait that is their own work.
    entered: set[ModelRunner] | None = None

    def parts(self, count: int, lane: Lane | None) -> Iterator[Task]:
        """A task for each of so many requests that came as one. lane: theirs, where the caller says none."""
        caller, entered = replace(self.caller, lane=self.caller.lane or lane), set[ModelRunner]()
        return (replace(self, caller=caller, entered=entered) for _ in range(count))

    def check_wait(self, runner: ModelRunner) -> None:
        """Raises Overloaded if even one token more would wait too long: asked before tokens are made of the texts."""
        if self.entered is None:
            runner.check_wait(self.caller)
        elif runner not in self.entered:
            runner.check_wait(self.caller)
            self.entered.add(runner)

    async def run(
        self, runner: ModelRunner, texts: Sequence[Text], kinds: frozenset[Kind], field: str, *, partial: bool = False
    ) -> Ran:
        """`ModelRunner.run` for this caller."""
        entered = self.entered is not None
        ran = await runner.run(texts, kinds, self.caller, field, entered=entered, partial=partial)
        self.began_s = min(self.began_s, ran.began_s)
        self.forwards_s = (min(self.forwards_s[0], ran.started_s), max(self.forwards_s[1], ran.ended_s))
        return ran

    async def encode(
        self,
        inputs: Sequence[Input | tuple[str, str]],
        encode: Callable[[range], Sequence[T]],
        *,
        beside: int = 0,
        each: int = 0,
    ) -> list[T]:
        """`EncoderPool.spread`, its time on record."""
        began_s = time.perf_counter()
        encoded = await self.pool.spread(inputs, encode, beside=beside, each=each)
        self.tokenized_s += time.perf_counter() - began_s
        return encoded

    async def chunk(
        self, texts: Sequence[str], chunk: Callable[[int], Sequence[Chunk]], field: str
    ) -> list[Sequence[Chunk]]:
        """The chunks of each text, as `chunk` makes them by its place.

        Raises TooManyInputs as soon as there are too many: a body holds a million.
        """
        counts: list[int] = []  # of the texts done so far, on whichever thread

        def chunk_part(part: range) -> list[Sequence[Chunk]]:
            chunked = []
            for index in part:
                chunked.append(chunk(index))
                counts.append(len(chunked[-1]))
                self.check_most(sum(counts), field, "chunk")
            return chunked

        return await self.encode(texts, chunk_part)

    def check_count(self, count: int, field: str, what: str = "input") -> None:
        """`check_most`, and raises EmptyInput for none."""
        if count == 0:
            raise EmptyInput(f"`{field}` must hold at least one {what}.", field=field)
        self.check_most(count, field, what)

    def check_most(self, count: int, field: str, what: str) -> None:
        """Raises TooManyInputs for more than one request may carry."""
        if count > self.max_inputs:
            raise TooManyInputs(
                f"`{field}` may hold at most {self.max_inputs} {what}s; got {count}.",
                field=field,
                limit=self.max_inputs,
                given=count,
            )


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """All results, in order. The first failure takes the others out of the queue; when this returns, all have ended."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def in_turns(work: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """`together` for thousands: PARTS_AT_ONCE of them are under way, and others get their turn on the loop meanwhile.

    After the first failure none is begun; `work` makes each when it is its turn.
    """
    tasks: list[asyncio.Task[T]] = []
    failed = False
    places = asyncio.Semaphore(PARTS_AT_ONCE - 1)  # one has begun when its place is waited for

    def ended(task: asyncio.Task[T]) -> None:
        nonlocal failed
        failed = failed or task.cancelled() or task.exception() is not None
        places.release()

    try:
        for one in work:
            tasks.append(asyncio.ensure_future(one))
            tasks[-1].add_done_callback(ended)
            await places.acquire()
            if len(tasks) % PARTS_PER_TURN == 0:
                await asyncio.sleep(0)
            if failed:
                break
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def compute(numbers: int, call: Callable[[], T]) -> T:
    """The result of `call`, which works on so many numbers; on a thread if they are many."""
    return call() if numbers <= INLINE_NUMBERS else await asyncio.to_thread(call)


@contextmanager
def blaming(owners: Sequence[int]) -> Iterator[None]:
    """An error about a piece names the input that the piece is of. owners: for each piece, that input's place."""
    try:
        yield
    except VectordError as error:
        if error.index is not None:
            owner = owners[error.index]
            error.message = error.message.replace(f"`{error.field}[{error.index}]`", f"`{error.field}[{owner}]`")
            error.index = owner
        raise


def usage_of(
    task: Task,
    lengths: Sequence[TextLength],
    inputs: Sequence[Input | tuple[str, str]],
    ran: Ran,
    *,
    further_tokens: int = 0,
) -> Usage:
    """What was read and how long it took, as of now. inputs: as they were sent, for their characters."""
    ran_any = task.forwards_s[1] >= task.forwards_s[0]
    return Usage(
        lengths=lengths,
        characters=sum(map(_characters, inputs)),
        timings=Timings(
            tokenize_s=task.tokenized_s / max(1, len(lengths)),
            queue_s=ran.queue_s,
            inference_s=ran.inference_s,
            total_s=time.perf_counter() - task.started_s,
            tokenizing_s=task.tokenized_s,
            waiting_s=max(0.0, task.forwards_s[0] - task.began_s) if ran_any else 0.0,
            computing_s=task.forwards_s[1] - task.forwards_s[0] if ran_any else 0.0,
        ),
        further_tokens=further_tokens,
    )


def _characters(one: Input | tuple[str, str]) -> int:
    if isinstance(one, str):
        return len(one)
    return sum(len(text) for text in one if isinstance(text, str))
