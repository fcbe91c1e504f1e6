"""A small encoder, backend and observer with switchable failures, so that the engine runs in milliseconds."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.spec import Colbert, ModelSpec, Output, YesNo
from vectord.compute.backends.base import Answers, Backend, BackendFacts, TokenBatch
from vectord.compute.ops.base import PackedTexts
from vectord.config import EngineConfig
from vectord.engine.cache.redis_store import RedisStore
from vectord.engine.engine import Engine
from vectord.engine.events import (
    BatchRan,
    CacheLookedUp,
    Event,
    ModelStateChanged,
    Observer,
    RequestEnded,
    discard,
)
from vectord.engine.models.registry import CompositeSource, ModelSource
from vectord.engine.queue.admission import Speed
from vectord.errors import EmptyInput, InputTooLong
from vectord.schema import ChunkOptions, Float32, Input, Int32, Span, TextLength, Token
from vectord.text.sequence import Chunk, CutText, ReadRequest, TextOrPair, Texts, TokenSequence

WIDTH = 8
COLBERT_WIDTH = 4
WORDS = 128
MAX_TOKENS = 64
SEPARATOR, QUERY_MARK, DOCUMENT_MARK, MASK = 0, 1, 2, 3  # not letters
SPECIAL_IDS = np.array([SEPARATOR, QUERY_MARK, DOCUMENT_MARK, MASK], np.int32)
QUERY_LENGTH = 8  # of a ColBERT query, padded with MASK


# --- texts to tokens ------------------------------------------------------------------------------------------


class ByteEncoder:
    """Makes one token of each byte, without specials; of an empty text one token of id 0. `threads`: its callers."""

    def __init__(self, model: ModelSpec | None = None) -> None:
        """model: decides whether a prompt is pooled, and how ColBERT texts are read."""
        self.threads: set[str] = set()
        self._model = model or spec()

    @property
    def special_ids(self) -> Int32:
        return SPECIAL_IDS

    @property
    def query_weights(self) -> Float32 | None:
        return None

    def read(self, request: ReadRequest, part: range | None = None) -> Texts:
        self._called()
        indexes = range(len(request.inputs)) if part is None else part
        if request.chunks is not None:
            return Texts.of([one for i in indexes for one in _windows(request.inputs[i], request.chunks[i], i)])
        return Texts.of([self._read(request, request.inputs[i], i) for i in indexes])

    def _read(self, request: ReadRequest, value: TextOrPair, index: int) -> TokenSequence:
        if request.query is not None:
            instruction = f"{request.instruction or 'Judge'}: " if self._model.yes_no else ""
            return _pair(instruction + request.query, value, index, request.truncate)
        if isinstance(value, tuple):
            return _pair(*value, index, request.truncate)
        colbert = self._model.colbert
        if colbert is not None and self._model.pooling is None:
            return _colbert(request.options.kind == "query", value, index, request.truncate)
        prompt = list((request.options.prompt or "").encode())
        sequence = _fit(prompt + _ids(value), index, request.truncate)
        n = len(sequence.ids)
        spans = np.array([[min(len(prompt), n - 1), n]], np.int32)
        rows = np.arange(1, n) if colbert is not None and colbert.drops_first else None
        return replace(sequence, spans=None if self._model.include_prompt or not prompt else spans, rows=rows)

    def cut(self, texts: Sequence[str], max_tokens: int, part: range | None = None) -> list[CutText]:
        self._called()
        indexes = range(len(texts)) if part is None else part
        return [CutText(texts[i][:max_tokens], max(0, len(texts[i]) - max_tokens), 0) for i in indexes]

    def chunk(self, text: str, how: ChunkOptions | Sequence[Span], max_chunks: int | None = None) -> list[Chunk]:
        self._called()
        if isinstance(how, ChunkOptions):
            starts = range(0, len(text), how.max_tokens)
            how = [Span(start, min(start + how.max_tokens, len(text))) for start in starts]
        return [Chunk(span.start, span.stop, span.start, span.stop - span.start) for span in how]

    def count(self, texts: Sequence[str], part: range | None = None) -> Sequence[int]:
        return [len(texts[i].encode()) for i in (range(len(texts)) if part is None else part)]

    def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None) -> list[list[Token]]:
        return [[Token(id=ord(c), text=c, special=False, start=i, stop=i + 1) for i, c in enumerate(t)] for t in texts]

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        return ["".join(map(chr, row)) for row in ids]

    def _called(self) -> None:
        self.threads.add(threading.current_thread().name)


def _ids(one: Input) -> list[int]:
    return list(one.encode()) or [SEPARATOR] if isinstance(one, str) else list(one)


def _fit(ids: list[int], index: int, truncate: bool) -> TokenSequence:
    if not ids:
        raise EmptyInput("{field}: no ids", index=index)
    if len(ids) > MAX_TOKENS and not truncate:
        raise InputTooLong("{field}: too long", index=index, limit=MAX_TOKENS, given=len(ids))
    kept = np.array(ids[:MAX_TOKENS], np.int32)
    length = TextLength(seen=len(ids), kept=len(kept))
    return TokenSequence(ids=kept, type_ids=np.zeros_like(kept), length=length, index=index)


def _pair(query: str, passage: str, index: int, truncate: bool) -> TokenSequence:
    first, second = [*query.encode(), SEPARATOR], list(passage.encode())
    sequence = _fit(first + second, index, truncate)
    kept = len(sequence.ids) - len(first)
    types = np.repeat([0, 1], [len(first), kept]).astype(np.int32)
    parts = (TextLength(len(query), len(query)), TextLength(len(second), kept))
    return replace(sequence, type_ids=types, parts=parts)


def _colbert(is_query: bool, value: Input, index: int, truncate: bool) -> TokenSequence:
    """The marker's vector does not count; a query is filled up with tokens that are not attended to."""
    ids = [QUERY_MARK if is_query else DOCUMENT_MARK, *_ids(value)]
    filled = ids + [MASK] * (QUERY_LENGTH - len(ids) if is_query else 0)
    keys = None if len(ids) >= len(filled) else len(ids)
    return replace(_fit(filled, index, truncate), keys=keys, rows=np.arange(1, len(filled), dtype=np.int32))


def _windows(text: str, chunks: Sequence[Chunk], index: int) -> Iterator[TokenSequence]:
    """A window for every two chunks, with a special at either end."""
    for start in range(0, len(chunks), 2):
        own = chunks[start : start + 2]
        ids = [DOCUMENT_MARK, *text[own[0].start : own[-1].stop].encode(), SEPARATOR]
        spans = np.array([[one.start, one.stop] for one in own], np.int32) - np.int32(own[0].start - 1)
        yield replace(_fit(ids, index, truncate=True), spans=spans)


# --- tokens to answers ----------------------------------------------------------------------------------------


def ids_of(text: str) -> Int32:
    return np.array(_ids(text), np.int32)


def sequence_of(tokens: str | Int32, **changes: object) -> TokenSequence:
    """The sequence of these tokens; changes: its further fields."""
    ids = ids_of(tokens) if isinstance(tokens, str) else tokens
    length = TextLength(len(ids), len(ids))
    fields = {"type_ids": np.zeros_like(ids), **changes}
    return TokenSequence(ids=ids, length=length, **fields)  # type: ignore[arg-type]


def expected_row(text: str) -> Float32:
    """FakeBackend's row for a text, computed independently."""
    return _row(ids_of(text))


def expected_logits(ids: Int32, labels: int) -> Float32:
    """FakeBackend's scores, from all tokens up to the end of the pooled span, the prefix included."""
    places = np.arange(1, labels + 1)
    return np.sin(np.outer(ids, places) / 7.0).sum(axis=0).astype(np.float32)


def expected_colbert(ids: Int32) -> Float32:
    rows = np.cos(np.outer(ids, np.arange(1, COLBERT_WIDTH + 1)))  # (n, C)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def expected_weights(ids: Int32) -> Float32:
    return (ids % 7 / 7).astype(np.float32)


def _row(ids: Int32) -> Float32:
    places = np.arange(1, WIDTH + 1, dtype=np.float64)
    return np.cos(np.outer(ids, places) + np.arange(len(ids))[:, None]).sum(axis=0).astype(np.float32)


class FakeBackend(Backend):
    """Computes answers from token ids. `fail` is called before each forward and may raise; `gate` blocks forwards."""

    def __init__(
        self,
        *,
        streams: int = 1,
        max_batch_tokens: int = 256,
        max_batch_texts: int | None = None,
        cost: str = "packed",
        labels: int = 1,
        fail: Callable[[TokenBatch], None] | None = None,
        device: str = "cpu",
        pipelined: bool = False,
        quick_tokens: int = 0,
    ) -> None:
        self.facts = BackendFacts(
            name="fake",
            device=device,
            dtype="float32",
            streams=streams,
            cost=cost,  # type: ignore[arg-type]
            max_batch_tokens=max_batch_tokens,
            max_batch_texts=max_batch_texts,
            pipelined=pipelined,
            quick_tokens=quick_tokens,
        )
        self.labels = labels
        self.fail = fail
        self.poison: int | None = None  # outputs of a text with this id are not finite
        self.heals = False  # whether `forward_exact` returns finite outputs
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)  # released once per forward, before the gate
        self.batches: list[TokenBatch] = []
        self.exact: list[TokenBatch] = []
        self.closed = False
        self.renewed = 0

    def forward(self, batch: TokenBatch, stream: int) -> Answers:
        self.batches.append(batch)
        self.entered.release()
        assert self.gate.wait(10), "the gate stayed closed"
        if self.fail is not None:
            self.fail(batch)
        return self.answers(batch, self.poison)

    def forward_exact(self, batch: TokenBatch) -> Answers:
        self.exact.append(batch)
        return self.answers(batch, None if self.heals else self.poison)

    def renew(self, stream: int) -> None:
        """Later forwards have a new, open gate."""
        self.renewed += 1
        self.gate = threading.Event()
        self.gate.set()

    def close(self) -> None:
        self.closed = True

    def texts_run(self) -> list[str]:
        """Every text of every forward so far, in the order they ran."""
        return [bytes(ids.tolist()).decode() for batch in list(self.batches) for ids in texts_of(batch.texts)]

    def answers(self, batch: TokenBatch, poison: int | None) -> Answers:
        return {output: self._answer(output, batch.texts, poison) for output in batch.outputs}

    def _answer(self, output: Output, texts: PackedTexts, poison: int | None) -> Float32:
        ids = texts.ids
        match output:
            case "tokens":
                rows = np.repeat(ids[:, None], WIDTH, axis=1).astype(np.float32)
            case "colbert":
                rows = expected_colbert(ids)
            case "lexical":
                rows = expected_weights(ids)[:, None]
            case "dense":
                rows = np.stack([_row(ids[start:stop]) for start, stop in texts.pooled])
            case "splade":
                words = [np.bincount(ids[start:stop], minlength=WORDS) for start, stop in texts.pooled]
                rows = np.stack(words).astype(np.float32) - 0.5
            case "scores":
                rows = np.stack([expected_logits(_seen(texts, stop), self.labels) for _, stop in texts.pooled])
        if poison is not None:
            rows[_hit(output, texts, poison), 0] = np.nan
        return rows


def texts_of(texts: PackedTexts) -> list[Int32]:
    """The ids of each text of a batch."""
    return np.split(texts.ids, texts.cu_seqlens[1:-1])


def _seen(texts: PackedTexts, stop: int) -> Int32:
    """The tokens that a causal model has read at row stop - 1: the parent's and the text's so far."""
    text = int(np.searchsorted(texts.cu_seqlens, stop - 1, side="right")) - 1
    own = texts.ids[texts.cu_seqlens[text] : stop]
    if texts.parents is None or texts.parents[text] < 0:
        return own
    return np.concatenate([texts_of(texts)[texts.parents[text]], own])


def _hit(output: Output, texts: PackedTexts, poison: int) -> list[bool]:
    if output in {"tokens", "colbert", "lexical"}:
        return [poison == one for one in texts.ids]
    return [poison in texts.ids[start:stop] for start, stop in texts.pooled]


# --- around them ----------------------------------------------------------------------------------------------


class Recorder:
    """An observer that keeps every event."""

    def __init__(self) -> None:
        self.reports: list[RequestEnded] = []
        self.batch_reports: list[BatchRan] = []
        self.requests: list[tuple[str, str, str | None, int, int]] = []
        self.batches: list[tuple[int, int, bool]] = []
        self.lookups: list[tuple[int, int]] = []
        self.shared_lookups: list[tuple[int, int]] = []
        self.shared_rejected = 0
        self.states: list[tuple[str, str]] = []

    def __call__(self, event: Event) -> None:
        match event:
            case RequestEnded():
                self.reports.append(event)
                self.requests.append((event.model, event.operation, event.error, event.texts, event.tokens))
            case BatchRan():
                self.batch_reports.append(event)
                self.batches.append((event.texts, event.tokens, event.failed))
            case CacheLookedUp():
                (self.shared_lookups if event.shared else self.lookups).append((event.hits, event.misses))
                self.shared_rejected += event.rejected
            case ModelStateChanged():
                self.states.append((event.model, event.state))


def spec(outputs: Collection[Output] = ("dense", "tokens"), **changes: object) -> ModelSpec:
    facts: dict[str, object] = {
        "model_id": "fake",
        "revision": None,
        "folder": Path(),
        "config": {},
        "model_type": "fake",
        "architecture": "fake",
        "outputs": frozenset(outputs),
        "weights": (),
        "tokenizer": Path(),
        "pooling": "mean" if "dense" in outputs else None,
        "hidden_size": WIDTH,
        "dimensions": WIDTH if "dense" in outputs else 0,
        "max_tokens": MAX_TOKENS,
        "colbert": Colbert(dimensions=COLBERT_WIDTH) if "colbert" in outputs else None,
        "fingerprint": "0" * 16,
    }
    return ModelSpec(**(facts | changes))  # type: ignore[arg-type]


# BGE-M3's kind: three vectors of one pass; its first token has no vector of its own.
M3 = spec(
    ("dense", "tokens", "lexical", "colbert"),
    colbert=Colbert(dimensions=COLBERT_WIDTH, drops_first=True, linear=Path()),
    lexical=Path(),
)
CROSS_ENCODER = spec(("scores",), labels=("relevant",), score_activation="sigmoid")
YES_NO = YesNo(prefix="", body="{instruction}", suffix="", instruction="Judge", token_ids=(1, 2))
JUDGE = spec(("scores",), yes_no=YES_NO)
CLASSIFIER = spec(("scores",), labels=("bad", "fair", "good"), score_activation="softmax")


def backend_for(model: ModelSpec, **facts: object) -> FakeBackend:
    """A backend with the model's number of scores."""
    return FakeBackend(labels=model.scores_width or 2, **facts)  # type: ignore[arg-type]


def source(
    backend: FakeBackend | Sequence[FakeBackend],
    name: str = "fake",
    *aliases: str,
    encoder: ByteEncoder | None = None,
    model: ModelSpec | None = None,
    **facts: object,
) -> ModelSource:
    """backend: one, or one per device."""
    backends = [backend] if isinstance(backend, FakeBackend) else backend
    return ModelSource(
        name,
        aliases,
        model or spec(model_id=name),
        lambda: (encoder or ByteEncoder(model), backends),
        **facts,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def serving(
    *backends: FakeBackend | Sequence[FakeBackend],
    models: Sequence[ModelSpec] = (),
    composites: Sequence[CompositeSource] = (),
    encoder: ByteEncoder | None = None,
    observer: Observer = discard,
    store: RedisStore | None = None,
    store_secret: bytes = b"",
    **settings: object,
) -> AsyncIterator[Engine]:
    """An engine with one loaded model per backend, named m0, m1 ...; settings: EngineConfig's and max_batch_texts.

    backends: a sequence of them is one model on several devices. models: their specs; by default, all make dense
    vectors and tokens.
    """
    most = settings.pop("max_batch_texts", None)
    sources = [
        source(backend, f"m{n}", f"alias{n}", encoder=encoder, model=models[n] if models else None)
        for n, backend in enumerate(backends)
    ]
    config = EngineConfig(**settings)  # type: ignore[arg-type]
    engine = Engine(sources, config, most, observer, composites, store, store_secret)  # type: ignore[arg-type]
    await engine.start()
    if settings.get("model_loading") != "first-use":
        await engine.loaded.wait()
    each = [one for backend in backends for one in ([backend] if isinstance(backend, FakeBackend) else backend)]
    for backend in each:
        backend.batches.clear()
    try:
        yield engine
    finally:
        for backend in each:
            backend.gate.set()
        await engine.close()


@asynccontextmanager
async def serving_one(model: ModelSpec, **settings: object) -> AsyncIterator[tuple[Engine, FakeBackend]]:
    """An engine with this model alone, called m0."""
    backend = backend_for(model)
    async with serving(backend, models=[model], **settings) as engine:  # type: ignore[arg-type]
        yield engine, backend


def close_gate(backend: FakeBackend) -> None:
    """Forwards wait from now on; `entered` counts those that start."""
    backend.gate.clear()
    backend.entered = threading.Semaphore(0)


def slow(engine: Engine, backend: FakeBackend, tokens_per_s: int) -> None:
    """The first model has measured this speed on its one stream, and its forwards wait from now on."""
    speed = engine._registry.models[0].runner._speed = Speed(streams=1)  # type: ignore[union-attr]
    speed.ran(tokens_per_s, seconds=1.0)
    close_gate(backend)


async def entered(backend: FakeBackend, forwards: int = 1) -> None:
    """Wait until this many more forwards have started."""
    for _ in range(forwards):
        assert await asyncio.to_thread(backend.entered.acquire, timeout=10)


def queue_of(engine: Engine) -> tuple[int, int]:
    """The queued texts and tokens of all models."""
    gauges = engine.gauges()
    return gauges.queued_texts, sum(gauges.queued_tokens.values())


async def settle() -> None:
    """Let every task that can run do so until it waits for something outside the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


def spans_of(batch: TokenBatch) -> list[Span]:
    return [Span(int(start), int(stop)) for start, stop in batch.texts.pooled]


def sizes(batch: TokenBatch) -> list[int]:
    """Tokens of each text of a batch."""
    return [int(stop - start) for start, stop in pairwise(batch.texts.cu_seqlens)]


# --- logs -----------------------------------------------------------------------------------------------------


@contextmanager
def broken_log() -> Iterator[None]:
    """An application's log handler raises for every line."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the collector is away")

    logger, handler = logging.getLogger("vectord"), Broken()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
