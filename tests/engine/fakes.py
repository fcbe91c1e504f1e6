"""A small encoder, backend and observer with failures to switch on, so that the whole engine runs in milliseconds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vectord.artifacts.spec import ModelSpec
from vectord.backends.base import BackendFacts, Int32, TokenBatch
from vectord.config import EngineConfig
from vectord.engine.engine import Engine
from vectord.engine.registry import ModelSource
from vectord.errors import InputTooLong
from vectord.schema import Float32, Input, TextLength, TextOptions, Timings, Token

WIDTH = 8
MAX_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Encoded:
    ids: Int32
    type_ids: Int32
    length: TextLength


class ByteEncoder:
    """One token a byte; no specials. An empty text is one token of id 0."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def encode(
        self,
        inputs: Sequence[Input],
        options: TextOptions,
        *,
        truncate: bool,
        field: str,
        part: range | None = None,
    ) -> list[Encoded]:
        self.threads.add(threading.current_thread().name)
        return [_encode(inputs[i], i, truncate, field) for i in (range(len(inputs)) if part is None else part)]

    def tokenize(self, texts: Sequence[str], *, add_special_tokens: bool, prompt_name: str | None) -> list[list[Token]]:
        return [[Token(id=ord(c), text=c, special=False, start=i, stop=i + 1) for i, c in enumerate(t)] for t in texts]

    def decode(self, ids: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        return ["".join(map(chr, row)) for row in ids]


def _encode(one: Input, index: int, truncate: bool, field: str) -> Encoded:
    ids = list(one.encode()) or [0] if isinstance(one, str) else list(one)
    if len(ids) > MAX_TOKENS and not truncate:
        raise InputTooLong("too long", field=field, index=index, limit=MAX_TOKENS, given=len(ids))
    kept = np.array(ids[:MAX_TOKENS], np.int32)
    return Encoded(kept, np.zeros_like(kept), TextLength(seen=len(ids), kept=len(kept)))


def expected_row(text: str) -> Float32:
    """What FakeBackend answers for a text, worked out alone."""
    return _row(np.array(list(text.encode()) or [0], np.int32))


def _row(ids: Int32) -> Float32:
    places = np.arange(1, WIDTH + 1, dtype=np.float64)
    return np.cos(np.outer(ids, places) + np.arange(len(ids))[:, None]).sum(axis=0).astype(np.float32)


class FakeBackend:
    """Rows from token ids alone. `fail` is asked before each forward and may raise; `gate` holds forwards back."""

    def __init__(
        self, *, streams: int = 1, max_batch_tokens: int = 256, fail: Callable[[TokenBatch], None] | None = None
    ) -> None:
        self.facts = BackendFacts(
            name="fake",
            device="cpu",
            dtype="float32",
            streams=streams,
            cost="packed",
            max_batch_tokens=max_batch_tokens,
        )
        self.fail = fail
        self.poison: int | None = None  # a text with this id gets a row that is not finite
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)  # released once a forward, before the gate
        self.batches: list[TokenBatch] = []
        self.closed = False

    def forward(self, batch: TokenBatch, stream: int) -> Float32:
        self.batches.append(batch)
        self.entered.release()
        assert self.gate.wait(10), "nobody opened the gate"
        if self.fail is not None:
            self.fail(batch)
        texts = np.split(batch.ids, batch.cu_seqlens[1:-1])
        if batch.output == "tokens":
            return np.repeat(batch.ids[:, None], WIDTH, axis=1).astype(np.float32)
        rows = np.stack([_row(ids) for ids in texts])
        if self.poison is not None:
            rows[[self.poison in ids for ids in texts], 0] = np.nan
        return rows

    def close(self) -> None:
        self.closed = True

    def texts_run(self) -> list[str]:
        """Every text of every forward so far, in the order they ran."""
        return [
            bytes(ids.tolist()).decode()
            for batch in list(self.batches)
            for ids in np.split(batch.ids, batch.cu_seqlens[1:-1])
        ]


class Recorder:
    """An Observer that keeps every call."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None, int, int]] = []
        self.batches: list[tuple[int, int, bool]] = []
        self.queues: list[tuple[int, int]] = []
        self.lookups: list[tuple[int, int]] = []
        self.states: list[tuple[str, str]] = []

    def request_answered(
        self, model: str, operation: str, error: str | None, texts: int, tokens: int, timings: Timings
    ) -> None:
        self.requests.append((model, operation, error, texts, tokens))

    def batch_ran(self, model: str, texts: int, tokens: int, budget: int, seconds: float, failed: bool) -> None:
        self.batches.append((texts, tokens, failed))

    def queue_changed(self, texts: int, tokens: int) -> None:
        self.queues.append((texts, tokens))

    def cache_looked_up(self, model: str, hits: int, misses: int) -> None:
        self.lookups.append((hits, misses))

    def model_changed(self, model: str, state: str, load_seconds: float | None) -> None:
        self.states.append((model, state))


def spec(**changes: object) -> ModelSpec:
    facts: dict[str, object] = {
        "model_id": "fake",
        "revision": None,
        "folder": Path(),
        "config": {},
        "model_type": "fake",
        "weights": (),
        "tokenizer": Path(),
        "pooling": "mean",
        "normalizes": True,
        "hidden_size": WIDTH,
        "dimensions": WIDTH,
        "max_tokens": MAX_TOKENS,
        "fingerprint": "0" * 16,
    }
    return ModelSpec(**(facts | changes))  # type: ignore[arg-type]


def source(backend: FakeBackend, name: str = "fake", *aliases: str, encoder: ByteEncoder | None = None) -> ModelSource:
    return ModelSource(name, aliases, spec(model_id=name), lambda: (encoder or ByteEncoder(), backend))


@asynccontextmanager
async def serving(
    *backends: FakeBackend, encoder: ByteEncoder | None = None, observer: Recorder | None = None, **settings: object
) -> AsyncIterator[Engine]:
    """An engine with one loaded model a backend, named m0, m1 ...; settings: EngineConfig's, and max_batch_requests."""
    most = settings.pop("max_batch_requests", None)
    sources = [source(backend, f"m{n}", f"alias{n}", encoder=encoder) for n, backend in enumerate(backends)]
    engine = Engine(sources, EngineConfig(**settings), most, observer)
    await engine.start()
    await engine.loaded.wait()
    for backend in backends:
        backend.batches.clear()
    try:
        yield engine
    finally:
        for backend in backends:
            backend.gate.set()
        await engine.close()


def close_gate(backend: FakeBackend) -> None:
    """From now on forwards wait, and `entered` counts those that begin."""
    backend.gate.clear()
    backend.entered = threading.Semaphore(0)


async def entered(backend: FakeBackend, forwards: int = 1) -> None:
    """Wait until so many more forwards have begun."""
    for _ in range(forwards):
        assert await asyncio.to_thread(backend.entered.acquire, timeout=10)


async def settle() -> None:
    """Let every task that can run do so until it waits for something outside the loop."""
    for _ in range(20):
        await asyncio.sleep(0)
