"""The configured models in this process: each runs its self-test when it loads, is timed, and embeds long texts on all
streams at once. Its vectors are compared with references."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vectord.checkpoints.hub import model_id_of, resolve
from vectord.compose import running_engine
from vectord.config import Config, ModelConfig
from vectord.engine.engine import Engine
from vectord.engine.models.requested import requested_models
from vectord.errors import ModelUnavailable, Overloaded, VectordError
from vectord.schema import Caller, EmbedRequest, EmbedResult, ModelInfo, RerankRequest, TextOptions
from vectord.tools.doctor.references import GOLDEN_TEXTS, Finding, compare_with_library, compare_with_stored

TEXTS = 64
ROUNDS = 5
LONG_WORDS, LONG_TEXTS = 5000, 4
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
    references: Sequence[Finding]
    problem: str | None


async def self_tests(config: Config, *, with_library: bool) -> list[SelfTest]:
    """In the order of the models. with_library: compare with sentence-transformers, if it is installed.

    Raises StartError for a model without files.
    """
    uncached = replace(config, engine=replace(config.engine, cache_bytes=0, shared_cache=None))
    async with running_engine(uncached) as engine:
        infos = engine.models(CALLER).models
        return [await _test(engine, info, config.model if with_library else None) for info in infos]


async def _test(engine: Engine, info: ModelInfo, library: ModelConfig | None) -> SelfTest:
    lone_ms = texts_per_s = None
    references: list[Finding] = []
    problem = f"could not be loaded: {engine.failure(info.name)}" if info.state == "failed" else None
    if info.state == "ready" and ("dense" in info.outputs or info.reranks):
        try:
            texts = [_SENTENCE.format(number) for number in range(TEXTS)]
            await _latency_ms(engine, info, texts)  # the first batch of a shape is slower
            latencies_ms = [await _latency_ms(engine, info, texts[:1]) for _ in range(ROUNDS)]
            lone_ms = round(sorted(latencies_ms)[ROUNDS // 2], 2)
            texts_per_s = round(TEXTS * 1e3 / await _latency_ms(engine, info, texts), 1)
            long_texts = [f"{number} " + "word " * LONG_WORDS for number in range(LONG_TEXTS)]
            # On several streams at once. A text that would wait too long is refused, which is no problem.
            sent = (_latency_ms(engine, info, [text]) for text in long_texts)
            for outcome in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(outcome, BaseException) and not isinstance(outcome, Overloaded):
                    raise outcome
            if "dense" in info.outputs:
                references = await _references(engine, info, library)
        except VectordError as error:
            problem = error.message
    failed = next((one for one in references if one.verdict == "failed"), None)
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
        references=references,
        problem=problem if failed is None else f"other vectors than {failed.name}: {failed.why}",
    )


async def _latency_ms(engine: Engine, info: ModelInfo, texts: Sequence[str]) -> float:
    began_s = time.perf_counter()
    request: EmbedRequest | RerankRequest
    if "dense" in info.outputs:
        request = EmbedRequest(inputs=texts, model=info.name, text=TextOptions(truncate=True))
    else:
        request = RerankRequest(
            query="Why does it matter?", passages=texts, model=info.name, text=TextOptions(truncate=True)
        )
    await engine.answer(request, CALLER)
    return (time.perf_counter() - began_s) * 1e3


async def _references(engine: Engine, info: ModelInfo, library: ModelConfig | None) -> list[Finding]:
    request = EmbedRequest(inputs=GOLDEN_TEXTS, model=info.name, text=TextOptions(truncate=True))
    result = await engine.answer(request, CALLER)
    assert isinstance(result, EmbedResult)
    vectors = np.asarray(result.dense["float"], np.float64)
    found = [compare_with_stored(info.model_id, info.dtype, vectors)]
    if library is not None:
        found.append(compare_with_library(_folder(info.model_id, library), info.dtype, vectors))
    return found


def _folder(model_id: str, config: ModelConfig) -> Path | None:
    """Where the files of a served model are."""
    names = {model_id_of(one.model): one.model for one in requested_models(config)}
    name = names.get(model_id, model_id)
    try:
        return resolve(name, revision=config.revision, offline=True, hf_home=config.hf_home, token=None).folder
    except ModelUnavailable:
        return None
