"""The tokenizers of the engine's models in a front-end, so that the engine's process need not tokenize.

On the front-end's event loop. The texts of a request travel with their tokens: the engine makes all checks, and ignores
the tokens if its model has another fingerprint by then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import replace
from functools import partial
from typing import cast

import msgspec

from vectord.cluster.remote.codec import EngineState
from vectord.compute.processor import thread_budget
from vectord.config import Config
from vectord.engine.operations import postprocess
from vectord.engine.operations.task import EncoderPool, compute
from vectord.errors import VectordError
from vectord.schema import EmbedRequest, EmbedResult, Float32, ModelInfo, Request, Result
from vectord.text.sequence import Encoder, ReadRequest, Texts, TokenizedTexts

_log = logging.getLogger("vectord.cluster.tokenizers")
# Further requests wait in the engine's admission, which is fair to clients, and not for the threads here.
MAX_READING = 32


class Tokenizers:
    def __init__(self, config: Config) -> None:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as in the engine's process
        self._config = config
        self._pool = EncoderPool(config.engine.tokenization_workers or thread_budget())
        self._reading = 0  # requests
        self._loading: dict[str, tuple[str, asyncio.Task[tuple[Encoder, str] | None]]] = {}  # by served name

    def close(self) -> None:
        self._pool.close()

    async def read(self, request: Request, state: EngineState) -> TokenizedTexts | None:
        """The request's texts as the engine would read them. None: the engine reads them, and finds what is wrong.

        The first request to a model begins to load its tokenizer, and does not wait for it.
        """
        if not isinstance(request, EmbedRequest) or request.conversations or request.partial:
            return None
        if not request.inputs or len(request.inputs) > state.models.limits.max_inputs_per_request:
            return None
        loaded = self._loaded(request, state)
        if loaded is None or self._reading == MAX_READING:
            return None
        encoder, fingerprint = loaded
        began_s = time.perf_counter()
        truncate = request.text.truncates(self._config.engine.auto_truncate)
        read = partial(encoder.read, ReadRequest(inputs=request.inputs, options=request.text, truncate=truncate))
        self._reading += 1
        try:
            parts = await self._pool.spread(request.inputs, read, each=len(request.text.prompt or ""))
        except Exception as problem:
            if not isinstance(problem, VectordError):
                _log.warning("the engine's process tokenizes a request: %r", problem)
            return None
        finally:
            self._reading -= 1
        return TokenizedTexts(
            texts=parts[0] if len(parts) == 1 else Texts.join(parts),
            fingerprint=fingerprint,
            seconds=time.perf_counter() - began_s,
        )

    async def finish(self, result: Result, request: Request) -> Result:
        """The result with the dense vectors that the request asks for, made of the raw rows (N, D)."""
        assert isinstance(result, EmbedResult), "only such requests come with their tokens"
        assert isinstance(request, EmbedRequest), "only such requests come with their tokens"
        if not result.dense:
            return result
        rows = cast("Float32", result.dense["float"])
        scale = partial(postprocess.in_precisions, rows, None, request.normalize, request.precisions)
        return msgspec.structs.replace(result, dense=await compute(rows.size, scale))

    def _loaded(self, request: EmbedRequest, state: EngineState) -> tuple[Encoder, str] | None:
        """The tokenizer of the request's model, with the model's fingerprint, if it is loaded."""
        name = None if request.model is None else state.names.get(request.model, "")
        infos = (
            info
            for info in state.models.models
            if info.state == "ready" and name in (None, info.name) and request.outputs <= info.outputs
        )
        info = next(infos, None)
        if info is None or info.sources:  # a composite has several tokenizers
            return None
        if self._loading.get(info.name, ("",))[0] != info.fingerprint:
            loading = asyncio.create_task(asyncio.to_thread(self._load, info))
            self._loading[info.name] = info.fingerprint, loading
        loading = self._loading[info.name][1]
        return loading.result() if loading.done() else None

    def _load(self, info: ModelInfo) -> tuple[Encoder, str] | None:
        """The tokenizer and the fingerprint of the model. None: other processes cannot read its texts."""
        # In this thread these imports do not delay the start.
        from vectord.engine.models.opening import read_facts  # noqa: PLC0415
        from vectord.engine.models.requested import named, requested_models  # noqa: PLC0415
        from vectord.text.tokenizer import TextEncoder  # noqa: PLC0415

        config = replace(self._config.model, offline=True)
        try:
            requested = {one.served_name: one for one in named(requested_models(config), config)}
            if info.name not in requested:  # pulled later
                return None
            spec = read_facts(requested[info.name], config)
            # A network or a table for queries reads some texts in another way.
            if spec.query is not None or spec.query_weights is not None:
                return None
            if f"{spec.fingerprint}{spec.width_of_space(None)}" != info.fingerprint:
                return None
            return TextEncoder(spec), spec.fingerprint
        except Exception as problem:
            _log.warning("the engine's process tokenizes for %s: %r", info.name, problem)
            return None
