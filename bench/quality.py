"""Search quality on a data set in BEIR's format: nDCG@10 and recall, of each dtype and of each kind of vectors.

    FOLDER/corpus.jsonl     {"_id": ..., "title": ..., "text": ...}
    FOLDER/queries.jsonl    {"_id": ..., "text": ...}
    FOLDER/qrels/*.tsv      query-id, corpus-id and score, after a line of names

sentence-transformers computes in float32 in the same run. `bench/questions` has questions about vectord, whose answers
are passages of docs/ and the README as they were when the questions were written, in November 2026.
"""

from __future__ import annotations

import asyncio
import csv
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse  # type: ignore[import-untyped]

from bench.precision import FORMATS, REFERENCE
from vectord.compose import running_engine
from vectord.config import Config, DeviceConfig, EngineConfig, ModelConfig
from vectord.engine.engine import Engine
from vectord.engine.operations.postprocess import in_precision
from vectord.schema import Caller, EmbedRequest, InputKind, TextOptions, VectorKind

Scores = npt.NDArray[np.float32]

NDCG_AT = 10
RECALL_AT = (10, 100)
BATCH_TEXTS = 256
QUERIES_AT_ONCE = 64
KINDS: Sequence[VectorKind] = ("dense", "sparse", "colbert")
LIBRARY_CLASSES = {"dense": "SentenceTransformer", "sparse": "SparseEncoder", "colbert": "MultiVectorEncoder"}


@dataclass(frozen=True, slots=True)
class DataSet:
    """Queries without a relevant passage are left out."""

    name: str
    passages: Mapping[str, str]  # id -> title and text
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]  # query -> passage -> its gain, above 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """Means over the queries."""

    model: str
    by: str  # the dtype and the program that computed the vectors
    vectors: str
    ndcg: float
    recall: Sequence[float]  # at each of RECALL_AT


def read_data_set(folder: Path) -> DataSet:
    """Raises ValueError for a judged passage that is not in the corpus."""
    passages = {one["_id"]: f"{one.get('title', '')} {one['text']}".strip() for one in _lines(folder / "corpus.jsonl")}
    relevant: dict[str, dict[str, int]] = {}
    for path in sorted((folder / "qrels").glob("*.tsv")):
        with path.open(newline="") as file:
            for query, passage, gain in list(csv.reader(file, delimiter="\t"))[1:]:
                if int(gain) > 0:
                    relevant.setdefault(query, {})[passage] = int(gain)
    queries = {one["_id"]: one["text"] for one in _lines(folder / "queries.jsonl") if one["_id"] in relevant}
    if missing := {passage for own in relevant.values() for passage in own} - passages.keys():
        raise ValueError(f"{folder}/qrels names passages that corpus.jsonl lacks, such as {min(missing)}")
    return DataSet(folder.name, passages, queries, relevant)


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    with path.open() as file:
        yield from map(json.loads, file)


def measure(folders: Sequence[Path], backend: str, data: DataSet) -> Mapping[str, Sequence[Quality]]:
    """By model, in each dtype that the backend has in `bench.precision` and that this processor computes."""
    found: dict[str, list[Quality]] = {}
    for folder in folders:
        rows: list[Quality] = []
        kinds: Sequence[VectorKind] = ()
        for dtype in (dtype for dtype, by in FORMATS if by == backend):
            print(f"{folder.name} in {dtype} by {backend}", file=sys.stderr)
            if (vectors := asyncio.run(_serve(folder, data, dtype, backend))) is not None:
                kinds = [kind for kind in KINDS if kind in vectors]
                rows += _compared(folder.name, f"{dtype}, {backend}", vectors, data)
        if kinds:
            print(f"{folder.name} by {REFERENCE}", file=sys.stderr)
            vectors = {kinds[0]: _encode(folder, data, LIBRARY_CLASSES[kinds[0]])}
            rows[:0] = _compared(folder.name, f"float32, {REFERENCE}", vectors, data, quantizes=False)
        found[folder.name] = rows
    return found


async def _serve(folder: Path, data: DataSet, dtype: str, backend: str) -> dict[VectorKind, Any] | None:
    """The vectors of queries and passages, by kind; None if this processor does not compute in `dtype`."""
    config = Config(
        model=ModelConfig(models=(str(folder),), offline=True),
        device=DeviceConfig(backend=backend, device="cpu", dtype=dtype),
        engine=EngineConfig(cache_bytes=0),
    )
    async with running_engine(config) as engine:
        (model,) = engine.models().models
        if model.state == "failed" or model.dtype != dtype:
            return None
        kinds = [kind for kind in KINDS if kind in model.outputs]
        queries = await _embed(engine, data.queries.values(), "query", kinds)
        passages = await _embed(engine, data.passages.values(), "document", kinds)
    return {kind: (queries[kind], passages[kind]) for kind in kinds}


async def _embed(
    engine: Engine, texts: Iterable[str], kind: InputKind, outputs: Sequence[VectorKind]
) -> dict[VectorKind, Any]:
    found: dict[VectorKind, list[Any]] = {output: [] for output in outputs}
    waiting = list(texts)
    for start in range(0, len(waiting), BATCH_TEXTS):
        some, options = waiting[start : start + BATCH_TEXTS], TextOptions(truncate=True, kind=kind)
        request = EmbedRequest(inputs=some, text=options, outputs=frozenset(outputs), waits=True)
        result: Any = await engine.answer(request, Caller())
        for output in outputs:
            found[output] += list(result.dense["float"] if output == "dense" else getattr(result, output))
    return {output: np.stack(rows) if output == "dense" else rows for output, rows in found.items()}


def _encode(folder: Path, data: DataSet, class_name: str) -> tuple[Any, Any]:
    """The vectors of sentence-transformers: queries and passages."""
    import sentence_transformers  # noqa: PLC0415 - takes seconds

    model = getattr(sentence_transformers, class_name)(str(folder), device="cpu", model_kwargs={"dtype": "float32"})
    texts = list(data.queries.values()), list(data.passages.values())
    queries, passages = model.encode_query(texts[0]), model.encode_document(texts[1])
    if class_name == "SentenceTransformer":
        return tuple(rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, passages))
    if class_name == "SparseEncoder":
        return tuple(scipy.sparse.csr_matrix(rows.to_dense().numpy()) for rows in (queries, passages))
    return [np.asarray(row, np.float32) for row in queries], [np.asarray(row, np.float32) for row in passages]


def _compared(
    model: str, by: str, found: Mapping[VectorKind, Any], data: DataSet, *, quantizes: bool = True
) -> list[Quality]:
    qualities = []
    for kind, vectors in found.items():
        qualities.append(quality_of(model, by, kind, vectors, data))
        if kind == "dense" and quantizes:
            for precision in ("int8", "ubinary"):
                smaller = [in_precision(rows, precision) for rows in vectors]
                qualities.append(quality_of(model, by, f"dense, {precision}", smaller, data))
    return qualities


def quality_of(model: str, by: str, kind: str, vectors: Sequence[Any], data: DataSet) -> Quality:
    """vectors: of the queries and of the passages, in the order of `data`."""
    queries, passages = vectors
    ids, asked = list(data.passages), list(data.queries)
    found = []
    for start in range(0, len(asked), QUERIES_AT_ONCE):
        some = slice(start, start + QUERIES_AT_ONCE)
        for query, row in zip(asked[some], scores(kind, queries[some], passages), strict=True):
            best = np.argsort(-row, kind="stable")[: max(RECALL_AT) + 1]
            ranked = [ids[i] for i in best if ids[i] != query]  # some data sets ask with their own passages
            gains = data.relevant[query]
            found.append([ndcg(ranked, gains), *(recall(ranked, gains, at) for at in RECALL_AT)])
    means = np.mean(found, axis=0)
    return Quality(model=model, by=by, vectors=kind, ndcg=float(means[0]), recall=means[1:].tolist())


def scores(kind: str, queries: Any, passages: Any) -> Scores:
    """(queries, passages): cosines of dense vectors, agreeing bits of ubinary, products of sparse ones, or MaxSim."""
    if kind == "sparse":
        matrices = [_sparse(rows) for rows in (queries, passages)]
        width = max(matrix.shape[1] for matrix in matrices)
        for matrix in matrices:
            matrix.resize(matrix.shape[0], width)
        product: Scores = (matrices[0] @ matrices[1].T).toarray()
        return product
    if kind == "colbert":
        tokens = np.concatenate(passages)  # (tokens of all passages, width)
        starts = np.cumsum([0, *map(len, passages[:-1])])
        return np.stack([np.maximum.reduceat(query @ tokens.T, starts, axis=1).sum(axis=0) for query in queries])
    if kind.endswith("ubinary"):
        queries, passages = (np.unpackbits(rows, axis=1) * np.float32(2) - 1 for rows in (queries, passages))
    queries, passages = (np.asarray(rows, np.float32) for rows in (queries, passages))
    cosines: Scores = queries @ passages.T / np.linalg.norm(passages, axis=1)
    return cosines


def _sparse(rows: Any) -> Any:
    if isinstance(rows, scipy.sparse.csr_matrix):
        return rows.copy()
    offsets = np.cumsum([0, *(len(row.indices) for row in rows)])
    values, indices = (np.concatenate([getattr(row, name) for row in rows]) for name in ("values", "indices"))
    return scipy.sparse.csr_matrix((values, indices, offsets))


def ndcg(ranked: Sequence[str], gains: Mapping[str, int], at: int = NDCG_AT) -> float:
    """As trec_eval's ndcg_cut: the gain itself, divided by log2(rank + 1). ranked: best first; gains: above 0."""
    ideal = sorted(gains.values(), reverse=True)
    return _discounted([gains.get(one, 0) for one in ranked[:at]]) / _discounted(ideal[:at])


def _discounted(gains: Sequence[int]) -> float:
    return float(np.sum(gains / np.log2(np.arange(2, len(gains) + 2))))


def recall(ranked: Sequence[str], gains: Mapping[str, int], at: int) -> float:
    """The share of the relevant passages that are among the first."""
    return len(gains.keys() & set(ranked[:at])) / len(gains)


def table(found: Mapping[str, Sequence[Quality]]) -> str:
    """In Markdown."""
    recalls = " | ".join(f"recall@{at}" for at in RECALL_AT)
    lines = [
        f"| model | computed in | vectors | nDCG@{NDCG_AT} | {recalls} |",
        "|---|---|---|---|" + "---|" * len(RECALL_AT),
    ]
    for one in (one for qualities in found.values() for one in qualities):
        figures = " | ".join(f"{value:.4f}" for value in (one.ndcg, *one.recall))
        lines.append(f"| {one.model} | {one.by} | {one.vectors} | {figures} |")
    return "\n".join(lines)
