"""vectord's own API, under /vectord/: every field of schema.py, and everything that a result contains.

Each route stands with the types of its body and its answer. Fields have the names of schema.py; null is the same as
absent, and unknown keys are ignored. Runs on the event loop; large bodies are parsed in a thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from vectord.errors import InvalidField, MissingField, VectordError
from vectord.products.common.body import Count, PositiveCount
from vectord.products.common.dialect import Call, Dialect, Incoming, Rendered, Route, Routes
from vectord.products.common.errors import STATUSES, error_response
from vectord.products.common.inputs import TextsOrIds, read_fingerprint, read_inputs
from vectord.products.common.ranking import best_first
from vectord.products.common.vectors import Encoding, encoded_rows, json_answer
from vectord.schema import (
    ChunkedDocument,
    ChunkOptions,
    ClassifyRequest,
    ClassifyResult,
    DecodeRequest,
    DecodeResult,
    DeviceState,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    Float32,
    InputKind,
    LoadModel,
    ModelInfo,
    ModelList,
    Precision,
    RerankMethod,
    RerankRequest,
    RerankResult,
    ScoreKind,
    Side,
    SimilarityRequest,
    SimilarityResult,
    Span,
    TextLength,
    TextOptions,
    Token,
    TokenizeRequest,
    TokenizeResult,
    UnloadModel,
    Usage,
    VectorKind,
)

ROUTES = Routes()

# --- errors ---------------------------------------------------------------------------------------------------

ERRORS = STATUSES

_word_ends = re.compile(r"(?<=[a-z])(?=[A-Z])")


def render_error(error: VectordError) -> Rendered:
    return error_response(error, {"error": error_object(error)}, ERRORS)


def error_object(error: VectordError) -> dict[str, Any]:
    """The same keys for every error; a key that does not apply is null."""
    return {
        "type": type_of(type(error)),
        "message": error.message,
        "field": error.field_name,
        "index": error.index,
        "limit": error.limit,
        "given": error.given,
    }


def type_of(kind: type[VectordError]) -> str:
    """The class's name in snake case, such as "model_not_found"; "internal_error" for the base class."""
    if kind is VectordError:
        return "internal_error"
    return _word_ends.sub("_", ("WrongType" if kind is MissingField else kind.__name__)).lower()


# --- shared fields --------------------------------------------------------------------------------------------

MAX_PROMPT_CHARACTERS = 2000  # the limit of text/options.py: a prompt is prepended to every text
MAX_WEIGHT = 1000

Words: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS)]
FusionWeight: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_WEIGHT)]
Expected: TypeAlias = Annotated[str, Meta(description="a fingerprint: answer in this vector space only, or 412")]
EncodedVector: TypeAlias = list[float] | str  # a vector, or base64 of its little-endian numbers


class TextFields(msgspec.Struct, kw_only=True):
    """The model, and the treatment of texts that are too long for it."""

    model: str | None = None
    truncate: bool | None = None  # null: the server's setting, else texts that are too long are refused
    truncate_side: Side | None = None  # the end that is cut off; null: right


class PromptFields(TextFields, kw_only=True):
    """The prefix of the texts: `prompt`, else the model's prompt of that name, else that of `kind`."""

    kind: InputKind | None = None
    prompt_name: str | None = None
    prompt: Words | None = None


class VectorFields(PromptFields, kw_only=True):
    normalize: bool | None = True
    dimensions: PositiveCount | None = None
    force_dimensions: bool | None = False
    encoding: Literal["float", "base64"] | None = None
    expect_fingerprint: Expected | None = None


class ChunkFields(msgspec.Struct, kw_only=True):
    max_tokens: PositiveCount
    by: Literal["tokens", "sentences"] | None = None  # null: tokens
    overlap_tokens: Count | None = None  # at most half of max_tokens


class UsageAnswer(msgspec.Struct):
    tokens: int  # processed
    texts: int  # inputs, pairs, or chunks
    characters: int  # of the inputs, before truncation


class TimingsAnswer(msgspec.Struct):
    """The first three are means over the texts."""

    tokenize_ms: float
    queue_ms: float
    inference_ms: float
    total_ms: float


class ResultAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    usage: UsageAnswer
    timings: TimingsAnswer


class TruncationAnswer(msgspec.Struct):
    """A text that `model` did not read to its end."""

    model: str
    seen: int  # the text's tokens; a lower bound if characters_cut is present
    kept: int  # tokens the model read
    max_tokens: int | UnsetType = UNSET  # the model's limit
    characters_cut: int | UnsetType = UNSET  # dropped before tokenization


def _text(body: TextFields) -> TextOptions:
    return TextOptions(truncate=body.truncate, truncate_side=body.truncate_side or "right")


def _prompted_text(body: PromptFields) -> TextOptions:
    return TextOptions(
        truncate=body.truncate,
        truncate_side=body.truncate_side or "right",
        prompt_name=body.prompt_name,
        kind=body.kind,
        prompt=body.prompt,
    )


def _chunk_options(chunk: ChunkFields) -> ChunkOptions:
    overlap = chunk.overlap_tokens or 0
    if overlap >= chunk.max_tokens:
        raise InvalidField(
            "{field} must be below {body.chunk.max_tokens}, {max_tokens}; got {given}.",
            field="chunk.overlap_tokens",
            limit=chunk.max_tokens - 1,
            given=overlap,
            max_tokens=chunk.max_tokens,
        )
    return ChunkOptions(max_tokens=chunk.max_tokens, by=chunk.by or "tokens", overlap_tokens=overlap)


def _result_answer(
    result: EmbedResult | DocumentsResult | RerankResult | ClassifyResult | SimilarityResult, **shown: Any
) -> Rendered:
    return json_answer(model=result.model, fingerprint=result.fingerprint, **shown, **_usage(result.usage))


def _usage(usage: Usage) -> dict[str, Any]:
    timings = usage.timings
    seconds = {
        "tokenize_ms": timings.tokenize_s,
        "queue_ms": timings.queue_s,
        "inference_ms": timings.inference_s,
        "total_ms": timings.total_s,
    }
    return {
        "usage": {"tokens": usage.tokens, "texts": len(usage.lengths), "characters": usage.characters},
        "timings": {name: round(value * 1000, 3) for name, value in seconds.items()},
    }


# --- vectors --------------------------------------------------------------------------------------------------


class EmbedBody(VectorFields, kw_only=True):
    """`dimensions`, `normalize` and `precisions` apply to dense vectors; `encoding` applies to all but sparse ones."""

    inputs: TextsOrIds
    outputs: Annotated[list[VectorKind], Meta(min_length=1, max_length=4)] | None = None  # null: dense
    precisions: Annotated[list[Precision], Meta(min_length=1, max_length=5)] | None = None  # null: float
    partial_results: bool | None = False  # an input that cannot be embedded gets an error of its own


class SparseAnswer(msgspec.Struct):
    indices: list[int]
    values: list[float]


class ErrorAnswer(msgspec.Struct):
    """Why an input has no vectors. The message names the unit of `limit` and `given`."""

    type: str
    message: str
    field: str | None
    index: int | None
    limit: int | None
    given: int | None


class EmbeddedInput(msgspec.Struct):
    """The requested vectors of one input. If several precisions are requested, `dense` is an object by precision."""

    index: int
    dense: EncodedVector | dict[Precision, EncodedVector] | UnsetType = UNSET
    sparse: SparseAnswer | UnsetType = UNSET
    colbert: list[EncodedVector] | UnsetType = UNSET  # one vector per token
    tokens: list[EncodedVector] | UnsetType = UNSET  # one vector per token
    truncated: list[TruncationAnswer] | UnsetType = UNSET  # only if the text was truncated
    error: ErrorAnswer | UnsetType = UNSET  # instead of vectors; only with partial_results


class EmbedAnswer(ResultAnswer):
    data: list[EmbeddedInput]
    sources: dict[VectorKind, str]  # the model that made each kind


@ROUTES.post(
    "/vectord/embed",
    body=EmbedBody,
    answer=EmbedAnswer,
    summary="Turn texts into dense, sparse, ColBERT and token vectors at once",
    example={"inputs": ["a happy person"], "dimensions": 384},
    keys=["inputs"],
)
def parse_embed(body: EmbedBody, incoming: Incoming) -> Call:
    precisions = tuple(dict.fromkeys(body.precisions or ("float",)))
    request = EmbedRequest(
        inputs=read_inputs(body.inputs),
        model=body.model or None,
        text=_prompted_text(body),
        outputs=frozenset(body.outputs or ("dense",)),
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        precisions=precisions,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint),
        partial=body.partial_results is True,
    )
    return Call(request, partial(render_embed, precisions, body.encoding or "float"))


def render_embed(precisions: Sequence[Precision], encoding: Encoding, result: EmbedResult) -> Rendered:
    dense = {precision: encoded_rows(rows, encoding) for precision, rows in result.dense.items()}
    data = []
    for index in range(len(result.usage.lengths)):
        if index in result.failures:
            data.append({"index": index, "error": error_object(result.failures[index])})
            continue
        item: dict[str, Any] = {"index": index}
        if dense:
            by_precision = {precision: rows[index] for precision, rows in dense.items()}
            item["dense"] = by_precision if len(precisions) > 1 else by_precision[precisions[0]]
        if result.sparse is not None:
            sparse = result.sparse[index]
            item["sparse"] = {"indices": sparse.indices, "values": sparse.values}
        if result.colbert is not None:
            item["colbert"] = _token_vectors(result.colbert[index], encoding)
        if result.tokens is not None:
            item["tokens"] = _token_vectors(result.tokens[index], encoding)
        data.append(item | _truncated(result.lengths, result.limits, index))
    return _result_answer(result, data=data, sources=dict(result.sources))


def _token_vectors(rows: Float32, encoding: Encoding) -> Any:
    """One vector for each token, rows (n, C). Each is base64 of its own, so that the answer shows their number."""
    return encoded_rows(rows, encoding) if encoding == "base64" else np.ascontiguousarray(rows)


def _truncated(lengths: Mapping[str, Sequence[TextLength]], limits: Mapping[str, int], index: int) -> dict[str, Any]:
    """`truncated` if a model did not read the whole text, else nothing."""
    cuts = []
    for model, texts in lengths.items():
        length = texts[index]
        if length.truncated:
            cut = {"model": model, "seen": length.seen, "kept": length.kept}
            if model in limits:
                cut["max_tokens"] = limits[model]
            if length.characters_cut:
                cut["characters_cut"] = length.characters_cut
            cuts.append(cut)
    return {"truncated": cuts} if cuts else {}


class DocumentsBody(VectorFields, kw_only=True):
    documents: list[str]
    chunk: ChunkFields
    late: bool | None = False
    mean: bool | None = False


class ChunkAnswer(msgspec.Struct):
    """document[start:stop], in characters."""

    start: int
    stop: int
    tokens: int
    vector: EncodedVector


class DocumentAnswer(msgspec.Struct):
    index: int
    chunks: list[ChunkAnswer]
    mean: EncodedVector | UnsetType = UNSET


class DocumentsAnswer(ResultAnswer):
    data: list[DocumentAnswer]


@ROUTES.post(
    "/vectord/documents",
    body=DocumentsBody,
    answer=DocumentsAnswer,
    summary="Cut documents into chunks and embed each",
    example={
        "documents": ["The river rose after two days of rain. The bridge was closed by noon."],
        "chunk": {"max_tokens": 20, "by": "sentences"},
        "late": True,
    },
    keys=["documents"],
)
def parse_documents(body: DocumentsBody, incoming: Incoming) -> Call:
    request = DocumentsRequest(
        documents=body.documents,
        chunks=_chunk_options(body.chunk),
        model=body.model or None,
        text=_prompted_text(body),
        late=body.late is True,
        mean=body.mean is True,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
        force_dimensions=body.force_dimensions is True,
        expect_fingerprint=read_fingerprint(body.expect_fingerprint),
    )
    return Call(request, partial(render_documents, body.encoding or "float"))


def render_documents(encoding: Encoding, result: DocumentsResult) -> Rendered:
    data = [_document(index, document, encoding) for index, document in enumerate(result.documents)]
    return _result_answer(result, data=data)


def _document(index: int, document: ChunkedDocument, encoding: Encoding) -> dict[str, Any]:
    vectors = encoded_rows(document.vectors["float"], encoding)
    chunks = [
        {"start": chunk.span.start, "stop": chunk.span.stop, "tokens": chunk.tokens, "vector": vector}
        for chunk, vector in zip(document.chunks, vectors, strict=True)
    ]
    shown: dict[str, Any] = {"index": index, "chunks": chunks}
    if document.mean is not None:
        (shown["mean"],) = encoded_rows([document.mean], encoding)
    return shown


# --- scores ---------------------------------------------------------------------------------------------------

LEAST_WEIGHTS = 0.001  # their least sum: float32 products with a much smaller one underflow


class WeightFields(msgspec.Struct, kw_only=True):
    """The weights of the three scores; their sum is at least 0.001."""

    dense: FusionWeight = 0.0
    sparse: FusionWeight = 0.0
    colbert: FusionWeight = 0.0


class RerankBody(TextFields, kw_only=True):
    query: str
    passages: list[str]
    method: RerankMethod | None = None  # null: the model's own scores, else its best vectors
    weights: WeightFields | None = None  # method weighted; null: equal weights
    scores: Literal["model", "raw", "probability"] | None = None  # method scores; null: model
    instruction: Words | None = None
    chunk: ChunkFields | None = None
    top_n: Count | None = None  # 0 and null: all
    return_passages: bool | None = False


class RankedPassage(msgspec.Struct):
    index: int
    score: float
    span: Span | UnsetType = UNSET  # the chunk with this score, in characters
    passage: str | UnsetType = UNSET


class WarningAnswer(msgspec.Struct):
    type: Literal["query_truncated", "passage_truncated"]
    seen: int
    kept: int
    max_tokens: int
    index: int | UnsetType = UNSET  # of the passage


class RerankAnswer(ResultAnswer):
    """Best first; equal scores in the order of the passages."""

    score_kind: ScoreKind
    results: list[RankedPassage]
    warnings: list[WarningAnswer]


@ROUTES.post(
    "/vectord/rerank",
    body=RerankBody,
    answer=RerankAnswer,
    summary="Rank passages by how well they answer a query",
    example={"query": "happy", "passages": ["rain", "joy"], "return_passages": True},
    keys=["passages"],
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    weights = None
    if body.weights is not None:
        weights = (body.weights.dense, body.weights.sparse, body.weights.colbert)
        if body.method != "weighted":
            raise InvalidField("{field} are for the method 'weighted'.", field="weights")
        if sum(weights) < LEAST_WEIGHTS:
            raise InvalidField("{field} must have a sum of at least {least}.", field="weights", least=LEAST_WEIGHTS)
    scores = body.scores or "model"
    if scores != "model" and body.method not in (None, "scores"):
        raise InvalidField("{field} is for the method 'scores'; others have one kind of score.", field="scores")
    request = RerankRequest(
        query=body.query,
        passages=body.passages,
        model=body.model or None,
        text=_text(body),
        method=body.method,
        weights=weights,
        raw=None if scores == "model" else scores == "raw",
        instruction=body.instruction,
        chunks=_chunk_options(body.chunk) if body.chunk else None,
    )
    return Call(request, partial(render_rerank, body.top_n, body.passages if body.return_passages else None))


def render_rerank(top_n: int | None, passages: Sequence[str] | None, result: RerankResult) -> Rendered:
    """top_n: None and 0 for all results. passages: their texts; None leaves them out."""
    results = []
    for index in best_first(result.scores)[: top_n or None]:
        item: dict[str, Any] = {"index": index, "score": result.scores[index]}
        if result.spans is not None:
            item["span"] = result.spans[index]
        if passages is not None:
            item["passage"] = passages[index]
        results.append(item)
    return _result_answer(result, score_kind=result.kind, results=results, warnings=list(_warnings(result)))


def _warnings(result: RerankResult) -> Iterator[dict[str, Any]]:
    def cut(length: TextLength) -> dict[str, int]:
        return {"seen": length.seen, "kept": length.kept, "max_tokens": result.max_tokens}

    if result.query.truncated:
        yield {"type": "query_truncated", **cut(result.query)}
    for index, passage in enumerate(result.passages):
        if passage.truncated:
            yield {"type": "passage_truncated", "index": index, **cut(passage)}


class ClassifyBody(TextFields, kw_only=True):
    """`inputs`: "a" is one text, ["a", "b"] two texts, ["a", ["b", "c"]] a text and a pair."""

    inputs: str | list[str | tuple[str, str]]
    raw: bool | None = False


class LabelAnswer(msgspec.Struct):
    label: str
    score: float


class ClassifiedInput(msgspec.Struct):
    index: int
    labels: list[LabelAnswer]  # best first
    truncated: list[TruncationAnswer] | UnsetType = UNSET


class ClassifyAnswer(ResultAnswer):
    score_kind: ScoreKind
    data: list[ClassifiedInput]


@ROUTES.post(
    "/vectord/classify",
    body=ClassifyBody,
    answer=ClassifyAnswer,
    summary="Score the labels of texts or pairs",
    example={"inputs": ["what a day", ["a pair", "of texts"]]},
    keys=["inputs"],
)
def parse_classify(body: ClassifyBody, incoming: Incoming) -> Call:
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    request = ClassifyRequest(inputs=inputs, model=body.model or None, text=_text(body), raw=body.raw is True)
    return Call(request, render_classify)


def render_classify(result: ClassifyResult) -> Rendered:
    lengths = {result.model: result.usage.lengths}
    data = []
    for index, scores in enumerate(result.scores):
        labels = [{"label": result.labels[label], "score": scores[label]} for label in best_first(scores)]
        data.append({"index": index, "labels": labels, **_truncated(lengths, {}, index)})
    return _result_answer(result, score_kind=result.kind, data=data)


class SimilarityBody(PromptFields, kw_only=True):
    source: str
    sentences: list[str]


class SimilarityAnswer(ResultAnswer):
    score_kind: ScoreKind
    scores: list[float]


@ROUTES.post(
    "/vectord/similarity",
    body=SimilarityBody,
    answer=SimilarityAnswer,
    summary="Compare a text with others",
    example={"source": "happy", "sentences": ["rain", "joy"]},
    keys=["sentences"],
)
def parse_similarity(body: SimilarityBody, incoming: Incoming) -> Call:
    request = SimilarityRequest(
        source=body.source, sentences=body.sentences, model=body.model or None, text=_prompted_text(body)
    )
    return Call(request, render_similarity)


def render_similarity(result: SimilarityResult) -> Rendered:
    return _result_answer(result, score_kind="cosine", scores=result.scores)


# --- tokens ---------------------------------------------------------------------------------------------------


class TokenizeBody(msgspec.Struct, kw_only=True):
    inputs: str | list[str]
    model: str | None = None
    add_special_tokens: bool | None = True
    prompt_name: str | None = None


class TokenizedInput(msgspec.Struct):
    index: int
    tokens: list[Token]


class TokenizeAnswer(msgspec.Struct):
    model: str
    data: list[TokenizedInput]
    usage: UsageAnswer
    timings: TimingsAnswer


@ROUTES.post(
    "/vectord/tokenize",
    body=TokenizeBody,
    answer=TokenizeAnswer,
    summary="Tokenize texts",
    example={"inputs": "Hello, world"},
    keys=["inputs"],
)
def parse_tokenize(body: TokenizeBody, incoming: Incoming) -> Call:
    request = TokenizeRequest(
        inputs=[body.inputs] if isinstance(body.inputs, str) else body.inputs,
        model=body.model or None,
        add_special_tokens=body.add_special_tokens is not False,
        prompt_name=body.prompt_name,
    )
    return Call(request, render_tokenize)


def render_tokenize(result: TokenizeResult) -> Rendered:
    data = [{"index": index, "tokens": tokens} for index, tokens in enumerate(result.tokens)]
    return json_answer(model=result.model, data=data, **_usage(result.usage))


class DecodeBody(msgspec.Struct, kw_only=True):
    ids: list[list[Count]]
    model: str | None = None
    skip_special_tokens: bool | None = True


class DecodedIds(msgspec.Struct):
    index: int
    text: str


class DecodeAnswer(msgspec.Struct):
    model: str
    data: list[DecodedIds]


@ROUTES.post(
    "/vectord/decode",
    body=DecodeBody,
    answer=DecodeAnswer,
    summary="Decode token ids",
    example={"ids": [[101, 7592, 102]]},
    keys=["ids"],
)
def parse_decode(body: DecodeBody, incoming: Incoming) -> Call:
    skip = body.skip_special_tokens is not False
    return Call(DecodeRequest(ids=body.ids, model=body.model or None, skip_special_tokens=skip), render_decode)


def render_decode(result: DecodeResult) -> Rendered:
    data = [{"index": index, "text": text} for index, text in enumerate(result.texts)]
    return json_answer(model=result.model, data=data)


# --- models ---------------------------------------------------------------------------------------------------


class ModelAnswer(msgspec.Struct):
    name: str
    model_id: str
    revision: str | None
    fingerprint: str
    architecture: str
    outputs: list[VectorKind]
    reranks: bool
    labels: list[str]
    pooling: str | None  # null and 0: no dense vectors
    dimensions: int
    matryoshka: list[int] | None  # null: not known
    max_input_tokens: int
    prompts: dict[str, str]
    dtype: str
    device: str
    devices: dict[str, DeviceState]  # the replicas that run it while it is loaded
    backend: str
    state: Literal["unloaded", "loading", "ready", "failed", "stalled"]
    pinned: bool
    created: int


class LimitsAnswer(msgspec.Struct):
    max_inputs_per_request: int
    max_batch_tokens: int
    max_batch_requests: int | None
    max_concurrent_requests: int
    tokenization_workers: int
    truncates: bool | None


class ModelsAnswer(msgspec.Struct):
    models: list[ModelAnswer]
    limits: LimitsAnswer


@ROUTES.get("/vectord/models", answer=ModelsAnswer, summary="List served models and the limits in force")
def render_models(result: ModelList) -> Rendered:
    limits = asdict(result.limits)
    limits["max_batch_requests"] = limits.pop("max_batch_texts")
    return json_answer(models=[_model(info) for info in result.models], limits=limits)


@ROUTES.get("/vectord/models/{model:path}", answer=ModelAnswer, summary="Show one served model")
def render_model(result: ModelList) -> Rendered:
    (info,) = result.models
    return json_answer(**_model(info))


def _model(info: ModelInfo) -> dict[str, Any]:
    """A body of ModelAnswer: the facts of the same names, and `created`."""
    facts = {name: getattr(info, name) for name in ModelAnswer.__struct_fields__ if name != "created"}
    return {
        **facts,
        "outputs": sorted(info.outputs),
        "pooling": info.pooling or None,
        "prompts": dict(info.prompts),
        "devices": dict(info.devices),
        "created": info.created_unix_s,
    }


def parse_load(incoming: Incoming) -> Call:
    return Call(LoadModel(model=incoming.path["model"]), render_model)


def parse_unload(incoming: Incoming) -> Call:
    return Call(UnloadModel(model=incoming.path["model"]), render_model)


for _path, _parse, _summary in (
    ("/vectord/models/{model:path}/load", parse_load, "Load a model now"),
    ("/vectord/models/{model:path}/unload", parse_unload, "Unload a model"),
):
    ROUTES.add(Route(method="POST", path=_path, parse=_parse, summary=_summary, answer=ModelAnswer, admin=True))


DIALECT = Dialect(name="vectord", title="vectord", routes=tuple(ROUTES), render_error=render_error, prefix="/vectord/")
