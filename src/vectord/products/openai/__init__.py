"""OpenAI's embeddings and models, with the fields that NVIDIA's, Mixedbread's and Mistral's clients add to them."""

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from vectord import errors
from vectord.errors import InvalidField, Overloaded, Unavailable, VectordError
from vectord.products.common.body import Count
from vectord.products.common.chat import read_input_conversation
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes, random_id
from vectord.products.common.errors import STATUSES, error_response, message_with_ways_out, retry_after_s, row_of
from vectord.products.common.fields import about, no_effect, refused
from vectord.products.common.inputs import (
    EmbedFields,
    InputItem,
    Normalize,
    Prompt,
    Switch,
    TextsIdsOrItems,
    agreed,
    read_fingerprint,
    read_inputs,
    with_images,
    with_nvidia_keys,
)
from vectord.products.common.models import (
    ListedModels,
    ModelItem,
    check_one_model,
    model_item,
    render_listed_models,
)
from vectord.products.common.vectors import (
    Encoding,
    ListAnswer,
    embedding_items,
    json_answer,
    list_answer,
    read_encoding,
)
from vectord.products.openai.batches import ROUTES as BATCH_ROUTES
from vectord.schema import Conversation, EmbedRequest, EmbedResult, Input, ModelList, Precision, TextOptions

ROUTES = Routes({"truncate_side": "truncate"})

# --- wire types -----------------------------------------------------------------------------------------------


class EmbeddingsBody(EmbedFields, kw_only=True):
    """`dimensions` and `output_dimension` are one option, and may not contradict each other."""

    input: Annotated[TextsIdsOrItems, about("texts, ids, or messages, as in vLLM")]
    model: str | None = None
    output_dimension: Annotated[Count | None, about("Mistral's name of `dimensions`")] = None
    output_dtype: Annotated[Precision | None, about("of Mistral: the type of the numbers")] = None
    lora_path: Annotated[Any, refused("an adapter is part of the model's name, MODEL:ADAPTER")] = None
    metadata: Annotated[Any, no_effect("the client's own notes, in Mistral's API")] = None
    normalized: Annotated[Switch, about("of Mixedbread")] = None
    normalize: Normalize = None
    prompt_name: str | None = None
    prompt: Annotated[Prompt, about("of Mixedbread")] = None
    expect_fingerprint: Annotated[
        str | None, about("fingerprint of the expected vector space; another one gets 412")
    ] = None
    partial_results: Annotated[Switch, about("an input that fails has an error in `data`")] = None


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


class Embeddings(ListAnswer):
    data: list[EmbeddingItem | FailedItem]
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
    names={"inputs": "input", "conversations": "input", "normalize": "normalized"},
)
def parse_embeddings(body: EmbeddingsBody, incoming: Incoming) -> Call:
    encoding = read_encoding(body.encoding_format)
    text = TextOptions(prompt_name=body.prompt_name, prompt=body.prompt, own_ids=incoming.guards.own_ids)
    inputs: Sequence[Input] = ()
    conversations: Sequence[Conversation] = ()
    if isinstance(first := body.input[0] if body.input else None, InputItem) and first.is_message:
        if body.prompt_name is not None or body.prompt is not None:
            template = "{field} is for texts; leave it out next to messages."
            raise InvalidField(template, field="prompt" if body.prompt_name is None else "prompt_name")
        conversations = [read_input_conversation(incoming.body)]
        text = replace(text, prompt="", add_special_tokens=False)  # the template has both
    else:
        inputs = with_images(read_inputs(body.input))
    model = body.model or None
    if named := incoming.path.get("model"):
        check_one_model(named, model, incoming.models)
        model = named
    precision = body.output_dtype or "float"
    request = EmbedRequest(
        inputs=inputs,
        conversations=conversations,
        model=model,
        text=with_nvidia_keys(text, body.truncate, body.input_type),
        normalize=body.normalized is not False,
        dimensions=agreed(dimensions=body.dimensions or None, output_dimension=body.output_dimension or None),
        precisions=(precision,),
        force_dimensions=body.force_dimensions is True,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint),
        partial=body.partial_results is True,
    )
    names = {"precisions": "output_dtype", "dimensions": "dimensions" if body.dimensions else "output_dimension"}
    return Call(request, partial(render_embeddings, precision, encoding), names)


def render_embeddings(precision: Precision, encoding: Encoding, result: EmbedResult) -> Rendered:
    """A body of Embeddings. With `partial_results`, an input that failed has its error in its place."""
    items = embedding_items(result.dense[precision], encoding)
    for index, error in result.failures.items():
        items[index] = {"object": "error", "index": index, "error": error_object(error)}
    return list_answer(result, items, id=f"embd-{random_id()}", created=int(time.time()))


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
