"""Semantic Explorer's embedding-inference-api: the routes of its document and, under /api/, those of its source.

A `model` is required there and optional here. A model that is not served is refused, where the product downloads it:
the operator names models at start. /health/live and /health/ready are pages of the server; metrics.py has the
inference_* families.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from vectord import errors
from vectord.errors import InferenceFailed, VectordError
from vectord.products.common.dialect import Call, Dialect, Incoming, Render, Rendered, Routes, random_id
from vectord.products.common.errors import STATUSES, Statuses, error_response, row_of
from vectord.products.common.fields import about
from vectord.products.common.inputs import ProbabilitiesOnly, Switch, TextItem, TopN, agreed
from vectord.products.common.models import ListedModels, first_model, ready_models, render_listed_models
from vectord.products.common.ranking import (
    SCORES,
    RankedItem,
    RerankFields,
    TextDocument,
    as_object,
    ranked,
    read_texts,
    rerank_request,
)
from vectord.products.common.vectors import TokenUsage, dump_json, json_answer, token_usage
from vectord.products.semantic_explorer.metrics import SemanticExplorerMetrics
from vectord.schema import (
    EmbedRequest,
    EmbedResult,
    ListModels,
    ModelInfo,
    ModelList,
    RerankResult,
    TextOptions,
)

ROUTES = Routes()

TEXT = TextOptions(truncate_by_default=True)  # FastEmbed, which the product uses, always truncates
NO_USAGE = {"prompt_tokens": 0, "total_tokens": 0}

_QUESTION = "machine learning"
_DOCUMENTS = ["Deep learning is a subset of machine learning", "The weather is nice today"]


def _embeds(info: ModelInfo) -> bool:
    return "dense" in info.outputs


def _reranks(info: ModelInfo) -> bool:
    return info.reranks


def _empty(model: str | None, suitable: Callable[[ModelInfo], bool], **shown: object) -> Call:
    """The source's answer to a request without texts or documents. Here the model must be served too.

    Without `model` the answer names the first suitable model, else the first model.
    """

    def render(result: ModelList) -> Rendered:
        return json_answer(model=(next(filter(suitable, result.models), None) or first_model(result)).name, **shown)

    return Call(ListModels(model=model or None), render)


# --- errors ---------------------------------------------------------------------------------------------------

ErrorForm: TypeAlias = tuple[str, str]  # the code, and the beginning of the message

ERRORS: Statuses = {
    **STATUSES,
    errors.ModelNotFound: 400,
    errors.Overloaded: 503,
    errors.RateLimited: 429,
}

INTERNAL: ErrorForm = ("INTERNAL_ERROR", "Internal error")

# The source's, and for keys, paths and rates, which it does not have, ours in its style.
_FORMS: Mapping[type[VectordError], ErrorForm] = {
    errors.VectordError: INTERNAL,
    errors.InvalidRequest: ("BAD_REQUEST", "Bad request"),
    errors.ModelNotFound: ("UNSUPPORTED_MODEL", "Unsupported model"),
    errors.ModelCannot: ("UNSUPPORTED_MODEL", "Unsupported model"),
    errors.FingerprintMismatch: ("BAD_REQUEST", "Bad request"),
    errors.Unauthorized: ("UNAUTHORIZED", "Unauthorized"),
    errors.Forbidden: ("FORBIDDEN", "Forbidden"),
    errors.NoSuchRoute: ("NOT_FOUND", "Not found"),
    errors.MethodNotAllowed: ("METHOD_NOT_ALLOWED", "Method not allowed"),
    errors.Overloaded: ("SERVICE_UNAVAILABLE", "Service unavailable"),
    errors.RateLimited: ("RATE_LIMITED", "Too many requests"),
    errors.Unavailable: ("SERVICE_UNAVAILABLE", "Service unavailable"),
    errors.TimedOut: ("TIMEOUT", "Timed out"),
}


def render_error(error: VectordError, failed: ErrorForm = INTERNAL) -> Rendered:
    """failed: the route's form for a model that failed."""
    code, beginning = failed if isinstance(error, InferenceFailed) else row_of(_FORMS, error)
    return error_response(error, {"error": f"{beginning}: {error.message}", "code": code}, ERRORS)


_render_embed_error = partial(render_error, failed=("EMBEDDING_ERROR", "Embedding generation failed"))
_render_rerank_error = partial(render_error, failed=("RERANK_ERROR", "Reranking failed"))

# --- vectors --------------------------------------------------------------------------------------------------


class EmbedBody(msgspec.Struct):
    input: str | list[str]
    model: str | None = None


class Embeddings(msgspec.Struct):
    embeddings: list[list[float]]
    model: str
    usage: TokenUsage


@ROUTES.post(
    "/embed",
    answer=Embeddings,
    summary="Embed texts",
    example={"input": ["hello world", "semantic search"]},
    names={"inputs": "input"},
    render_error=_render_embed_error,
)
def parse_embed(body: EmbedBody, incoming: Incoming) -> Call:
    def render(result: EmbedResult) -> Rendered:
        return json_answer(embeddings=result.dense["float"], model=result.model, usage=token_usage(result.usage))

    texts = [body.input] if isinstance(body.input, str) else body.input
    return _embed(texts, body.model, render, embeddings=[], usage=NO_USAGE)


def _embed(texts: Sequence[str], model: str | None, render: Render, **empty: object) -> Call:
    """empty: the answer without texts."""
    if not texts:
        return _empty(model, _embeds, **empty)
    return Call(EmbedRequest(inputs=texts, model=model or None, text=TEXT), render)


class TextBody(msgspec.Struct):
    text: str
    model: str | None = None


class TextsBody(msgspec.Struct):
    texts: list[str]
    model: str | None = None


class CountedEmbeddings(msgspec.Struct):
    embeddings: list[list[float]]
    model: str
    count: int
    dimensions: int  # 0 without embeddings


@ROUTES.post(
    "/api/embed",
    answer=CountedEmbeddings,
    summary="Embed one text",
    example={"text": "hello world"},
    names={"inputs": "text"},
    render_error=_render_embed_error,
)
def parse_embed_text(body: TextBody, incoming: Incoming) -> Call:
    return _embed([body.text], body.model, render_counted)


@ROUTES.post(
    "/api/embed/batch",
    answer=CountedEmbeddings,
    summary="Embed texts",
    example={"texts": ["hello world", "semantic search"]},
    names={"inputs": "texts"},
    render_error=_render_embed_error,
)
def parse_embed_texts(body: TextsBody, incoming: Incoming) -> Call:
    return _embed(body.texts, body.model, render_counted, embeddings=[], count=0, dimensions=0)


def render_counted(result: EmbedResult) -> Rendered:
    vectors = result.dense["float"]  # (N, D)
    count, dimensions = vectors.shape
    return json_answer(embeddings=vectors, model=result.model, count=count, dimensions=dimensions)


# --- scores ---------------------------------------------------------------------------------------------------


class RerankBody(RerankFields):
    """return_documents: a key of other products on this path; it adds a `document` to each result."""

    query: str
    documents: list[str | TextItem]
    model: str | None = None
    top_n: TopN = None
    return_documents: Switch = None
    normalize: ProbabilitiesOnly = None


class Ranked(RankedItem):
    text: str
    document: TextDocument | msgspec.UnsetType = msgspec.UNSET  # only with return_documents


class ApiVersion(msgspec.Struct):
    version: str


class BilledUnits(msgspec.Struct):
    search_units: int


class Meta(msgspec.Struct):
    api_version: ApiVersion
    billed_units: BilledUnits


class Ranking(msgspec.Struct):
    """`results` and `model` are this product's; the rest is for clients of Cohere, Jina and others on this path."""

    id: str
    object: Literal["rerank"]
    results: list[Ranked]
    model: str
    usage: TokenUsage
    meta: Meta


@ROUTES.post(
    "/rerank",
    computes="rerank",
    answer=Ranking,
    summary="Rank documents by how well they answer a query",
    example={"query": _QUESTION, "documents": _DOCUMENTS, "top_n": 1},
    names={"passages": "documents"},
    render_error=_render_rerank_error,
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    passages = read_texts(body.documents)
    if not passages:
        return _empty(body.model, _reranks, **_ranking([], NO_USAGE))
    shown = [as_object(text) for text in passages] if body.return_documents else None

    def render(result: RerankResult) -> Rendered:
        results = ranked(result, body.top_n, *SCORES, text=passages, document=shown)
        return json_answer(model=result.model, **_ranking(results, token_usage(result.usage)))

    return Call(rerank_request(body, body.query, passages, body.model, TEXT), render)


def _ranking(results: Sequence[Mapping[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"rerank-{random_id()}",
        "object": "rerank",
        "results": results,
        "usage": usage,
        "meta": {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}},
    }


class NamedDocument(TextItem):
    id: str | None = None


class RerankNamedBody(RerankFields):
    query: str
    documents: list[str | NamedDocument]
    model: str | None = None
    top_k: TopN = None
    top_n: Annotated[TopN, about("the name of `top_k` at /rerank")] = None
    return_scores: bool | None = None


class RankedNamed(msgspec.Struct):
    index: int
    text: str
    id: str | msgspec.UnsetType = msgspec.UNSET  # only if the document has one
    relevance_score: float | msgspec.UnsetType = msgspec.UNSET  # only for a string: other APIs send those
    score: float | msgspec.UnsetType = msgspec.UNSET  # not with "return_scores": false


class RankingNamed(msgspec.Struct):
    results: list[RankedNamed]
    model: str


@ROUTES.post(
    "/api/rerank",
    computes="rerank",
    answer=RankingNamed,
    summary="Rank documents that may have ids",
    example={"query": _QUESTION, "documents": [{"text": _DOCUMENTS[0], "id": "a"}, {"text": _DOCUMENTS[1]}]},
    names={"passages": "documents"},
    render_error=_render_rerank_error,
)
def parse_rerank_named(body: RerankNamedBody, incoming: Incoming) -> Call:
    if not body.documents:
        return _empty(body.model, _reranks, results=[])
    passages = read_texts(body.documents)
    top_n = agreed(top_k=body.top_k or None, top_n=body.top_n or None)

    def render(result: RerankResult) -> Rendered:
        results = ranked(result, top_n, text=passages)
        for item in results:
            document, score = body.documents[item["index"]], result.scores[item["index"]]
            if isinstance(document, str):
                item["relevance_score"] = score
            elif document.id is not None:
                item["id"] = document.id
            if body.return_scores is not False:
                item["score"] = score
        return json_answer(results=results, model=result.model)

    return Call(rerank_request(body, body.query, passages, body.model, TEXT), render)


# --- models ---------------------------------------------------------------------------------------------------


ROUTES.get("/models", summary="List served models", answer=ListedModels)(render_listed_models)


class Described(msgspec.Struct):
    id: str
    name: str
    description: str
    model_type: Literal["embedding", "reranker"]
    dimensions: int | msgspec.UnsetType = msgspec.UNSET  # of an embedding model


def _described(info: ModelInfo, model_type: str) -> dict[str, Any]:
    description = f"A {info.architecture} model that reads {info.max_input_tokens} tokens"
    return {"id": info.name, "name": info.name, "description": description, "model_type": model_type}


@ROUTES.get("/api/embedders", summary="List models that embed", answer=list[Described])
def render_embedders(result: ModelList) -> Rendered:
    shown = [_described(info, "embedding") | {"dimensions": info.dimensions} for info in filter(_embeds, result.models)]
    return Rendered(body=dump_json(shown))


@ROUTES.get("/api/rerankers", summary="List models that rerank", answer=list[Described])
def render_rerankers(result: ModelList) -> Rendered:
    return Rendered(body=dump_json([_described(info, "reranker") for info in filter(_reranks, result.models)]))


class Status(msgspec.Struct):
    """Whether there is a model of each kind that answers."""

    status: Literal["ok", "not_ready"]
    embedding_ready: bool
    reranker_ready: bool


@ROUTES.get("/health/status", summary="Show whether models of each kind answer", answer=Status, probe=True)
def render_status(result: ModelList) -> Rendered:
    """Always 200, as in the source. Its queue depth and GPU memory are left out: they are not known here."""
    models = ready_models(result)
    embeds = any(map(_embeds, models))
    return json_answer(
        status="ok" if embeds else "not_ready", embedding_ready=embeds, reranker_ready=any(map(_reranks, models))
    )


DIALECT = Dialect(
    name="semantic_explorer",
    title="Semantic Explorer",
    routes=tuple(ROUTES),
    render_error=render_error,
    metrics=lambda settings: SemanticExplorerMetrics(),
)
