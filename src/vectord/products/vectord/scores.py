"""/vectord/rerank, /vectord/classify and /vectord/similarity."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from vectord.errors import InvalidField
from vectord.products.common.body import Count
from vectord.products.common.dialect import Call, Incoming, Rendered, Routes
from vectord.products.common.fields import about
from vectord.products.common.inputs import read_chunks
from vectord.products.common.media import read_image
from vectord.products.common.ranking import ScoredLabel, best_labels, ranked
from vectord.products.vectord.fields import (
    ChunkFields,
    FusionWeight,
    PromptFields,
    ResultAnswer,
    TextFields,
    TruncationAnswer,
    Words,
    result_answer,
    text_options,
    truncated,
)
from vectord.schema import (
    ClassifyRequest,
    ClassifyResult,
    Item,
    RerankMethod,
    RerankRequest,
    RerankResult,
    ScoreKind,
    SimilarityRequest,
    SimilarityResult,
    Span,
    TextLength,
    item_of,
)

ROUTES = Routes()


LEAST_WEIGHTS = 0.001  # their least sum: float32 products with a much smaller one underflow


class WeightFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The weights of the three scores; their sum is at least 0.001."""

    dense: FusionWeight = 0.0
    sparse: FusionWeight = 0.0
    colbert: FusionWeight = 0.0


class ImageItem(msgspec.Struct, forbid_unknown_fields=True):
    image: Annotated[str, about("a data URI, or base64")]


RankedInput: TypeAlias = str | ImageItem | Annotated[list[str | ImageItem], msgspec.Meta(min_length=1)]


def read_ranked(value: RankedInput, field: str, index: int | None = None) -> Item:
    parts = value if isinstance(value, list) else [value]
    return item_of([part if isinstance(part, str) else read_image(part.image, field, index) for part in parts])


class RerankBody(TextFields, kw_only=True):
    query: Annotated[RankedInput, about("a text, an object with an `image`, or a list of texts and images")]
    passages: Annotated[list[RankedInput], about("the same")]
    method: RerankMethod | None = None  # null: the model's own scores, else its best vectors
    weights: WeightFields | None = None  # method weighted; null: equal weights
    scores: Literal["model", "raw", "probability"] | None = None  # null: model; the others select the method scores
    instruction: Words | None = None
    chunk: ChunkFields | None = None
    top_n: Count | None = None  # 0 and null: all
    return_passages: bool | None = False


class RankedPassage(msgspec.Struct):
    index: int
    score: float
    logit: float | UnsetType = UNSET  # of a score that an activation function made of it; orders equal scores
    span: Span | UnsetType = UNSET  # the chunk with this score, in characters
    passage: RankedInput | UnsetType = UNSET  # as it was sent


class WarningAnswer(msgspec.Struct):
    type: Literal["query_truncated", "passage_truncated"]
    seen: int
    kept: int
    max_tokens: int
    index: int | UnsetType = UNSET  # of the passage


class RerankAnswer(ResultAnswer):
    """Best first; equal scores by their logits, then in the order of the passages."""

    score_kind: ScoreKind
    results: list[RankedPassage]
    warnings: list[WarningAnswer]


@ROUTES.post(
    "/vectord/rerank",
    computes="rerank",
    answer=RerankAnswer,
    summary="Rank passages by how well they answer a query",
    example={"query": "happy", "passages": ["rain", "joy"], "return_passages": True},
)
def parse_rerank(body: RerankBody, incoming: Incoming) -> Call:
    weights = None
    if body.weights is not None:
        weights = (body.weights.dense, body.weights.sparse, body.weights.colbert)
        if body.method != "weighted":
            raise InvalidField("{field} are for the method 'weighted'.", field="weights")
        if sum(weights) < LEAST_WEIGHTS:
            raise InvalidField("{field} must have a sum of at least {least}.", field="weights", least=LEAST_WEIGHTS)
    chunk = body.chunk
    scores, method = body.scores or "model", body.method
    if scores != "model":
        method = method or "scores"
        if method != "scores":
            raise InvalidField("{field} is for the method 'scores'; others have one kind of score.", field="scores")
    request = RerankRequest(
        query=read_ranked(body.query, "query"),
        passages=[read_ranked(passage, "passages", index) for index, passage in enumerate(body.passages)],
        model=body.model or None,
        text=text_options(body),
        method=method,
        weights=weights,
        raw=None if scores == "model" else scores == "raw",
        instruction=body.instruction,
        chunks=read_chunks(chunk.max_tokens, chunk.overlap_tokens, chunk.by) if chunk else None,
    )

    def render(result: RerankResult) -> Rendered:
        def cut(length: TextLength) -> dict[str, int]:
            return {"seen": length.seen, "kept": length.kept, "max_tokens": result.max_tokens}

        warnings: list[dict[str, Any]] = []
        if result.query.truncated:
            warnings.append({"type": "query_truncated", **cut(result.query)})
        for index in result.passages.truncated:
            warnings.append({"type": "passage_truncated", "index": index, **cut(result.passages[index])})
        shown = body.passages if body.return_passages else None
        results = ranked(result, body.top_n, "score", logit=result.logits, span=result.spans, passage=shown)
        return result_answer(result, score_kind=result.kind, results=results, warnings=warnings)

    return Call(request, render)


class ClassifyBody(TextFields, kw_only=True):
    """`inputs`: "a" is one text, ["a", "b"] two texts, ["a", ["b", "c"]] a text and a pair."""

    inputs: str | list[str | tuple[str, str]]
    raw: bool | None = False


class ClassifiedInput(msgspec.Struct):
    index: int
    labels: list[ScoredLabel]  # best first
    truncated: list[TruncationAnswer] | UnsetType = UNSET


class ClassifyAnswer(ResultAnswer):
    score_kind: ScoreKind
    data: list[ClassifiedInput]


@ROUTES.post(
    "/vectord/classify",
    computes="classify",
    answer=ClassifyAnswer,
    summary="Score the labels of texts or pairs",
    example={"inputs": ["what a day", ["a pair", "of texts"]]},
)
def parse_classify(body: ClassifyBody, incoming: Incoming) -> Call:
    inputs = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    request = ClassifyRequest(inputs=inputs, model=body.model or None, text=text_options(body), raw=body.raw is True)

    def render(result: ClassifyResult) -> Rendered:
        lengths = {result.model: result.usage.lengths}
        data = []
        for index, labels in enumerate(best_labels(result)):
            shown = [{"label": label, "score": score} for label, score in labels]
            data.append({"index": index, "labels": shown, **truncated(lengths, {}, index)})
        return result_answer(result, score_kind=result.kind, data=data)

    return Call(request, render)


class SimilarityBody(PromptFields, kw_only=True):
    source: str
    sentences: list[str]


class SimilarityAnswer(ResultAnswer):
    score_kind: ScoreKind
    scores: list[float]


@ROUTES.post(
    "/vectord/similarity",
    computes="similarity",
    answer=SimilarityAnswer,
    summary="Compare a text with others",
    example={"source": "happy", "sentences": ["rain", "joy"]},
)
def parse_similarity(body: SimilarityBody, incoming: Incoming) -> Call:
    request = SimilarityRequest(
        source=body.source, sentences=body.sentences, model=body.model or None, text=text_options(body)
    )

    def render(result: SimilarityResult) -> Rendered:
        return result_answer(result, score_kind="cosine", scores=result.scores)

    return Call(request, render)
