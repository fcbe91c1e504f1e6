"""The engine in this process: canonical requests in, results out. Belongs to the event loop that called `start`.

The server uses it as client.EngineClient; compose.py makes it. A request takes a place (queue/admission), finds its
model (models/registry), loads it if necessary (models/lifecycle), and runs its operation (operations/), which uses the
model's runner (queue/runner).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from vectord.compute.backends.base import Backend
from vectord.compute.processor import thread_budget
from vectord.config import Config, EngineConfig
from vectord.engine.cache.lookup import AnswerCache, ModelCache
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.cache.shared import SharedCache
from vectord.engine.events import Event, ModelStateChanged, Observer, RequestEnded, discard
from vectord.engine.models.lifecycle import Lifecycle
from vectord.engine.models.pulls import Pulls
from vectord.engine.models.registry import (
    Composite,
    CompositeSource,
    ModelOrComposite,
    ModelSource,
    Registry,
    Requirement,
    ServedModel,
)
from vectord.engine.operations.classify import classify
from vectord.engine.operations.documents import embed_documents
from vectord.engine.operations.embed import DENSE, DenseVectors, embed, embed_alone, similarity, space_of
from vectord.engine.operations.multi import check_multi, in_turns, lane_of, placed, usage_together
from vectord.engine.operations.rerank import method_of, rerank
from vectord.engine.operations.task import EncoderPool, Task
from vectord.engine.operations.tokenize import decode, tokenize
from vectord.engine.queue.admission import Admission, before, earliest, passed, within
from vectord.engine.queue.runner import CLOSE_TIMEOUT_S, ModelRunner
from vectord.errors import (
    FingerprintMismatch,
    Forbidden,
    InvalidField,
    InvalidRequest,
    ModelFailed,
    ModelUnavailable,
    Overloaded,
    TimedOut,
    VectordError,
)
from vectord.housekeeping import GuardedLogger, Housekeeping
from vectord.schema import (
    ANYONE,
    VECTOR_KINDS,
    AnswerKind,
    Caller,
    ClassifyRequest,
    ClassifyResult,
    DecodeRequest,
    DecodeResult,
    DocumentsRequest,
    EmbedRequest,
    EmbedResult,
    Gauges,
    Item,
    Lane,
    Limits,
    ListModels,
    LoadModel,
    ModelList,
    ModelRequest,
    MultiRequest,
    MultiResult,
    Operation,
    PullModel,
    PullResult,
    RemoveModel,
    RemoveResult,
    Request,
    RerankMethod,
    RerankRequest,
    RerankResult,
    Result,
    SimilarityRequest,
    Timings,
    TokenizeRequest,
    UnloadModel,
    Usage,
)
from vectord.text.chat import ChatTemplates
from vectord.text.sequence import Encoder, TokenizedTexts

log = GuardedLogger(logging.getLogger("vectord.engine"))


class Work(msgspec.Struct, frozen=True):
    """What the engine does for one class of requests. inputs: their field, for errors about one of them."""

    operation: str  # RequestEnded.operation
    run: Callable[[ModelOrComposite, Any, Task], Coroutine[Any, Any, Result]]
    inputs: str


WORK: Mapping[type[Request], Work] = {
    EmbedRequest: Work("embed", embed, "inputs"),
    DocumentsRequest: Work("documents", embed_documents, "documents"),
    SimilarityRequest: Work("similarity", similarity, "sentences"),
    RerankRequest: Work("rerank", rerank, "passages"),
    ClassifyRequest: Work("classify", classify, "inputs"),
    TokenizeRequest: Work("tokenize", tokenize, "inputs"),
    DecodeRequest: Work("decode", decode, "ids"),
}
TOKEN_CHARACTERS = 5  # of a usual text's token
MAX_FOREIGN_SENDERS = 1000  # clients that are remembered, so that each is logged once
NAMED_BY_SETTINGS = "The settings of this server name the model {model}; restart it without that model first."


class Engine:
    """Implements LocalEngine. Every method is called on one event loop."""

    def __init__(
        self,
        models: Sequence[ModelSource],
        config: EngineConfig | None = None,
        max_batch_texts: int | None = None,
        observer: Observer = discard,
        composites: Sequence[CompositeSource] = (),
        store: RedisStore | None = None,
        store_secret: bytes = b"",
        pulling: Config | None = None,
    ) -> None:
        """models: earlier ones are preferred. max_batch_texts: the limit of one forward. Does not start anything.

        store: shared by replicas; the engine opens and closes it. store_secret: signs the stored answers.
        pulling: with which operators pull models; None: they get Forbidden.
        """
        self._config = config or EngineConfig()
        self._max_batch_texts = max_batch_texts
        self._registry = Registry(models, composites)
        self._observer = observer
        self._active: Counter[str] = Counter()  # by operation
        self._housekeeping = Housekeeping("an observer of the engine")
        self._foreign_senders: set[tuple[str, str]] = set()  # model and client
        self._admission = Admission(
            self._config.max_concurrent_requests,
            self._config.queue_timeout_s,
            self._config.max_queue_wait_s,
            self._config.max_running_requests,
            None if self._config.count_running_requests else lambda: len(self._embeds()[1]),
            exact=not self._config.count_running_requests,
        )
        self._admissions = dict.fromkeys([work.operation for work in WORK.values()], self._admission)
        if (reranks := self._config.max_concurrent_reranks) is not None:
            self._admissions["rerank"] = Admission(reranks, self._config.queue_timeout_s, exact=True)
        self._cache = AnswerCache(self._config.cache_bytes, self._config.cache_texts)
        self._shared = None if store is None else SharedCache(store, store_secret)
        self._chat_templates = ChatTemplates()
        self._pool = EncoderPool(self._config.tokenization_workers or thread_budget())
        self._lifecycle = Lifecycle(self._registry.models, self._config, self._make_runner, self._observe)
        self._pulls = Pulls(pulling, self._add)
        self.loaded = self._lifecycle.loaded  # set when every model that loads at start is ready or failed

    async def start(self) -> None:
        """Returns immediately; models load in the background, one at a time."""
        self._lifecycle.start()
        if self._shared is not None:
            await self._shared.open()

    def _make_runner(self, served: ServedModel, encoder: Encoder, backends: Sequence[Backend]) -> ModelRunner:
        return ModelRunner(
            served.name,
            served.source.spec,
            encoder,
            backends,
            config=self._config,
            max_batch_texts=self._max_batch_texts,
            cache=ModelCache(
                served.name,
                served.spec,
                backends[0].facts.dtype,
                self._cache,
                self._shared,
                self._observe,
                shared_between_keys=self._config.share_cache_between_keys,
            ),
            observer=self._observe,
            stalled_changed=lambda stalled: self._observe(
                ModelStateChanged(served.name, "stalled" if stalled else served.state)
            ),
            queue_changed=self._admission.admit_waiting,
            use_images=None if served.images is None else partial(self._lifecycle.use, served.images),
        )

    async def drain(self) -> None:
        """Refuse new requests; return when every accepted one has been answered."""
        for admission in self._admissions.values():
            admission.refuse()
        for admission in self._admissions.values():
            await admission.drain()

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Fail waiting requests with Unavailable, end the threads, close the backends. timeout_s: how long to wait for
        running forwards and compiling backends; a thread closes the others later."""
        for admission in self._admissions.values():
            admission.refuse()
        await self._pulls.close()
        await self._lifecycle.close(timeout_s)
        if self._shared is not None:
            await self._shared.close()
        self._pool.close()

    def readiness(self) -> dict[str, str]:
        return self._registry.readiness()

    def failure(self, name: str) -> Exception | None:
        return next((served.failure for served in self._registry.models if served.name == name), None)

    @property
    def start_failed(self) -> bool:
        """Whether no model could be loaded, or one that could not is required."""
        states = set(self.readiness().values())
        return states == {"failed"} or (self._config.required_models == "all" and "failed" in states)

    def models(self, caller: Caller = ANYONE) -> ModelList:
        return self._list_models(ListModels(), caller)

    def names(self) -> dict[str, str]:
        return self._registry.names()

    def gauges(self) -> Gauges:
        """The present state, for a scrape of the metrics."""
        runners = self._runners()
        admissions = set(self._admissions.values())
        queued: Counter[Lane] = Counter({"interactive": 0, "bulk": 0})
        for runner in runners:
            queued.update(runner.worker.queued_by_lane())
        measured = {backend.facts.device: backend.device_memory() for runner in runners for backend in runner.backends}
        return Gauges(
            queued_texts=sum(runner.worker.queued()[0] for runner in runners),
            queued_tokens=queued,
            active=dict(self._active),
            wait_s=max((runner.wait_s() for runner in runners), default=0.0),
            max_wait_s=self._config.max_queue_wait_s,
            queued_embeds=len(self._embeds()[0]),
            under_way=sum(admission.under_way for admission in admissions),
            places=sum(admission.max_concurrent_requests for admission in admissions),
            cached_texts=len(self._cache),
            cache_bytes=self._cache.bytes,
            cache_limit_bytes=self._config.cache_bytes,
            memory_bytes={
                served.name: served.source.memory_bytes if served.runner else 0 for served in self._registry.models
            },
            devices={device: memory for device, memory in measured.items() if memory is not None},
        )

    def _embeds(self) -> tuple[set[int], set[int]]:
        """The requests for vectors with queued texts, and those whose texts all run."""
        queued, running = set[int](), set[int]()
        for runner in self._runners():
            own_queued, own_running = runner.embeds()
            queued |= own_queued
            running |= own_running
        return queued, running - queued

    async def answer(self, request: Request, caller: Caller, tokenized: TokenizedTexts | None = None) -> Result:
        if self._config.request_timeout_s:
            caller = replace(caller, deadline_s=earliest(caller.deadline_s, self._config.request_timeout_s))
        try:
            if caller.deadline_s is not None:
                return await before(caller.deadline_s, self._answer(request, caller, tokenized))
            return await self._answer(request, caller, tokenized)
        except ModelFailed as error:
            if caller.operator:
                raise
            raise error.without_reason() from None

    def embed_alone(self, request: EmbedRequest) -> DenseVectors | None:
        """The dense vectors of few texts, computed in the calling thread, which may be any. None: only `answer` can
        give them, because the model has other work, is not loaded or caches, or the texts are long or unreadable.

        Nothing is reported. The request has texts as `inputs`, and no other option than those of vectors and prompts.
        """
        try:
            served = self._resolve(request, ANYONE)
            if not isinstance(served, ServedModel) or request.outputs != DENSE:
                return None
            if (runner := served.reader_of(request.text).runner) is None:
                return None
            characters = sum(map(len, cast("Sequence[str]", request.inputs)))
            if characters > TOKEN_CHARACTERS * runner.alone_tokens(DENSE, len(request.inputs)):
                return None
            return embed_alone(served, runner, request, forced=self._config.force_dimensions)
        except VectordError:  # `answer` adds its place
            return None

    async def check_busy(self, operation: Operation, caller: Caller) -> None:
        if caller.deadline_s is not None and passed(caller.deadline_s):
            return
        lane = caller.lane or "interactive"
        try:
            self._admissions[operation].check(caller.client)
            able = [served for served in self._registry.models if served.failure is None]
            for served in able:  # one that can take another token is enough
                if served.runner is None:
                    return
                try:
                    served.runner.check_wait(lane, caller)
                except Overloaded:
                    if served is able[-1]:
                        raise
                else:
                    return
        except Overloaded as busy:
            self._observe(RequestEnded(caller=caller, operation=operation, error=type(busy).__name__))
            raise

    async def _answer(self, request: Request, caller: Caller, tokenized: TokenizedTexts | None) -> Result:
        if type(request) in WORK:
            model_request = cast("ModelRequest", request)
            task = self._task(caller)
            if tokenized is not None:
                task.tokenized = tokenized
                task.began_s -= tokenized.seconds
            admission = self._admissions[WORK[type(request)].operation]
            try:
                await admission.enter(caller.client, patient=isinstance(request, EmbedRequest) and request.waits)
            except BaseException as error:
                self._report_failure("", request, task, error)
                raise
            try:
                return await self._answer_one(model_request, task)
            finally:
                admission.leave(caller.client)
        if isinstance(request, MultiRequest):
            return await self._answer_multi(request, caller)
        if isinstance(request, ListModels):
            return self._list_models(request, caller)
        if isinstance(request, LoadModel | UnloadModel):
            served = self._registry.named(request.model, caller.models).lead
            for each in (served, *served.further):
                await (self._lifecycle.load if isinstance(request, LoadModel) else self._lifecycle.unload)(each)
            return self._list_models(ListModels(model=request.model), caller)
        if isinstance(request, PullModel):
            return self._pull(request, caller)
        assert isinstance(request, RemoveModel)
        return await self._remove(request, caller)

    def _task(self, caller: Caller) -> Task:
        config = self._config
        return Task(caller, self._pool, self._lifecycle.use, config.max_client_batch_size, config.force_dimensions)

    async def _answer_multi(self, request: MultiRequest, caller: Caller) -> MultiResult:
        """Runs the parts concurrently. Each part has its own model and is one request to the observer."""
        task = self._task(caller)
        reranks = any(isinstance(part, RerankRequest) for part in request.requests)
        others = not all(isinstance(part, RerankRequest) for part in request.requests)
        # Always in this order, or two requests would wait for each other's place.
        admissions = dict.fromkeys([self._admission] * others + [self._admissions["rerank"]] * reranks)
        async with AsyncExitStack() as places:
            try:
                check_multi(request, task)
                for admission in admissions:
                    await admission.enter(caller.client)
                    places.callback(admission.leave, caller.client)
            except BaseException as error:
                self._report_failure("", request, task, error)
                raise
            tasks = task.parts(len(request.requests), lane_of(request))
            work = (
                placed(self._answer_one(part, own), place)
                for place, (part, own) in enumerate(zip(request.requests, tasks, strict=True))
            )
            results = cast("Sequence[EmbedResult | RerankResult | ClassifyResult]", await in_turns(work))
        return MultiResult(results=results, usage=usage_together([result.usage for result in results], task.began_s))

    async def _answer_one(self, request: ModelRequest, task: Task) -> Result:
        if request.model is not None and ":" in request.model:
            request = self._with_adapter(request)
        if not isinstance(request, TokenizeRequest | DecodeRequest) and request.text.cache_salt:
            task.caller = replace(task.caller, cache_salt=request.text.cache_salt)
        model = ""  # a served name, never the client's words: it becomes a label in the metrics
        work = WORK[type(request)]
        self._active[work.operation] += 1
        try:
            target = self._resolve(request, task.caller)
            model = target.name
            if request.model is None and any(served.failure for served in self._registry.models):
                self._lifecycle.retry_failed()
            while True:
                try:
                    if not target.is_open:
                        await _open(target, request, task)
                    if task.caller.expect_fingerprint or getattr(request, "expect_fingerprint", None):
                        _check_fingerprint(target, request, task.caller)
                    asked = request
                    if getattr(request, "conversations", ()):
                        asked = await self._rendered(target, request, task)
                    running = work.run(target, asked, task)
                    if isinstance(request, RerankRequest):
                        running = within(self._config.rerank_timeout_s or 0.0, running)
                    result = await running
                    break
                except ModelFailed:  # another model may answer, unless the request names this one
                    failed, target = target, self._resolve(request, task.caller)
                    if target is failed:
                        raise
                    model = target.name
        except BaseException as error:
            self._report_failure(model, request, task, error)
            raise _placed(error, request) from error.__cause__
        finally:
            self._active[work.operation] -= 1
        self._report(model, request, result, task.caller)
        return result

    def _resolve(self, request: ModelRequest, caller: Caller) -> ModelOrComposite:
        if request.model is not None:
            return self._registry.named(request.model, caller.models)
        needs: Sequence[Requirement]  # what the model must be able to do, preferred conditions first
        match request:
            case EmbedRequest(outputs=outputs):
                what = f"make {' and '.join(sorted(outputs)) or 'any'} vectors"
                needs = [lambda target, kinds: outputs <= kinds and not VECTOR_KINDS.isdisjoint(kinds)]
            case DocumentsRequest() | SimilarityRequest():
                what, needs = "make dense vectors", [lambda target, kinds: kinds >= DENSE]
            case RerankRequest(method=None):
                what, needs = "rerank", [partial(_reranks, "scores"), partial(_reranks, None)]
            case RerankRequest(method=method):
                what, needs = f"rerank by {method}", [partial(_reranks, method)]
            case ClassifyRequest(each_token=True):
                what = "classify tokens"
                needs = [
                    lambda target, kinds: isinstance(target, ServedModel) and bool(kinds and target.spec.token_labels)
                ]
            case ClassifyRequest():
                what = "classify"
                needs = [lambda target, kinds: isinstance(target, ServedModel) and bool(kinds and target.spec.labels)]
            case _:
                what, needs = "tokenize", [lambda target, kinds: isinstance(target, ServedModel) and bool(kinds)]
        return self._registry.resolve(what, needs, caller.models)

    def _with_adapter(self, request: ModelRequest) -> ModelRequest:
        """The request to MODEL under the task ADAPTER, if it names MODEL:ADAPTER."""
        found = self._registry.adapter_in(request.model)
        if found is None or isinstance(request, TokenizeRequest | DecodeRequest):
            return request
        model, adapter = found
        if request.text.task not in (None, adapter):
            raise InvalidField("{field} is not the adapter in the model's name; leave one of them out.", field="task")
        return replace(request, model=model, text=replace(request.text, task=adapter))

    async def _rendered(self, target: ModelOrComposite, request: ModelRequest, task: Task) -> ModelRequest:
        """The request with what its conversations say as its inputs: the text by the model's chat template, or, with an
        image and for a model of images that has no template, the texts and images alone."""
        assert isinstance(request, EmbedRequest | ClassifyRequest | TokenizeRequest)
        spec, several = target.lead.spec, len(request.conversations) > 1
        task.check_most("conversations", len(request.conversations))
        if spec.template is not None and isinstance(request, EmbedRequest):
            # The users' messages are its inputs, and the systems' their prompt.
            read = [conversation.instruction_and_item for conversation in request.conversations]
            if None in read:
                template = (
                    "{field} must be a message of a user, after one of the system or none; this model reads no others."
                )
                raise InvalidField(template, field="conversations", index=read.index(None) if len(read) > 1 else None)
            found = [each for each in read if each is not None]
            prompts = {instruction for instruction, _ in found}
            if len(prompts) > 1:
                raise InvalidField(
                    "{field} must have the same message of the system in one request.", field="conversations"
                )
            options = replace(request.text, prompt=prompts.pop() or request.text.prompt, add_special_tokens=True)
            return replace(request, text=options, inputs=[item for _, item in found], conversations=())
        inputs: list[Item] = []
        for index, conversation in enumerate(request.conversations):
            place = index if several else None
            if not conversation.media and (not spec.reads_images or spec.chat_template is not None):
                try:
                    text = await self._chat_templates.render(spec.chat_template, conversation, task.caller.client)
                except InvalidRequest as error:
                    raise error.at(index=place) from error.__cause__
                inputs.append(text)
            elif isinstance(request, EmbedRequest):
                inputs.append(conversation.item)
                request = replace(request, text=replace(request.text, add_special_tokens=True))
            else:
                template = "{field} has an image; this model reads texts only here."
                raise InvalidField(template, field="conversations", index=place)
        return replace(request, inputs=inputs, conversations=())

    def _pull(self, request: PullModel, caller: Caller) -> PullResult:
        target = self._registry.served_as(request.model, caller.models)
        if target is not None:
            return PullResult(model=target.name, state="served")
        _require_allowed(request.model, caller)
        return self._pulls.report(request.model)

    async def _remove(self, request: RemoveModel, caller: Caller) -> RemoveResult:
        target = self._registry.served_as(request.model, caller.models)
        if target is None:
            _require_allowed(request.model, caller)
        if target is not None and not self._pulls.has_pulled(target.name):
            raise Forbidden(NAMED_BY_SETTINGS, field="model", model=target.name)
        with self._pulls.removal(request.model if target is None else target.lead.spec.model_id) as cached:
            served_models = [served for served in self._registry.targets if isinstance(served, ServedModel)]
            users = [served for served in served_models if cached.holds(served.spec.weights)]
            for served in users:
                if not self._pulls.has_pulled(served.name):
                    raise Forbidden(NAMED_BY_SETTINGS, field="model", model=served.name)
            for served in users:
                await self._lifecycle.remove(served, partial(self._forget, served))
                self._observe(ModelStateChanged(served.name, "unloaded"))
            try:
                await asyncio.to_thread(cached.remove)
            except ModelUnavailable as error:
                raise InvalidField("{reason}.", field="model", reason=error.message) from error
        log.info("%s is removed from the cache", cached.hub_id)
        return RemoveResult(model=cached.hub_id, freed_bytes=cached.size_bytes)

    def _forget(self, served: ServedModel) -> None:
        self._registry.remove(served)
        self._pulls.forget(served.name)

    def _add(self, source: ModelSource) -> str:
        served = self._registry.add(source)
        log.info("%s is served: pulled from the hub", served.name)
        self._observe(ModelStateChanged(served.name, "unloaded"))
        return served.name

    def _list_models(self, request: ListModels, caller: Caller) -> ModelList:
        targets = self._registry.seen_by(caller.models)
        if request.model is not None:
            targets = [self._registry.named(request.model, caller.models)]
        runner = next((target.lead.runner for target in targets if target.lead.runner is not None), None)
        limits = Limits(
            max_inputs_per_request=self._config.max_client_batch_size,
            max_batch_tokens=runner.facts.max_batch_tokens if runner else 0,
            max_batch_texts=self._max_batch_texts,
            max_concurrent_requests=self._config.max_concurrent_requests,
            tokenization_workers=self._pool.workers,
            truncates=self._config.auto_truncate,
        )
        return ModelList(
            models=[target.info().seen_by(caller) for target in targets],
            limits=limits,
            starting=not self.loaded.is_set(),
            required=self._config.required_models,
        )

    def _observe(self, event: Event) -> None:
        try:
            self._observer(event)
        except Exception as problem:
            self._housekeeping.log(problem)

    def _runners(self) -> list[ModelRunner]:
        return [served.runner for served in self._registry.models if served.runner is not None]

    def _report_failure(self, model: str, request: Request, task: Task, error: BaseException) -> None:
        self._observe(
            RequestEnded(
                caller=task.caller,
                operation="multi" if isinstance(request, MultiRequest) else WORK[type(request)].operation,
                model=model,
                error=_failure(error, task.caller),
                timings=Timings(began_s=task.began_s, ended_s=time.perf_counter()),
            )
        )

    def _report(self, model: str, request: Request, result: Result, caller: Caller) -> None:
        operation = WORK[type(request)].operation
        usage = getattr(result, "usage", None)
        if isinstance(usage, Usage):
            own_ids = isinstance(request, EmbedRequest | ClassifyRequest) and request.text.own_ids
            if own_ids and any(length.foreign for length in usage.lengths.details.values()):
                sender = (model, caller.client)
                if sender not in self._foreign_senders and len(self._foreign_senders) < MAX_FOREIGN_SENDERS:
                    self._foreign_senders.add(sender)
                    log.warning(
                        "%s sends token ids on %s that the tokenizer of %s would not make; the results have no "
                        "meaning. Further ones are not logged; responses have the header x-vectord-foreign-ids",
                        caller.client,
                        caller.route,
                        model,
                    )
            report = RequestEnded(
                caller=caller,
                operation=operation,
                model=model,
                texts=len(usage.lengths),
                tokens=usage.tokens,
                lengths=usage.lengths,
                timings=usage.timings,
            )
        else:
            texts = len(result.texts) if isinstance(result, DecodeResult) else 0
            report = RequestEnded(caller=caller, operation=operation, model=model, texts=texts)
        self._observe(report)


def _require_allowed(name: str, caller: Caller) -> None:
    if caller.models is not None and name not in caller.models:
        raise Forbidden("This key may not use the model.", field="model")


async def _open(target: ModelOrComposite, request: ModelRequest, task: Task) -> None:
    """Read the files of this request's models that could not be read before."""
    if isinstance(target, Composite) and isinstance(request, EmbedRequest):
        models = [target.members[kind] for kind in sorted(request.outputs & target.kinds)]
    else:
        models = [target.lead]
    for served in models:
        if not served.is_open:
            async with task.use(served):
                pass


def _reranks(method: RerankMethod | None, target: ModelOrComposite, kinds: frozenset[AnswerKind]) -> bool:
    return isinstance(target, ServedModel) and method_of(kinds, bool(kinds) and target.spec.reranks, method) is not None


def _check_fingerprint(target: ModelOrComposite, request: ModelRequest, caller: Caller) -> None:
    """Raises FingerprintMismatch if a header or the body expects vectors of another space."""
    expected: dict[str | None, str | None] = {None: caller.expect_fingerprint}
    dimensions, normalize = None, True
    if isinstance(request, EmbedRequest | DocumentsRequest):
        expected["expect_fingerprint"] = request.expect_fingerprint
        dimensions, normalize = request.dimensions, request.normalize
    if not any(expected.values()):
        return
    actual = space_of(target if isinstance(request, EmbedRequest) else target.lead, dimensions, normalize)
    for field, other in expected.items():
        if other not in (None, actual):
            raise FingerprintMismatch(
                "The vectors of {model} belong to the space {space}, not to the expected one.",
                field=field,
                model=target.name,
                space=actual,
            )


def _placed(error: BaseException, request: ModelRequest) -> BaseException:
    """The error with the field of its input, if it has no field yet. An error about a lone input has no index."""
    if not isinstance(error, VectordError) or error.field is not None:
        return error
    if error.index is None and not isinstance(error, InvalidRequest):
        return error
    field = WORK[type(request)].inputs
    inputs = getattr(request, "ids", ()) or getattr(request, "conversations", ()) or getattr(request, field)
    return error.at(field=field, index=None if len(inputs) <= 1 else error.index)


def _failure(error: BaseException, caller: Caller) -> str:
    """RequestEnded.error: the class of a VectordError, TimedOut, Cancelled, or InternalError for a bug."""
    if isinstance(error, VectordError):
        return type(error).__name__
    if not isinstance(error, asyncio.CancelledError):
        return "InternalError"
    late = caller.deadline_s is not None and time.monotonic() >= caller.deadline_s
    return TimedOut.__name__ if late else "Cancelled"
