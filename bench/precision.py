"""What a dtype changes: vectors, similarities of pairs and search results, next to float32 of sentence-transformers.

Speed is measured elsewhere. Vectors come from the complete engine, without its cache.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig
from vectord.engine.engine import Engine
from vectord.engine.models import open_models
from vectord.schema import Caller, EmbedRequest, TextOptions

Matrix = npt.NDArray[np.float32]

QUERIES = 100  # the first texts are the queries, the others the passages
REFERENCE = "sentence-transformers"
# With the backend that computes them. torch rounds on a processor as on a GPU; openvino only as this processor does.
FORMATS = (
    ("float32", "openvino"),
    ("float16", REFERENCE),
    ("bfloat16", "openvino"),
    ("bfloat16", "torch"),
    ("int8", "openvino"),
    ("int8", "torch"),
    ("fp8", "torch"),
    ("int8-weights", "openvino"),
    ("int4-weights", "openvino"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The figures compare with the reference in float32."""

    model: str
    dtype: str
    backend: str
    min_cosine: float
    mean_cosine: float
    max_pair_error: float  # of a query's similarity with a passage
    mean_pair_error: float
    top1: float  # share of queries with the same best passage
    top10: float  # mean share of the same passages among the best ten


def measure(folders: Sequence[Path], texts: Sequence[str]) -> Mapping[str, Sequence[Precision]]:
    """By model, without the formats that this processor does not compute. vectord has float16 only on a GPU, so
    sentence-transformers computes it here. Prints a line on stderr after each format, since 16-bit numbers take minutes
    on a processor without instructions for them."""
    found = {}
    for folder in folders:
        reference = encode(folder, texts, "float32")
        rows = []
        for dtype, backend in FORMATS:
            began_s = time.perf_counter()
            if backend == REFERENCE:
                vectors: Matrix | None = encode(folder, texts, dtype)
            else:
                vectors = asyncio.run(_serve(folder, texts, dtype, backend))
            if vectors is not None:
                rows.append(compare(folder.name, dtype, backend, vectors, reference))
            took = "not computed here" if vectors is None else f"{time.perf_counter() - began_s:.0f} s"
            print(f"{folder.name} in {dtype} by {backend}: {took}", file=sys.stderr)
        found[folder.name] = rows
    return found


def encode(folder: Path, texts: Sequence[str], dtype: str) -> Matrix:
    """Unit vectors of sentence-transformers, of shape (texts, width)."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - takes seconds

    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": dtype})
    vectors = np.asarray(model.encode(list(texts), batch_size=16), np.float32)
    unit: Matrix = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


async def _serve(folder: Path, texts: Sequence[str], dtype: str, backend: str) -> Matrix | None:
    """Unit vectors of the engine; None if this processor does not compute in `dtype`."""
    config = Config(
        model=ModelConfig(models=(str(folder),), offline=True),
        device=DeviceConfig(backend=backend, device="cpu", dtype=dtype),
        engine=EngineConfig(cache_bytes=0),
    )
    engine = Engine(open_models(config), config.engine)
    await engine.start()
    try:
        await engine.loaded.wait()
        (model,) = engine.models().models
        if model.dtype != dtype:
            return None
        result: Any = await engine.answer(
            EmbedRequest(inputs=list(texts), normalize=True, text=TextOptions(truncate=True)), Caller()
        )
        vectors: Matrix = result.dense["float"]
        return vectors
    finally:
        await engine.close()


def compare(model: str, dtype: str, backend: str, vectors: Matrix, reference: Matrix) -> Precision:
    """Of unit vectors, row by row."""
    cosines = np.sum(vectors * reference, axis=1)
    errors = np.abs(similarities(vectors) - similarities(reference))
    best, wanted = top(vectors, 10), top(reference, 10)
    return Precision(
        model=model,
        dtype=dtype,
        backend=backend,
        min_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        max_pair_error=float(errors.max()),
        mean_pair_error=float(errors.mean()),
        top1=float(np.mean(best[:, 0] == wanted[:, 0])),
        top10=overlap(vectors, reference),
    )


def similarities(vectors: Matrix) -> Matrix:
    """Of shape (QUERIES, passages)."""
    return vectors[:QUERIES] @ vectors[QUERIES:].T


def top(vectors: Matrix, count: int) -> npt.NDArray[np.intp]:
    """The best passages of each query in order, of shape (QUERIES, count)."""
    return np.argsort(-similarities(vectors), axis=1, kind="stable")[:, :count]


def overlap(vectors: Matrix, reference: Matrix) -> float:
    """The mean share of the reference's best ten passages that are among the best ten."""
    pairs = zip(top(vectors, 10), top(reference, 10), strict=True)
    return float(np.mean([len(set(found) & set(wanted)) / 10 for found, wanted in pairs]))


def table(found: Mapping[str, Sequence[Precision]]) -> str:
    """In Markdown, for docs/tuning.md."""
    lines = [
        "| model | dtype | computed by | cosine: least, mean | error of a pair: max, mean | same best | same ten |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in (row for precisions in found.values() for row in precisions):
        lines.append(
            f"| {row.model} | {row.dtype} | {row.backend} | {row.min_cosine:.5f}, {row.mean_cosine:.5f} "
            f"| {row.max_pair_error:.4f}, {row.mean_pair_error:.5f} | {row.top1:.2f} | {row.top10:.3f} |"
        )
    return "\n".join(lines)
