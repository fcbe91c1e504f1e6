"""Decodes the images of requests on threads, just before they run, within limits of memory for all requests together.

Task.run makes an ImageRun, and ModelRunner.run calls it for the images whose answers no cache has. Belongs to the event
loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import numpy as np
from msgspec.structs import replace

from vectord.budget import Budget
from vectord.engine.queue.admission import MIN_RETRY_AFTER_S, SHUT_DOWN
from vectord.engine.queue.batch import Job
from vectord.errors import Overloaded, Unavailable, VectordError
from vectord.schema import Features, Int32
from vectord.text.sequence import Undecoded

MAX_DECODING_BYTES = 2**30  # of large images that threads decode, the largest takes 0.8 of it; half of it for others
LARGE_IMAGE_BYTES = 2**28  # from 22 megapixels on; a small image waited 25 s beside twelve of 64 megapixels
MAX_ROWS_BYTES = 2**31  # of the rows of decoded images, until they have run


class Decoder:
    """The threads and the memory of all requests."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.rows = Budget(MAX_ROWS_BYTES)
        self._large, self._others = Budget(MAX_DECODING_BYTES), Budget(MAX_DECODING_BYTES // 2)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="vectord-decode")
        self._closed = False

    def close(self) -> None:
        """Callers that wait for a thread get Unavailable."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def decode(self, image: Undecoded, features: Features, first: int, job: Job, max_wait_s: float) -> None:
        """Writes the image's rows into `features` from row `first` on, unless the job has failed by then.

        Raises as `Undecoded.rows`, and Overloaded and Unavailable.
        """
        size = image.decoding_bytes
        budget = self._large if size > LARGE_IMAGE_BYTES else self._others
        await hold(budget, size, max_wait_s)
        if self._closed or job.done.done():
            budget.release(size)
            if self._closed:
                raise Unavailable(SHUT_DOWN)
            return
        future = self._threads.submit(_write, image, features, first)
        # No thread can be interrupted: the image of a cancelled request takes its memory until it is decoded.
        future.add_done_callback(partial(_ended, asyncio.get_running_loop(), budget, size))
        try:
            await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._closed:
                raise Unavailable(SHUT_DOWN) from None
            raise


class ImageRun:
    """The images of one run: their rows count until `release`."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._held = 0
        self.seconds = 0.0  # that decoding took

    async def __call__(self, job: Job, places: Int32 | None, max_wait_s: float) -> Int32:
        """Decodes the images of the job's sequences at these places; None: all. Returns the places that can run.

        An image that cannot be decoded fails in the job. Raises Overloaded after max_wait_s without memory.
        """
        began_s = time.perf_counter()
        wanted = set(range(job.count) if places is None else places.tolist())
        images: list[tuple[Undecoded, range]] = []
        stop = 0
        for image in job.texts.undecoded:
            start, stop = stop, stop + image.count
            if not wanted.isdisjoint(range(start, stop)):
                images.append((image, range(start, stop)))
        size = sum(image.rows_bytes for image, _ in images)
        await hold(self._decoder.rows, size, max_wait_s)
        self._held += size
        await self._decode(job, images, max_wait_s)
        self.seconds += time.perf_counter() - began_s
        return np.array(sorted(wanted.difference(job.failures)), np.int32)

    async def _decode(self, job: Job, images: Sequence[tuple[Undecoded, range]], max_wait_s: float) -> None:
        texts, (image, places) = job.texts, images[0]
        first_rows = texts.cu_seqlens[places.start : places.stop + 1]
        width = image.rows_bytes // int(first_rows[-1] - first_rows[0])
        features = np.zeros((len(texts.ids), width), np.uint8)  # takes memory for the rows that are written
        job.texts = replace(texts, features=features)
        turns = asyncio.Semaphore(self._decoder.workers)  # so that other requests' images are decoded in between
        waits = [max_wait_s]  # the first image waits no longer than this; a request that has begun is not refused

        async def decode(image: Undecoded, places: range) -> None:
            async with turns:
                try:
                    first = int(texts.cu_seqlens[places.start])
                    await self._decoder.decode(image, features, first, job, waits.pop() if waits else math.inf)
                except (Overloaded, Unavailable) as error:
                    job.end(error)
                except VectordError as error:
                    job.fail(np.array(places, np.int32), error)

        await asyncio.gather(*(decode(image, places) for image, places in images))

    def release(self) -> None:
        self._decoder.rows.release(self._held)


async def hold(budget: Budget, size: int, max_wait_s: float) -> None:
    """Holds memory once it is free."""
    try:
        async with asyncio.timeout(max_wait_s):
            await budget.wait(size)
    except TimeoutError:
        template = "The images of other requests took the memory for images for {limit} s."
        raise Overloaded(template, limit=max_wait_s, retry_after_s=MIN_RETRY_AFTER_S) from None


def _ended(loop: asyncio.AbstractEventLoop, budget: Budget, size: int, _: object) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(budget.release, size)


def _write(image: Undecoded, features: Features, first: int) -> None:
    for rows in image.rows():
        features[first : first + len(rows)] = rows
        first += len(rows)
