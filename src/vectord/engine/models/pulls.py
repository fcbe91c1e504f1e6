"""Models that the operator pulls from the hub while the server runs: one at a time, with its progress.

On the event loop; puller.py fetches in a thread. A pulled model is served until it is removed or the process ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec
from msgspec.structs import replace

from vectord.checkpoints.pulling import Cached, Progress
from vectord.engine.models.loading import in_own_thread
from vectord.engine.models.registry import ModelSource
from vectord.errors import Forbidden, InvalidField, ShuttingDown, StartError, Unavailable
from vectord.schema import PullResult

MAX_PULLED = 100  # models of one process; each keeps its facts in memory, and its name in the metrics
FAILURE_KEPT_S = 60.0  # in which a further request gets the failure instead of a new attempt
PULLING = PullResult(model="", state="pulling")


class Puller(Protocol):
    """How models are fetched by name: see puller.py."""

    def check(self, name: str) -> None: ...

    def fetch(self, name: str, progress: Progress) -> ModelSource: ...

    def find_cached(self, name: str) -> Cached: ...


class _Pull(msgspec.Struct):
    name: str
    task: asyncio.Task[str]  # the served name
    progress: PullResult = PULLING
    ended_s: float = 0.0


class Pulls:
    def __init__(self, puller: Puller | None, add: Callable[[ModelSource], str]) -> None:
        """puller: None if this engine pulls no models. add: serves the model and returns its name, or raises."""
        self._puller = puller
        self._add = add
        self._last: _Pull | None = None
        self._pulled = 0
        self._served: set[str] = set()  # names of the pulled models
        self._removed: str | None = None  # the model that is being removed
        self._closed = False

    def report(self, name: str) -> PullResult:
        """Begin to pull the model, or say how far it is. Returns at once.

        Raises Forbidden and InvalidField for a model that may not be pulled or could not be, Unavailable while another
        one is pulled.
        """
        if self._closed:
            raise ShuttingDown()
        last = self._last
        if last is not None and last.name == name and not last.task.done():
            return last.progress
        self._check_idle()
        if last is not None and last.name == name and time.monotonic() - last.ended_s < FAILURE_KEPT_S:
            self._last = None  # a failure is reported once
            last.task.result()
        if self._puller is None:
            raise Forbidden("This server pulls no models.")
        self._puller.check(name)
        if self._pulled >= MAX_PULLED:
            raise Forbidden("This server has pulled {limit} models, which is the limit.", limit=MAX_PULLED)
        progress = replace(PULLING, model=name)
        self._last = pull_ = _Pull(name, asyncio.create_task(self._pull(name, self._puller)), progress)
        pull_.task.add_done_callback(self._ended)
        return progress

    def has_pulled(self, served_name: str) -> bool:
        return served_name in self._served

    @contextmanager
    def removal(self, name: str) -> Iterator[Cached]:
        """The files of a model, while no other one is pulled or removed.

        Raises Forbidden, InvalidField for a model that is not in the cache, Unavailable during another pull or removal.
        """
        if self._puller is None:
            raise Forbidden("This server pulls no models, and removes none.")
        self._check_idle()
        cached = self._puller.find_cached(name)
        self._removed = name
        try:
            yield cached
        finally:
            self._removed = None

    def forget(self, served_name: str) -> None:
        """The model is no longer served."""
        self._served.discard(served_name)
        self._last = None

    def _check_idle(self) -> None:
        if self._last is not None and not self._last.task.done():
            raise Unavailable("The server is pulling {model}, and pulls one at a time.", model=self._last.name)
        if self._removed is not None:
            raise Unavailable("The server is removing {model}.", model=self._removed)

    async def close(self) -> None:
        """Ends the running pull; the thread ends at its next bytes."""
        self._closed = True
        if self._last is not None:
            self._last.task.cancel()
            with suppress(asyncio.CancelledError, InvalidField):
                await self._last.task

    async def _pull(self, name: str, puller: Puller) -> str:
        def show(hub_id: str, done: int, total: int) -> None:
            if self._closed:
                raise SystemExit  # in_own_thread ends the thread
            if self._last is not None:
                self._last.progress = PullResult(model=name, state="pulling", done_bytes=done, total_bytes=total)

        try:
            source = await in_own_thread(lambda: puller.fetch(name, show), f"vectord-pull-{name}", daemon=True)
            served = self._add(source)
        except StartError as error:
            raise InvalidField(
                "The model {model} could not be pulled: {reason}.", field="model", model=name, reason=error.message
            ) from error
        except ValueError as error:
            raise InvalidField("A model is served as {model}.", field="model", model=name) from error
        self._pulled += 1
        self._served.add(served)
        return served

    def _ended(self, task: asyncio.Task[str]) -> None:
        if self._last is not None and self._last.task is task:
            self._last.ended_s = time.monotonic()
        if not task.cancelled():
            task.exception()  # marks it as retrieved, or asyncio would log a warning
