"""The containers of Weaviate's modules text2vec-transformers and reranker-transformers, for all their clients.

Runs on the event loop. The first container itself answers one text with `dim`. Weaviate reads `dims`, and sends lists
of texts since 2026.
"""

from typing import Annotated, Any

import msgspec

from vectord.errors import InvalidField, MissingField, Unavailable
from vectord.products.common.body import Count
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import STATUSES, render_message
from vectord.products.common.fields import about, no_effect
from vectord.products.common.inputs import read_kind
from vectord.products.common.models import failed_last, ready_models, requested_model
from vectord.products.common.ranking import RerankFields, rerank_request
from vectord.products.common.vectors import json_answer
from vectord.schema import EmbedRequest, EmbedResult, ModelInfo, ModelList, RerankResult, TextOptions

ROUTES = Routes()
ERRORS = STATUSES

render_error = render_message("error", ERRORS)

# --- wire types -----------------------------------------------------------------------------------------------


OfResponse = Annotated[Any, no_effect("a field of the response, which Weaviate also sends")]


class Vectorizing(msgspec.Struct):
    task_type: Annotated[str | None, about('"query" or "passage"')] = None
    dimensions: Count | None = None
    pooling_strategy: Annotated[
        Any, no_effect("Weaviate always sends its own default, and a model has one pooling")
    ] = None


class TextBody(msgspec.Struct):
    text: str
    config: Vectorizing | None = None
    model: str | None = None
    dims: OfResponse = None
    vector: OfResponse = None
    error: OfResponse = None


class TextsBody(msgspec.Struct):
    texts: list[str]
    config: Vectorizing | None = None
    model: str | None = None


class VectorAnswer(msgspec.Struct):
    """`dim` and `dims` are the same number."""

    text: str
    vector: list[float]
    dim: int
    dims: int


class VectorsAnswer(msgspec.Struct):
    vectors: list[list[float]]
    dims: int


class Facts(msgspec.Struct):
    model_name: str
    model_type: str
    pooling: str
    dimensions: int
    max_input_tokens: int


class MetaAnswer(msgspec.Struct):
    """The model that answers /vectors; empty without one."""

    model: Facts | msgspec.UnsetType = msgspec.UNSET
    model_path: str | msgspec.UnsetType = msgspec.UNSET


# --- vectors --------------------------------------------------------------------------------------------------


@ROUTES.post(
    "/vectors",
    answer=VectorAnswer,
    summary="Embed one text",
    example={"text": "The London Eye is a ferris wheel.", "config": {"task_type": "passage"}},
    names={"inputs": "text", "dimensions": "config.dimensions"},
)
def parse_text(body: TextBody, incoming: Incoming) -> Call:
    def render(result: EmbedResult) -> Rendered:
        (vector,) = result.dense["float"]  # (D,)
        return json_answer(text=body.text, vector=vector, dim=len(vector), dims=len(vector))

    return Call(_embed([body.text], body, incoming), render)


@ROUTES.post(
    "/vectors",
    answer=VectorsAnswer,
    summary="Embed texts",
    example={"texts": ["What is the London Eye?"], "config": {"task_type": "query"}},
    names={"inputs": "texts", "dimensions": "config.dimensions"},
)
def parse_texts(body: TextsBody, incoming: Incoming) -> Call:
    def render(result: EmbedResult) -> Rendered:
        vectors = result.dense["float"]  # (N, D)
        return json_answer(vectors=vectors, dims=vectors.shape[1])

    return Call(_embed(body.texts, body, incoming), render)


def _embed(texts: list[str], body: TextBody | TextsBody, incoming: Incoming) -> EmbedRequest:
    config = body.config or Vectorizing()
    return EmbedRequest(
        inputs=texts,
        model=requested_model(body.model, incoming, ignored_by="weaviate"),
        text=TextOptions(truncate_by_default=True, kind=read_kind(config.task_type, "config.task_type")),
        dimensions=config.dimensions,
    )


# --- rerank ---------------------------------------------------------------------------------------------------


class RerankBody(RerankFields):
    """Weaviate sends `documents`; an older container takes one text as `property`."""

    query: str
    documents: list[str] | None = None
    property: str | None = None
    model: str | None = None


class DocumentScore(msgspec.Struct):
    document: str
    score: float


class ScoresAnswer(msgspec.Struct):
    """`scores` is in the order of `documents`; for a body without them there is one score."""

    query: str
    scores: list[DocumentScore] | msgspec.UnsetType = msgspec.UNSET
    property: str | msgspec.UnsetType = msgspec.UNSET
    score: float | msgspec.UnsetType = msgspec.UNSET


@ROUTES.post(
    "/rerank",
    computes="rerank",
    answer=ScoresAnswer,
    summary="Score documents by how well they answer a query",
    example={"query": "capital of France", "documents": ["Paris is the capital."], "property": ""},
    one_of=["documents", "property"],
    names={"passages": "documents"},
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    if body.documents is None and body.property is None:
        raise MissingField("{field} is required.", field="passages")
    if body.documents is not None and body.property:
        raise InvalidField("{field} is for a body without `documents`.", field="property")
    passages = [body.property or ""] if body.documents is None else body.documents

    def render(result: RerankResult) -> Rendered:
        if body.documents is None:
            return json_answer(query=body.query, property=body.property, score=result.scores[0])
        pairs = zip(body.documents, result.scores, strict=True)
        return json_answer(query=body.query, scores=[{"document": text, "score": score} for text, score in pairs])

    model, text = requested_model(body.model, incoming, ignored_by="weaviate"), TextOptions(truncate_by_default=True)
    return Call(rerank_request(body, body.query, passages, model, text), render)


# --- the model ------------------------------------------------------------------------------------------------


@ROUTES.get("/meta", answer=MetaAnswer, summary="Show the model")
def render_meta(result: ModelList) -> Rendered:
    info = _embedder(result)
    if info is None:
        return json_answer()
    facts = {
        "model_name": info.name,
        "model_type": info.architecture,
        "pooling": info.pooling,
        "dimensions": info.dimensions,
        "max_input_tokens": info.max_input_tokens,
    }
    return json_answer(model=facts, model_path=info.model_id)


@ROUTES.get("/.well-known/live", summary="Report by status, without a body, that the server is running", probe=True)
def render_live(result: ModelList) -> Rendered:
    return Rendered(body=b"", status=204)


@ROUTES.get(
    "/.well-known/ready", summary="Report by status, without a body, whether the server accepts texts", probe=True
)
def render_ready(result: ModelList) -> Rendered:
    if _embedder(result) not in ready_models(result):
        return render_error(Unavailable("No model that embeds is ready."))
    return Rendered(body=b"", status=204)


def _embedder(result: ModelList) -> ModelInfo | None:
    """The model that answers /vectors: the first that makes dense vectors."""
    return next((info for info in failed_last(result.models) if "dense" in info.outputs), None)


DIALECT = Dialect(
    name="weaviate", title="Weaviate's inference containers", routes=tuple(ROUTES), render_error=render_error
)
