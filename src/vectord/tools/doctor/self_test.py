"""The configured models in this process: each runs its self-test when it loads, and is timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vectord.compose import running_engine
from vectord.config import Config
from vectord.engine.engine import Engine
from vectord.errors import VectordError
from vectord.schema import Caller, EmbedRequest, ModelInfo, RerankRequest

TEXTS = 64
ROUNDS = 5
CALLER = Caller(client="doctor", route="doctor")
_SENTENCE = "The committee describes an old bridge in the rain, and report number {} says why it matters."


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    model: str
    state: str  # ready or failed
    backend: str
    device: str
    dtype: str
    outputs: Sequence[str]
    dimensions: int | None
    max_input_tokens: int
    lone_ms: float | None  # median latency of one short text
    texts_per_s: float | None  # short texts or pairs, in one request
    problem: str | None


async def self_tests(config: Config) -> list[SelfTest]:
    """In the order of the models. Raises StartError for a model without files."""
    uncached = replace(config, engine=replace(config.engine, cache_bytes=0, shared_cache=None))
    async with running_engine(uncached) as engine:
        return [await _test(engine, info) for info in engine.models(CALLER).models]


async def _test(engine: Engine, info: ModelInfo) -> SelfTest:
    lone_ms = texts_per_s = None
    problem = f"could not be loaded: {engine.failure(info.name)}" if info.state == "failed" else None
    if info.state == "ready" and ("dense" in info.outputs or info.reranks):
        try:
            await _latency_ms(engine, info, TEXTS)  # the first batch of a shape is slower
            latencies_ms = [await _latency_ms(engine, info, 1) for _ in range(ROUNDS)]
            lone_ms = round(sorted(latencies_ms)[ROUNDS // 2], 2)
            texts_per_s = round(TEXTS * 1e3 / await _latency_ms(engine, info, TEXTS), 1)
        except VectordError as error:
            problem = error.message
    return SelfTest(
        model=info.name,
        state=info.state,
        backend=info.backend,
        device=info.device,
        dtype=info.dtype,
        outputs=sorted(info.outputs) + (["scores"] if info.reranks else []),
        dimensions=info.dimensions,
        max_input_tokens=info.max_input_tokens,
        lone_ms=lone_ms,
        texts_per_s=texts_per_s,
        problem=problem,
    )


async def _latency_ms(engine: Engine, info: ModelInfo, count: int) -> float:
    texts = [_SENTENCE.format(number) for number in range(count)]
    began_s = time.perf_counter()
    if "dense" in info.outputs:
        await engine.answer(EmbedRequest(inputs=texts, model=info.name), CALLER)
    else:
        await engine.answer(RerankRequest(query="Why does it matter?", passages=texts, model=info.name), CALLER)
    return (time.perf_counter() - began_s) * 1e3
