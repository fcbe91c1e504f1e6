"""Smart Embedder: the three vectors of BGE-M3 and a reranker, with a warning for each truncated text.

Texts are always truncated, from the end. The product has no `model`: see `requested_model`. metrics.py has the metric
families, /stats, the keys of /health and the log lines.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from vectord import errors
from vectord.errors import (
    EmptyInput,
    InferenceTimedOut,
    InvalidRequest,
    RateLimited,
    TooManyCharacters,
    TooManyInputs,
    VectordError,
    WrongType,
)
from vectord.products.common.dialect import Call, Dialect, Guards, Incoming, Rate, Rendered, Routes
from vectord.products.common.errors import STATUSES, Statuses, error_response, faults, row_of
from vectord.products.common.fields import about
from vectord.products.common.models import named_models, none_can, requested_model
from vectord.products.common.ranking import NoCount, RerankFields, ranked, rerank_request
from vectord.products.common.vectors import dump_json, json_answer
from vectord.products.smart_embedder.metrics import SmartEmbedderMetrics, health, ready_lines
from vectord.schema import (
    EmbedRequest,
    EmbedResult,
    ModelInfo,
    RerankResult,
    Sparse,
    TextLength,
    TextOptions,
    Timings,
    VectorKind,
)

ROUTES = Routes()

TRUNCATED = TextOptions(truncate=True, count_all=True)
KINDS: Sequence[VectorKind] = ("dense", "sparse", "colbert")

# --- errors ---------------------------------------------------------------------------------------------------

ERRORS: Statuses = {
    **STATUSES,
    errors.MalformedBody: 422,
    errors.InvalidField: 422,
    errors.TooManyInputs: 422,
    errors.TooManyCharacters: 422,
    errors.Overloaded: 503,
    errors.RateLimited: 429,
}

# The sentences that the product's documentation fixes.
SENTENCES: Mapping[type[VectordError], str] = {
    errors.Unauthorized: "Invalid or missing bearer token.",
    errors.Overloaded: "Server is overloaded. Please retry later.",
    errors.QueueTimedOut: "Server is overloaded. Please retry later.",
    errors.ShuttingDown: "Server is shutting down",
    errors.InferenceFailed: "Internal server error.",
    errors.OutOfMemory: "Internal server error.",
    errors.TimedOut: "Request timed out.",
    errors.InferenceTimedOut: "Timeout during GPU processing.",
}
RATE_LIMITED_S = 60  # the product's constant wait, for any limit


def render_error(error: VectordError) -> Rendered:
    if isinstance(error, RateLimited):
        body = dump_json({"detail": error.message, "retry_after": RATE_LIMITED_S})
        return Rendered(body=body, status=429, headers={"retry-after": str(RATE_LIMITED_S)})
    detail: object = SENTENCES.get(type(error), error.message)
    if isinstance(error, InvalidRequest) and row_of(ERRORS, error) == 422:
        detail = faults(error)
    return error_response(error, {"detail": detail}, ERRORS)


def render_rerank_error(error: VectordError) -> Rendered:
    if isinstance(error, InferenceTimedOut):
        return error_response(error, {"detail": "Timeout during rerank GPU processing."}, ERRORS)
    return render_error(error)


# --- booleans -------------------------------------------------------------------------------------------------

# As pydantic 2 reads them.
Flag: TypeAlias = Annotated[bool | float | str | None, about('also as a word or number, such as "yes" or 1')]

_MEANINGS: Mapping[object, bool] = {
    **dict.fromkeys((1, "1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys((0, "0", "off", "f", "false", "n", "no"), False),
}


def read_flag(value: bool | float | str | None, field: str) -> bool | None:
    """True, False, or None if unset. Raises WrongType for any other word or number."""
    if value is None or isinstance(value, bool):
        return value
    meaning = _MEANINGS.get(value.lower() if isinstance(value, str) else value)
    if meaning is None:
        raise WrongType("{field} must be a boolean.", field=field)
    return meaning


# --- warnings -------------------------------------------------------------------------------------------------


class Target(msgspec.Struct):
    field: str
    index: int | None
    pointer: str  # a JSON Pointer into the request


class WarningDetails(msgspec.Struct):
    """`model` alone for vectors that the model does not make."""

    model: str
    max_tokens: int | UnsetType = UNSET
    original_tokens: int | UnsetType = UNSET
    truncated_tokens: int | UnsetType = UNSET
    truncation_side: Literal["end"] | UnsetType = UNSET


class Warned(msgspec.Struct):
    code: Literal["input_truncated", "query_truncated", "passage_truncated", "vectors_unavailable"]
    severity: Literal["warning"]
    message: str
    target: Target
    details: WarningDetails


_SUBJECTS = {"input_truncated": "Input text", "query_truncated": "Query", "passage_truncated": "Passage"}


def _warning(
    code: str, message: str, field: str, index: int | None, model: str | None, **details: object
) -> dict[str, Any]:
    pointer = f"/{field}" if index is None else f"/{field}/{index}"
    target = {"field": field, "index": index, "pointer": pointer}
    shown = {"model": model, **details}
    return {"code": code, "severity": "warning", "message": message, "target": target, "details": shown}


def _cut(code: str, field: str, index: int | None, model: str, length: TextLength, max_tokens: int) -> dict[str, Any]:
    """A warning. max_tokens: those that had room; for a query or passage, next to the other text of the pair."""
    return _warning(
        code,
        f"{_SUBJECTS[code]} was truncated to the model token limit.",
        field,
        index,
        model,
        max_tokens=max_tokens,
        original_tokens=length.seen,
        truncated_tokens=length.seen - length.kept,
        truncation_side="end",
    )


# --- vectors --------------------------------------------------------------------------------------------------


Return: TypeAlias = Annotated[Flag, msgspec.Meta(extra_json_schema={"default": True})]


class EmbeddingsBody(msgspec.Struct):
    """By default, the response has all kinds of vectors that the model makes, and a warning for each other kind. A flag
    that is true demands its kind, and null equals an absent flag."""

    sentences: list[str]
    return_dense: Return = None
    return_sparse: Return = None
    return_colbert: Return = None
    normalize_dense: Flag = False
    sparse_as_indices: Flag = False
    model: str | None = None


class Vectors(msgspec.Struct):
    """null for a kind that was not requested. `sparse`: weights by token id; with sparse_as_indices, two lists under
    `indices` and `values`."""

    dense: list[float] | None
    sparse: dict[str, float | list[float]] | None
    colbert: list[list[float]] | None


class Embedded(msgspec.Struct):
    id: int
    text: str  # unchanged
    embeddings: Vectors


class EmbeddingsAnswer(msgspec.Struct):
    data: list[Embedded]
    model_name: str
    dense_model_name: str
    sparse_model_name: str
    colbert_model_name: str
    processing_time_ms: float
    warnings: list[Warned]


@ROUTES.post(
    "/embeddings",
    answer=EmbeddingsAnswer,
    summary="Turn sentences into dense, sparse and ColBERT vectors",
    example={"sentences": ["Hello world!", "Ciao mondo!"], "return_sparse": False, "return_colbert": False},
    names={"inputs": "sentences"},
)
def parse_embeddings(body: EmbeddingsBody, incoming: Incoming) -> Call:
    settings = ("max_sentences_per_request", "max_sentence_chars", "max_total_chars_per_request")
    _check_sizes("sentences", "inputs", body.sentences, incoming.guards, settings)
    given = {"dense": body.return_dense, "sparse": body.return_sparse, "colbert": body.return_colbert}
    flags = {kind: read_flag(given[kind], f"return_{kind}") for kind in KINDS}
    as_lists = read_flag(body.sparse_as_indices, "sparse_as_indices") is True
    normalize = read_flag(body.normalize_dense, "normalize_dense") is True
    name = requested_model(body.model, incoming, ignored_by="smart_embedder")
    model, missing = _model(named_models(name, incoming.models), flags)
    request = EmbedRequest(
        inputs=body.sentences,
        model=model.name if model else name,
        text=TRUNCATED,
        outputs=frozenset(kind for kind in KINDS if flags[kind] is not False and kind not in missing),
        normalize=normalize or _always_normalizes(model, incoming.models),
    )
    makers = [model.sources.get(kind, model.name) if model else "" for kind in KINDS]
    warnings = [
        _warning("vectors_unavailable", f"The model makes no {kind} vectors.", f"return_{kind}", None, request.model)
        for kind in missing
    ]

    def render(result: EmbedResult) -> Rendered:
        dense, sparse, colbert = makers
        truncated = [
            _cut("input_truncated", "sentences", index, name, lengths[index], result.limits[name])
            for index in range(len(result.usage.lengths))
            for name, lengths in result.lengths.items()
            if index in lengths.details and lengths[index].truncated
        ]
        return json_answer(
            data=[
                {"id": index, "text": text, "embeddings": _vectors(result, index, as_lists)}
                for index, text in enumerate(body.sentences)
            ],
            model_name=dense,
            dense_model_name=dense,
            sparse_model_name=sparse,
            colbert_model_name=colbert,
            processing_time_ms=_ms(result.usage.timings),
            warnings=warnings + truncated,
        )

    return Call(request, render)


def _check_sizes(
    name: str, field: str, texts: Sequence[str], guards: Guards, settings: tuple[str, str, str], query: str = ""
) -> None:
    """settings: the limits of the number of texts, of the characters of each text and of the query, and of all
    together."""
    count, each, total = map(guards.product.get, settings)
    if not texts:
        raise EmptyInput("The '{name}' list cannot be empty.", field=field, name=name)
    if count is not None and len(texts) > count:
        template = "The '{name}' list may contain at most {limit} items; got {given}."
        raise TooManyInputs(template, field=field, limit=count, given=len(texts), name=name)
    for place, index, text in (("query", None, query), *((field, index, text) for index, text in enumerate(texts))):
        if each is not None and len(text) > each:
            template = "{field} may contain at most {limit} characters; got {given}."
            raise TooManyCharacters(template, field=place, index=index, limit=each, given=len(text))
    characters = len(query) + sum(map(len, texts))
    if total is not None and characters > total:
        template = "'{name}' may contain at most {limit} characters in all; got {given}."
        named = f"query and {name}" if query else name
        raise TooManyCharacters(template, field=field, limit=total, given=characters, name=named)


def _model(
    models: Sequence[ModelInfo], flags: Mapping[VectorKind, bool | None]
) -> tuple[ModelInfo | None, Sequence[VectorKind]]:
    """The model for these vectors, and those that it does not make though no flag excludes them.

    A composite comes first: it serves dense vectors of another model than the sparse ones. None if no model that has
    not failed makes them all; the engine then refuses the request. If no model can, the one that makes most answers, if
    it makes those with a flag that is true.
    """
    outputs = frozenset(kind for kind in KINDS if flags[kind] is not False)
    able = [model for model in models if outputs <= model.outputs and model.outputs and model.state != "failed"]
    if able or not none_can(models, lambda info: outputs <= info.outputs):
        return next((model for model in able if model.sources), able[0] if able else None), ()
    demanded = frozenset(kind for kind in KINDS if flags[kind])
    some = [info for info in models if demanded <= info.outputs and outputs & info.outputs]
    model = max(some, key=lambda info: len(outputs & info.outputs), default=None)
    return model, [kind for kind in KINDS if model and kind in outputs - model.outputs]


def _always_normalizes(model: ModelInfo | None, models: Sequence[ModelInfo]) -> bool:
    """Whether the dense vectors are BGE-M3's, which FlagEmbedding always normalizes."""
    if model is None:
        return False
    source = model.sources.get("dense")
    dense = next((one for one in models if one.name == source), model) if source else model
    return dense.outputs >= frozenset(KINDS) and not dense.sources


def _vectors(result: EmbedResult, index: int, as_lists: bool) -> dict[str, Any]:
    return {
        "dense": result.dense["float"][index] if result.dense else None,
        "sparse": _sparse(result.sparse[index], as_lists) if result.sparse is not None else None,
        "colbert": np.ascontiguousarray(result.colbert[index]) if result.colbert is not None else None,
    }


def _sparse(vector: Sparse, as_lists: bool) -> dict[str, Any]:
    """Qdrant's two lists, or weights by token id, in the order of the tokens' first places in the text."""
    if as_lists:
        return {"indices": vector.indices, "values": vector.values}
    return {str(index): value for index, value in zip(vector.indices, vector.values, strict=True)}


# --- scores ---------------------------------------------------------------------------------------------------


class RerankBody(RerankFields):
    query: str
    passages: list[str]
    model: str | None = None
    top_n: NoCount = None
    top_k: NoCount = None
    normalize: Annotated[Flag, about("true: scores from 0 to 1; false: the model's raw scores")] = False


class Ranked(msgspec.Struct):
    index: int
    passage: str
    score: float


class RerankAnswer(msgspec.Struct):
    results: list[Ranked]
    model_name: str
    processing_time_ms: float
    warnings: list[Warned]


@ROUTES.post(
    "/rerank",
    computes="rerank",
    answer=RerankAnswer,
    summary="Rank passages by how well they answer a query",
    example={
        "query": "What is machine learning?",
        "passages": ["Machine learning is a subset of AI.", "The weather is nice today."],
        "normalize": True,
    },
    render_error=render_rerank_error,
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    if not body.query.strip():
        raise EmptyInput("The 'query' field cannot be empty.", field="query")
    settings = ("max_rerank_passages", "max_rerank_text_chars", "max_rerank_total_chars")
    _check_sizes("passages", "passages", body.passages, incoming.guards, settings, body.query)
    normalize = read_flag(body.normalize, "normalize")
    # A language model that reranks has no labels and scores by probabilities only, so `normalize` has no effect.
    name = requested_model(body.model, incoming, ignored_by="smart_embedder")
    reranker = next((model for model in named_models(name, incoming.models) if model.reranks), None)
    raw = normalize is not True if reranker is None or reranker.labels else None

    def render(result: RerankResult) -> Rendered:
        warnings = []
        if result.query.truncated:
            warnings.append(_cut("query_truncated", "query", None, result.model, result.query, result.query.kept))
        for index in result.passages.truncated:
            length = result.passages[index]
            warnings.append(_cut("passage_truncated", "passages", index, result.model, length, length.kept))
        results = ranked(result, None, passage=body.passages, score=result.scores)
        return json_answer(
            results=results,
            model_name=result.model,
            processing_time_ms=_ms(result.usage.timings),
            warnings=warnings,
        )

    return Call(rerank_request(body, body.query, body.passages, name, TRUNCATED, raw=raw), render)


def _ms(timings: Timings) -> float:
    return round(timings.total_s * 1000, 2)


DIALECT = Dialect(
    name="smart_embedder",
    title="Smart Embedder",
    routes=tuple(ROUTES),
    render_error=render_error,
    rate=Rate(3600, period_s=60, burst=120),
    requires_scheme=True,
    health=health,
    ready_lines=ready_lines,
    metrics=SmartEmbedderMetrics,
    figures_path="/stats",
)
