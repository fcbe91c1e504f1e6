"""/vectord/models: the served models, and routes of the operator to load and unload one."""

from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from vectord.products.common.dialect import Call, Parse, Render, Rendered, Routes
from vectord.products.common.vectors import json_answer
from vectord.schema import (
    DeviceState,
    LoadModel,
    Modality,
    ModelInfo,
    ModelList,
    PullModel,
    PullResult,
    RemoveModel,
    RemoveResult,
    UnloadModel,
    VectorKind,
)

ROUTES = Routes()


class ModelAnswer(msgspec.Struct):
    name: str
    model_id: str
    revision: str | None
    fingerprint: str
    architecture: str
    outputs: list[VectorKind]
    reranks: bool
    labels: list[str]
    pooling: str | None  # null and 0: no dense vectors
    dimensions: int
    matryoshka: list[int] | None  # null: not known
    max_input_tokens: int
    modalities: list[Modality]  # the inputs that it reads
    prompts: dict[str, str]
    dtype: str
    device: str
    devices: dict[str, DeviceState]  # the replicas that run it while it is loaded
    backend: str
    state: Literal["unloaded", "loading", "ready", "failed", "stalled"]
    failure: str | None  # why it could not be loaded; only for the admin key, or on a server without keys
    aliases: list[str]
    pinned: bool
    created: int


class LimitsAnswer(msgspec.Struct):
    max_inputs_per_request: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_concurrent_requests: int
    tokenization_workers: int
    truncates: bool | None


class ModelsAnswer(msgspec.Struct):
    models: list[ModelAnswer]
    limits: LimitsAnswer


@ROUTES.get("/vectord/models", answer=ModelsAnswer, summary="List served models and the limits in force")
def render_models(result: ModelList) -> Rendered:
    limits = asdict(result.limits)
    limits["max_batch_requests"] = limits.pop("max_batch_texts")
    return json_answer(models=[_model(info) for info in result.models], limits=limits)


@ROUTES.get("/vectord/models/{model:path}", answer=ModelAnswer, summary="Show one served model")
def render_model(result: ModelList) -> Rendered:
    (info,) = result.models
    return json_answer(**_model(info))


def _model(info: ModelInfo) -> dict[str, Any]:
    """A body of ModelAnswer: the facts of the same names, and `created`."""
    facts = {name: getattr(info, name) for name in ModelAnswer.__struct_fields__ if name != "created"}
    return {
        **facts,
        "outputs": sorted(info.outputs),
        "pooling": info.pooling or None,
        "prompts": dict(info.prompts),
        "devices": dict(info.devices),
        "failure": info.failure or None,
        "created": info.created_unix_s,
    }


class PullAnswer(msgspec.Struct):
    """The progress of a pull, in bytes of the model. Repeat the request until the state is `served`."""

    model: str
    state: Literal["pulling", "served"]
    done_bytes: int
    total_bytes: int


class RemoveAnswer(msgspec.Struct):
    model: str  # the hub id
    freed_bytes: int


def render_fields(result: PullResult | RemoveResult) -> Rendered:
    """Every field of the result."""
    return json_answer(**asdict(result))


def _of_model(request: type[LoadModel | UnloadModel | PullModel | RemoveModel], render: Render) -> Parse:
    """A parser of requests about the model in the path."""
    return lambda incoming: Call(request(model=incoming.path["model"]), render)


_PATH = "/vectord/models/{model:path}"
_PULL = "Begin to fetch a model from the hub, or show how far it is"
_REMOVE = "Remove a pulled model, and its files from the cache"
for _method, _action, _request, _render, _summary, _answer in (
    ("POST", "/load", LoadModel, render_model, "Load a model now", ModelAnswer),
    ("POST", "/unload", UnloadModel, render_model, "Unload a model", ModelAnswer),
    ("POST", "/pull", PullModel, render_fields, _PULL, PullAnswer),
    ("DELETE", "", RemoveModel, render_fields, _REMOVE, RemoveAnswer),
):
    _parse = _of_model(_request, _render)
    ROUTES.add(_method, _PATH + _action, parse=_parse, summary=_summary, answer=_answer, admin=True)
