"""What a request asks and what an answer holds, in no dialect's words.

Dialects parse bodies into these requests and render bodies from these results; the engine turns the one into
the other. Frozen values, numpy arrays, no web types. The same values can cross a socket when engine and
server are two processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.errors import VectordError

Float32: TypeAlias = npt.NDArray[np.float32]
Int32: TypeAlias = npt.NDArray[np.int32]
Input: TypeAlias = str | Sequence[int]  # a text, or token ids of the model's own vocabulary
Side: TypeAlias = Literal["right", "left"]  # the end that is cut off
Lane: TypeAlias = Literal["interactive", "bulk"]
DeviceState: TypeAlias = Literal["ready", "stalled", "lost"]  # stalled: in part; lost: until the model loads anew
InputKind: TypeAlias = Literal["query", "document"]
VectorKind: TypeAlias = Literal["dense", "sparse", "colbert", "tokens"]  # what a text can be turned into
Precision: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary"]
# logit: any number; probability: 0 to 1; cosine: -1 to 1; maxsim: a sum or mean of cosines; dot: any number
ScoreKind: TypeAlias = Literal["logit", "probability", "cosine", "maxsim", "dot", "weighted"]
RerankMethod: TypeAlias = Literal["scores", "dense", "colbert", "sparse", "weighted"]


# --- requests -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks, for fairness, logs and metrics. `client` is a key's name or an address, never the key itself."""

    client: str = ""
    named: bool = False  # whether `client` is a key's name; then it may be a label in the metrics
    lane: Lane | None = None  # None: the engine infers it from the size of the request
    request_id: str = ""
    route: str = ""  # the template of the path that was asked, or the name of a call; a label in the metrics
    models: frozenset[str] | None = None  # names that may be used; others are as not served; None: all
    expect_fingerprint: str | None = None  # answer only if the model's vectors belong to this space
    deadline_s: float | None = None  # by time.monotonic(); later nobody wants the answer


ANYONE = Caller()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How texts become tokens, for every request that reads texts."""

    truncate: bool | None = None  # None: the server's setting, else `truncate_by_default`
    truncate_by_default: bool = False  # the dialect's rule, where neither request nor server says
    truncate_side: Side = "right"
    prompt_name: str | None = None  # a key of the model's prompts; None: the model's default prompt
    kind: InputKind | None = None  # the model's prompt for such inputs, if it has one; `prompt_name` outranks it
    prompt: str | None = None  # the words themselves; they outrank both
    max_tokens: int | None = None  # of an input, specials included, where that is less than the model reads
    add_special_tokens: bool = True
    # Whether lists of ids are of the model's own vocabulary, or only if they stand between its special tokens; other
    # ids are then decoded by a table the engine has, or refused.
    own_ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkOptions:
    """How a long text is cut into pieces."""

    max_tokens: int  # of a chunk, specials not counted
    by: Literal["tokens", "sentences"] = "tokens"
    overlap_tokens: int = 0  # that a chunk shares with the one before it; of whole sentences if cut by those


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Any of the vectors that the model makes of a text, all from one pass; with no `outputs`, none."""

    inputs: Sequence[Input]
    model: str | None = None  # None: the first served model that can
    text: TextOptions = TextOptions()
    outputs: frozenset[VectorKind] = frozenset({"dense"})
    normalize: bool = True  # dense only: L2, after `dimensions`
    dimensions: int | None = None  # dense only: keep this many leading numbers
    force_dimensions: bool = False  # even where the model was not trained to be cut
    precisions: tuple[Precision, ...] = ("float",)  # dense only: in each of these
    expect_fingerprint: str | None = None  # as Caller's, for clients that cannot set a header
    partial: bool = False  # an input that cannot be embedded fails alone; False: it fails the request
    waits: bool = False  # where the server is full, for as long as any wait may be; False: as the server's setting says


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsRequest:
    """Long texts in pieces: a dense vector for each chunk."""

    documents: Sequence[str]
    chunks: ChunkOptions | None  # None: `spans` says where the chunks are
    spans: Sequence[Sequence[Span]] | None = None  # of each document: its chunks, in order and apart
    model: str | None = None
    text: TextOptions = TextOptions()
    late: bool = False  # the model reads the whole text, and each chunk's vector is pooled from its own tokens
    mean: bool = False  # the mean of a document's chunks, too
    normalize: bool = True
    dimensions: int | None = None
    precisions: tuple[Precision, ...] = ("float",)  # the chunks' vectors in each of these; the mean is float
    force_dimensions: bool = False
    expect_fingerprint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest:
    """How well each passage answers the query."""

    query: str
    passages: Sequence[str]
    model: str | None = None  # None: the first served model with scores of its own, else the first that embeds
    text: TextOptions = TextOptions()
    method: RerankMethod | None = None  # None: the model's own scores, else its best vectors
    weights: tuple[float, float, float] | None = None  # weighted: of dense, sparse, colbert; None: BGE-M3's own
    raw: bool | None = (
        None  # scores: the logit (True) or what the model's kind makes of it; None: the dialect's default
    )
    instruction: str | None = None  # for language models; None: the model's own
    chunks: ChunkOptions | None = None  # score each chunk of a passage; the best one counts
    max_passage_tokens: int | None = None  # a longer passage is cut to so many, whether `text` truncates or not


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyRequest:
    """A score a label, of texts or of pairs of texts."""

    inputs: Sequence[str | tuple[str, str]]
    model: str | None = None  # None: the first served model that classifies
    text: TextOptions = TextOptions()
    raw: bool = False  # the logits


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityRequest:
    """Cosine of one text with each of several."""

    source: str
    sentences: Sequence[str]
    model: str | None = None
    text: TextOptions = TextOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeRequest:
    inputs: Sequence[str]
    model: str | None = None
    add_special_tokens: bool = True
    prompt_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRequest:
    ids: Sequence[Sequence[int]]
    model: str | None = None
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ListModels:
    """All served models; with `model`, that one alone (ModelNotFound if it is not served)."""

    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModel:
    """Load a served model now; answers when it is ready. The operator's, never a client's."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadModel:
    """Give a model's memory back once nobody uses it; it loads again on its next use."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowStatistics:
    """What the engine has done since it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiRequest:
    """Requests that one body asks for at once: all are answered, or the first failure is."""

    requests: Sequence[EmbedRequest | RerankRequest | ClassifyRequest]


# What one model answers.
ModelRequest: TypeAlias = (
    EmbedRequest
    | DocumentsRequest
    | SimilarityRequest
    | RerankRequest
    | ClassifyRequest
    | TokenizeRequest
    | DecodeRequest
)
Request: TypeAlias = ModelRequest | ListModels | LoadModel | UnloadModel | ShowStatistics | MultiRequest


# --- results --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextLength:
    """The honest length contract, per input. Tokens include specials and prompt."""

    seen: int  # tokens the text has; a lower bound where `characters_cut` is not 0
    kept: int  # tokens the model read
    characters_cut: int = 0  # characters dropped before tokenising, because no model limit could reach them

    @property
    def truncated(self) -> bool:
        return self.kept < self.seen or self.characters_cut > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds. `tokenize_s`, `queue_s`, `inference_s` are means over the texts; a cached text counts as 0.

    `tokenizing_s`, `waiting_s`, `computing_s` are the request's as a whole: spent on making tokens, from there to the
    begin of its first forward, and from that to the end of its last one.
    """

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    total_s: float = 0.0
    tokenizing_s: float = 0.0
    waiting_s: float = 0.0
    computing_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    lengths: Sequence[TextLength]  # of each input; of pairs: query and passage together
    characters: int  # of the inputs as sent, before truncation
    timings: Timings = Timings()
    further_tokens: int = 0  # run beyond `lengths`: by a second model, or a query's own

    @property
    def tokens(self) -> int:
        """What was run, and is billed."""
        return sum(length.kept for length in self.lengths) + self.further_tokens


@dataclass(frozen=True, slots=True)
class Sparse:
    """Weights of some words of the vocabulary, all above 0; each index once."""

    indices: Int32  # (n,) in order of first appearance, or ascending for SPLADE
    values: Float32  # (n,)


@dataclass(frozen=True, slots=True)
class Span:
    """Characters of a text as it was sent: text[start:stop]."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedResult:
    """Row i belongs to `inputs[i]`. What was not asked for is empty or None."""

    model: str
    fingerprint: str
    usage: Usage
    dense: Mapping[Precision, npt.NDArray[np.generic]] = field(default_factory=dict)  # (N, D); binary: (N, D / 8)
    sparse: Sequence[Sparse] | None = None
    colbert: Sequence[Float32] | None = None  # (n_i, C) each, rows of length 1
    tokens: Sequence[Float32] | None = None  # (n_i, H) each
    sources: Mapping[VectorKind, str] = field(default_factory=dict)  # which model made what
    lengths: Mapping[str, Sequence[TextLength]] = field(default_factory=dict)  # by model: each has its own tokenizer
    limits: Mapping[str, int] = field(default_factory=dict)  # tokens each of those models reads
    failures: Mapping[int, VectordError] = field(default_factory=dict)  # by input; its rows say nothing then


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentChunk:
    span: Span
    tokens: int  # content tokens, specials not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedDocument:
    chunks: Sequence[DocumentChunk]
    vectors: Mapping[Precision, npt.NDArray[np.generic]]  # (chunks, D); binary: (chunks, D / 8)
    mean: Float32 | None = None  # (D,)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentsResult:
    model: str
    fingerprint: str
    documents: Sequence[ChunkedDocument]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankResult:
    """`scores[i]` belongs to `passages[i]`; a higher one is better, whatever its kind."""

    model: str
    fingerprint: str
    scores: Float32  # (N,)
    kind: ScoreKind
    usage: Usage
    query: TextLength  # as the model read it
    passages: Sequence[TextLength]
    max_tokens: int  # that the model reads, query and passage together where it reads pairs
    spans: Sequence[Span] | None = None  # the chunk of each passage that won, where chunks were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifyResult:
    model: str
    fingerprint: str
    labels: Sequence[str]
    scores: Float32  # (N, labels)
    kind: ScoreKind
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class SimilarityResult:
    model: str
    fingerprint: str
    scores: Float32  # (N,) cosine
    usage: Usage


@dataclass(frozen=True, slots=True)
class Token:
    id: int
    text: str
    special: bool
    start: int | None  # BYTE offsets into the prompted text; None for special tokens
    stop: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeResult:
    model: str
    tokens: Sequence[Sequence[Token]]
    usage: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    model: str
    texts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The facts of one served model, as `/info` and `/v1/models` show them; limits are the enforced ones."""

    name: str  # the served name
    model_id: str  # what the operator asked for: a hub id, a folder's name, a package
    revision: str | None
    fingerprint: str  # short hash of what makes the vector space
    architecture: str  # config.json's model_type
    outputs: frozenset[VectorKind]  # the vectors it makes
    reranks: bool  # has scores of its own for a query and a passage
    labels: Sequence[str]  # of a classifier
    pooling: str  # "" if it makes no dense vector
    dimensions: int  # 0 if it makes none
    matryoshka: Sequence[int] | None  # the dimensions it was trained to be cut to; None: not known
    max_input_tokens: int
    dtype: str
    device: str  # those that run it, each once: cuda:0,cuda:1
    backend: str
    state: Literal["unloaded", "loading", "ready", "failed", "stalled"]
    pinned: bool  # never unloaded to make room
    created_unix_s: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, DeviceState] = field(default_factory=dict)  # each that runs it, a replica being one
    sources: Mapping[VectorKind, str] = field(default_factory=dict)  # of a composite: which served model makes what


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_inputs_per_request: int
    max_batch_tokens: int
    max_batch_texts: int | None
    max_concurrent_requests: int
    tokenization_workers: int
    truncates: bool | None  # the server's setting; None: each dialect's own default


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    models: Sequence[ModelInfo]
    limits: Limits
    starting: bool = False  # models of the start are still loading: requests to those are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Since the start. `embed_` counts requests for vectors, `batches` those of models that make them; refused are the
    requests of any kind that met a full queue."""

    uptime_s: float
    embed_requests: int
    embed_texts: int
    batches: int
    refused_requests: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Bytes of a device that has memory of its own. allocated, reserved: by this process."""

    allocated: int
    reserved: int
    free: int
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What an engine is like at one moment."""

    queued_tokens: Mapping[Lane, int]
    wait_s: float  # of the model with most work waiting: how long that will take
    max_wait_s: float  # beyond which requests are refused
    under_way: int  # requests
    places: int  # for them
    cached_texts: int
    cache_bytes: int
    memory_bytes: Mapping[str, int]  # by model, an estimate; 0: not in memory
    devices: Mapping[str, DeviceMemory]  # that have memory of their own, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiResult:
    """Each of its request, in order."""

    results: Sequence[EmbedResult | RerankResult | ClassifyResult]
    usage: Usage  # of all together, lengths in their order


Result: TypeAlias = (
    EmbedResult
    | DocumentsResult
    | SimilarityResult
    | RerankResult
    | ClassifyResult
    | TokenizeResult
    | DecodeResult
    | ModelList
    | Statistics
    | MultiResult
)
