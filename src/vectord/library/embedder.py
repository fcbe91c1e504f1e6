"""`vectord.Embedder`: the engine without a server, for Python programs. The engine is imported when one is made.

The engine belongs to an event loop in a thread of its own. Any number of threads and event loops may call an Embedder
at once; their texts share batches.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import sys
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from importlib import import_module
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
    cast,
    get_args,
)

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from vectord.engine.operations.postprocess import finish, in_precision
from vectord.errors import ConfigError, InvalidField, ModelUnavailable, ShuttingDown, VectordError
from vectord.housekeeping import Housekeeping
from vectord.schema import (
    COLBERT_ROWS,
    PDF,
    Caller,
    ClassifyRequest,
    ClassifyResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    InputKind,
    InputPage,
    Media,
    MultiVectorOptions,
    Precision,
    RerankMethod,
    RerankRequest,
    RerankResult,
    Result,
    Sparse,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
    VectorKind,
    best_first,
)

if TYPE_CHECKING:
    from PIL.Image import Image

    from vectord.engine.engine import Engine

P = ParamSpec("P")
T = TypeVar("T")
# A text; or an image or a PDF: the bytes of its file, or its path; or an image of Pillow's.
TextOrImage: TypeAlias = "str | bytes | Path | Image"
# The same; or texts and images in order, of which one at least is an image.
Item: TypeAlias = "TextOrImage | list[TextOrImage] | tuple[TextOrImage, ...]"
Array = npt.NDArray[Any]
Advance = Callable[[int], None]

CALLER = Caller(client="embedder", route="embedder")
CHOICES = {"outputs": get_args(VectorKind), "kind": get_args(InputKind), "precision": get_args(Precision)}
ARGUMENTS = {"inputs": "texts", "passages": "documents"}  # by the requests' fields, for errors
TEXTS_PER_REQUEST, IMAGES_PER_REQUEST = 256, 16
CONCURRENT_REQUESTS = 4
QUANTIZED = ("int8", "uint8", "binary", "ubinary")  # precisions of `encode`
LARGE_TEXTS = 2048  # a call of more texts shows a progress bar on a terminal or in a notebook

_sharing = threading.Lock()
_shared: weakref.WeakValueDictionary[str, Embedder] = weakref.WeakValueDictionary()  # by their settings


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """Vectors of several kinds. Row i belongs to text i, or to `pages[i]`; a kind that was not requested is None."""

    model: str
    fingerprint: str  # of the vector space
    pages: Sequence[InputPage] = field(default=(), repr=False)  # if one of the texts is a PDF: the origin of each row
    dense: Array | None = None  # (N, D)
    sparse: Sequence[Sparse] | None = field(default=None, repr=False)  # token ids and weights
    colbert: Sequence[Array] | None = field(default=None, repr=False)  # (n_i, C) each, one vector per token
    muvera: Float32 | None = field(default=None, repr=False)  # (N, F), if the option `colbert` requests it
    # (n_i, 4) each, if requested: left, top, right, bottom in fractions of the image; a row of NaN, or None: words
    patches: Sequence[Float32 | None] | None = field(default=None, repr=False)
    tokens: Sequence[Float32] | None = field(default=None, repr=False)  # (n_i, H) each, the last hidden states
    truncated: Sequence[int] = ()  # indices of the texts that were not read to the end


@dataclass(frozen=True, slots=True)
class Ranked:
    """A document and its score for the query."""

    index: int  # in the list of documents
    score: float
    document: Any  # as it was given


@dataclass(frozen=True, slots=True)
class Label:
    """A label of a classifier and its score for a text."""

    label: str
    score: float


class EmbedderCall(NamedTuple, Generic[T]):
    """A call with checked arguments."""

    run: Callable[[], Coroutine[Any, Any, T]]  # on the engine's event loop
    run_alone: Callable[[], T | None] = lambda: None  # in the calling thread; None: only `run` can


def _twins(
    name: str, call: Callable[Concatenate[Embedder, P], EmbedderCall[T]]
) -> tuple[Callable[Concatenate[Embedder, P], T], Callable[Concatenate[Embedder, P], Coroutine[Any, Any, T]]]:
    """The method `name`, which waits for the result of `call`, and its twin for asyncio, on any event loop."""

    @wraps(call)
    def blocking(self: Embedder, /, *arguments: P.args, **options: P.kwargs) -> T:
        made = call(self, *arguments, **options)
        caller = threading.get_ident()
        found = None
        if not (self._calls or self._is_closed or caller in self._alone):
            try:
                self._alone.add(caller)
                found = made.run_alone()
            finally:
                self._alone.discard(caller)
        return self._run(made.run) if found is None else found

    @wraps(call)
    async def awaitable(self: Embedder, /, *arguments: P.args, **options: P.kwargs) -> T:
        future = self._submit(call(self, *arguments, **options).run)
        try:
            return await asyncio.wrap_future(future)
        finally:
            self._calls.discard(future)

    signature = inspect.signature(call).replace(return_annotation=inspect.Signature.empty)  # which differs
    shown: Any
    for shown, own_name in ((call, name), (blocking, name), (awaitable, f"a{name}")):  # in help, and in errors
        shown.__name__, shown.__qualname__ = own_name, f"Embedder.{own_name}"
        shown.__signature__ = signature
    awaitable.__doc__ = (
        f"{call.__doc__}\n        For asyncio, on any event loop. Cancelling it drops the texts that have not run yet."
    )
    return blocking, awaitable


class Embedder:
    """Models in this process. Threads may share it; use it in a `with` block, or close it.

    Calls raise VectordError (errors.py) for texts and options that the model does not take, with the text's index.
    `settings` has the constructor's arguments; a pickled Embedder has only these.
    """

    def __init__(
        self,
        models: str | Sequence[str] = (),
        *,
        device: str = "auto",
        dtype: str = "auto",
        backend: str = "auto",
        threads: int | None = None,
        pooling: Literal["cls", "mean", "last", "max"] | None = None,
        revision: str | None = None,
        offline: bool = False,
        cache_bytes: int = 0,
    ) -> None:
        """Loads the models, and blocks until they are ready. The first model with a capability is its default.

        models: hub ids, folders or packages; none: all-MiniLM-L6-v2. cache_bytes: for the vectors of repeated texts.
        The others are options of `vectord serve`. Raises StartError: a bad option, or a model that is missing or fails.
        """
        from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, EngineConfig, ModelConfig  # noqa: PLC0415 - imported on use
        from vectord.engine.client import new_event_loop  # noqa: PLC0415
        from vectord.engine.engine import Engine  # noqa: PLC0415
        from vectord.engine.models import open_models  # noqa: PLC0415

        names = (models,) if isinstance(models, str) else tuple(models)
        self.settings: dict[str, Any] = {
            "models": list(names or (DEFAULT_MODEL,)),
            "device": device,
            "dtype": dtype,
            "backend": backend,
            "threads": threads,
            "pooling": pooling,
            "revision": revision,
            "offline": offline,
            "cache_bytes": cache_bytes,
        }
        options = {"device": device, "dtype": dtype, "backend": backend, "num_threads": threads}
        config = Config(
            model=ModelConfig(models=names, revision=revision, offline=offline, **_settings(pooling=pooling)),
            device=DeviceConfig(**_settings(**options)),
            engine=EngineConfig(  # the limits protect a server
                **_settings(cache_bytes=cache_bytes),
                max_queue_wait_s=math.inf,
                max_client_batch_size=sys.maxsize,
                max_concurrent_requests=sys.maxsize,
            ),
        )
        sources = open_models(config)
        self._calls = set[Future[Any]]()  # under way
        self._alone = set[int]()  # threads that run a lone call
        self._loop = new_event_loop()
        self._engine = Engine(sources, config.engine)
        self._normalizes = {source.name: _normalizes(source.spec.folder) for source in sources}
        self._specs = {source.name: source.spec for source in sources}
        self._thread = threading.Thread(target=self._loop.run_forever, name="vectord-embedder", daemon=True)
        self._thread.start()
        self._finalizer = weakref.finalize(self, _close_later, self._loop, self._thread, self._engine, self._calls)
        _at_exit(partial(_close_once, self._finalizer))
        try:
            self._run(partial(_start, self._engine))
        except BaseException:
            self.close()
            raise

    @classmethod
    def shared(cls, embedder: Embedder | Mapping[str, Any] | str) -> Embedder:
        """`embedder`; or one with these settings or of this model, shared by all callers and closed after the last."""
        if isinstance(embedder, Embedder):
            return embedder
        settings = {"models": [embedder]} if isinstance(embedder, str) else embedder
        key = json.dumps({**(cls.__init__.__kwdefaults__ or {}), **settings}, sort_keys=True)
        with _sharing:
            found = _shared.get(key)
            if found is None or not found._finalizer.alive:
                found = _shared[key] = cls(**settings)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process opens an Embedder with the same settings."""
        return Embedder.shared, (self.settings,)

    @property
    def models(self) -> list[str]:
        """The names that `model` accepts. The first one that makes what a call asks for is its default."""
        return list(self._specs)

    @property
    def dimensions(self) -> int:
        """The width of a dense vector of the first model; 0 if it makes none."""
        return next(iter(self._specs.values())).usual_dimensions

    @property
    def max_tokens(self) -> int:
        """The most tokens that the first model reads of a text, specials included."""
        return next(iter(self._specs.values())).max_tokens

    def __repr__(self) -> str:
        return (
            f"Embedder({', '.join(map(repr, self.models))}, dimensions={self.dimensions}, max_tokens={self.max_tokens})"
        )

    def _embed(
        self,
        texts: TextOrImage | Iterable[Item],
        *,
        outputs: VectorKind | Sequence[VectorKind] = "dense",
        model: str | None = None,
        kind: InputKind | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: bool = True,
        normalize: bool = True,
        dimensions: int | None = None,
        force_dimensions: bool = False,
        precision: Precision = "float",
        colbert: Mapping[str, Any] | None = None,
        patches: bool = False,
        show_progress: bool | None = None,
    ) -> EmbedderCall[Any]:
        """The vectors of texts: if only dense ones, a matrix (N, D), or (D,) for a single text; else Embeddings.

        texts: of a model that reads images, also those: paths, the bytes of files, or Pillow's images. A PDF has a row
            for each of its pages; a single one always gives a matrix. A list within the list is one item, of texts and
            images in order.
        outputs: dense, sparse, colbert, tokens; one or several.
        model: one of `models`; default: the first one that makes these outputs.
        kind: query, document, classification or clustering: selects the model's own prompt.
        prompt_name: one of the model's prompts; outranks kind. prompt: its text; outranks both.
        truncate: cut texts that are too long; False: refuse them.
        normalize: scale dense vectors to length 1.
        dimensions: keep this many leading numbers; force_dimensions: even if the model was not trained for it.
        precision: of dense vectors: float, int8, uint8, binary, ubinary.
        colbert: the form of ColBERT vectors, fields of `vectord.schema.MultiVectorOptions`:
            {"precision": "int8", "pool_factor": 2, "muvera": {}}.
        patches: also the part of its image that each ColBERT vector belongs to.
        show_progress: None: for long lists on a terminal or in a notebook.
        """
        several, is_single = _items(texts, "texts")
        kinds = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        chosen = [("precision", precision), *[("outputs", one) for one in kinds or (None,)]]
        for name, value in chosen if kind is None else [*chosen, ("kind", kind)]:
            if value not in CHOICES[name]:
                raise InvalidField("{field} accepts only {choices}.", field=name, choices=", ".join(CHOICES[name]))
        try:
            rows = msgspec.convert(colbert, MultiVectorOptions) if colbert else COLBERT_ROWS
        except msgspec.ValidationError as error:
            raise InvalidField("{field}: {reason}", field="colbert", reason=str(error)) from None
        request = EmbedRequest(
            inputs=cast("list[str]", several[:TEXTS_PER_REQUEST]),  # a copy: another thread may change the list
            model=model,
            text=TextOptions(truncate=truncate, kind=kind, prompt_name=prompt_name, prompt=prompt),
            outputs=frozenset(kinds),
            normalize=normalize,
            dimensions=dimensions,
            force_dimensions=force_dimensions,
            precisions=(precision,),
            colbert=rows,
            patches=patches,
            waits=True,
        )
        run = partial(self._vectors_of, several, request, show_progress, is_single=is_single)
        if show_progress or not several or len(several) > TEXTS_PER_REQUEST or set(map(type, several)) != {str}:
            return EmbedderCall(run)

        def run_alone() -> Any:
            dense = self._engine.embed_alone(request)
            return None if dense is None else dense[precision][0] if is_single else dense[precision]

        return EmbedderCall(run, run_alone)

    def _rerank(
        self,
        query: Item,
        documents: Iterable[Item],
        *,
        top_k: int | None = None,
        model: str | None = None,
        method: RerankMethod | None = None,
        truncate: bool = True,
        instruction: str | None = None,
    ) -> EmbedderCall[list[Ranked]]:
        """The documents, best first, at most top_k. Needs no reranker: without one, vectors are compared.

        query, documents: for a model that reads images, also those, as `texts` of `embed`, without PDFs.
        model: default: the first reranker, else the first model that embeds.
        method: scores, dense, colbert, sparse or weighted; default: the model's own scores, else its best vectors.
            Scores of a cross-encoder are logits, of dense vectors cosines.
        truncate: cut documents that are too long; False: refuse them.
        instruction: for language models that read one; default: the model's own.
        """
        _check_item(query, "query")
        listed, is_one = _items(documents, "documents")
        if is_one:
            listed = [*_strings(documents, "documents")]  # which raises
        if top_k is not None and top_k < 0:
            raise InvalidField("{field} must be at least 0; got {given}.", field="top_k", given=top_k)
        text = TextOptions(truncate=truncate)
        request = RerankRequest(query="", passages=(), model=model, method=method, text=text, instruction=instruction)
        return EmbedderCall(partial(self._ranking_of, query, listed, request, top_k))

    embed, aembed = _twins("embed", _embed)
    rerank, arerank = _twins("rerank", _rerank)

    def classify(
        self, texts: str | Iterable[str], *, model: str | None = None, truncate: bool = True
    ) -> list[list[Label]]:
        """The labels of each text, best first, by the first model that classifies."""
        inputs = [texts] if isinstance(texts, str) else _strings(texts, "texts")
        if not inputs:
            return []
        request = ClassifyRequest(inputs=inputs, model=model, text=TextOptions(truncate=truncate))
        result = cast("ClassifyResult", self._run(partial(self._answer, request)))
        logits = result.scores if result.logits is None else result.logits
        return [
            [Label(result.labels[i], float(row[i])) for i in best_first(row, row_of_logits)]
            for row, row_of_logits in zip(result.scores, logits, strict=True)
        ]

    def tokenize(
        self, texts: str | Iterable[str], *, model: str | None = None, add_special_tokens: bool = True
    ) -> list[list[Token]]:
        """The tokens of each text: their ids, texts and places."""
        inputs = [texts] if isinstance(texts, str) else _strings(texts, "texts")
        if not inputs:
            return []
        request = TokenizeRequest(inputs=inputs, model=model, add_special_tokens=add_special_tokens)
        result = cast("TokenizeResult", self._run(partial(self._answer, request)))
        return [list(tokens) for tokens in result.tokens]

    @staticmethod
    def similarity(first: Array | Sequence[Array], second: Array | Sequence[Array]) -> Float32:
        """(N, M) float32, of the vectors that `embed` returns.

        Dense vectors, (N, D) and (M, D): their cosines. ColBERT vectors, N and M matrices: MaxSim, which is for each
        row of the first matrix its best product with a row of the second one, summed.
        """
        left, right = _vectors(first, "first"), _vectors(second, "second")
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            lengths = np.outer(np.linalg.norm(left, axis=1), np.linalg.norm(right, axis=1))
            return cast("Float32", (left @ right.T) / np.maximum(lengths, np.finfo(np.float32).tiny))
        return np.array([[(query @ text.T).max(axis=1).sum() for text in right] for query in left], np.float32)

    def encode(
        self,
        inputs: TextOrImage | Iterable[Item] = (),
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        show_progress_bar: bool | None = None,
        output_value: Literal["sentence_embedding", "token_embeddings"] = "sentence_embedding",
        precision: Literal["float32", "int8", "uint8", "binary", "ubinary"] | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: object = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        pool: object = None,
        chunk_size: int | None = None,
        *,
        task: InputKind | None = None,
        sentences: TextOrImage | Iterable[Item] | None = None,  # the name of `inputs` before version 6
    ) -> Any:
        """The arguments and the array of `SentenceTransformer.encode`: long texts are truncated without an error.

        batch_size, device, pool and chunk_size have no effect: the engine decides. Raises ValueError for an
        output_value of None, for a precision of token embeddings, and as the library does for int8 and uint8 of a
        single text.
        """
        if output_value not in ("sentence_embedding", "token_embeddings"):
            raise ValueError("encode supports the output_value sentence_embedding or token_embeddings")
        if precision not in (None, *QUANTIZED, "float32"):
            raise ValueError(f"encode has no precision {precision!r}; there are: float32, {', '.join(QUANTIZED)}")
        if precision in QUANTIZED and output_value == "token_embeddings":
            raise ValueError("encode converts the precision of sentence embeddings only, not of token_embeddings")
        if truncate_dim == 0:
            raise ValueError(
                "truncate_dim must not be 0: its meaning differs between versions of sentence-transformers"
            )
        given = inputs if sentences is None else sentences
        texts, is_single = _items(given, "inputs")
        name, spec = next(iter(self._specs.items()))
        if prompt_name in ("query", "document") and prompt_name not in spec.prompts and prompt is None:
            # Every model of the library has these two prompts, if only empty.
            task, prompt, prompt_name = task or cast("InputKind", prompt_name), "", None
        found = self.embed(
            texts,
            outputs=("dense",) if output_value == "sentence_embedding" else ("tokens",),
            model=name,
            kind=task,
            prompt_name=prompt_name,
            prompt=prompt,
            show_progress=show_progress_bar,
            normalize=normalize_embeddings or self._normalizes[name],
            dimensions=spec.dimensions if spec.truncate_dim and output_value == "sentence_embedding" else None,
        )
        if output_value == "token_embeddings":
            rows: Any = [_tensor(matrix) for matrix in found.tokens] if texts else []
        elif not texts:
            rows = np.array([], np.float32 if convert_to_tensor else float)
        else:
            if (cut := spec.cut(truncate_dim)) is not None:  # after the model's own Normalize
                found = finish(found, cut, normalize_embeddings)
            rows = _quantized(found, precision or "float32")
        if output_value == "sentence_embedding" and (convert_to_tensor or not convert_to_numpy):
            rows = _tensor(rows) if convert_to_tensor else list(_tensor(rows))
        return rows[0] if is_single and len(rows) == 1 else rows

    def encode_query(self, *inputs: Any, **options: Any) -> Any:
        """`encode` with the model's prompt for queries, unless another is given."""
        return self.encode(*inputs, **{"task": "query", **options})

    def encode_document(self, *inputs: Any, **options: Any) -> Any:
        """`encode` with the model's prompt for documents, unless another is given."""
        return self.encode(*inputs, **{"task": "document", **options})

    def close(self) -> None:
        """Unload the models. Calls that run in other threads fail."""
        if threading.get_ident() in self._alone:  # a signal handler: the call that it interrupts holds the device
            self._finalizer()
        else:
            _close_once(self._finalizer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    async def _vectors_of(
        self,
        texts: Sequence[Item],
        request: EmbedRequest,
        show_progress: bool | None,
        *,
        is_single: bool,
    ) -> Any:
        from vectord.engine.operations.task import together  # noqa: PLC0415 - imported on use

        if not texts:
            none: dict[str, Any] = {
                kind: np.zeros((0, 0), np.float32) if kind == "dense" else [] for kind in request.outputs
            }
            return none["dense"] if request.outputs == {"dense"} else Embeddings(model="", fingerprint="", **none)
        running = asyncio.Semaphore(CONCURRENT_REQUESTS)
        is_text = all(isinstance(text, str) for text in texts)
        size = TEXTS_PER_REQUEST if is_text else IMAGES_PER_REQUEST
        rows = [] if is_text else await asyncio.to_thread(rows_of, texts)

        async def part(start: int) -> EmbedResult:
            stop = start + size
            async with running:
                inputs: Sequence[Any] = texts[start:stop]
                if not is_text:
                    inputs = await asyncio.to_thread(read_rows, texts, rows[start:stop])
                try:
                    result = await self._engine.answer(replace(request, inputs=inputs), CALLER)
                except VectordError as error:
                    if error.field != "inputs":
                        raise
                    row = start + (error.index or 0)
                    raise _placed(error, rows[row].index if rows else row, texts) from error.__cause__
            advance(len(inputs))
            return cast("EmbedResult", result)

        starts = range(0, len(rows or texts), size)
        with _progress(len(texts), show_progress) as advance:
            found = await together([part(start) for start in starts])
        pages = rows if any(row.page for row in rows) else ()
        return _joined(found, starts, request, pages, is_single=is_single)

    async def _answer(self, request: ClassifyRequest | RerankRequest | TokenizeRequest) -> Result:
        try:
            return await self._engine.answer(request, CALLER)
        except VectordError as error:
            if error.field not in ARGUMENTS:
                raise
            raise error.at(field=ARGUMENTS[error.field], index=error.index) from error.__cause__

    async def _ranking_of(
        self, query: Item, documents: Sequence[Item], request: RerankRequest, top_k: int | None
    ) -> list[Ranked]:
        if not documents:
            return []
        given: list[Any] = [query, *documents]
        if not all(isinstance(item, str) for item in given):
            given = await asyncio.to_thread(lambda: [_read(item) for item in given])
        result = cast("RerankResult", await self._answer(replace(request, query=given[0], passages=given[1:])))
        best = best_first(result.scores, result.logits)[:top_k].tolist()
        return [Ranked(i, float(result.scores[i]), documents[i]) for i in best]

    @property
    def _is_closed(self) -> bool:
        """Also after a fork, which has none of its parent's threads."""
        return not self._finalizer.alive or not self._thread.is_alive()

    def _submit(self, call: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        closed = ShuttingDown("This Embedder is closed, or was made before a fork of this process.")
        if self._is_closed:
            raise closed
        made = call()
        try:
            future = asyncio.run_coroutine_threadsafe(made, self._loop)
        except RuntimeError:  # another thread has closed the loop meanwhile
            made.close()
            raise closed from None
        self._calls.add(future)
        if not self._finalizer.alive:  # too late for `_close` to wait for it
            self._calls.discard(future)
            future.cancel()
            raise closed
        return future

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if threading.get_ident() in self._alone:  # the interrupted call may hold the device, for which this would wait
            raise RuntimeError("A signal handler cannot call the Embedder whose call it interrupts.")
        future = self._submit(call)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._calls.discard(future)


async def _start(engine: Engine) -> None:
    await engine.start()
    await engine.loaded.wait()
    for name, state in engine.readiness().items():
        if state == "failed":
            raise ModelUnavailable("{model} could not be loaded: {cause}", model=name, cause=str(engine.failure(name)))


def _close_once(finalizer: weakref.finalize[Any, Any]) -> None:
    if (closing := finalizer.detach()) is not None:
        _close(*closing[2])


def _close_later(*parts: Any) -> None:
    """For an Embedder that the garbage collector or a signal handler closes: closing may wait for their thread."""
    thread = threading.Thread(target=_close, args=parts, name="vectord-close")
    thread.start()
    _at_exit(thread.join)


def _at_exit(call: Callable[[], None]) -> None:
    """Call it before thread pools end: closing uses them, and atexit runs after their end."""
    threading._register_atexit(call)  # type: ignore[attr-defined]


def _close(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, engine: Engine, calls: Collection[Future[Any]]
) -> None:
    if not thread.is_alive():  # a fork has none of its parent's threads
        return

    async def end() -> None:
        await engine.close()
        # They fail now, in several iterations of the loop; a call whose loop has stopped would never return.
        await asyncio.gather(*map(asyncio.wrap_future, list(calls)), return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def _normalizes(folder: Path) -> bool:
    """Whether the model's own modules end with Normalize, which vectord leaves to the request."""
    from vectord.checkpoints.folder import read_modules  # noqa: PLC0415 - imported on use

    modules = read_modules(folder).modules
    return bool(modules) and modules[-1].kind == "Normalize"


def _vectors(vectors: Array | Sequence[Array], name: str) -> Float32 | list[Float32]:
    """(N, D) of dense vectors, or the matrices of ColBERT vectors."""
    try:
        if isinstance(vectors, np.ndarray) and vectors.ndim < 3:
            return np.atleast_2d(vectors.astype(np.float32, copy=False))
        matrices = [np.asarray(one, np.float32) for one in vectors]
        return matrices if all(one.ndim == 2 for one in matrices) else np.atleast_2d(np.asarray(vectors, np.float32))
    except (TypeError, ValueError):
        raise InvalidField(
            "{field} must be vectors, as `embed` returns them, not {kind}.", field=name, kind=type(vectors).__name__
        ) from None


def _strings(texts: object, name: str) -> list[str]:
    if isinstance(texts, (str, bytes, Mapping)) or not isinstance(texts, Iterable):
        raise InvalidField("{field} must be a list of strings, not {kind}.", field=name, kind=type(texts).__name__)
    listed = texts if isinstance(texts, list) else list(texts)
    for index, text in enumerate(listed):
        _check_string(text, name, index)
    return listed


def _items(given: object, name: str) -> tuple[list[Item], bool]:
    """Texts and images as a list, and whether a single one was given. Images are not read yet."""
    if isinstance(given, str) or isinstance(given, _images()):  # noqa: SIM101 - most calls have texts
        return [cast("Item", given)], True
    if not isinstance(given, Iterable) or isinstance(given, Mapping):
        return [*_strings(given, name)], False  # which raises
    listed = given if isinstance(given, list) else list(given)
    if set(map(type, listed)) != {str}:
        for index, item in enumerate(listed):
            _check_item(item, name, index)
    return listed, False


def _check_item(item: object, name: str, index: int | None = None) -> None:
    images = _images()
    has_parts = isinstance(item, list | tuple) and any(isinstance(part, images) for part in item)
    for part in cast("Sequence[object]", item) if has_parts else [item]:
        if not isinstance(part, images):
            _check_string(part, name, index)


def _images() -> tuple[type, ...]:
    """The types of images."""
    return bytes, Path, getattr(sys.modules.get("PIL.Image"), "Image", Path)


def rows_of(items: Sequence[Item]) -> list[InputPage]:
    """The origin of each row of vectors: a PDF has one for each page. Raises VectordError for a broken PDF, OSError."""
    from vectord.text.pdf import is_pdf, pages_of  # noqa: PLC0415 - imported on use

    rows: list[InputPage] = []
    for index, item in enumerate(items):
        if not isinstance(item, bytes | Path) or not is_pdf(_beginning(item)):
            rows.append(InputPage(index, None))
            continue
        try:
            rows += [InputPage(index, page.page) for page in pages_of(Media(_bytes_of(item), type=PDF))]
        except VectordError as error:
            raise _placed(error, index, items) from error.__cause__
    return rows


def read_rows(items: Sequence[Item], rows: Sequence[InputPage]) -> list[str | Media | list[str | Media]]:
    """The inputs of these rows, with the content of their files."""
    files = {row.index: _read(items[row.index]) for row in rows}
    inputs = []
    for row in rows:
        read = files[row.index]
        if row.page is not None:
            assert isinstance(read, Media), "a PDF"
            read = Media(read.data, type=PDF, page=row.page)
        inputs.append(read)
    return inputs


def _read(item: Item) -> str | Media | list[str | Media]:
    if isinstance(item, list | tuple):
        return [part if isinstance(part, str) else Media(_bytes_of(part)) for part in item]
    return item if isinstance(item, str) else Media(_bytes_of(item))


def _beginning(file: bytes | Path) -> bytes:
    from vectord.text.pdf import SIGNATURE_BYTES  # noqa: PLC0415 - imported on use

    if isinstance(file, bytes):
        return file
    with file.open("rb") as opened:
        return opened.read(SIGNATURE_BYTES)


def _placed(error: VectordError, index: int, items: Sequence[Any]) -> VectordError:
    return error.at(field="texts", index=None if len(items) == 1 else index)


def _bytes_of(image: bytes | Path | Image) -> bytes:
    if isinstance(image, bytes):
        return image
    if isinstance(image, Path):
        return image.read_bytes()
    file = BytesIO()
    if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):  # those of PNG
        image = image.convert("RGB")
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


def _check_string(text: object, name: str, index: int | None = None) -> None:
    if not isinstance(text, str):
        raise InvalidField("{field} must be a string, not {kind}.", field=name, index=index, kind=type(text).__name__)


def _settings(**options: object) -> dict[str, Any]:
    from vectord.config.settings import SETTINGS, BadValue  # noqa: PLC0415 - imported on use

    read = dict(options)
    for setting in SETTINGS:
        value = options.get(setting.name)
        if value is not None:
            try:
                read[setting.name] = setting.from_toml(value)
            except BadValue as problem:
                name = setting.name.removeprefix("num_")  # threads
                raise ConfigError(f"{name}: expected {problem}, got {value!r}") from None
    return read


def _joined(
    parts: Sequence[EmbedResult],
    starts: Sequence[int],
    request: EmbedRequest,
    pages: Sequence[InputPage] = (),
    *,
    is_single: bool,
) -> Any:
    """What `embed` returns for the results of its requests. starts: of each, its first text's place."""
    (precision,) = request.precisions
    dense = None
    if "dense" in request.outputs:
        each = [part.dense[precision] for part in parts]
        dense = each[0] if len(each) == 1 else np.concatenate(each)
        if len(request.outputs) == 1:
            return dense[0] if is_single and not pages else dense

    def chained(name: str) -> Any:
        lists = [getattr(part, name) for part in parts]
        return None if None in lists else list(chain.from_iterable(lists))

    truncated = [
        start + i
        for start, part in zip(starts, parts, strict=True)
        for i in sorted({i for lengths in part.lengths.values() for i in lengths.truncated})
    ]
    return Embeddings(
        model=parts[0].model,
        fingerprint=parts[0].fingerprint,
        pages=pages,
        dense=dense,
        sparse=chained("sparse"),
        colbert=chained("colbert"),
        muvera=None if parts[0].muvera is None else np.concatenate([part.muvera for part in parts]),
        patches=chained("patches"),
        tokens=chained("tokens"),
        truncated=truncated,
    )


def _quantized(vectors: Float32, precision: str) -> Array:
    """As sentence-transformers' quantize_embeddings: 256 steps between the least and greatest number of each column."""
    match precision:
        case "float32":
            return vectors
        case "binary" | "ubinary":
            return in_precision(vectors, cast("Precision", precision))
        case "int8" | "uint8" if len(vectors) > 1:
            least = vectors.min(axis=0)
            steps = (vectors.max(axis=0) - least) / 255
            scaled: Float32 = np.clip(np.floor((vectors - least) / np.where(steps == 0, 1, steps)), 0, 255)
            return scaled.astype(np.uint8) if precision == "uint8" else (scaled - 128).astype(np.int8)
    raise ValueError(f"encode needs several texts for {precision}: it takes the scale from them")


def _tensor(array: Array) -> Any:
    torch: Any = import_module("torch")  # an extra
    return torch.from_numpy(array)


@contextmanager
def _progress(texts: int, shown: bool | None) -> Iterator[Advance]:
    if shown is None:
        shown = texts > LARGE_TEXTS and (sys.stderr.isatty() or "ipykernel" in sys.modules)
    if not shown:
        yield lambda texts: None
        return
    from rich.console import Console  # noqa: PLC0415 - most calls show none
    from rich.progress import Progress  # noqa: PLC0415

    # rich's own bars in notebooks need ipywidgets.
    is_notebook = "ipykernel" in sys.modules
    progress = Progress(console=Console(stderr=True, force_jupyter=False, force_terminal=is_notebook or None))
    task = progress.add_task("texts", total=texts)
    housekeeping = Housekeeping("the progress bar")
    housekeeping.run(progress.start)
    try:
        yield lambda done: housekeeping.run(progress.update, task, advance=done)
    finally:
        housekeeping.run(progress.stop)
