"""Simple Inference Server: OpenAI's embeddings with limits, and the rerank of its later versions.

The dialect llamacpp has the routes that the product plans. metrics.py has its families. The server's own log line of a
request replaces its `embedding_request`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec

from vectord import errors
from vectord.errors import InvalidField, MalformedBody, TooManyCharacters, TooManyInputs, VectordError, WrongType
from vectord.products.common.body import Count
from vectord.products.common.dialect import EXAMPLE_MODEL, Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import STATUSES, Statuses, error_response, faults, row_of
from vectord.products.common.fields import about
from vectord.products.common.inputs import (
    EmbedFields,
    TextsOrIds,
    read_inputs,
)
from vectord.products.common.models import ListedModels, render_listed_models
from vectord.products.common.ranking import SCORES, RankedItem, RerankFields, ranked, rerank_request
from vectord.products.common.vectors import (
    EmbeddingList,
    TokenUsage,
    embedding_items,
    json_answer,
    list_answer,
    read_encoding,
    token_usage,
)
from vectord.products.simple_inference_server.metrics import SimpleInferenceServerMetrics
from vectord.schema import EmbedResult, RerankResult, TextOptions

ROUTES = Routes({"truncate_side": "truncate"})

TEXT = TextOptions(truncate_by_default=True)

# --- errors ---------------------------------------------------------------------------------------------------

ERRORS: Statuses = {**STATUSES, errors.MalformedBody: 422, errors.WrongType: 422}

# The product's sentences; None stands for our message.
SENTENCES: Mapping[type[VectordError], str | None] = {
    errors.VectordError: None,
    errors.ModelNotFound: "Model not found",
    errors.ShuttingDown: "Service is shutting down",
    errors.Overloaded: "Request queue full",
    errors.QueueTimedOut: "Timed out waiting for worker",
    errors.RateLimited: None,
    errors.InferenceFailed: "Embedding generation failed",
}


def render_error(error: VectordError, sentences: Mapping[type[VectordError], str | None] = SENTENCES) -> Rendered:
    if isinstance(error, MalformedBody | WrongType):
        return error_response(error, {"detail": faults(error)}, ERRORS)
    detail = row_of(sentences, error) or error.message
    if isinstance(error, TooManyInputs) and error.limit is not None:
        detail = f"Batch too large; max {error.limit} items"
    return error_response(error, {"detail": detail}, ERRORS)


render_rerank_error = partial(render_error, sentences={**SENTENCES, errors.InferenceFailed: "Rerank failed"})

# --- routes ---------------------------------------------------------------------------------------------------


class EmbeddingsBody(EmbedFields, kw_only=True):
    """Lists of token ids, base64, `dimensions` and a body without `model` are additions for users of OpenAI's SDK."""

    input: TextsOrIds
    model: str | None = None


class EmbeddingsUsage(TokenUsage, kw_only=True):
    completion_tokens: None


class Embeddings(EmbeddingList):
    usage: EmbeddingsUsage


@ROUTES.post(
    "/v1/embeddings",
    answer=Embeddings,
    summary="Embed texts or token ids",
    example={"model": EXAMPLE_MODEL, "input": ["hello", "world"]},
    names={"inputs": "input"},
)
def parse_embeddings(body: EmbeddingsBody, incoming: Incoming) -> Call:
    """Checks in the product's order: the encoding, the count, the characters, and then the model."""
    if body.encoding_format not in (None, "float", "base64"):  # OpenAI's SDK sends base64 by default
        raise InvalidField("Only 'float' encoding_format is supported", field="encoding_format")
    inputs, limit = read_inputs(body.input), incoming.guards.max_inputs
    if limit is not None and len(inputs) > limit:
        template = "Batch too large; max {limit} items"
        raise TooManyInputs(template, field="inputs", limit=limit, given=len(inputs))
    limit = incoming.guards.product.get("max_text_chars")
    for index, text in enumerate(inputs):
        if limit is not None and isinstance(text, str) and len(text) > limit:
            template = "Input at index {index} exceeds max length {limit} chars"
            raise TooManyCharacters(template, field="inputs", index=index, limit=limit, given=len(text))
    request = body.request(inputs, body.model, TEXT)
    encoding = read_encoding(body.encoding_format)

    def render(result: EmbedResult) -> Rendered:
        items = embedding_items(result.dense["float"], encoding)
        return list_answer(result, items, usage=token_usage(result.usage) | {"completion_tokens": None})

    return Call(request, render)


class RerankBody(RerankFields):
    query: str
    documents: list[str]
    model: str | None = None
    top_n: Annotated[Count | None, about("0 and null: all")] = None


class RankedDocument(RankedItem):
    document: str


class Ranking(msgspec.Struct):
    model: str
    results: list[RankedDocument]
    usage: TokenUsage


@ROUTES.post(
    "/v1/rerank",
    computes="rerank",
    answer=Ranking,
    summary="Rank documents by how well they answer a query",
    example={"model": EXAMPLE_MODEL, "query": "happy", "documents": ["rain", "joy"], "top_n": 1},
    names={"passages": "documents"},
    render_error=render_rerank_error,
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    def render(result: RerankResult) -> Rendered:
        results = ranked(result, body.top_n, *SCORES, document=body.documents)
        return json_answer(model=result.model, results=results, usage=token_usage(result.usage))

    return Call(rerank_request(body, body.query, body.documents, body.model, TEXT), render)


ROUTES.get("/v1/models", summary="List served models", answer=ListedModels)(render_listed_models)


def logged_settings(settings: Mapping[str, Mapping[str, Any]], models: Sequence[str]) -> Mapping[str, object]:
    """The fields of its log line `runtime_config`."""
    model, device, engine = settings["model"], settings["device"], settings["engine"]
    return {
        "model_config": model["model_catalogue"],
        "model_device": device["device"],
        "model_allowlist": list(models),
        "max_concurrent": engine["max_running_requests"] or engine["max_concurrent_requests"],
        "max_queue_size": engine["max_concurrent_requests"],
        "queue_timeout_sec": engine["queue_timeout_s"],
        "max_batch_size": engine["max_client_batch_size"],
        "max_text_chars": settings["server"]["product"].get("max_text_chars"),
        "enable_batching": engine["join_requests"] != "never",
        "batch_window_ms": engine["batch_window_ms"],
        "batch_max_size": device["max_batch_requests"] or engine["max_client_batch_size"],
    }


DIALECT = Dialect(
    name="simple_inference_server",
    title="Simple Inference Server",
    routes=tuple(ROUTES),
    render_error=render_error,
    health=lambda seen, ready: {"status": "ok"} if ready else {"detail": "The server is not ready."},
    log_events={"settings": "runtime_config", "warmup": "warmup_ok"},
    logged_settings=logged_settings,
    metrics=lambda settings: SimpleInferenceServerMetrics(),
)
