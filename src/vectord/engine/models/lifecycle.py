"""Decides which models are in memory: loaded at start or on first use, unloaded when idle or to make room.

    unloaded ──> loading ──> ready ──> unloaded        idle for too long, or another model needs the memory
                    └──────> failed                     retried by a later use, after RETRY_FAILED_S

A model whose files could not be read starts as failed; a retry reads them again.

Belongs to the event loop; operations call `use`; loading.py loads. One model loads or unloads at a time: two that
compile together would each take twice as long and add their memory peaks, and the memory of an unloading model is not
yet free.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from vectord.config import EngineConfig
from vectord.engine.events import ModelStateChanged, Observer
from vectord.engine.models import loading
from vectord.engine.models.loading import MakeRunner
from vectord.engine.models.registry import ServedModel, Use, UseModel
from vectord.engine.queue.admission import SHUT_DOWN
from vectord.engine.queue.runner import CLOSE_TIMEOUT_S, ModelRunner
from vectord.errors import Unavailable, VectordError
from vectord.housekeeping import GuardedLogger

logger = GuardedLogger(logging.getLogger("vectord.engine"))

RETRY_FAILED_S = 30.0  # how soon a request retries a model that failed to load
RETRY_NO_ROOM_S = 5.0  # Retry-After for a model without room
CHECKS_PER_IDLE_TIME = 4  # how often to check for idle models, per model_idle_s
MAX_CHECK_INTERVAL_S = 15.0


class Lifecycle:
    def __init__(
        self,
        models: list[ServedModel],
        config: EngineConfig,
        make_runner: MakeRunner,
        observer: Observer,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._config = config
        self._make_runner = make_runner
        self._observer = observer
        self._now_s = now_s
        # `async with use(served)`: the model's runner, which stays loaded inside the block. Loads the model first if
        # necessary. Raises Unavailable while it loads at start, if it cannot be loaded, or if there is no room for it.
        self.use: UseModel = partial(Use, find_runner=self._find_runner, now_s=now_s)
        self._one_at_a_time = asyncio.Lock()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._loads: dict[ServedModel, asyncio.Task[None]] = {}  # loads that requests wait for
        self._tried_s: dict[ServedModel, float] = {}  # when each last loaded or failed
        self.loaded = asyncio.Event()  # set when every model that loads at start is ready or failed, or had no room

    def start(self) -> None:
        """Returns immediately; models load in the background, one at a time: pinned ones first, then in order."""
        for served in self._models:
            if served.failure is not None:
                self._tried_s[served] = self._now_s()
                self._observer(ModelStateChanged(served.name, "failed"))
        able = [served for served in self._models if served.failure is None]
        first = {served.spec.reranks: served for served in reversed(able)}
        mode = self._config.model_loading
        models = [
            served
            for served in able
            if served.source.pinned or mode == "start" or (mode == "defaults" and first[served.spec.reranks] is served)
        ]
        for served in models:
            served.state = "loading"  # requests fail immediately instead of waiting
        self._tasks.append(asyncio.create_task(self._load_at_start(models), name="vectord-load"))
        if self._config.model_idle_s:
            self._tasks.append(asyncio.create_task(self._watch_idle(), name="vectord-idle"))

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Stop loading, fail waiting requests with Unavailable, end the threads, close the backends.

        timeout_s: how long to wait for running forwards and compiling backends of all models.
        """
        self._closed = True
        tasks = [*self._tasks, *self._loads.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        runners = [served.runner for served in self._models if served.runner is not None]
        for runner in runners:
            runner.stop()
        await asyncio.gather(*(asyncio.to_thread(runner.close, timeout_s) for runner in runners))

    async def load(self, served: ServedModel) -> None:
        """Load it now, even right after a failure. Raises Unavailable as `use` does."""
        async with Use(served, partial(self._find_runner, retry_now=True), self._now_s):
            pass

    def retry_failed(self) -> None:
        """Begin to load the models that failed RETRY_FAILED_S ago, where there is room: others answer meanwhile."""
        for served in self._models:
            if served.failure is not None and served not in self._loads and self._needs_load(served, retry_now=False):
                self._tried_s[served] = self._now_s()
                self._begin_load(served, makes_room=False)

    async def unload(self, served: ServedModel) -> None:
        """Free its memory. Raises Unavailable while it loads or is in use."""
        _require_unused(served)
        async with self._one_at_a_time:
            _require_unused(served)  # a request may have started while another model was loading
            if served.runner is not None:
                await self._unload([served], "requested")

    async def remove(self, served: ServedModel, forget: Callable[[], None]) -> None:
        """Unload it for good. forget: takes it out of the models. Raises Unavailable while it loads or is in use."""
        async with self._one_at_a_time:
            each = [served, *served.further]
            for one in each:
                _require_unused(one)
            forget()  # from here on nothing loads it: see _begin_load
            for one in each:
                self._tried_s.pop(one, None)
            await self._unload([one for one in each if one.runner is not None], "removed")

    async def unload_idle(self) -> None:
        """Unload the models without use for `model_idle_s`."""
        async with self._one_at_a_time:
            since_s = self._now_s() - self._config.model_idle_s
            idle = [served for served in self._models if _may_go(served) and served.used_s <= since_s]
            await self._unload(idle, f"no use for {self._config.model_idle_s:g} s")

    # --- loading ----------------------------------------------------------------------------------------------

    async def _find_runner(self, served: ServedModel, *, retry_now: bool = False) -> ModelRunner:
        task = self._loads.get(served)
        if task is None and self._needs_load(served, retry_now):
            task = self._begin_load(served)
        if task is not None:
            await asyncio.wait([task])  # a cancelled waiter does not cancel the one task that loads the model
            if task.cancelled():
                raise Unavailable(SHUT_DOWN)
            task.result()
        return served.ready_runner()

    def _needs_load(self, served: ServedModel, retry_now: bool) -> bool:
        if served.state == "failed":
            return retry_now or self._now_s() - self._tried_s.get(served, -math.inf) >= RETRY_FAILED_S
        return served.state == "unloaded"

    def _begin_load(self, served: ServedModel, *, makes_room: bool = True) -> asyncio.Task[None]:
        if self._closed:
            raise Unavailable(SHUT_DOWN)
        if served not in self._models:
            raise Unavailable("The model {model} has been removed.", model=served.name)

        def end(task: asyncio.Task[None]) -> None:
            del self._loads[served]
            if not task.cancelled():
                task.exception()  # marks it as retrieved, or asyncio would log a warning

        task = asyncio.create_task(self._load(served, makes_room=makes_room), name=f"vectord-load-{served.name}")
        self._loads[served] = task
        task.add_done_callback(end)
        return task

    async def _load_at_start(self, models: Sequence[ServedModel]) -> None:
        for served in sorted(models, key=lambda served: not served.source.pinned):
            try:
                # Loading at start evicts no other model, except for a pinned one.
                await self._load(served, makes_room=served.source.pinned)
            except Unavailable as error:
                served.state = "unloaded"
                logger.warning("%s", error.message)
        self.loaded.set()

    async def _load(self, served: ServedModel, *, makes_room: bool) -> None:
        async with self._one_at_a_time:
            if served.source.reopen is not None:  # its files could not be read before
                try:
                    name = f"vectord-open-{served.name}"
                    source = await loading.in_own_thread(served.source.reopen, name, daemon=True)
                except Exception as cause:  # as in loading.load
                    served.failure, self._tried_s[served] = cause, self._now_s()
                    self._log_failure(served)
                    self._observer(ModelStateChanged(served.name, "failed"))
                    return
                served.open(source)
                self._models += served.further
            await self._find_room(served, makes_room)
            served.state = "loading"
            try:
                batches, size = self._config.warmup_batches, self._config.warmup_batch_size
                await loading.load(served, self._make_runner, self._observer, batches, size)
            except asyncio.CancelledError:
                served.state = "unloaded"
                raise
            served.used_s = self._tried_s[served] = self._now_s()
            self._log_failure(served)

    def _log_failure(self, served: ServedModel) -> None:
        """A bug has its traceback. At start, compose.py reports the other failures."""
        bug = None if isinstance(served.failure, VectordError) else served.failure
        if served.state == "failed" and (bug or served in self._loads):
            logger.error("%s failed to load: %s", served.name, served.failure, exc_info=bug)

    # --- room -------------------------------------------------------------------------------------------------

    async def _find_room(self, served: ServedModel, makes_room: bool) -> None:
        """Unload the least recently used models until the budget fits. Raises Unavailable if it cannot."""
        if self._config.model_memory_bytes is None:
            return
        held = sum(one.source.memory_bytes for one in self._models if one.runner is not None)
        missing = held + served.source.memory_bytes - self._config.model_memory_bytes
        going: list[ServedModel] = []
        for one in sorted(filter(_may_go, self._models), key=lambda one: one.used_s) if makes_room else ():
            if missing > 0:
                missing -= one.source.memory_bytes
                going.append(one)
        if missing > 0:
            raise Unavailable(
                "There is no room for the model {model}: it needs about {given} MiB of the {limit} MiB for all models, "
                "and other models hold too much of it.",
                model=served.name,
                given=served.source.memory_bytes // 2**20,
                limit=self._config.model_memory_bytes // 2**20,
                retry_after_s=RETRY_NO_ROOM_S,
            )
        await self._unload(going, f"to make room for {served.name}")

    async def _watch_idle(self) -> None:
        while True:
            await asyncio.sleep(min(self._config.model_idle_s / CHECKS_PER_IDLE_TIME, MAX_CHECK_INTERVAL_S))
            await self.unload_idle()

    async def _unload(self, models: Sequence[ServedModel], reason: str) -> None:
        """Called with the lock held. All models are unloaded before the first await, so no request enters between."""
        runners = []
        for served in models:
            assert served.runner is not None, "only a model that is ready is unloaded"
            runners.append(served.runner)
            served.runner, served.state = None, "unloaded"
            runners[-1].stop()
            logger.info("%s is unloaded: %s", served.name, reason)
            self._observer(ModelStateChanged(served.name, "unloaded"))
        for runner in runners:
            await asyncio.to_thread(runner.close, CLOSE_TIMEOUT_S)


def _may_go(served: ServedModel) -> bool:
    return served.state == "ready" and not served.users and not served.source.pinned


def _require_unused(served: ServedModel) -> None:
    if served.users or served.state == "loading":
        raise Unavailable("The model {model} is in use.", model=served.name)
