"""The engine in this process: canonical requests in, results out. Lives on the event loop that called `start`.

server/ sees it as client.EngineClient; compose.py makes it. What happens to a request, in order: a place is taken
(admission), its model found (registry), its texts become tokens (encoding), rows (runner), and the result.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np

from vectord.backends.base import Backend
from vectord.config import EngineConfig
from vectord.engine import dense, loading
from vectord.engine.admission import Admission
from vectord.engine.cache import VectorCache
from vectord.engine.encoding import EncodedText, Encoder, EncoderPool, characters
from vectord.engine.observer import Observer, Silent
from vectord.engine.registry import ModelSource, Registry, Served
from vectord.engine.runner import CLOSE_TIMEOUT_S, ModelRunner, Ran
from vectord.errors import EmptyInput, InvalidField, TooManyInputs, VectordError
from vectord.processor import thread_budget
from vectord.schema import (
    Caller,
    DecodeRequest,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    Input,
    Limits,
    ListModels,
    ModelList,
    Request,
    Result,
    SimilarityRequest,
    SimilarityResult,
    TextLength,
    Timings,
    TokenizeRequest,
    TokenizeResult,
    Usage,
)

INLINE_NUMBERS = 262_144  # a larger answer is normalised on a thread: about 1 ms of the loop


class Engine:
    """Implements EngineClient. Every method is called on one event loop."""

    def __init__(
        self,
        models: Sequence[ModelSource],
        config: EngineConfig | None = None,
        max_batch_requests: int | None = None,
        observer: Observer | None = None,
    ) -> None:
        """models: the first is the default. max_batch_requests: texts a forward runs at most. Starts nothing yet."""
        self._config = config or EngineConfig()
        self._max_batch_requests = max_batch_requests
        self._observer = observer or Silent()
        self._registry = Registry(models)
        self._admission = Admission(self._config.max_concurrent_requests)
        self._cache = VectorCache(self._config.cache_bytes)
        self._pool = EncoderPool(self._config.tokenization_workers or thread_budget())
        self._loading: asyncio.Task[None] | None = None
        self.loaded = asyncio.Event()  # set once every model is ready or failed; `readiness` says which

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns at once; the models load one after the other in the background, the default first."""
        self._loading = asyncio.create_task(self._load(), name="vectord-load")

    async def _load(self) -> None:
        for served in self._registry.models:
            await loading.load(served, self._make_runner, self._observer)
        self.loaded.set()

    def _make_runner(self, served: Served, encoder: Encoder, backend: Backend) -> ModelRunner:
        return ModelRunner(
            served.name,
            served.source.spec,
            encoder,
            backend,
            config=self._config,
            max_batch_requests=self._max_batch_requests,
            pool=self._pool,
            cache=self._cache,
            observer=self._observer,
            stalled_changed=lambda stalled: self._observer.model_changed(
                served.name, "stalled" if stalled else served.state, None
            ),
            queue_changed=self._report_queue,
        )

    async def drain(self) -> None:
        """Accept nothing new from now on; return when everything accepted has been answered."""
        await self._admission.drain()

    async def close(self) -> None:
        """Answer what still waits with Unavailable, end the threads, close the backends."""
        self._admission.draining = True
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.wait([self._loading])
        for runner in self._runners():
            runner.stop()
        for runner in self._runners():
            await asyncio.to_thread(runner.close, CLOSE_TIMEOUT_S)
        self._pool.close()

    def readiness(self) -> dict[str, str]:
        return self._registry.readiness()

    # --- answers ----------------------------------------------------------------------------------------------

    async def answer(self, request: Request, caller: Caller) -> Result:
        if isinstance(request, ListModels):
            return self._list_models(request)
        started_s = time.perf_counter()
        model = ""  # a name of ours, never the client's: it becomes a label in the metrics
        try:
            with self._admission.request():
                served = self._registry.resolve(request.model)
                model = served.name
                result = await self._answer(served, request, caller, started_s)
        except BaseException as error:
            timings = Timings(total_s=time.perf_counter() - started_s)
            self._observer.request_answered(model, _operation(request), _failure(error), 0, 0, timings)
            raise
        self._report(model, request, result)
        return result

    async def _answer(
        self,
        served: Served,
        request: EmbedRequest | SimilarityRequest | TokenizeRequest | DecodeRequest,
        caller: Caller,
        started_s: float,
    ) -> EmbedResult | SimilarityResult | TokenizeResult | DecodeResult:
        match request:
            case EmbedRequest():
                return await self._embed(served, request, caller, started_s)
            case SimilarityRequest():
                return await self._similarity(served, request, caller, started_s)
            case TokenizeRequest():
                return await self._tokenize(served, request, started_s)
            case DecodeRequest():
                return await self._decode(served, request)

    async def _embed(self, served: Served, request: EmbedRequest, caller: Caller, started_s: float) -> EmbedResult:
        runner = served.ready_runner()
        self._check_count(len(request.inputs), request.field)
        _check_dimensions(request, served.source.spec.dimensions)
        runner.check_wait(caller)
        encoded = await runner.encode(request.inputs, request.text, request.field)
        tokenized_s = time.perf_counter() - started_s
        ran = await runner.rows(encoded, request.output, caller, request.field)
        vectors = ran.rows
        if isinstance(vectors, np.ndarray):
            vectors = await _finish(vectors, request.dimensions, request.normalize)
        usage = _usage(request.inputs, encoded, ran, tokenized_s, started_s)
        return EmbedResult(model=served.name, vectors=vectors, usage=usage)

    async def _similarity(
        self, served: Served, request: SimilarityRequest, caller: Caller, started_s: float
    ) -> SimilarityResult:
        runner = served.ready_runner()
        self._check_count(len(request.sentences), "sentences")
        runner.check_wait(caller)
        encoded = await runner.encode([request.source], request.text, "source_sentence")
        encoded += await runner.encode(request.sentences, request.text, "sentences")
        tokenized_s = time.perf_counter() - started_s
        ran = await runner.rows(encoded, "dense", caller, "sentences")
        rows = await _finish(np.asarray(ran.rows), None, normalize=True)
        usage = _usage([request.source, *request.sentences], encoded, ran, tokenized_s, started_s)
        return SimilarityResult(model=served.name, scores=dense.cosines(rows), usage=usage)

    async def _tokenize(self, served: Served, request: TokenizeRequest, started_s: float) -> TokenizeResult:
        encoder = served.ready_runner().encoder
        self._check_count(len(request.inputs), "inputs")
        tokens = await self._pool.run(
            characters(request.inputs),
            lambda: encoder.tokenize(
                request.inputs, add_special_tokens=request.add_special_tokens, prompt_name=request.prompt_name
            ),
        )
        total_s = time.perf_counter() - started_s
        usage = Usage(
            lengths=[TextLength(seen=len(row), kept=len(row)) for row in tokens],
            characters=sum(map(len, request.inputs)),
            timings=Timings(tokenize_s=total_s / len(tokens), total_s=total_s),
        )
        return TokenizeResult(model=served.name, tokens=tokens, usage=usage)

    async def _decode(self, served: Served, request: DecodeRequest) -> DecodeResult:
        encoder = served.ready_runner().encoder
        self._check_count(len(request.ids), "ids")
        texts = await self._pool.run(
            characters(request.ids),
            lambda: encoder.decode(request.ids, skip_special_tokens=request.skip_special_tokens),
        )
        return DecodeResult(model=served.name, texts=texts)

    def _list_models(self, request: ListModels) -> ModelList:
        models = self._registry.models if request.model is None else [self._registry.resolve(request.model)]
        runner = models[0].runner
        limits = Limits(
            max_inputs_per_request=self._config.max_client_batch_size,
            max_batch_tokens=runner.backend.facts.max_batch_tokens if runner else 0,
            max_batch_requests=self._max_batch_requests,
            max_concurrent_requests=self._config.max_concurrent_requests,
            tokenization_workers=self._pool.workers,
            truncates=self._config.auto_truncate,
        )
        return ModelList(models=[served.info() for served in models], limits=limits)

    # --- checks and reports -----------------------------------------------------------------------------------

    def _check_count(self, count: int, field: str) -> None:
        limit = self._config.max_client_batch_size
        if count == 0:
            raise EmptyInput(f"`{field}` must hold at least one input.", field=field)
        if count > limit:
            raise TooManyInputs(
                f"`{field}` may hold at most {limit} inputs; got {count}.", field=field, limit=limit, given=count
            )

    def _runners(self) -> list[ModelRunner]:
        return [served.runner for served in self._registry.models if served.runner is not None]

    def _report_queue(self) -> None:
        queued = [runner.queued() for runner in self._runners()]
        self._observer.queue_changed(sum(texts for texts, _ in queued), sum(tokens for _, tokens in queued))

    def _report(
        self, model: str, request: Request, result: EmbedResult | SimilarityResult | TokenizeResult | DecodeResult
    ) -> None:
        operation = _operation(request)
        if isinstance(result, DecodeResult):
            self._observer.request_answered(model, operation, None, len(result.texts), 0, Timings())
        else:
            usage = result.usage
            self._observer.request_answered(model, operation, None, len(usage.lengths), usage.tokens, usage.timings)


def _check_dimensions(request: EmbedRequest, dimensions: int) -> None:
    if request.dimensions is None:
        return
    if request.output != "dense":
        raise InvalidField("`dimensions` applies to one vector a text, not to one a token.", field="dimensions")
    if not 1 <= request.dimensions <= dimensions:
        raise InvalidField(
            f"`dimensions` must be between 1 and {dimensions}; got {request.dimensions}.",
            field="dimensions",
            limit=dimensions,
            given=request.dimensions,
        )


async def _finish(rows: Float32, dimensions: int | None, normalize: bool) -> Float32:
    if rows.size <= INLINE_NUMBERS:
        return dense.finish(rows, dimensions, normalize)
    return await asyncio.to_thread(dense.finish, rows, dimensions, normalize)


def _usage(
    inputs: Sequence[Input], encoded: Sequence[EncodedText], ran: Ran, tokenized_s: float, started_s: float
) -> Usage:
    return Usage(
        lengths=[text.length for text in encoded],
        characters=sum(len(one) for one in inputs if isinstance(one, str)),
        timings=Timings(
            tokenize_s=tokenized_s / len(encoded),
            queue_s=ran.queue_s,
            inference_s=ran.inference_s,
            total_s=time.perf_counter() - started_s,
        ),
    )


def _operation(request: Request) -> str:
    return type(request).__name__.removesuffix("Request").lower()


def _failure(error: BaseException) -> str:
    """What the metrics call it: our own errors by name, a caller who left, or a bug."""
    if isinstance(error, VectordError):
        return type(error).__name__
    return "Cancelled" if isinstance(error, asyncio.CancelledError) else "InternalError"
