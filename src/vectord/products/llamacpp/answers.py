"""Results -> answers of llama.cpp's server. Pure; requests.py says which of these answers what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vectord import __version__
from vectord.errors import Unavailable
from vectord.products.common.dialect import Rendered
from vectord.products.common.models import listed_models, ready_models
from vectord.products.common.ranking import best_first
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import Encoding, Vector, dump_json, embedding_items
from vectord.products.llamacpp import norms
from vectord.products.llamacpp.errors import render_error
from vectord.schema import (
    DecodeResult,
    EmbedResult,
    Float32,
    ModelList,
    RerankResult,
    Result,
    Token,
    TokenizeResult,
)

# --- vectors --------------------------------------------------------------------------------------------------


def render_native(norm: int, result: Result) -> Rendered:
    """A bare array. `embedding` is a matrix of one row even of a pooled vector."""
    assert isinstance(result, EmbedResult)
    data = [{"index": index, "embedding": [vector]} for index, vector in enumerate(_vectors(norm, result))]
    return Rendered(body=dump_json(data))


def render_openai(model: str | None, norm: int, encoding: Encoding, result: Result) -> Rendered:
    """model: what the request called it; None: nothing."""
    assert isinstance(result, EmbedResult)
    data = embedding_items(_vectors(norm, result), encoding)
    if encoding == "base64":
        data = [item | {"encoding_format": "base64"} for item in data]
    return _listed(model or result.model, result, data=data)


def _vectors(norm: int, result: EmbedResult) -> Vector:
    rows: Any = result.dense["float"]  # (N, D); raw unless Euclidean, which is the engine's own work
    return rows if norm == norms.EUCLIDEAN else norms.scaled(rows, norm)


# --- scores ---------------------------------------------------------------------------------------------------


def render_ranks(top_n: int | None, texts: Sequence[str] | None, result: Result) -> Rendered:
    """As text-embeddings-inference: a bare array, best first. texts: None shows none."""
    assert isinstance(result, RerankResult)
    shown = [{"index": index, "score": result.scores[index]} for index in _best(result.scores, top_n)]
    if texts is not None:
        shown = [rank | {"text": texts[rank["index"]]} for rank in shown]
    return Rendered(body=dump_json(shown))


def render_results(model: str | None, top_n: int | None, result: Result) -> Rendered:
    """As Jina, without the documents."""
    assert isinstance(result, RerankResult)
    results = [{"index": index, "relevance_score": result.scores[index]} for index in _best(result.scores, top_n)]
    return _listed(model or result.model, result, results=results)


def _best(scores: Float32, top_n: int | None) -> list[int]:
    return best_first(scores)[: top_n or None]


def _listed(model: str, result: EmbedResult | RerankResult, **shown: Any) -> Rendered:
    answer = {"model": model, "object": "list", "usage": token_usage(result.usage), **shown}
    return Rendered(body=dump_json(answer))


# --- tokens ---------------------------------------------------------------------------------------------------


def render_tokens(with_pieces: bool, result: Result) -> Rendered:
    assert isinstance(result, TokenizeResult)
    (tokens,) = result.tokens
    return Rendered(body=dump_json({"tokens": [_token(token, with_pieces) for token in tokens]}))


def _token(token: Token, with_piece: bool) -> int | dict[str, Any]:
    return {"id": token.id, "piece": token.text} if with_piece else token.id


def render_detokenized(result: Result) -> Rendered:
    """`prompt` is vLLM's name for it: both share the path and the body."""
    assert isinstance(result, DecodeResult)
    (text,) = result.texts
    return Rendered(body=dump_json({"content": text, "prompt": text}))


# --- facts ----------------------------------------------------------------------------------------------------


def render_models(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return Rendered(body=dump_json(listed_models(result)))


def render_health(result: Result) -> Rendered:
    """One model that answers is enough."""
    assert isinstance(result, ModelList)
    if ready_models(result):
        return Rendered(body=dump_json({"status": "ok"}))
    return render_error(Unavailable("Loading model" if result.starting else "No model could be loaded"))


def render_props(result: Result) -> Rendered:
    """Of the first served model: llama.cpp's clients know of one."""
    assert isinstance(result, ModelList)
    model = result.models[0]
    props = {
        "default_generation_settings": {"n_ctx": model.max_input_tokens},
        "total_slots": result.limits.max_concurrent_requests,
        "model_alias": model.name,
        "model_path": model.model_id,
        "modalities": {"vision": False, "audio": False},
        "chat_template": "",
        "build_info": f"vectord {__version__}",
        "is_sleeping": model.state == "unloaded",
    }
    return Rendered(body=dump_json(props))


def render_slots(result: Result) -> Rendered:
    """Without `is_processing`: what runs at the moment is no fact of a model."""
    assert isinstance(result, ModelList)
    slots = [
        {"id": place, "n_ctx": model.max_input_tokens, "model": model.name, "state": model.state}
        for place, model in enumerate(result.models)
    ]
    return Rendered(body=dump_json(slots))
