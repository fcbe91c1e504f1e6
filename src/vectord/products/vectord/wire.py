"""The bodies and answers of vectord's own API. Fields have the names of schema.py.

null is the same as absent, and unknown keys are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from vectord.products.common.body import Count, PositiveCount
from vectord.products.common.inputs import TextsOrIds
from vectord.schema import DeviceState, InputKind, Precision, RerankMethod, ScoreKind, Side, VectorKind

MAX_PROMPT_CHARACTERS = 2000  # the limit of text/options.py: a prompt is prepended to every text
MAX_WEIGHT = 1000

Words: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS)]
Weight: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_WEIGHT)]
Expected: TypeAlias = Annotated[str, Meta(description="a fingerprint: answer in this vector space only, or 412")]
Numbers: TypeAlias = list[float] | str  # a vector, or base64 of its little-endian numbers


# --- bodies ---------------------------------------------------------------------------------------------------


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


class ChunkFields(msgspec.Struct, kw_only=True):
    max_tokens: PositiveCount
    by: Literal["tokens", "sentences"] | None = None  # null: tokens
    overlap_tokens: Count | None = None  # at most half of max_tokens


class EmbedBody(PromptFields, kw_only=True):
    """`dimensions`, `normalize` and `precisions` apply to dense vectors; `encoding` applies to all but sparse ones."""

    inputs: TextsOrIds
    outputs: Annotated[list[VectorKind], Meta(min_length=1, max_length=4)] | None = None  # null: dense
    normalize: bool | None = True
    dimensions: PositiveCount | None = None
    force_dimensions: bool | None = False
    precisions: Annotated[list[Precision], Meta(min_length=1, max_length=5)] | None = None  # null: float
    encoding: Literal["float", "base64"] | None = None
    expect_fingerprint: Expected | None = None
    partial_results: bool | None = False  # an input that cannot be embedded gets an error of its own


class DocumentsBody(PromptFields, kw_only=True):
    documents: list[str]
    chunk: ChunkFields
    late: bool | None = False
    mean: bool | None = False
    normalize: bool | None = True
    dimensions: PositiveCount | None = None
    force_dimensions: bool | None = False
    encoding: Literal["float", "base64"] | None = None
    expect_fingerprint: Expected | None = None


class WeightFields(msgspec.Struct, kw_only=True):
    """The weights of the three scores; their sum is at least 0.001."""

    dense: Weight = 0.0
    sparse: Weight = 0.0
    colbert: Weight = 0.0


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


class ClassifyBody(TextFields, kw_only=True):
    """`inputs`: "a" is one text, ["a", "b"] two texts, ["a", ["b", "c"]] a text and a pair."""

    inputs: str | list[str | tuple[str, str]]
    raw: bool | None = False


class SimilarityBody(PromptFields, kw_only=True):
    source: str
    sentences: list[str]


class TokenizeBody(msgspec.Struct, kw_only=True):
    inputs: str | list[str]
    model: str | None = None
    add_special_tokens: bool | None = True
    prompt_name: str | None = None


class DecodeBody(msgspec.Struct, kw_only=True):
    ids: list[list[Count]]
    model: str | None = None
    skip_special_tokens: bool | None = True


# --- answers --------------------------------------------------------------------------------------------------


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


class TruncationAnswer(msgspec.Struct):
    """A text that `model` did not read to its end."""

    model: str
    seen: int  # the text's tokens; a lower bound if characters_cut is present
    kept: int  # tokens the model read
    max_tokens: int | UnsetType = UNSET  # the model's limit
    characters_cut: int | UnsetType = UNSET  # dropped before tokenization


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
    dense: Numbers | dict[Precision, Numbers] | UnsetType = UNSET
    sparse: SparseAnswer | UnsetType = UNSET
    colbert: list[Numbers] | UnsetType = UNSET  # a vector a token
    tokens: list[Numbers] | UnsetType = UNSET  # a vector a token
    truncated: list[TruncationAnswer] | UnsetType = UNSET  # only if the text was truncated
    error: ErrorAnswer | UnsetType = UNSET  # instead of vectors; only with partial_results


class EmbedAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    data: list[EmbeddedInput]
    sources: dict[VectorKind, str]  # the model that made each kind
    usage: UsageAnswer
    timings: TimingsAnswer


class ChunkAnswer(msgspec.Struct):
    """document[start:stop], in characters."""

    start: int
    stop: int
    tokens: int
    vector: Numbers


class DocumentAnswer(msgspec.Struct):
    index: int
    chunks: list[ChunkAnswer]
    mean: Numbers | UnsetType = UNSET


class DocumentsAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    data: list[DocumentAnswer]
    usage: UsageAnswer
    timings: TimingsAnswer


class SpanAnswer(msgspec.Struct):
    start: int
    stop: int


class RankedPassage(msgspec.Struct):
    index: int
    score: float
    span: SpanAnswer | UnsetType = UNSET  # the chunk with this score, in characters
    passage: str | UnsetType = UNSET


class WarningAnswer(msgspec.Struct):
    type: Literal["query_truncated", "passage_truncated"]
    seen: int
    kept: int
    max_tokens: int
    index: int | UnsetType = UNSET  # of the passage


class RerankAnswer(msgspec.Struct):
    """Best first; equal scores in the order of the passages."""

    model: str
    fingerprint: str
    score_kind: ScoreKind
    results: list[RankedPassage]
    warnings: list[WarningAnswer]
    usage: UsageAnswer
    timings: TimingsAnswer


class LabelAnswer(msgspec.Struct):
    label: str
    score: float


class ClassifiedInput(msgspec.Struct):
    index: int
    labels: list[LabelAnswer]  # best first
    truncated: list[TruncationAnswer] | UnsetType = UNSET


class ClassifyAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    score_kind: ScoreKind
    data: list[ClassifiedInput]
    usage: UsageAnswer
    timings: TimingsAnswer


class SimilarityAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    score_kind: ScoreKind
    scores: list[float]
    usage: UsageAnswer
    timings: TimingsAnswer


class TokenAnswer(msgspec.Struct):
    """`start` and `stop` are byte offsets into the text with its prompt; null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenizedInput(msgspec.Struct):
    index: int
    tokens: list[TokenAnswer]


class TokenizeAnswer(msgspec.Struct):
    model: str
    data: list[TokenizedInput]
    usage: UsageAnswer
    timings: TimingsAnswer


class DecodedIds(msgspec.Struct):
    index: int
    text: str


class DecodeAnswer(msgspec.Struct):
    model: str
    data: list[DecodedIds]


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
