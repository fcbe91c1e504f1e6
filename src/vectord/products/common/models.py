"""The list of served models, all in one: as OpenAI, infinity, vLLM, llama.cpp, Simple Inference Server and Semantic
Explorer write it.

They share a path, and a GET has no body that could tell them apart; so the answer has every key that one of them reads.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from vectord.schema import ModelInfo, ModelList


class ModelMeta(msgspec.Struct):
    """llama.cpp's: tokens the model reads, and the width of its vectors."""

    n_ctx_train: int
    n_embd: int


class ModelStats(msgspec.Struct):
    state: str


class ModelItem(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    embedding_dimensions: int  # 0 if it makes no dense vector
    max_model_len: int
    backend: str
    capabilities: list[str]
    stats: ModelStats
    meta: ModelMeta


class ListedModels(msgspec.Struct):
    object: Literal["list"]
    data: list[ModelItem]
    embedding_models: list[str]
    reranking_models: list[str]


def listed_models(result: ModelList, *, owned_by: str = "local") -> dict[str, Any]:
    return {
        "object": "list",
        "data": [model_item(info, owned_by=owned_by) for info in result.models],
        "embedding_models": [info.name for info in result.models if "dense" in info.outputs],
        "reranking_models": [info.name for info in result.models if info.reranks],
    }


def model_item(info: ModelInfo, *, owned_by: str = "local") -> dict[str, Any]:
    """owned_by: infinity's own client reads no other word than "infinity"."""
    return {
        "id": info.name,
        "object": "model",
        "created": info.created_unix_s,
        "owned_by": owned_by,
        "embedding_dimensions": info.dimensions,  # Simple Inference Server
        "max_model_len": info.max_input_tokens,  # vLLM
        "backend": info.backend,
        "capabilities": _capabilities(info),
        # infinity's client demands the object. Its queue figures are not here: a constant 0 would say that all is idle.
        "stats": {"state": info.state},
        "meta": {"n_ctx_train": info.max_input_tokens, "n_embd": info.dimensions},
    }


def _capabilities(info: ModelInfo) -> list[str]:
    """What it has of its own, in infinity's words."""
    has = {"embed": "dense" in info.outputs, "rerank": info.reranks, "classify": bool(info.labels)}
    return [name for name, present in has.items() if present]
