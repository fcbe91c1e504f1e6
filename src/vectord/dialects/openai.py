"""OpenAI's embeddings and models API, with the keys that Jina, Voyage, vLLM and seed 002 add to it.

Pure but for the `id` and `created` of an result. Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from vectord.dialects.base import Dialect, Incoming, Rendered, Route
from vectord.dialects.body import Count, decode
from vectord.dialects.failures import headers_of, retry_after_s, row_of
from vectord.dialects.fingerprint import read_fingerprint
from vectord.dialects.inputs import TextsIdsOrItems, read_inputs
from vectord.dialects.vectors import dump_json, embedding_items, read_encoding
from vectord.errors import (
    EmptyInput,
    FingerprintMismatch,
    Forbidden,
    InferenceFailed,
    InputTooLong,
    InvalidField,
    InvalidRequest,
    MalformedBody,
    MethodNotAllowed,
    ModelCannot,
    ModelNotFound,
    NoSuchRoute,
    OutOfMemory,
    Overloaded,
    PayloadTooLarge,
    TooManyInputs,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    Untokenizable,
    VectordError,
    WrongType,
)
from vectord.schema import (
    EmbedRequest,
    EmbedResult,
    InputKind,
    ListModels,
    ModelInfo,
    ModelList,
    Request,
    Result,
    TextOptions,
    Usage,
)

# --- wire types -----------------------------------------------------------------------------------------------

Switch = bool | str | None  # clients of other products send "true" and "false" as strings
Task = Annotated[
    str | None, msgspec.Meta(description="of Jina, Voyage and others: whether these are queries or documents")
]


class EmbeddingsBody(msgspec.Struct):
    """Unknown keys are ignored; null is the same as absent. `truncate` and `truncation` are one option."""

    input: TextsIdsOrItems
    model: str | None = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" (also for null) or "base64"')] = None
    dimensions: Annotated[Count | None, msgspec.Meta(description="leading numbers to keep; 0 and null: all")] = None
    force_dimensions: Switch = None
    user: str | None = None
    truncate: Switch = None
    truncation: Switch = None
    normalized: Switch = None
    prompt_name: str | None = None
    task: Task = None
    input_type: Task = None
    expect_fingerprint: Annotated[str | None, msgspec.Meta(description="answer only in this vector space, or 412")] = (
        None
    )


class EmbeddingItem(msgspec.Struct):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingsUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: None
    truncated_inputs: list[int] | msgspec.UnsetType = msgspec.UNSET  # only when something was cut


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingsUsage
    id: str
    created: int


class Model(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    embedding_dimensions: int
    max_model_len: int


class Models(msgspec.Struct):
    object: Literal["list"]
    data: list[Model]


# --- embeddings -----------------------------------------------------------------------------------------------

_body = msgspec.json.Decoder(EmbeddingsBody)


def parse_embeddings(incoming: Incoming) -> EmbedRequest:
    body = decode(_body, incoming.body)
    truncate = body.truncation if body.truncate is None else body.truncate
    return EmbedRequest(
        inputs=read_inputs(body.input, "input"),
        model=body.model or None,
        text=TextOptions(
            truncate=_switch(truncate, "truncate"), prompt_name=body.prompt_name, kind=_kind(body.task, body.input_type)
        ),
        normalize=_switch(body.normalized, "normalized") is not False,
        dimensions=body.dimensions or None,
        force_dimensions=_switch(body.force_dimensions, "force_dimensions") is True,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint, "expect_fingerprint"),
        encoding=read_encoding(body.encoding_format),
    )


# What Jina's `task` and other products' `input_type` say of the inputs. Their further tasks have no meaning here.
_KINDS: Mapping[str, InputKind] = {
    "query": "query",
    "retrieval.query": "query",
    "search_query": "query",
    "document": "document",
    "passage": "document",
    "retrieval.passage": "document",
    "search_document": "document",
}


def _kind(*words: str | None) -> InputKind | None:
    return next((_KINDS[word] for word in words if word is not None and word in _KINDS), None)


def _switch(value: Switch, field: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    word = value.lower()
    if word not in ("true", "false"):
        raise InvalidField(f"`{field}` must be true or false.", field=field)
    return word == "true"


def render_embeddings(request: Request, result: Result) -> Rendered:
    assert isinstance(request, EmbedRequest) and isinstance(result, EmbedResult)
    shown = {
        "object": "list",
        "data": embedding_items(result.dense["float"], request.encoding),
        "model": result.model,
        "usage": _usage(result.usage),
        "id": f"embd-{uuid.uuid4().hex}",
        "created": int(time.time()),
    }
    return Rendered(body=dump_json(shown))


def _usage(usage: Usage) -> dict[str, Any]:
    tokens = usage.tokens
    shown: dict[str, Any] = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": None}
    truncated = [index for index, length in enumerate(usage.lengths) if length.truncated]
    if truncated:
        shown["truncated_inputs"] = truncated
    return shown


# --- models ---------------------------------------------------------------------------------------------------


def parse_models(incoming: Incoming) -> ListModels:
    return ListModels()


def parse_model(incoming: Incoming) -> ListModels:
    return ListModels(model=incoming.path["model"])


def render_models(request: Request, result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    models = [_model(info) for info in result.models]
    return Rendered(body=dump_json({"object": "list", "data": models}))


def render_model(request: Request, result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    (info,) = result.models
    return Rendered(body=dump_json(_model(info)))


def _model(info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.name,
        "object": "model",
        "created": info.created_unix_s,
        "owned_by": "local",
        "embedding_dimensions": info.dimensions,  # seed 002
        "max_model_len": info.max_input_tokens,  # vLLM
    }


# --- errors ---------------------------------------------------------------------------------------------------

_INVALID = "invalid_request_error"

# Class -> status, type, code. The SDK retries 408, 409, 429 and 5xx: what will fail again must be none of those.
ERRORS: Mapping[type[VectordError], tuple[int, str, str | None]] = {
    VectordError: (500, "server_error", None),
    InvalidRequest: (400, _INVALID, None),
    MalformedBody: (400, _INVALID, None),
    UnsupportedMediaType: (415, _INVALID, None),
    PayloadTooLarge: (413, _INVALID, None),
    InvalidField: (400, _INVALID, None),
    WrongType: (400, _INVALID, None),
    EmptyInput: (400, _INVALID, None),
    TooManyInputs: (400, _INVALID, None),
    InputTooLong: (400, _INVALID, "context_length_exceeded"),
    Untokenizable: (400, _INVALID, None),
    ModelNotFound: (404, _INVALID, "model_not_found"),
    ModelCannot: (400, _INVALID, None),
    FingerprintMismatch: (412, _INVALID, "fingerprint_mismatch"),
    Unauthorized: (401, "authentication_error", "invalid_api_key"),
    Forbidden: (403, "permission_error", None),
    NoSuchRoute: (404, _INVALID, None),
    MethodNotAllowed: (405, _INVALID, None),
    Overloaded: (429, "rate_limit_error", "rate_limit_exceeded"),
    Unavailable: (503, "server_error", None),
    InferenceFailed: (500, "server_error", None),
    OutOfMemory: (500, "server_error", None),
}


def render_error(error: VectordError) -> Rendered:
    """OpenAI's error object, and `detail` with the same message beside it for the clients of seed 002."""
    status, kind, code = row_of(ERRORS, error)
    shown = {"message": error.message, "type": kind, "param": error.field, "code": code}
    return Rendered(body=dump_json({"error": shown, "detail": error.message}), status=status, headers=_headers(error))


def _headers(error: VectordError) -> dict[str, str]:
    headers = headers_of(error)
    if isinstance(error, Overloaded | Unavailable):  # the SDK waits this long, and reads it before Retry-After
        headers["retry-after-ms"] = str(math.ceil(retry_after_s(error) * 1000))
    return headers


# --- routes ---------------------------------------------------------------------------------------------------


def _embeddings(path: str) -> Route:
    return Route(
        method="POST",
        path=path,
        parse=parse_embeddings,
        render=render_embeddings,
        summary="Embed texts or token ids",
        body=EmbeddingsBody,
        answer=Embeddings,
        keys=frozenset({"input"}),
    )


def _models(path: str) -> Route:
    return Route(
        method="GET", path=path, parse=parse_models, render=render_models, summary="List served models", answer=Models
    )


def _one_model(path: str) -> Route:
    return Route(
        method="GET", path=path, parse=parse_model, render=render_model, summary="Show one served model", answer=Model
    )


DIALECT = Dialect(
    name="openai",
    title="OpenAI",
    routes=(
        _embeddings("/v1/embeddings"),
        _embeddings("/embeddings"),
        _models("/v1/models"),
        _models("/models"),
        _one_model("/v1/models/{model:path}"),
        _one_model("/models/{model:path}"),
    ),
    render_error=render_error,
)
