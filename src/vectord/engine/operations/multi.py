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
    n_characters = 0
    for part in request.requests:
        inputs = _inputs(part)
        n_characters += characters(inputs)
        if isinstance(part, RerankRequest) and isinstance(part.query, str):
            n_characters += len(part.query) * len(inputs)
    return "bulk" if n_characters // CHARACTERS_PER_TOKEN > BULK_TOKENS else None


def usage_together(usages: Sequence[Usage], began_s: float) -> Usage:
    """The usage of all parts, with their lengths in order. began_s: of the request."""
    timings = [usage.timings for usage in usages]
    ran = [each for each in timings if each.last_s > each.first_s] or timings[:1]
    return Usage(
        lengths=TextLengths.join([usage.lengths for usage in usages]),
        characters=sum(usage.characters for usage in usages),
        timings=Timings(
            began_s=began_s,
            queued_s=min(each.queued_s for each in ran),
            first_s=min(each.first_s for each in ran),
            last_s=max(each.last_s for each in ran),
            ended_s=time.perf_counter(),
            tokenizing_s=sum(each.tokenizing_s for each in timings),
        ),
        further_tokens=sum(usage.further_tokens for usage in usages),
        device=",".join(dict.fromkeys(usage.device for usage in usages if usage.device)),
    )


def _inputs(part: EmbedRequest | RerankRequest | ClassifyRequest) -> Sequence[Input | tuple[str, str]]:
    if isinstance(part, RerankRequest):
        return part.passages
    return part.ids or part.inputs if isinstance(part, ClassifyRequest) else part.inputs
