"""Ollama's routes for embeddings and for the models that make them.

Ollama requires a `model`; on the routes for vectors it is optional here. GET / is a page of the server, and has
Ollama's response under its profile.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec

from vectord import __version__, errors
from vectord.errors import InputTooLong, MissingField, ModelFailed, ModelNotFound, VectordError
from vectord.products.common.body import Count
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Render, Rendered, Routes
from vectord.products.common.errors import STATUSES, Statuses, error_response
from vectord.products.common.fields import about, no_effect
from vectord.products.common.inputs import Force, Width, agreed
from vectord.products.common.models import first_model, named_models
from vectord.products.common.vectors import json_answer
from vectord.schema import EmbedRequest, EmbedResult, ListModels, LoadModel, ModelInfo, ModelList, TextOptions

ROUTES = Routes()

LATEST = ":latest"  # the tag of a name without one; Ollama lists no name without a tag
_NUM_CTX = {"max_tokens": "options.num_ctx"}

# --- vectors --------------------------------------------------------------------------------------------------


OfTexts = Annotated[Any, no_effect("for generated texts")]
OfLoading = Annotated[Any, no_effect("the server's settings decide on memory and speed")]


class Options(msgspec.Struct):
    """The options of Ollama 0.32 and, as its Python client sends them, of earlier versions."""

    num_ctx: Annotated[Count | None, about("most tokens of an input; 0 and null: the model's limit")] = None
    num_batch: OfLoading = None
    num_gpu: OfLoading = None
    main_gpu: OfLoading = None
    num_thread: OfLoading = None
    numa: OfLoading = None
    low_vram: OfLoading = None
    f16_kv: OfLoading = None
    use_mmap: OfLoading = None
    use_mlock: OfLoading = None
    logits_all: OfLoading = None
    vocab_only: OfLoading = None
    embedding_only: OfLoading = None
    num_keep: OfTexts = None
    num_predict: OfTexts = None
    draft_num_predict: OfTexts = None
    seed: OfTexts = None
    temperature: OfTexts = None
    top_k: OfTexts = None
    top_p: OfTexts = None
    min_p: OfTexts = None
    tfs_z: OfTexts = None
    typical_p: OfTexts = None
    repeat_last_n: OfTexts = None
    repeat_penalty: OfTexts = None
    presence_penalty: OfTexts = None
    frequency_penalty: OfTexts = None
    penalize_newline: OfTexts = None
    mirostat: OfTexts = None
    mirostat_tau: OfTexts = None
    mirostat_eta: OfTexts = None
    stop: OfTexts = None


KeepAlive = Annotated[Any, no_effect("the server's settings decide which models are in memory")]


class EmbedBody(msgspec.Struct):
    """Without `input`, or with an empty one, the model is loaded, and the response has no vectors."""

    input: str | list[str] | None = None
    model: str | None = None
    truncate: bool | None = None
    dimensions: Width = None
    force_dimensions: Force = None
    options: Options | None = None
    keep_alive: KeepAlive = None


class Embeddings(msgspec.Struct):
    """Durations in nanoseconds. load_duration is always 0: total_duration includes the wait for a model to load."""

    model: str
    embeddings: list[list[float]]
    total_duration: int | msgspec.UnsetType = msgspec.UNSET  # these three only if there was input
    load_duration: int | msgspec.UnsetType = msgspec.UNSET
    prompt_eval_count: int | msgspec.UnsetType = msgspec.UNSET


@ROUTES.post(
    "/api/embed",
    answer=Embeddings,
    summary="Embed texts",
    example={"model": EXAMPLE_MODEL, "input": ["Why is the sky blue?", "Why is the grass green?"]},
    one_of=["input"],
    names={"inputs": "input", **_NUM_CTX},
)
def parse_embed(body: EmbedBody, incoming: Incoming) -> Call:
    model = _model(body.model, incoming.models)
    if not body.input:
        return Call(_loading(model, incoming.models), render_no_embeddings)
    served = next((info for info in named_models(model, incoming.models) if model or "dense" in info.outputs), None)
    # As in Ollama, a number above the width of the model's vectors is ignored.
    exceeds = body.dimensions is not None and served is not None and body.dimensions > served.full_dimensions
    request = EmbedRequest(
        inputs=[body.input] if isinstance(body.input, str) else body.input,
        model=model,
        text=_text_options(body.options, body.truncate),
        dimensions=None if exceeds else body.dimensions or None,
        force_dimensions=body.force_dimensions is True,
    )

    def render(result: EmbedResult) -> Rendered:
        return json_answer(
            model=result.model,
            embeddings=result.dense["float"],
            total_duration=round(result.usage.timings.total_s * 10**9),
            load_duration=0,
            prompt_eval_count=result.usage.tokens,
        )

    return Call(request, render)


def _loading(model: str | None, models: Sequence[ModelInfo]) -> LoadModel | ListModels:
    """The request that loads `model`, or without a name the first model that makes dense vectors."""
    name = model or next((info.name for info in models if "dense" in info.outputs), None)
    return ListModels() if name is None else LoadModel(model=name)


def render_no_embeddings(result: ModelList) -> Rendered:
    """Return the response to an empty input. Without `model`, it names the first served model."""
    return json_answer(model=first_model(result).name, embeddings=[])


class PromptBody(msgspec.Struct):
    """Without `prompt`, or with an empty one, the model is loaded, and the response has no vector."""

    prompt: str | None = None
    model: str | None = None
    options: Options | None = None
    keep_alive: KeepAlive = None


class Embedding(msgspec.Struct):
    embedding: list[float]


@ROUTES.post(
    "/api/embeddings",
    answer=Embedding,
    summary="Embed one text, with the route that preceded /api/embed",
    one_of=["prompt"],
    example={"model": EXAMPLE_MODEL, "prompt": "Here is an article about llamas..."},
    names={"inputs": "prompt", **_NUM_CTX},
)
def parse_prompt(body: PromptBody, incoming: Incoming) -> Call:
    """The predecessor of /api/embed. Its vectors are not normalized."""
    model = _model(body.model, incoming.models)
    if not body.prompt:
        return Call(_loading(model, incoming.models), lambda result: json_answer(embedding=[]))
    request = EmbedRequest(inputs=[body.prompt], model=model, text=_text_options(body.options), normalize=False)
    return Call(request, lambda result: json_answer(embedding=result.dense["float"][0]))


def _text_options(options: Options | None, truncate: bool | None = None) -> TextOptions:
    max_tokens = (options.num_ctx or None) if options else None
    return TextOptions(truncate=truncate, truncate_by_default=True, max_tokens=max_tokens)


# --- models ---------------------------------------------------------------------------------------------------


class Details(msgspec.Struct):
    """`format` and `parameter_size` are empty: they are not known here, and clients require strings."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str
    context_length: int
    embedding_length: int


def _details(info: ModelInfo) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "",
        "family": info.architecture,
        "families": [info.architecture],
        "parameter_size": "",
        "quantization_level": info.dtype,
        "context_length": info.max_input_tokens,
        "embedding_length": info.dimensions,
    }


def _named(info: ModelInfo) -> dict[str, Any]:
    name = info.name if ":" in info.name else info.name + LATEST
    return {"name": name, "model": name, "size": 0, "digest": info.fingerprint, "details": _details(info)}


def _facts(info: ModelInfo) -> dict[str, Any]:
    """Capabilities in Ollama's words, of which only "embedding" is for retrieval."""
    modified = datetime.fromtimestamp(info.created_unix_s, UTC).isoformat()
    return {"modified_at": modified, "capabilities": ["embedding"] if "dense" in info.outputs else []}


class Shown(msgspec.Struct):
    details: Details
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str


class ShowBody(msgspec.Struct):
    """Early clients leave `model` empty and send `name`."""

    model: str | None
    name: str | None = None
    system: OfTexts = None
    template: OfTexts = None
    options: OfTexts = None
    verbose: Annotated[Any, no_effect("the vocabulary and the tensors are never shown")] = None


class ShowNameBody(msgspec.Struct):
    """The earliest clients send this body."""

    name: str


@ROUTES.post(
    "/api/show",
    computes=None,
    answer=Shown,
    summary="Show one served model",
    example={"model": f"{EXAMPLE_MODEL}:latest"},
)
def parse_show(body: ShowBody, incoming: Incoming) -> Call:
    return _of_model(agreed(model=body.model or None, name=body.name or None), incoming, render_shown)


@ROUTES.post("/api/show", computes=None, answer=Shown, summary="Show one served model", example={"name": EXAMPLE_MODEL})
def parse_show_name(body: ShowNameBody, incoming: Incoming) -> Call:
    return _of_model(body.name, incoming, render_shown)


def _of_model(name: str | None, incoming: Incoming, render: Render) -> Call:
    model = _model(name, incoming.models)
    if model is None:
        raise MissingField("{field} is required.", field="model")
    return Call(ListModels(model=model), render)


def _model(name: str | None, models: Sequence[ModelInfo]) -> str | None:
    """The served name. Ollama's clients append a tag to a name without one; it is dropped unless it is served."""
    if name and not named_models(name, models):
        name = name.removesuffix(LATEST)
    return name or None


def render_shown(result: ModelList) -> Rendered:
    (info,) = result.models
    facts = {
        "general.architecture": info.architecture,
        f"{info.architecture}.context_length": info.max_input_tokens,
        f"{info.architecture}.embedding_length": info.dimensions,
    }
    return json_answer(details=_details(info), model_info=facts, **_facts(info))


class Named(msgspec.Struct):
    """`size` is 0: bytes are not counted here, and clients require a number."""

    name: str
    model: str
    size: int
    digest: str  # the fingerprint of vectord's other dialects
    details: Details


class Model(Named):
    modified_at: str
    capabilities: list[str]


class Models(msgspec.Struct):
    models: list[Model]


@ROUTES.get("/api/tags", summary="List served models", answer=Models)
def render_tags(result: ModelList) -> Rendered:
    return json_answer(models=[_named(info) | _facts(info) for info in result.models])


class PullBody(msgspec.Struct):
    """Early clients leave `model` empty and send `name`."""

    model: str | None = None
    name: str | None = None
    stream: Annotated[Any, no_effect("there is one status")] = None
    insecure: Annotated[Any, no_effect("nothing is fetched")] = None


class PullStatus(msgspec.Struct):
    status: Literal["success"]


@ROUTES.post(
    "/api/pull",
    computes=None,
    answer=PullStatus,
    summary="Confirm that a model is served",
    example={"model": EXAMPLE_MODEL},
    one_of=["model", "name"],
)
def parse_pull(body: PullBody, incoming: Incoming) -> Call:
    """Clients pull a model before its first use. A model that is not served is 404: the operator adds models."""
    return _of_model(agreed(model=body.model or None, name=body.name or None), incoming, render_pulled)


def render_pulled(result: ModelList) -> Rendered:
    """Raises ModelFailed for a model that could not be loaded."""
    (info,) = result.models
    if info.state == "failed":
        reason = ": {reason}" if info.failure else "."
        raise ModelFailed("The model {model} could not be loaded" + reason, model=info.name, reason=info.failure)
    return json_answer(status="success")


class Running(Named):
    """There is no `expires_at`: the time when a used model will be unloaded is not known."""

    size_vram: int
    context_length: int


class RunningModels(msgspec.Struct):
    models: list[Running]


@ROUTES.get("/api/ps", summary="List the models in memory", answer=RunningModels)
def render_running(result: ModelList) -> Rendered:
    loaded = [info for info in result.models if info.state == "ready"]
    return json_answer(
        models=[_named(info) | {"size_vram": 0, "context_length": info.max_input_tokens} for info in loaded]
    )


# --- the server -----------------------------------------------------------------------------------------------


class Version(msgspec.Struct):
    version: str  # vectord's own


@ROUTES.get("/api/version", summary="Show the server's version", answer=Version, public=True)
def render_version(result: ModelList) -> Rendered:
    return json_answer(version=__version__)


@ROUTES.get("/", summary="Show that the server is running", probe=True)
def render_front(result: ModelList) -> Rendered:
    """Ollama's clients look for this sentence."""
    return Rendered(body=b"Ollama is running", content_type="text/plain; charset=utf-8")


# --- errors ---------------------------------------------------------------------------------------------------

ERRORS: Statuses = {**STATUSES, errors.Overloaded: 503, errors.RateLimited: 429}

# Clients look for these beginnings of the message.
_BEGINNINGS: Mapping[type[VectordError], str] = {
    ModelNotFound: "model not found: ",
    InputTooLong: "the input length exceeds the context length: ",
}
_SHORT_CONTEXT = "input after truncation exceeds maximum context length: "


def render_error(error: VectordError) -> Rendered:
    beginning = next((text for kind, text in _BEGINNINGS.items() if isinstance(error, kind)), "")
    if error.field == "max_tokens":
        beginning = _SHORT_CONTEXT
    return error_response(error, {"error": beginning + error.message}, ERRORS)


DIALECT = Dialect(name="ollama", title="Ollama", routes=tuple(ROUTES), render_error=render_error, prefix="/api/")
