"""What Weaviate's module text2vec-transformers asks of its inference container, and clients of that container.

Runs on the event loop, called by the server's handler. The container's own words are `dim` and a vector a request;
Weaviate reads `dims`, and sends lists of texts since 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import msgspec

from vectord.errors import Unavailable, VectordError
from vectord.products.common.body import Count, decode
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, get, post
from vectord.products.common.errors import STATUSES, headers_of, row_of
from vectord.products.common.inputs import read_kind
from vectord.products.common.models import ready_models
from vectord.products.common.vectors import dump_json
from vectord.schema import EmbedRequest, EmbedResult, ListModels, ModelInfo, ModelList, Result, TextOptions

# --- wire types -----------------------------------------------------------------------------------------------


class Vectorizing(msgspec.Struct):
    """`pooling_strategy` is ignored: Weaviate always sends one, its own default, and a model has its own."""

    task_type: Annotated[str | None, msgspec.Meta(description='"query" or "passage"')] = None
    dimensions: Count | None = None


class TextBody(msgspec.Struct):
    """Weaviate sends its whole answer's keys, too: `dims`, `vector`, `error`; they are ignored, as all others are."""

    text: str
    config: Vectorizing | None = None


class TextsBody(msgspec.Struct):
    texts: list[str]
    config: Vectorizing | None = None


class VectorAnswer(msgspec.Struct):
    """The same number under both names."""

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
    """Of the model that answers /vectors; empty if none does."""

    model: Facts | msgspec.UnsetType = msgspec.UNSET
    model_path: str | msgspec.UnsetType = msgspec.UNSET


# --- vectors --------------------------------------------------------------------------------------------------

TEXT_FIELDS: Mapping[str, str] = {"inputs": "text", "dimensions": "config.dimensions"}
TEXTS_FIELDS: Mapping[str, str] = {"inputs": "texts", "dimensions": "config.dimensions"}

_text_body = msgspec.json.Decoder(TextBody)
_texts_body = msgspec.json.Decoder(TextsBody)


def parse_text(incoming: Incoming) -> Call:
    body = decode(_text_body, incoming.body)
    return Call(_embed([body.text], body.config), partial(render_vector, body.text), TEXT_FIELDS)


def parse_texts(incoming: Incoming) -> Call:
    body = decode(_texts_body, incoming.body)
    return Call(_embed(body.texts, body.config), render_vectors, TEXTS_FIELDS)


def _embed(texts: list[str], config: Vectorizing | None) -> EmbedRequest:
    asked = config or Vectorizing()
    return EmbedRequest(
        inputs=texts,
        text=TextOptions(truncate_by_default=True, kind=read_kind(asked.task_type)),
        dimensions=asked.dimensions,
    )


def render_vector(text: str, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    (vector,) = result.dense["float"]  # (D,)
    return _answer(text=text, vector=vector, dim=len(vector), dims=len(vector))


def render_vectors(result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    vectors = result.dense["float"]  # (N, D)
    return _answer(vectors=vectors, dims=vectors.shape[1])


# --- the model ------------------------------------------------------------------------------------------------


def parse_meta(incoming: Incoming) -> Call:
    return Call(ListModels(), render_meta)


def parse_live(incoming: Incoming) -> Call:
    return Call(ListModels(), render_live)


def parse_ready(incoming: Incoming) -> Call:
    return Call(ListModels(), render_ready)


def render_meta(result: Result) -> Rendered:
    info = _embedder(result)
    if info is None:
        return _answer()
    facts = {
        "model_name": info.name,
        "model_type": info.architecture,
        "pooling": info.pooling,
        "dimensions": info.dimensions,
        "max_input_tokens": info.max_input_tokens,
    }
    return _answer(model=facts, model_path=info.model_id)


def render_live(result: Result) -> Rendered:
    return Rendered(body=b"", status=204)


def render_ready(result: Result) -> Rendered:
    """204 if a text would be answered now."""
    assert isinstance(result, ModelList)
    if _embedder(result) not in ready_models(result):
        return render_error(Unavailable("No model that embeds is ready."))
    return Rendered(body=b"", status=204)


def _embedder(result: Result) -> ModelInfo | None:
    """The model that requests without a name go to: the first that makes dense vectors."""
    assert isinstance(result, ModelList)
    return next((info for info in result.models if "dense" in info.outputs), None)


def _answer(**shown: object) -> Rendered:
    return Rendered(body=dump_json(shown))


# --- errors ---------------------------------------------------------------------------------------------------

ERRORS = STATUSES


def render_error(error: VectordError) -> Rendered:
    body = dump_json({"error": error.message})
    return Rendered(body=body, status=row_of(ERRORS, error), headers=headers_of(error))


# --- routes ---------------------------------------------------------------------------------------------------

DIALECT = Dialect(
    name="weaviate",
    title="Weaviate's text2vec-transformers",
    routes=(
        *post(
            "/vectors",
            parse=parse_text,
            summary="Embed one text",
            body=TextBody,
            answer=VectorAnswer,
            example={"text": "The London Eye is a ferris wheel.", "config": {"task_type": "passage"}},
            keys=["text"],
        ),
        *post(
            "/vectors",
            parse=parse_texts,
            summary="Embed texts",
            body=TextsBody,
            answer=VectorsAnswer,
            example={"texts": ["What is the London Eye?"], "config": {"task_type": "query"}},
            keys=["texts"],
        ),
        *get("/meta", parse=parse_meta, summary="Show the model", answer=MetaAnswer),
        *get(
            "/.well-known/live",
            parse=parse_live,
            summary="Whether the server answers, with no body",
            public=True,
        ),
        *get(
            "/.well-known/ready",
            parse=parse_ready,
            summary="Whether texts would be answered, with no body",
            public=True,
        ),
    ),
    render_error=render_error,
)
