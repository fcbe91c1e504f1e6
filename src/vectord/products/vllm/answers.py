"""Results -> answers of vLLM's pooling API. Pure but for ids and times; requests.py says which answers what."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vectord import __version__
from vectord.products.common.dialect import Rendered
from vectord.products.common.models import model_item
from vectord.products.common.ranking import as_object, ranked
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import dump_json
from vectord.products.vllm.numbers import Numbers
from vectord.schema import (
    ClassifyResult,
    DecodeResult,
    EmbedResult,
    Float32,
    ModelInfo,
    ModelList,
    RerankResult,
    Result,
    SeveralResults,
    TokenizeResult,
    Usage,
)

# --- vectors --------------------------------------------------------------------------------------------------


def render_embeddings(request_id: str | None, numbers: Numbers, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    data = [
        {"index": index, "object": "embedding", "embedding": vector}
        for index, vector in enumerate(_vectors(numbers, result))
    ]
    return _listed(_id("embd", request_id), result.model, data, result.usage)


def render_pooled(request_id: str | None, numbers: Numbers, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    return _pooling(request_id, result.model, _vectors(numbers, result), result.usage)


def render_pooled_tokens(request_id: str | None, numbers: Numbers, unit: bool, result: Result) -> Rendered:
    """unit: each token's vector gets a length of 1, as vLLM's activation does it."""
    assert isinstance(result, EmbedResult)
    each = result.tokens if result.colbert is None else result.colbert
    assert each is not None
    rows = [_unit(rows) for rows in each] if unit else each
    return _pooling(request_id, result.model, [numbers.shown(vectors) for vectors in rows], result.usage)


def render_pooled_scores(request_id: str | None, numbers: Numbers, result: Result) -> Rendered:
    assert isinstance(result, ClassifyResult)
    return _pooling(request_id, result.model, [numbers.shown(scores) for scores in result.scores], result.usage)


def _vectors(numbers: Numbers, result: EmbedResult) -> list[Any]:
    rows: Any = result.dense["float"]  # (N, D) float32: no other precision is asked for
    return [numbers.shown(row) for row in rows]


def _unit(rows: Float32) -> Float32:
    """rows (n, H), each of length 1; one of zeros stays so."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)  # (n, 1)
    return (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)


def _pooling(request_id: str | None, model: str, shown: Sequence[Any], usage: Usage) -> Rendered:
    data = [{"index": index, "object": "pooling", "data": one} for index, one in enumerate(shown)]
    return _listed(_id("pool", request_id), model, data, usage)


# --- scores ---------------------------------------------------------------------------------------------------


def render_classes(request_id: str | None, result: Result) -> Rendered:
    assert isinstance(result, ClassifyResult)
    data = [
        {"index": index, "label": result.labels[int(np.argmax(scores))], "probs": scores, "num_classes": len(scores)}
        for index, scores in enumerate(result.scores)
    ]
    return _listed(_id("classify", request_id), result.model, data, result.usage)


def render_scores(request_id: str | None, result: Result) -> Rendered:
    """In the order of the pairs. Several results have one pair each."""
    if isinstance(result, SeveralResults):
        results = [one for one in result.results if isinstance(one, RerankResult)]
        model, scores = results[0].model, [one.scores[0] for one in results]
    else:
        assert isinstance(result, RerankResult)
        model, scores = result.model, list(result.scores)
    data = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return _listed(_id("score", request_id), model, data, result.usage)


def render_reranked(request_id: str | None, documents: Sequence[str], top_n: int | None, result: Result) -> Rendered:
    assert isinstance(result, RerankResult)
    shown = {
        "id": _id("rerank", request_id),
        "model": result.model,
        "usage": token_usage(result.usage),
        "results": ranked(result, documents, top_n=top_n, document=as_object, text=False),
    }
    return Rendered(body=dump_json(shown))


# --- tokens ---------------------------------------------------------------------------------------------------


def render_tokens(with_strings: bool, limits: Mapping[str, int], result: Result) -> Rendered:
    """limits: of each served model, by name, how many tokens it reads."""
    assert isinstance(result, TokenizeResult)
    (tokens,) = result.tokens
    shown = {
        "count": len(tokens),
        "max_model_len": limits[result.model],
        "tokens": [token.id for token in tokens],
        "token_strs": [token.text for token in tokens] if with_strings else None,
    }
    return Rendered(body=dump_json(shown))


def render_detokenized(result: Result) -> Rendered:
    """`content` is llama.cpp's name for it: both share the path and the body."""
    assert isinstance(result, DecodeResult)
    (text,) = result.texts
    return Rendered(body=dump_json({"prompt": text, "content": text}))


# --- facts ----------------------------------------------------------------------------------------------------


def render_version(result: Result) -> Rendered:
    """Ours: to claim one of vLLM's would promise what that version can."""
    return Rendered(body=dump_json({"version": __version__}))


def render_models(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return Rendered(body=dump_json({"object": "list", "data": [_model(info) for info in result.models]}))


def _model(info: ModelInfo) -> dict[str, Any]:
    return model_item(info) | {"root": info.model_id, "parent": None, "permission": []}


# --- all ------------------------------------------------------------------------------------------------------


def _id(prefix: str, request_id: str | None) -> str:
    return f"{prefix}-{request_id or uuid.uuid4().hex}"


def _listed(answer_id: str, model: str, data: Sequence[Any], usage: Usage) -> Rendered:
    shown = {
        "id": answer_id,
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": token_usage(usage) | {"completion_tokens": 0, "prompt_tokens_details": None},
    }
    return Rendered(body=dump_json(shown))
