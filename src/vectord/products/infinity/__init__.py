"""infinity's API: embeddings, rerank, classify and the list of models, with /v1 and without.

`usage` counts tokens, where infinity counts characters.
"""

import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec.structs import replace

from vectord.errors import (
    Forbidden,
    InvalidField,
    InvalidRequest,
    ModelCannot,
    NoSuchRoute,
    Unauthorized,
    VectordError,
    WrongType,
)
from vectord.products.common.body import Count, PositiveCount, TokenId
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Routes
from vectord.products.common.errors import FASTAPI, error_response, faults, row_of
from vectord.products.common.fields import about, refused
from vectord.products.common.inputs import (
    EmbedFields,
    ProbabilitiesOnly,
    Switch,
    TextItem,
    User,
    agreed,
    read_inputs,
    refuse_none,
)
from vectord.products.common.media import DOT, read_image
from vectord.products.common.models import (
    ListedModels,
    named_models,
    none_can,
    only_multivectors,
    render_listed_models,
    requested_model,
)
from vectord.products.common.ranking import (
    SCORES,
    RankedItem,
    RerankFields,
    ScoredLabel,
    best_labels,
    ranked,
    read_texts,
    rerank_request,
)
from vectord.products.common.vectors import TokenUsage, embedding_items, json_answer, read_encoding, token_usage
from vectord.schema import (
    ClassifyRequest,
    ClassifyResult,
    EmbedResult,
    Input,
    RerankResult,
    TextOptions,
)

ROUTES = Routes({"truncate_side": "truncate"})

ANY_MODEL = "default/not-specified"  # infinity's client sends it for the first model
MAX_TEXT_CHARS = 122_880  # infinity's own limit: 15 for each of 8192 tokens
TEXT = TextOptions(truncate_by_default=True)

Text = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS, description="white space at both ends is removed")]
Model = Annotated[
    str | None, about('null or "default/not-specified": the first suitable model; with one served model, any name')
]


def _model(name: str | None, incoming: Incoming) -> str | None:
    """The requested model, or None for the first suitable one. infinity with one model accepts every name."""
    return None if name == ANY_MODEL else requested_model(name, incoming)


class BaseAnswer(msgspec.Struct):
    """The keys of every answer."""

    model: str
    usage: TokenUsage
    id: str
    created: int


def _answer(kind: str, key: str, items: Sequence[Any], result: EmbedResult | RerankResult | ClassifyResult) -> Rendered:
    return json_answer(
        object=kind,
        **{key: items},
        model=result.model,
        usage=token_usage(result.usage),
        id=f"infinity-{uuid.uuid4()}",
        created=int(time.time()),
    )


# --- vectors --------------------------------------------------------------------------------------------------


class EmbeddingsBody(EmbedFields, kw_only=True):
    """Vectors shortened by `dimensions` are normalized again; infinity leaves this to the client."""

    input: Annotated[
        str | list[str | TokenId | list[TokenId]],
        about("texts have at most 122,880 characters; white space at both ends is removed"),
    ]
    model: Model = None
    output_dimension: Annotated[Count | None, about("LiteLLM's name of `dimensions`")] = None
    modality: Annotated[str | None, about('"text", or "image" with a data URI in each input')] = None


class EmbeddingItem(msgspec.Struct):
    """`embedding` is base64 if it is a string. A ColBERT has a row for each token."""

    object: Literal["embedding"]
    index: int
    embedding: list[float | list[float]] | str


class Embeddings(BaseAnswer):
    object: Literal["list"]
    data: list[EmbeddingItem]


@ROUTES.post(
    "/embeddings",
    "/v1/embeddings",
    answer=Embeddings,
    summary="Embed texts",
    example={"input": ["a happy person", "a rainy day"], "modality": "text"},
    names={"inputs": "input"},
)
def parse_embeddings(body: EmbeddingsBody, incoming: Incoming) -> Call:
    if body.modality == "audio":
        raise ModelCannot("The modality audio is not served; {field} must be 'text' or 'image'.", field="modality")
    if body.modality not in (None, "text", "image"):
        raise InvalidField("{field} must be 'text' or 'image'.", field="modality")
    model = _model(body.model, incoming)
    inputs = _images(body.input) if body.modality == "image" else _texts(body.input)
    request = replace(
        body.request(inputs, model, TEXT),
        outputs=frozenset({"colbert" if only_multivectors(model, incoming.models) else "dense"}),
        dimensions=agreed(dimensions=body.dimensions or None, output_dimension=body.output_dimension or None),
    )
    names = {"dimensions": "dimensions" if body.dimensions else "output_dimension"}
    encoding = read_encoding(body.encoding_format)

    def render(result: EmbedResult) -> Rendered:
        vectors = result.dense["float"] if result.colbert is None else result.colbert
        return _answer("list", "data", embedding_items(vectors, encoding), result)

    return Call(request, render, names)


class ImagesBody(msgspec.Struct):
    input: str | list[str]
    model: Model = None
    encoding_format: Annotated[str | None, about('"float" (also for null) or "base64"')] = None
    user: User = None


@ROUTES.post(
    "/embeddings_image",
    answer=Embeddings,
    summary="Embed images: /embeddings with the modality image",
    example={"input": [DOT]},
    names={"inputs": "input"},
)
def parse_images(body: ImagesBody, incoming: Incoming) -> Call:
    fields = msgspec.structs.asdict(body)
    return parse_embeddings(EmbeddingsBody(**fields, modality="image"), incoming)


def _texts(given: str | list[str | int | list[int]]) -> Sequence[Input]:
    inputs = read_inputs(given)
    for index, one in enumerate(inputs):
        if isinstance(one, str) and len(one) > MAX_TEXT_CHARS:
            template = "{field} must have a length of at most {limit}."
            place = index if isinstance(given, list) else None
            raise WrongType(template, field="inputs", index=place, limit=MAX_TEXT_CHARS, given=len(one))
    return [one.strip() if isinstance(one, str) else one for one in inputs]


def _images(given: str | list[str | int | list[int]]) -> Sequence[Input]:
    return [read_image(one, index=index) for index, one in enumerate([given] if isinstance(given, str) else given)]


# --- scores ---------------------------------------------------------------------------------------------------


class TextDocument(TextItem):
    """A document as LiteLLM may send it."""

    text: Text | None = None


class RerankBody(RerankFields):
    query: Text
    documents: list[Text | TextDocument]
    model: Model = None
    return_documents: Switch = None
    raw_scores: Annotated[Switch, about("logits; null: 0 to 1")] = None
    top_n: Annotated[PositiveCount | None, about("results to show; null: all")] = None


class RankedDocument(RankedItem):
    document: str | None  # null unless return_documents


class Ranking(BaseAnswer):
    object: Literal["rerank"]
    results: list[RankedDocument]


@ROUTES.post(
    "/rerank",
    "/v1/rerank",
    computes="rerank",
    answer=Ranking,
    summary="Rank documents by how well they answer a query",
    example={
        "query": "Where is Munich?",
        "documents": ["Munich is in Germany.", "The sky is blue."],
        "return_documents": True,
        "raw_scores": False,
    },
    names={"passages": "documents"},
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    documents = [text.strip() for text in read_texts(body.documents)]
    refuse_none(documents, "passages")
    shown = documents if body.return_documents is True else [None] * len(documents)

    def render(result: RerankResult) -> Rendered:
        return _answer("rerank", "results", ranked(result, body.top_n, *SCORES, document=shown), result)

    query, model, raw = body.query.strip(), _model(body.model, incoming), body.raw_scores is True
    return Call(rerank_request(body, query, documents, model, TEXT, raw=raw), render)


class ClassifyBody(msgspec.Struct):
    input: Text | list[Text]
    model: Model = None
    raw_scores: Annotated[Switch, about("logits; null: probabilities")] = None
    normalize: ProbabilitiesOnly = None
    labels: Annotated[Any, refused("the model's own labels are scored")] = None


class Classes(BaseAnswer):
    object: Literal["classify"]
    data: list[list[ScoredLabel]]


@ROUTES.post(
    "/classify",
    "/v1/classify",
    computes="classify",
    answer=Classes,
    summary="Score the labels of a classifier, the best first",
    example={"input": ["I am not having a great day."], "raw_scores": False},
    names={"inputs": "input"},
)
def parse_classify(body: ClassifyBody, incoming: Incoming) -> Call:
    texts = [body.input] if isinstance(body.input, str) else body.input
    refuse_none(texts, "inputs")
    model = _model(body.model, incoming)
    if none_can(named_models(model, incoming.models), lambda info: not info.reranks):
        raise ModelCannot("A reranker does not classify: it has one label.", field="model")
    request = ClassifyRequest(
        inputs=[text.strip() for text in texts],
        model=model,
        text=TEXT,
        raw=body.raw_scores is True,
    )

    def render(result: ClassifyResult) -> Rendered:
        data = [[{"score": score, "label": label} for label, score in labels] for labels in best_labels(result)]
        return _answer("classify", "data", data, result)

    return Call(request, render)


# --- models ---------------------------------------------------------------------------------------------------


ROUTES.get("/models", "/v1/models", summary="List served models", answer=ListedModels)(
    partial(render_listed_models, owned_by="infinity")
)


# --- what is not served ---------------------------------------------------------------------------------------


def refuse_audio(incoming: Incoming) -> NoReturn:
    raise ModelCannot("The modality audio is not served; texts and images are, at /embeddings.", field="input")


ROUTES.add("POST", "/embeddings_audio", parse=refuse_audio, summary="Refused: audio is not served")


# --- errors ---------------------------------------------------------------------------------------------------
#
# FastAPI answers what it refuses before infinity reads it, so there are three forms. infinity's client returns the body
# of a 422 and drops that of other statuses, so every fault of a body is a 422, where infinity has 400 for some. Only a
# number of dimensions beyond the model's is 400 here too.

ERRORS = FASTAPI


def render_error(error: VectordError) -> Rendered:
    status = row_of(ERRORS, error)
    if isinstance(error, InvalidField) and error.field == "dimensions" and error.limit is not None:
        message = f"matryoshka_dim={error.given} is not in a valid range. Select between 1 and {error.limit}."
        return error_response(error, {"error": _shown(message, 400)}, {**ERRORS, InvalidField: 400})
    shown: dict[str, Any] = {"error": _shown(error.message, status)}
    if isinstance(error, Unauthorized):
        shown = {"detail": "Unauthorized"}
    elif isinstance(error, Forbidden | NoSuchRoute):
        shown = {"detail": error.message}
    elif isinstance(error, InvalidRequest) and status == 422:
        shown = {"detail": faults(error)}
    return error_response(error, shown, ERRORS)


def _shown(message: str, status: int) -> dict[str, Any]:
    return {"message": message, "type": None, "param": None, "code": status}


DIALECT = Dialect(name="infinity", title="infinity", routes=tuple(ROUTES), render_error=render_error)
