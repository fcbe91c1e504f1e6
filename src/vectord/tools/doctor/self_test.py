"""The configured models, loaded and run in this process: each answers the self-test of serve, and is timed."""

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
    state: str  # ready, failed
    backend: str
    device: str
    dtype: str
    outputs: Sequence[str]
    dimensions: int | None
    max_input_tokens: int
    lone_ms: float | None  # one short text, the median of a few
    texts_per_s: float | None  # short texts, or pairs, as fast as they go
    problem: str | None


async def self_tests(config: Config) -> list[SelfTest]:
    """In the order in which they are served. Raises StartError: a model that is nowhere."""
    fresh = replace(config, engine=replace(config.engine, cache_bytes=0, shared_cache=None))
    async with running_engine(fresh) as engine:
        return [await _test(engine, info) for info in engine.models(CALLER).models]


async def _test(engine: Engine, info: ModelInfo) -> SelfTest:
    lone_ms = texts_per_s = None
    problem = "could not be loaded; the log says why" if info.state == "failed" else None
    if info.state == "ready" and ("dense" in info.outputs or info.reranks):
        try:
            await _texts_per_s(engine, info)  # the first batch of a kind is slower than those after it
            lone_ms = await _lone_ms(engine, info)
            texts_per_s = await _texts_per_s(engine, info)
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


async def _lone_ms(engine: Engine, info: ModelInfo) -> float:
    times = []
    for place in range(ROUNDS):
        began_s = time.perf_counter()
        await _ask(engine, info, [_SENTENCE.format(place)])
        times.append((time.perf_counter() - began_s) * 1e3)
    return round(sorted(times)[ROUNDS // 2], 2)


async def _texts_per_s(engine: Engine, info: ModelInfo) -> float:
    texts = [_SENTENCE.format(1000 + place) for place in range(TEXTS)]
    began_s = time.perf_counter()
    await _ask(engine, info, texts)
    return round(TEXTS / (time.perf_counter() - began_s), 1)


async def _ask(engine: Engine, info: ModelInfo, texts: Sequence[str]) -> None:
    if "dense" in info.outputs:
        await engine.answer(EmbedRequest(inputs=texts, model=info.name), CALLER)
    else:
        await engine.answer(RerankRequest(query="Why does it matter?", passages=texts, model=info.name), CALLER)
