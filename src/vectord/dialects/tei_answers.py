"""Results -> text-embeddings-inference's bare arrays, and its figures in headers. Pure; tei.py puts these on routes."""

from __future__ import annotations

from typing import Any

import numpy as np

from vectord import __version__
from vectord.dialects.base import Rendered
from vectord.dialects.order import best_first
from vectord.dialects.tei_requests import TRUNCATES
from vectord.dialects.vectors import dump_json, embedding_items
from vectord.schema import (
    ClassifyRequest,
    ClassifyResult,
    DecodeResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    ModelInfo,
    ModelList,
    Request,
    RerankRequest,
    RerankResult,
    Result,
    SimilarityResult,
    Sparse,
    TokenizeResult,
    Usage,
)

# --- vectors --------------------------------------------------------------------------------------------------


def render_embed(request: Request, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    vectors = np.ascontiguousarray(result.dense["float"])  # (N, D), also where D was cut from more
    return Rendered(body=dump_json(vectors), headers=_compute_headers(result.usage))


def render_embed_all(request: Request, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult) and result.tokens is not None
    tokens = [np.ascontiguousarray(vectors) for vectors in result.tokens]  # each (n_i, H)
    return Rendered(body=dump_json(tokens), headers=_compute_headers(result.usage))


def render_embed_sparse(request: Request, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult) and result.sparse is not None
    shown = [_sparse(vector) for vector in result.sparse]
    return Rendered(body=dump_json(shown), headers=_compute_headers(result.usage))


def _sparse(vector: Sparse) -> list[dict[str, Any]]:
    return [{"index": index, "value": value} for index, value in zip(vector.indices, vector.values, strict=True)]


def render_openai(request: Request, result: Result) -> Rendered:
    assert isinstance(request, EmbedRequest) and isinstance(result, EmbedResult)
    tokens = result.usage.tokens
    shown = {
        "object": "list",
        "data": embedding_items(result.dense["float"], request.encoding),
        "model": result.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Rendered(body=dump_json(shown), headers=_compute_headers(result.usage))


# --- scores ---------------------------------------------------------------------------------------------------


def render_similarity(request: Request, result: Result) -> Rendered:
    assert isinstance(result, SimilarityResult)
    return Rendered(body=dump_json(result.scores), headers=_compute_headers(result.usage))


def render_rerank(request: Request, result: Result) -> Rendered:
    """Best first. TEI counts the query's characters once for each of the texts."""
    assert isinstance(request, RerankRequest) and isinstance(result, RerankResult)
    ranks = [_rank(request, result, index) for index in best_first(result.scores)]
    characters = len(request.query) * len(request.passages) + sum(map(len, request.passages))
    return Rendered(body=dump_json(ranks), headers=_compute_headers(result.usage, characters))


def _rank(request: RerankRequest, result: RerankResult, index: int) -> dict[str, Any]:
    rank = {"index": index, "score": result.scores[index]}
    return rank | {"text": request.passages[index]} if request.with_passages else rank


def render_predict(request: Request, result: Result) -> Rendered:
    """Labels best first: a list of them for one input, a list of such lists for several."""
    assert isinstance(request, ClassifyRequest) and isinstance(result, ClassifyResult)
    predictions = [_predictions(result, scores) for scores in result.scores]
    shown = predictions[0] if request.single else predictions
    return Rendered(body=dump_json(shown), headers=_compute_headers(result.usage))


def _predictions(result: ClassifyResult, scores: Float32) -> list[dict[str, Any]]:
    return [{"score": scores[place], "label": result.labels[place]} for place in best_first(scores)]


def render_root(request: Request, result: Result) -> Rendered:
    if isinstance(result, SimilarityResult):
        return render_similarity(request, result)
    if isinstance(result, ClassifyResult):
        return render_predict(request, result)
    assert isinstance(result, EmbedResult)
    return render_embed(request, result) if result.sparse is None else render_embed_sparse(request, result)


# --- tokens and facts -----------------------------------------------------------------------------------------


def render_tokenize(request: Request, result: Result) -> Rendered:
    assert isinstance(result, TokenizeResult)
    return Rendered(body=dump_json(result.tokens))


def render_decode(request: Request, result: Result) -> Rendered:
    assert isinstance(result, DecodeResult)
    return Rendered(body=dump_json(list(result.texts)))


def render_info(request: Request, result: Result) -> Rendered:
    """The first served model: TEI's clients know of one."""
    assert isinstance(result, ModelList)
    model, limits = result.models[0], result.limits
    shown = {
        "model_id": model.model_id,
        "model_sha": model.revision,
        "model_dtype": model.dtype,
        "served_model_name": model.name,
        "model_type": _model_type(model),
        "max_concurrent_requests": limits.max_concurrent_requests,
        "max_input_length": model.max_input_tokens,
        "max_batch_tokens": limits.max_batch_tokens,
        "max_batch_requests": limits.max_batch_requests,
        "max_client_batch_size": limits.max_inputs_per_request,
        "auto_truncate": TRUNCATES if limits.truncates is None else limits.truncates,
        "tokenization_workers": limits.tokenization_workers,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
    return Rendered(body=dump_json(shown))


def _model_type(model: ModelInfo) -> dict[str, Any]:
    """TEI's tag and what stands under it. A language model that reranks has no label; TEI's clients expect one."""
    if "dense" in model.outputs:
        return {"embedding": {"pooling": model.pooling}}
    if "sparse" in model.outputs:
        return {"embedding": {"pooling": "splade"}}
    if not model.reranks and not model.labels:
        return {"embedding": {"pooling": model.pooling}}
    labels = model.labels or ("LABEL_0",)
    names = {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }
    return {"reranker" if model.reranks else "classifier": names}


# --- headers --------------------------------------------------------------------------------------------------


def _compute_headers(usage: Usage, characters: int | None = None) -> dict[str, str]:
    """TEI's figures, times in whole milliseconds. The type is a constant of TEI's, whatever the device."""
    timings = usage.timings
    total = _ms(timings.total_s)
    return {
        "x-compute-type": "gpu+optimized",
        "x-compute-time": total,
        "x-compute-characters": str(usage.characters if characters is None else characters),
        "x-compute-tokens": str(usage.tokens),
        "x-total-time": total,
        "x-tokenization-time": _ms(timings.tokenize_s),
        "x-queue-time": _ms(timings.queue_s),
        "x-inference-time": _ms(timings.inference_s),
    }


def _ms(seconds: float) -> str:
    return str(int(seconds * 1000))
