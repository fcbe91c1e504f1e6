"""Results -> Smart Embedder's answers, with a warning for every text that was cut. Pure; requests.py says which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vectord.products.common.dialect import Rendered
from vectord.products.common.ranking import best_first
from vectord.products.common.vectors import dump_json
from vectord.schema import EmbedResult, RerankResult, Result, Sparse, Statistics, TextLength, Timings

_CUT = {
    "input_truncated": "Input text was truncated to the model token limit.",
    "query_truncated": "Query was truncated to the model token limit.",
    "passage_truncated": "Passage was truncated to the model token limit.",
}


@dataclass(frozen=True, slots=True)
class Names:
    """Which model makes which vectors."""

    dense: str
    sparse: str
    colbert: str


# --- vectors --------------------------------------------------------------------------------------------------


def render_embeddings(sentences: Sequence[str], names: Names, as_lists: bool, result: Result) -> Rendered:
    """as_lists: whether sparse vectors are in Qdrant's form."""
    assert isinstance(result, EmbedResult)
    shown = {
        "data": [
            {"id": index, "text": text, "embeddings": _vectors(result, index, as_lists=as_lists)}
            for index, text in enumerate(sentences)
        ],
        "model_name": names.dense,
        "dense_model_name": names.dense,
        "sparse_model_name": names.sparse,
        "colbert_model_name": names.colbert,
        "processing_time_ms": _ms(result.usage.timings),
        "warnings": list(_cut_inputs(result)),
    }
    return Rendered(body=dump_json(shown))


def _vectors(result: EmbedResult, index: int, *, as_lists: bool) -> dict[str, Any]:
    """null for what was not asked for."""
    return {
        "dense": result.dense["float"][index] if result.dense else None,
        "sparse": _sparse(result.sparse[index], as_lists=as_lists) if result.sparse is not None else None,
        "colbert": np.ascontiguousarray(result.colbert[index]) if result.colbert is not None else None,
    }


def _sparse(vector: Sparse, *, as_lists: bool) -> dict[str, Any]:
    """Qdrant's two lists, or weights by token id; in the order in which the tokens first stand in the text."""
    if as_lists:
        return {"indices": vector.indices, "values": vector.values}
    return {str(index): value for index, value in zip(vector.indices, vector.values, strict=True)}


def _cut_inputs(result: EmbedResult) -> Iterator[dict[str, Any]]:
    """A warning for each sentence and each model that did not read it to its end."""
    for index in range(len(result.usage.lengths)):
        for model, lengths in result.lengths.items():
            if lengths[index].truncated:
                place = _place("sentences", index)
                yield _warning("input_truncated", place, model, lengths[index], result.limits[model])


# --- scores ---------------------------------------------------------------------------------------------------


def render_rerank(passages: Sequence[str], result: Result) -> Rendered:
    assert isinstance(result, RerankResult)
    shown = {
        "results": [
            {"index": index, "passage": passages[index], "score": result.scores[index]}
            for index in best_first(result.scores)
        ],
        "model_name": result.model,
        "processing_time_ms": _ms(result.usage.timings),
        "warnings": list(_cut_texts(result)),
    }
    return Rendered(body=dump_json(shown))


def _cut_texts(result: RerankResult) -> Iterator[dict[str, Any]]:
    if result.query.truncated:
        place = {"field": "query", "index": None, "pointer": "/query"}
        yield _warning("query_truncated", place, result.model, result.query, result.query.kept)
    for index, length in enumerate(result.passages):
        if length.truncated:
            yield _warning("passage_truncated", _place("passages", index), result.model, length, length.kept)


def _place(field: str, index: int) -> dict[str, Any]:
    return {"field": field, "index": index, "pointer": f"/{field}/{index}"}


def _warning(code: str, target: dict[str, Any], model: str, length: TextLength, max_tokens: int) -> dict[str, Any]:
    """max_tokens: what there was room for; of a query or passage, beside the other."""
    details = {
        "model": model,
        "max_tokens": max_tokens,
        "original_tokens": length.seen,
        "truncated_tokens": length.seen - length.kept,
        "truncation_side": "end",
    }
    return {"code": code, "severity": "warning", "message": _CUT[code], "target": target, "details": details}


# --- figures --------------------------------------------------------------------------------------------------


def render_stats(result: Result) -> Rendered:
    assert isinstance(result, Statistics)
    seconds = int(result.uptime_s)
    shown = {
        "uptime": f"{seconds // 3600}h {seconds // 60 % 60}m {seconds % 60}s",
        "uptime_seconds": seconds,
        "total_requests": result.embed_requests,
        "total_sentences": result.embed_texts,
        "total_batches": result.batches,
        "rejected_requests": result.refused_requests,
        "hardware": "CPU" if result.device == "cpu" else result.device,
    }
    return Rendered(body=dump_json(shown), headers={"cache-control": "no-store"})


def _ms(timings: Timings) -> float:
    return round(timings.total_s * 1000, 2)
