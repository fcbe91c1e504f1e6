"""A MultiRequest, several requests in one body: its limits, its lane, its parts at work, and its usage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from vectord.engine.operations.task import Task, characters
from vectord.engine.queue.scheduler import BULK_TOKENS
from vectord.errors import VectordError
from vectord.schema import (
    ClassifyRequest,
    EmbedRequest,
    Input,
    Lane,
    MultiRequest,
    RerankRequest,
    TextLengths,
    Timings,
    Usage,
)

T = TypeVar("T")

PARTS_AT_ONCE = 128  # parts that run at a time: several batches of short texts, and 20 ms if they end together
PARTS_PER_PAUSE = 16  # parts that start before other tasks run on the loop: 5 ms
# An estimate, for the lane only: it is chosen before anything is tokenized.
CHARACTERS_PER_TOKEN = 4


def check_multi(request: MultiRequest, task: Task) -> None:
    """Raises EmptyInput or TooManyInputs: the limit of one request holds for the parts, and for the inputs of all."""
    task.check_count("requests", len(request.requests), "request")
    task.check_most("requests", sum(len(_inputs(part)) for part in request.requests))


async def in_turns(work: Iterable[Coroutine[Any, Any, T]]) -> Sequence[T]:
    """All results, in order, of thousands of coroutines: at most PARTS_AT_ONCE run at a time, and other tasks in
    between. `work` makes each when it starts; none starts after the first failure."""
    tasks: list[asyncio.Task[T]] = []
    failed = False
    places = asyncio.Semaphore(PARTS_AT_ONCE - 1)  # one has started before its place is acquired

    def on_end(task: asyncio.Task[T]) -> None:
        nonlocal failed
        failed = failed or task.cancelled() or task.exception() is not None
        places.release()

    try:
        for one in work:
            tasks.append(asyncio.ensure_future(one))
            tasks[-1].add_done_callback(on_end)
            await places.acquire()
            if len(tasks) % PARTS_PER_PAUSE == 0:
                await asyncio.sleep(0)
            if failed:
                break
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def placed(answer: Coroutine[Any, Any, T], part: int) -> T:
    """The answer to one part; its error has the part's number."""
    try:
        return await answer
    except VectordError as error:
        raise error.at(part=part) from error.__cause__


def lane_of(request: MultiRequest) -> Lane | None:
    """Many small parts are a bulk job too; None: the lane of each part depends on its own size."""
    tokens = sum(map(_characters, request.requests)) // CHARACTERS_PER_TOKEN
    return "bulk" if tokens > BULK_TOKENS else None


def usage_together(usages: Sequence[Usage], started_s: float) -> Usage:
    """The usage of all parts, with their lengths in order. started_s: of the request, on the clock of Task."""
    return Usage(
        lengths=TextLengths.join([usage.lengths for usage in usages]),
        characters=sum(usage.characters for usage in usages),
        timings=Timings(
            total_s=time.perf_counter() - started_s,
            tokenizing_s=sum(usage.timings.tokenizing_s for usage in usages),
            waiting_s=min((usage.timings.waiting_s for usage in usages), default=0.0),
            computing_s=max((usage.timings.computing_s for usage in usages), default=0.0),
        ),
        further_tokens=sum(usage.further_tokens for usage in usages),
        device=",".join(dict.fromkeys(usage.device for usage in usages if usage.device)),
    )


def _inputs(part: EmbedRequest | RerankRequest | ClassifyRequest) -> Sequence[Input | tuple[str, str]]:
    if isinstance(part, RerankRequest):
        return part.passages
    return part.ids or part.inputs if isinstance(part, ClassifyRequest) else part.inputs


def _characters(part: EmbedRequest | RerankRequest | ClassifyRequest) -> int:
    query = part.query if isinstance(part, RerankRequest) else None
    queries = len(query) * len(_inputs(part)) if isinstance(query, str) else 0
    return queries + characters(_inputs(part))
