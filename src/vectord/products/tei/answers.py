"""Results -> text-embeddings-inference's bare arrays, and its figures in headers. Pure; requests.py picks one of these
for each body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vectord.products.common.dialect import Rendered
from vectord.products.common.usage import compute_headers, token_usage
from vectord.products.common.vectors import Encoding, dump_json, embedding_items
from vectord.schema import (
    ClassifyResult,
    DecodeResult,
    EmbedResult,
    Float32,
    RerankResult,
    Result,
    SeveralResults,
    SimilarityResult,
    Sparse,
    TokenizeResult,
)

# --- vectors --------------------------------------------------------------------------------------------------


def render_embed(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    vectors = np.ascontiguousarray(result.dense["float"])  # (N, D), also where D was cut from more
    return Rendered(body=dump_json(vectors), headers=compute_headers(result.usage))


def render_embed_all(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult) and result.tokens is not None
    tokens = [np.ascontiguousarray(vectors) for vectors in result.tokens]  # each (n_i, H)
    return Rendered(body=dump_json(tokens), headers=compute_headers(result.usage))


def render_embed_sparse(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult) and result.sparse is not None
    shown = [_sparse(vector) for vector in result.sparse]
    return Rendered(body=dump_json(shown), headers=compute_headers(result.usage))


def _sparse(vector: Sparse) -> list[dict[str, Any]]:
    return [{"index": index, "value": value} for index, value in zip(vector.indices, vector.values, strict=True)]


def render_openai(encoding: Encoding, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    shown = {
        "object": "list",
        "data": embedding_items(result.dense["float"], encoding),
        "model": result.model,
        "usage": token_usage(result.usage),
    }
    return Rendered(body=dump_json(shown), headers=compute_headers(result.usage))


# --- scores ---------------------------------------------------------------------------------------------------


def render_similarity(result: Result) -> Rendered:
    assert isinstance(result, SimilarityResult)
    return Rendered(body=dump_json(result.scores), headers=compute_headers(result.usage))


def render_rerank(query: str, texts: Sequence[str], return_text: bool, result: Result) -> Rendered:
    """Best first. TEI counts the query's characters once for each of the texts."""
    assert isinstance(result, RerankResult)
    ranks: list[dict[str, Any]] = [{"index": place, "score": result.scores[place]} for place in places(result.scores)]
    if return_text:
        ranks = [rank | {"text": texts[rank["index"]]} for rank in ranks]
    characters = len(query) * len(texts) + sum(map(len, texts))
    return Rendered(body=dump_json(ranks), headers=compute_headers(result.usage, characters))


def render_predict(single: bool, result: Result) -> Rendered:
    """Labels best first: a list of them for a single input, a list of such lists for a batch."""
    assert isinstance(result, ClassifyResult)
    predictions = [_predictions(result, scores) for scores in result.scores]
    shown = predictions[0] if single else predictions
    return Rendered(body=dump_json(shown), headers=compute_headers(result.usage))


def _predictions(result: ClassifyResult, scores: Float32) -> list[dict[str, Any]]:
    return [{"score": scores[place], "label": result.labels[place]} for place in places(scores)]


def places(scores: Float32) -> list[int]:
    """Of `scores` (N,) the places, best first. TEI sorts and reverses, so that of equal ones the last comes first."""
    order: list[int] = np.argsort(scores, kind="stable")[::-1].tolist()
    return order


def render_vertex(renders: Sequence[Callable[[Result], Rendered]], result: Result) -> Rendered:
    """Each of several answers in the shape its own route gives it."""
    assert isinstance(result, SeveralResults)
    bodies = [render(one).body for render, one in zip(renders, result.results, strict=True)]
    return Rendered(body=b'{"predictions":[' + b",".join(bodies) + b"]}", headers=compute_headers(result.usage))


# --- tokens ---------------------------------------------------------------------------------------------------


def render_tokenize(result: Result) -> Rendered:
    assert isinstance(result, TokenizeResult)
    return Rendered(body=dump_json(result.tokens))


def render_decode(result: Result) -> Rendered:
    assert isinstance(result, DecodeResult)
    return Rendered(body=dump_json(list(result.texts)))


# --- headers --------------------------------------------------------------------------------------------------
