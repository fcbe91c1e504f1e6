"""Bodies and answers of our own dialect, as requests.py reads and OpenAPI shows them.

null is the same as absent; unknown keys are ignored. What schema.py can say has the same name here wherever it can.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from vectord.products.common.body import Count
from vectord.products.common.inputs import TextsOrIds
from vectord.schema import DeviceState, InputKind, Precision, RerankMethod, ScoreKind, Side, VectorKind

# A prompt goes before every text, so that its length counts as often as there are texts.
MAX_PROMPT_CHARACTERS = 2000  # what text/prompts.py takes
MAX_WEIGHT = 1000

Size: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Words: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS)]
Weight: TypeAlias = Annotated[float, Meta(ge=0, le=MAX_WEIGHT)]
Expected: TypeAlias = Annotated[str, Meta(description="a fingerprint: answer in this vector space only, or 412")]
Numbers: TypeAlias = list[float] | str  # a vector, or base64 of its little-endian numbers


# --- bodies ---------------------------------------------------------------------------------------------------


class Reading(msgspec.Struct, kw_only=True):
    """Which model, and what happens to texts it cannot read whole."""

    model: str | None = None
    truncate: bool | None = None  # null: the server's setting, else over-long texts are refused
    truncate_side: Side | None = None  # the end that is cut off; null: right


class Prompting(Reading, kw_only=True):
    """What goes before the texts: `prompt` as it is, else the model's prompt of that name, else that of `kind`."""

    kind: InputKind | None = None
    prompt_name: str | None = None
    prompt: Words | None = None


class Chunking(msgspec.Struct, kw_only=True):
    max_tokens: Size
    by: Literal["tokens", "sentences"] | None = None  # null: tokens
    overlap_tokens: Count | None = None  # at most half of max_tokens


class EmbedBody(Prompting, kw_only=True):
    """`dimensions`, `normalize` and `precisions` are about dense vectors; `encoding` is about all but sparse ones."""

    inputs: TextsOrIds
    outputs: Annotated[list[VectorKind], Meta(min_length=1, max_length=4)] | None = None  # null: dense
    normalize: bool | None = True
    dimensions: Size | None = None
    force_dimensions: bool | None = False
    precisions: Annotated[list[Precision], Meta(min_length=1, max_length=5)] | None = None  # null: float
    encoding: Literal["float", "base64"] | None = None
    expect_fingerprint: Expected | None = None
    partial_results: bool | None = False  # an input that cannot be embedded gets an error of its own


class DocumentsBody(Prompting, kw_only=True):
    documents: list[str]
    chunk: Chunking
    late: bool | None = False
    mean: bool | None = False
    normalize: bool | None = True
    dimensions: Size | None = None
    force_dimensions: bool | None = False
    encoding: Literal["float", "base64"] | None = None
    expect_fingerprint: Expected | None = None


class Weights(msgspec.Struct, kw_only=True):
    """Of the three scores; their sum is at least 0.001."""

    dense: Weight = 0.0
    sparse: Weight = 0.0
    colbert: Weight = 0.0


class RerankBody(Reading, kw_only=True):
    query: str
    passages: list[str]
    method: RerankMethod | None = None  # null: the model's own scores, else its best vectors
    weights: Weights | None = None  # method weighted; null: all alike
    scores: Literal["model", "raw", "probability"] | None = None  # method scores; null: model
    instruction: Words | None = None
    chunk: Chunking | None = None
    top_n: Count | None = None  # 0 and null: all
    return_passages: bool | None = False


class ClassifyBody(Reading, kw_only=True):
    """`inputs`: "a" is one text, ["a", "b"] two texts, ["a", ["b", "c"]] a text and a pair."""

    inputs: str | list[str | tuple[str, str]]
    raw: bool | None = False


class SimilarityBody(Prompting, kw_only=True):
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


class Usage(msgspec.Struct):
    tokens: int  # that were run
    texts: int  # that were read: inputs, pairs, or chunks
    characters: int  # as sent


class Timings(msgspec.Struct):
    """The first three are means over the texts."""

    tokenize_ms: float
    queue_ms: float
    inference_ms: float
    total_ms: float


class Cut(msgspec.Struct):
    """A text that `model` did not read to its end."""

    model: str
    seen: int  # tokens it has; a lower bound where characters_cut is there
    kept: int  # tokens the model read
    max_tokens: int | UnsetType = UNSET  # that the model reads
    characters_cut: int | UnsetType = UNSET  # dropped before tokenising


class SparseVector(msgspec.Struct):
    indices: list[int]
    values: list[float]


class FailedInput(msgspec.Struct):
    """Why an input has no vectors. `limit` and `given` are in the units that the message names."""

    type: str
    message: str
    field: str | None
    index: int | None
    limit: int | None
    given: int | None


class Embedded(msgspec.Struct):
    """What was asked for, of one input. `dense` is an object by precision where several were asked for."""

    index: int
    dense: Numbers | dict[Precision, Numbers] | UnsetType = UNSET
    sparse: SparseVector | UnsetType = UNSET
    colbert: list[Numbers] | UnsetType = UNSET  # a vector a token
    tokens: list[Numbers] | UnsetType = UNSET  # a vector a token
    truncated: list[Cut] | UnsetType = UNSET  # only if a model did
    error: FailedInput | UnsetType = UNSET  # instead of all that; only with partial_results


class EmbedAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    data: list[Embedded]
    sources: dict[VectorKind, str]  # which model made what
    usage: Usage
    timings: Timings


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
    usage: Usage
    timings: Timings


class SpanAnswer(msgspec.Struct):
    start: int
    stop: int


class Ranked(msgspec.Struct):
    index: int
    score: float
    span: SpanAnswer | UnsetType = UNSET  # the chunk that scored so, in characters
    passage: str | UnsetType = UNSET


class Warned(msgspec.Struct):
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
    results: list[Ranked]
    warnings: list[Warned]
    usage: Usage
    timings: Timings


class LabelAnswer(msgspec.Struct):
    label: str
    score: float


class Classified(msgspec.Struct):
    index: int
    labels: list[LabelAnswer]  # best first
    truncated: list[Cut] | UnsetType = UNSET


class ClassifyAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    score_kind: ScoreKind
    data: list[Classified]
    usage: Usage
    timings: Timings


class SimilarityAnswer(msgspec.Struct):
    model: str
    fingerprint: str
    score_kind: ScoreKind
    scores: list[float]
    usage: Usage
    timings: Timings


class TokenOf(msgspec.Struct):
    """`start` and `stop` are byte offsets into the text with its prompt; null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class Tokenized(msgspec.Struct):
    index: int
    tokens: list[TokenOf]


class TokenizeAnswer(msgspec.Struct):
    model: str
    data: list[Tokenized]
    usage: Usage
    timings: Timings


class Decoded(msgspec.Struct):
    index: int
    text: str


class DecodeAnswer(msgspec.Struct):
    model: str
    data: list[Decoded]


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
    devices: dict[str, DeviceState]  # each that runs it while it is loaded, a replica being one
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
