"""Models that the operator pulls from the hub while the server runs: one at a time, with its progress.

On the event loop; a thread downloads. A pulled model is served until it is removed or the process ends.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from vectord.checkpoints.catalogue import hub_id_of
from vectord.checkpoints.hub import cache_folder
from vectord.checkpoints.pulling import Cached, Progress, check_names, find_cached, pull
from vectord.checkpoints.spec import Located, RequestedModel
from vectord.config import Config, ModelConfig
from vectord.engine.models.backend import required_graphs, settle_device
from vectord.engine.models.loading import in_own_thread
from vectord.engine.models.opening import find_lock, open_model
from vectord.engine.models.registry import ModelSource
from vectord.engine.models.requested import named, requested_models
from vectord.errors import Forbidden, InvalidField, ModelUnavailable, ShuttingDown, StartError, Unavailable
from vectord.schema import PullResult

LIMIT_BYTES = 50 * 2**30  # of the files of a model that a running server fetches
MAX_PULLED = 100  # models of one process; each keeps its facts in memory, and its name in the metrics
FAILURE_KEPT_S = 60.0  # in which a further request gets the failure instead of a new attempt


class Pulls:
    def __init__(self, config: Config | None, add: Callable[[ModelSource], str]) -> None:
        """config: None if this engine pulls no models. add: serves the model and returns its name, or raises."""
        self._config = config
        self._add = add
        self._task: asyncio.Task[None] | None = None  # the running or the last pull
        self._progress = PullResult(model="", state="pulling")  # of that pull
        self._failure: tuple[float, Exception] | None = None  # when and why that pull failed, until it is reported
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
        is_last = self._progress.model == name
        if is_last and self._is_pulling:
            return self._progress
        self._check_idle()
        if is_last and self._failure is not None:
            (failed_s, failure), self._failure = self._failure, None
            if time.monotonic() - failed_s < FAILURE_KEPT_S:
                raise failure
        if self._config is None:
            raise Forbidden("This server pulls no models.")
        config = self._config.model
        if config.offline:
            raise Forbidden("This server is offline: it fetches no model from the hub.")
        try:
            check_names(name, None)
            (requested,) = requested_models(config, [name])
            find_lock(requested, config)
        except ModelUnavailable as error:
            raise InvalidField("{reason}.", field="model", reason=error.message) from error
        if not any(fnmatchcase(hub_id_of(requested.model), pattern) for pattern in config.pull_allow):
            raise Forbidden("The setting pull_allow of this server excludes the model.", field="model")
        if self._pulled >= MAX_PULLED:
            raise Forbidden("This server has pulled {limit} models, which is the limit.", limit=MAX_PULLED)
        self._progress, self._failure = PullResult(model=name, state="pulling"), None
        self._task = asyncio.create_task(self._pull(name, requested, self._config))
        return self._progress

    def has_pulled(self, served_name: str) -> bool:
        return served_name in self._served

    @contextmanager
    def removal(self, name: str) -> Iterator[Cached]:
        """The files of a model, while no other one is pulled or removed.

        Raises Forbidden, InvalidField for a model that is not in the cache, such as a folder of the operator's,
        Unavailable during another pull or removal.
        """
        if self._config is None:
            raise Forbidden("This server pulls no models, and removes none.")
        self._check_idle()
        config = self._config.model
        hub_id = hub_id_of(requested_models(config, [name])[0].model)
        try:
            cached = find_cached(hub_id, cache_folder(config.hf_home, os.environ))
        except ModelUnavailable as error:
            raise InvalidField("{reason}.", field="model", reason=error.message) from error
        if cached is None:
            raise InvalidField("The model {model} is not in the cache of this server.", field="model", model=hub_id)
        self._removed = name
        try:
            yield cached
        finally:
            self._removed = None

    def forget(self, served_name: str) -> None:
        """The model is no longer served."""
        self._served.discard(served_name)

    async def close(self) -> None:
        """Ends the running pull; the thread ends at its next bytes."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    @property
    def _is_pulling(self) -> bool:
        return self._task is not None and not self._task.done()

    def _check_idle(self) -> None:
        if self._is_pulling:
            raise Unavailable("The server is pulling {model}, and pulls one at a time.", model=self._progress.model)
        if self._removed is not None:
            raise Unavailable("The server is removing {model}.", model=self._removed)

    async def _pull(self, name: str, requested: RequestedModel, config: Config) -> None:
        def show(hub_id: str, done: int, total: int) -> None:
            if self._closed:
                raise SystemExit  # in_own_thread ends the thread
            self._progress = PullResult(model=name, state="pulling", done_bytes=done, total_bytes=total)

        try:
            source = await in_own_thread(
                lambda: fetch_model(requested, config, show), f"vectord-pull-{name}", daemon=True
            )
            self._served.add(self._add(source))
            self._pulled += 1
        except Exception as error:
            failure = error
            if isinstance(error, StartError):
                template = "The model {model} could not be pulled: {reason}."
                failure = InvalidField(template, field="model", model=name, reason=error.message)
            elif isinstance(error, ValueError):
                failure = InvalidField("A model is served as {model}.", field="model", model=name)
            self._failure = time.monotonic(), failure


def fetch_model(requested: RequestedModel, config: Config, progress: Progress) -> ModelSource:
    """Blocks while it downloads. Raises StartError."""
    model, device = config.model, settle_device(config.device)
    (requested,) = named([requested], ModelConfig())
    located = None
    if not Path(requested.model).is_absolute():  # the operator's catalogue or model_path may name a folder
        folder = pull(
            hub_id_of(requested.model),
            revision=model.revision,
            cache=cache_folder(model.hf_home, os.environ),
            token=model.hf_token,
            progress=progress,
            graphs=required_graphs(device),
            held_to=find_lock(requested, model),
            limit_bytes=LIMIT_BYTES,
        ).folder
        located = Located(folder=folder, model_id=requested.model, revision=folder.name, source="cache")
    # The base of an adapter is pulled by its own name, which pull_allow then judges.
    return open_model(requested, replace(config, model=replace(model, offline=True), device=device), located)
