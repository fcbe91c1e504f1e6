"""The first served model and the limits in force: `/info` of text-embeddings-inference, and of embedding_server."""

from __future__ import annotations

from typing import Any

import msgspec

from vectord import __version__
from vectord.products.common.rendered import Rendered
from vectord.products.common.vectors import dump_json
from vectord.schema import ModelInfo, ModelList, Result


class Pooling(msgspec.Struct):
    pooling: str


class Labels(msgspec.Struct):
    id2label: dict[str, str]
    label2id: dict[str, int]


class ModelType(msgspec.Struct):
    """One of these; the key says what the model is for."""

    embedding: Pooling | msgspec.UnsetType = msgspec.UNSET
    reranker: Labels | msgspec.UnsetType = msgspec.UNSET
    classifier: Labels | msgspec.UnsetType = msgspec.UNSET


class Info(msgspec.Struct):
    model_id: str
    model_sha: str | None
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_client_batch_size: int
    auto_truncate: bool
    tokenization_workers: int
    version: str
    sha: str | None = None
    docker_label: str | None = None


def render_info(truncates_by_default: bool, result: Result) -> Rendered:
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
        "auto_truncate": truncates_by_default if limits.truncates is None else limits.truncates,
        "tokenization_workers": limits.tokenization_workers,
        "version": __version__,
        "sha": None,
        "docker_label": None,
    }
    return Rendered(body=dump_json(shown))


def _model_type(model: ModelInfo) -> dict[str, Any]:
    """TEI's tag and what stands under it. A language model that reranks has no label; TEI's clients expect one."""
    tag = tag_of(model)
    if tag == "embedding":
        return {tag: {"pooling": _pooling(model)}}
    labels = model.labels or ("LABEL_0",)
    names = {
        "id2label": {str(place): label for place, label in enumerate(labels)},
        "label2id": {label: place for place, label in enumerate(labels)},
    }
    return {tag: names}


def tag_of(model: ModelInfo) -> str:
    """What the model is for, in TEI's word: "embedding", "reranker" or "classifier"."""
    if not model.outputs.isdisjoint({"dense", "sparse"}) or not (model.reranks or model.labels):
        return "embedding"
    return "reranker" if model.reranks else "classifier"


def _pooling(model: ModelInfo) -> str:
    if "dense" not in model.outputs and "sparse" in model.outputs:
        return "splade"
    return "last_token" if model.pooling == "last" else model.pooling
