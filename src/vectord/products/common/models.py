"""The served models: the list that six products share, `/info` of TEI and embedding_server, and readiness."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from vectord import __version__
from vectord.errors import Forbidden, InvalidField
from vectord.products.common.dialect import Incoming, Rendered
from vectord.products.common.inputs import kind_of_task
from vectord.products.common.vectors import json_answer
from vectord.schema import InputKind, ModelInfo, ModelList

# --- the shared list ------------------------------------------------------------------------------------------
#
# OpenAI, infinity, vLLM, llama.cpp, Simple Inference Server and Semantic Explorer share a path, and a GET has no body
# that distinguishes them. So the list has every key that one of their clients reads.


class ModelMeta(msgspec.Struct):
    """llama.cpp's: the tokens that the model reads, and the width of its vectors."""

    n_ctx_train: int
    n_embd: int


class ModelStats(msgspec.Struct):
    state: str


class ModelItem(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    embedding_dimensions: int  # 0 if the model makes no dense vectors
    max_model_len: int
    backend: str
    capabilities: list[str]
    model_type: Literal["embedding", "rerank", "classify"]
    stats: ModelStats
    meta: ModelMeta


class ListedModels(msgspec.Struct):
    object: Literal["list"]
    data: list[ModelItem]
    embedding_models: list[str]
    reranking_models: list[str]


def render_listed_models(result: ModelList, *, owned_by: str = "local") -> Rendered:
    return json_answer(
        object="list",
        data=[
            {**model_item(info, owned_by=owned_by), "id": name} for info in result.models for name in served_names(info)
        ],
        embedding_models=[info.name for info in result.models if "dense" in info.outputs],
        reranking_models=[info.name for info in result.models if info.reranks],
    )


def served_names(info: ModelInfo) -> list[str]:
    """The model's name, and those of the model with each of its adapters."""
    return [info.name, *(f"{info.name}:{adapter}" for adapter in info.adapters)]


def model_item(info: ModelInfo, *, owned_by: str = "local") -> dict[str, Any]:
    """A body of ModelItem. owned_by: infinity's client accepts only "infinity"."""
    operations = {
        "embed": "dense" in info.outputs,
        "rerank": info.reranks,
        "classify": bool(info.labels) and not info.reranks,
    }
    return {
        "id": info.name,
        "object": "model",
        "created": info.created_unix_s,
        "owned_by": owned_by,
        "embedding_dimensions": info.dimensions,  # Simple Inference Server
        "max_model_len": info.max_input_tokens,  # vLLM
        "backend": info.backend,
        "model_type": _KINDS[tag_of(info)],  # Xinference
        "capabilities": [name for name, supported in operations.items() if supported],  # infinity
        # infinity's client requires the object. Its queue lengths are left out: a constant 0 would mean an idle server.
        "stats": {"state": info.state},
        "meta": {"n_ctx_train": info.max_input_tokens, "n_embd": info.dimensions},
    }


# --- /info ----------------------------------------------------------------------------------------------------


class InfoPooling(msgspec.Struct):
    pooling: str


class InfoLabels(msgspec.Struct):
    id2label: dict[str, str]
    label2id: dict[str, int]


class InfoModelType(msgspec.Struct):
    """One of these keys is present: the model's purpose."""

    embedding: InfoPooling | msgspec.UnsetType = msgspec.UNSET
    reranker: InfoLabels | msgspec.UnsetType = msgspec.UNSET
    classifier: InfoLabels | msgspec.UnsetType = msgspec.UNSET


class Info(msgspec.Struct):
    model_id: str
    model_sha: str | None
    model_dtype: str
    served_model_name: str
    model_type: InfoModelType
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


def render_info(truncates_by_default: bool, result: ModelList) -> Rendered:
    """The first served model, since TEI's clients expect one, and the limits in force."""
    model, limits = first_model(result), result.limits
    tag = tag_of(model)
    kind: dict[str, Any]
    if tag == "embedding":
        pooling = "last_token" if model.pooling == "last" else model.pooling
        kind = {"pooling": "splade" if "dense" not in model.outputs and "sparse" in model.outputs else pooling}
    else:  # a language model that reranks has no label, and TEI's clients expect one
        labels = model.labels or ("LABEL_0",)
        kind = {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    return json_answer(
        model_id=model.model_id,
        model_sha=model.revision,
        model_dtype=model.dtype,
        served_model_name=model.name,
        model_type={tag: kind},
        max_concurrent_requests=limits.max_concurrent_requests,
        max_input_length=model.max_input_tokens,
        max_batch_tokens=limits.max_batch_tokens,
        max_batch_requests=limits.max_batch_texts,
        max_client_batch_size=limits.max_inputs_per_request,
        auto_truncate=truncates_by_default if limits.truncates is None else limits.truncates,
        tokenization_workers=limits.tokenization_workers,
        version=__version__,
        sha=None,
        docker_label=None,
    )


_KINDS = {"embedding": "embedding", "reranker": "rerank", "classifier": "classify"}  # Xinference's words


def tag_of(model: ModelInfo) -> str:
    """TEI's word for the model's purpose: "embedding", "reranker" or "classifier"."""
    if not model.outputs.isdisjoint({"dense", "sparse"}) or not (model.reranks or model.labels):
        return "embedding"
    return "reranker" if model.reranks else "classifier"


# --- the model of a request -----------------------------------------------------------------------------------


def requested_model(name: str | None, incoming: Incoming, *, ignored_by: str | None = None) -> str | None:
    """The name that selects the model, or None for the first suitable one, in APIs that accept any name with one model.

    ignored_by: the product, if it ignores the field: under its profile, any name is accepted here too.
    """
    accepts_any = len(incoming.models) == 1 or (ignored_by is not None and ignored_by == incoming.guards.alone)
    return None if not name or (accepts_any and not named_models(name, incoming.models)) else name


def check_one_model(first: str | None, second: str | None, models: Sequence[ModelInfo]) -> None:
    """Raises InvalidField if the names in a path and in its body select two served models."""
    if first and second and first != second:
        selected = named_models(first, models), named_models(second, models)
        if all(selected) and selected[0] != selected[1]:
            raise InvalidField("{field} selects another model than the path.", field="model")


def named_models(name: str | None, models: Sequence[ModelInfo]) -> list[ModelInfo]:
    """The model that a name selects, or without a name all models. Empty for a name that is not served."""
    return [info for info in models if not name or name in info.names or name in served_names(info)]


# Jina's further tasks: without an adapter or a prompt of that name, a model has one vector for all of them.
GENERAL_TASKS = frozenset({"text-matching", "retrieval", "code"})


def read_task(task: str | None, model: str | None, models: Sequence[ModelInfo]) -> InputKind | None:
    """The use of the texts under `task`, which may also be the name of an adapter or a prompt of the model.

    Raises InvalidField for a task that is neither known nor the model's.
    """
    kind = kind_of_task(task)
    if task and kind is None and task not in GENERAL_TASKS:
        able = [info for info in named_models(model, models) if model or "dense" in info.outputs][:1]
        if none_can(able, lambda info: task in info.prompts or task in info.adapters):
            template = "{field} is neither a task that is known here nor an adapter or a prompt of this model."
            raise InvalidField(template, field="task")
    return kind


def failed_last(models: Sequence[ModelInfo]) -> Sequence[ModelInfo]:
    """In the order in which they answer requests that name no model."""
    return sorted(models, key=lambda info: info.state == "failed")


def none_can(models: Sequence[ModelInfo], can: Callable[[ModelInfo], bool]) -> bool:
    """Whether no served model can, and none of them has failed: such a model may be of any kind."""
    return bool(models) and not any(info.state == "failed" or can(info) for info in models)


# --- kinds ----------------------------------------------------------------------------------------------------


def only_multivectors(name: str | None, models: Sequence[ModelInfo]) -> bool:
    """Whether the named model, or without a name every model, is a ColBERT, which answers with multi-vectors."""
    named = named_models(name, models)
    return bool(named) and all("colbert" in info.outputs and "dense" not in info.outputs for info in named)


# --- readiness ------------------------------------------------------------------------------------------------

READY_STATES = frozenset({"ready", "unloaded", "loading"})  # of a model that answers requests, after the start


def first_model(result: ModelList) -> ModelInfo:
    """The first model that has not failed, for answers that describe one. Raises Forbidden if the caller's key may use
    none."""
    if not result.models:
        raise Forbidden("This key may use none of the models served here.")
    return failed_last(result.models)[0]


def ready_models(result: ModelList) -> list[ModelInfo]:
    """The models that answer requests; none if one that is required does not. The server is ready if there is one.

    An unloaded model answers: its first request loads it, and requests wait for that. So an orchestrator must not
    remove the server. While the server starts, no model counts as ready, except with `required` first: then the others
    may still load. A failed or stalled model affects the others only if it is required.
    """
    states = {"ready"} if result.starting else READY_STATES
    answering = [info for info in result.models if info.state in states]
    if result.required == "first":
        return answering if result.models and result.models[0].state in states else []
    if result.starting or (result.required == "all" and len(answering) < len(result.models)):
        return []
    return answering
