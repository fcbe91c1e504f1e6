"""OpenAI's embeddings and models, with the fields that Jina, Voyage, vLLM and Simple Inference Server add to them.

Runs on the event loop; large bodies are parsed in a thread. null is the same as absent, and unknown keys are ignored.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from vectord import errors
from vectord.errors import InvalidField, Overloaded, Unavailable, VectordError
from vectord.products.common.body import Count
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import STATUSES, error_response, message_with_ways_out, retry_after_s, row_of
from vectord.products.common.fields import no_effect, refused
from vectord.products.common.inputs import (
    Normalize,
    Prompt,
    Switch,
    TextsIdsOrItems,
    Truncate,
    User,
    Width,
    agreed,
    check_characters,
    read_fingerprint,
    read_inputs,
    read_kind,
    read_truncate,
)
from vectord.products.common.models import (
    ListedModels,
    ModelItem,
    check_one_model,
    model_item,
    read_task,
    render_listed_models,
)
from vectord.products.common.vectors import (
    Encoding,
    TokenUsage,
    embedding_items,
    json_answer,
    list_answer,
    read_encoding,
)
from vectord.products.openai.batches import ROUTES as BATCH_ROUTES
from vectord.schema import EmbedRequest, EmbedResult, ModelList, Precision, TextOptions

ROUTES = Routes({"truncate_side": "truncate"})

# --- wire types -----------------------------------------------------------------------------------------------

Task = Annotated[
    str | None,
    msgspec.Meta(
        description="of Jina, Voyage and others: the kind of the texts, such as queries, or in `task` an adapter"
    ),
]
LateChunking = Annotated[
    Any, refused("/vectord/documents has the vectors of chunks; in Jina's API set `late_chunking`")
]
WHOLE_MODEL = -1  # vLLM's `truncate_prompt_tokens` for as many tokens as the model reads
CutTo = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class EmbeddingsBody(msgspec.Struct):
    """`truncate` and `truncation` are one option, and so are `dimensions` and `output_dimension`. Two names
    of an option may not contradict each other."""

    input: TextsIdsOrItems
    model: str | None = None
    encoding_format: Annotated[str | None, msgspec.Meta(description='"float" (also for null) or "base64"')] = None
    dimensions: Width = None
    output_dimension: Annotated[Count | None, msgspec.Meta(description="Voyage's name of `dimensions`")] = None
    force_dimensions: Switch = None
    output_dtype: Annotated[Precision | None, msgspec.Meta(description="of Voyage: the type of the numbers")] = None
    embedding_type: Annotated[
        Precision | Literal["base64"] | None, msgspec.Meta(description="of Jina: the type of the numbers, or base64")
    ] = None
    user: User = None
    metadata: Annotated[Any, no_effect("the client's own notes, in Mistral's API")] = None
    truncate: Truncate = None
    truncation: Switch = None
    truncate_prompt_tokens: Annotated[
        CutTo | None, msgspec.Meta(description="of vLLM: truncate texts to this many tokens; -1: to the model's limit")
    ] = None
    normalized: Switch = None
    normalize: Normalize = None
    prompt_name: str | None = None
    prompt: Annotated[Prompt, msgspec.Meta(description="of Mixedbread")] = None
    task: Task = None
    input_type: Task = None
    expect_fingerprint: Annotated[
        str | None, msgspec.Meta(description="fingerprint of the expected vector space; another one gets 412")
    ] = None
    modality: Annotated[Any, refused("this model embeds texts only", "text")] = None
    late_chunking_params: LateChunking = None
    partial_results: Annotated[Switch, msgspec.Meta(description="an input that fails has an error in `data`")] = None


class EmbeddingItem(msgspec.Struct, tag_field="object", tag="embedding"):
    index: int
    embedding: list[float] | str


class ErrorObject(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class FailedItem(msgspec.Struct, tag_field="object", tag="error"):
    """An input without a vector; only with `partial_results`."""

    index: int
    error: ErrorObject


class Embeddings(msgspec.Struct):
    object: Literal["list"]
    data: list[EmbeddingItem | FailedItem]
    model: str
    usage: TokenUsage
    id: str
    created: int


# --- errors ---------------------------------------------------------------------------------------------------

ERRORS = STATUSES

_INVALID = "invalid_request_error"

TYPES: Mapping[type[VectordError], str] = {
    errors.VectordError: "server_error",
    errors.InvalidRequest: _INVALID,
    errors.ModelNotFound: _INVALID,
    errors.ModelCannot: _INVALID,
    errors.FingerprintMismatch: _INVALID,
    errors.NoSuchRoute: _INVALID,
    errors.Unauthorized: "authentication_error",
    errors.Forbidden: "permission_error",
    errors.Overloaded: "rate_limit_error",
}
CODES: Mapping[type[VectordError], str | None] = {
    errors.VectordError: None,
    errors.InputTooLong: "context_length_exceeded",
    errors.TooManyCharacters: "string_above_max_length",
    errors.ForeignIds: "foreign_token_ids",
    errors.ModelNotFound: "model_not_found",
    errors.FingerprintMismatch: "fingerprint_mismatch",
    errors.Unauthorized: "invalid_api_key",
    errors.Overloaded: "rate_limit_exceeded",
}


def render_error(error: VectordError) -> Rendered:
    """OpenAI's `error`, and the `detail` of Simple Inference Server, whose clients use the same routes."""
    headers = {}
    if isinstance(error, Overloaded | Unavailable):  # the SDK reads it before Retry-After
        headers["retry-after-ms"] = str(math.ceil(retry_after_s(error) * 1000))
    body = error_object(error)
    return error_response(error, {"error": body, "detail": body["message"]}, ERRORS, headers)


def error_object(error: VectordError) -> dict[str, str | None]:
    """A body of ErrorObject."""
    return {
        "message": message_with_ways_out(error),
        "type": row_of(TYPES, error),
        "param": error.field_name,
        "code": row_of(CODES, error),
    }


# --- embeddings -----------------------------------------------------------------------------------------------


@ROUTES.post(
    "/v1/embeddings",
    "/embeddings",
    "/openai/deployments/{model:path}/embeddings",
    answer=Embeddings,
    summary="Embed texts or token ids",
    example={"model": EXAMPLE_MODEL, "input": ["a happy person", "a rainy day"]},
    signs=["partial_results", "expect_fingerprint"],
    names={"inputs": "input", "max_tokens": "truncate_prompt_tokens", "normalize": "normalized"},
)
def parse_embeddings(body: EmbeddingsBody, incoming: Incoming) -> Call:
    encoding_format = None if body.encoding_format is None else read_encoding(body.encoding_format)
    encoding: Encoding
    if body.embedding_type == "base64":
        precision: Precision = body.output_dtype or "float"
        encoding = agreed(encoding_format=encoding_format, embedding_type=body.embedding_type) or "float"
    else:
        precision = agreed(output_dtype=body.output_dtype, embedding_type=body.embedding_type) or "float"
        encoding = encoding_format or "float"
    inputs = read_inputs(body.input)
    if incoming.guards.max_text_chars is not None:
        check_characters(inputs, incoming.guards.max_text_chars)
    model = body.model or None
    if named := incoming.path.get("model"):
        check_one_model(named, model, incoming.models)
        model = named
    request = EmbedRequest(
        inputs=inputs,
        model=model,
        text=_text_options(body, model, incoming),
        normalize=body.normalized is not False,
        dimensions=agreed(dimensions=body.dimensions or None, output_dimension=body.output_dimension or None),
        force_dimensions=body.force_dimensions is True,
        precisions=(precision,),
        expect_fingerprint=None if body.expect_fingerprint is None else read_fingerprint(body.expect_fingerprint),
        partial=body.partial_results is True,
    )
    names = {
        "dimensions": "dimensions" if body.dimensions else "output_dimension",
        "precisions": "output_dtype" if body.output_dtype else "embedding_type",
    }
    return Call(request, partial(render_embeddings, precision, encoding), names)


def _text_options(body: EmbeddingsBody, model: str | None, incoming: Incoming) -> TextOptions:
    tokens = body.truncate_prompt_tokens
    if tokens is not None and tokens != WHOLE_MODEL and tokens < 1:
        raise InvalidField("{field} must be -1 or at least 1.", field="truncate_prompt_tokens")
    truncate, side = read_truncate(body.truncate)
    task = None if body.task is None else read_task(body.task, model, incoming.models)
    input_type = None if body.input_type is None else read_kind(body.input_type)
    return TextOptions(
        truncate=agreed(
            truncate=truncate,
            truncation=body.truncation,
            truncate_prompt_tokens=None if tokens is None else True,
        ),
        truncate_side=side or "right",
        prompt_name=body.prompt_name,
        prompt=body.prompt,
        kind=agreed(task=task, input_type=input_type),
        task=body.task or None,
        max_tokens=None if tokens == WHOLE_MODEL else tokens,
        own_ids=incoming.guards.own_ids,
    )


def render_embeddings(precision: Precision, encoding: Encoding, result: EmbedResult) -> Rendered:
    """A body of Embeddings. With `partial_results`, an input that failed has its error in its place."""
    items = embedding_items(result.dense[precision], encoding)
    for index, error in result.failures.items():
        items[index] = {"object": "error", "index": index, "error": error_object(error)}
    return list_answer(result, items, id=f"embd-{uuid.uuid4().hex}", created=int(time.time()))


# --- models ---------------------------------------------------------------------------------------------------


ROUTES.get("/v1/models", "/models", answer=ListedModels, summary="List served models")(render_listed_models)


@ROUTES.get("/v1/models/{model:path}", "/models/{model:path}", answer=ModelItem, summary="Show one served model")
def render_model(result: ModelList) -> Rendered:
    (info,) = result.models
    return json_answer(**model_item(info))


DIALECT = Dialect(
    name="openai",
    title="OpenAI",
    rank=1,
    routes=tuple(ROUTES),
    batch_routes=tuple(BATCH_ROUTES),
    render_error=render_error,
    prefix="/v1/",
    # Other servers and gateways, whose paths clients have built in.
    aliases=("/openai/v1/", "/v1/openai/", "/v1-openai/", "/engines/v1/", "/api/v0/"),
)
