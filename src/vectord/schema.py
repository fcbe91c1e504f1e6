"""The canonical requests and results, independent of any product.

Products parse bodies into these requests and render these results; the engine answers a request with a result. Frozen
structs and numpy arrays, no web types. They cross a socket if engine and server are two processes.

Values are structs of msgspec throughout the server: a dataclass takes thirty times as long to define at the start, and
a frozen one ten times as long to make.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta
from msgspec.structs import replace

from vectord.errors import VectordError

Float32: TypeAlias = npt.NDArray[np.float32]
Int32: TypeAlias = npt.NDArray[np.int32]
Features: TypeAlias = npt.NDArray[np.uint8 | np.float32]  # of pixels; of rows that a network of images has made
Side: TypeAlias = Literal["right", "left"]  # the end that is cut off
Lane: TypeAlias = Literal["interactive", "bulk"]
DeviceState: TypeAlias = Literal["ready", "hung", "lost"]  # hung: in part; lost: until the model loads again
InputKind: TypeAlias = Literal["query", "document", "classification", "clustering"]
VectorKind: TypeAlias = Literal["dense", "sparse", "colbert", "tokens"]  # the vectors of a text
VECTOR_KINDS: frozenset[VectorKind] = frozenset(get_args(VectorKind))
Modality: TypeAlias = Literal["text", "image"]  # of an input
AnswerKind: TypeAlias = Literal[VectorKind, "scores", "token_scores"]  # all that models compute
Precision: TypeAlias = Literal["float", "int8", "uint8", "binary", "ubinary"]
# logit: any number; probability: 0 to 1; cosine: -1 to 1; maxsim: a sum or mean of cosines; dot: any number
ScoreKind: TypeAlias = Literal["logit", "probability", "cosine", "maxsim", "dot", "weighted"]
RerankMethod: TypeAlias = Literal["scores", "dense", "colbert", "sparse", "weighted"]


PDF: Literal["application/pdf"] = "application/pdf"


class Media(msgspec.Struct, frozen=True):
    """A file that is not a text: an image, or a PDF."""

    data: bytes
    type: Literal["image/*", "application/pdf"] = "image/*"
    page: int | None = None  # of a PDF, counted from 1; None: each page is an input of its own
    url: str = ""  # where `data`, empty until then, is fetched before the engine receives the request

    @property
    def has_pages(self) -> bool:
        """Whether it stands for several inputs."""
        return self.type == PDF and self.page is None


# A text; an image; or several of them in order, one of which is an image.
Item: TypeAlias = str | Media | Sequence[str | Media]
# The same; token ids of the model's own vocabulary; or ids and texts, joined.
Input: TypeAlias = str | Media | Sequence[int | str | Media]


class InputPage(msgspec.Struct, frozen=True, array_like=True):
    """The place of an input that was a page of a PDF, or was among PDFs."""

    index: int  # of the file among the inputs of the request
    page: int | None  # counted from 1; None: the input is no PDF


def item_of(parts: Sequence[str | Media]) -> Item:
    """The parts of one item: texts alone are joined by newlines."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return parts[0] if len(parts) == 1 else parts


def media_of(item: Input | tuple[str, str]) -> Sequence[Media]:
    """The images and PDFs of an input; none of one that begins with a token id."""
    if isinstance(item, Media):
        return [item]
    if isinstance(item, str) or not item or isinstance(item[0], int):
        return ()
    return [piece for piece in item if isinstance(piece, Media)]


def best_first(scores: Float32, logits: Float32 | None) -> npt.NDArray[np.intp]:
    """The indices of `scores` (N,), best first; equal scores by their logits (N,), and then in order.

    An activation function rounds different logits to one score: in float32, a sigmoid is 1 from 17 on.
    """
    return np.lexsort((-scores,) if logits is None else (-logits, -scores))


class Caller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The client of a request. `client` is a key's name or an address, never the key itself."""

    client: str = ""
    named: bool = False  # whether `client` is a key's name; then it may be a label in the metrics
    lane: Lane | None = None  # None: the engine infers it from the size of the request
    request_id: str = ""
    route: str = ""  # the path's template, or a gRPC call's name; a label in the metrics
    models: frozenset[str] | None = None  # models that the client may use; others count as not served; None: all
    expect_fingerprint: str | None = None  # reject the request if the model has another vector space
    deadline_s: float | None = None  # by time.monotonic(); the response is useless later
    operator: bool = True  # the admin key, or anyone on a server without keys: learns why a model failed
    cache_salt: str = ""  # the request's TextOptions.cache_salt; set by the engine


ANYONE = Caller()


class TextOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How texts become tokens, for every request that reads texts."""

    truncate: bool | None = None  # None: the server's setting, else `truncate_by_default`
    truncate_by_default: bool = False  # the product's default, if neither request nor server sets one
    truncate_side: Side = "right"
    prompt_name: str | None = None  # a key of the model's prompts; None: the model's default prompt
    kind: InputKind | None = None  # the model's prompt for such inputs, if it has one; `prompt_name` outranks it
    prompt: str | None = None  # the prompt's text; outranks both
    # The name of an adapter or a prompt of the model. Ignored if the model has no adapters and no such prompt.
    task: str | None = None
    max_tokens: int | None = None  # of an input, specials included; a lower limit than the model's
    add_special_tokens: bool = True
    # True: lists of ids are of the model's own vocabulary. False: only those between its special tokens; other ids are
    # rejected.
    own_ids: bool = False
    cache_salt: str = ""  # requests share cached answers only if they have the same salt
    count_all: bool = False  # TextLength.seen is exact for a text of any length; False: a lower bound

    @property
    def is_query(self) -> bool:
        """Whether the texts are queries, by their kind or by the name of their prompt."""
        return "query" in (self.kind, self.prompt_name)

    def truncates(self, by_setting: bool | None) -> bool:
        """Whether a long text is truncated: the request's choice, else the server's, else the product's default."""
        choices = (self.truncate, by_setting, self.truncate_by_default)
        return next(choice for choice in choices if choice is not None)


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that the model's chat template turns into one text."""

    # JSON: objects with `role`, `content` (a list of texts, and {"type": "image"}) and what else the template may read
    messages: str
    media: Sequence[Media] = ()  # the images, in the order of their places
    variables: str = "{}"  # JSON: further names that the template may read
    add_generation_prompt: bool = False  # with the beginning of an answer at the end
    continue_final_message: bool = False  # without the end of the last message

    @property
    def item(self) -> Item:
        """The texts and images of all messages, in order, without a template."""
        return self._item(msgspec.json.decode(self.messages))

    @property
    def instruction_and_item(self) -> tuple[str, Item] | None:
        """The text of the system's message, and the item of the user's, if there are no others; an empty message may be
        the beginning of an answer."""
        messages = msgspec.json.decode(self.messages)
        if not messages:
            return None
        first, *others = messages if messages[0]["role"] == "system" else ({"content": []}, *messages)
        answers = [not any(message["content"]) for message in others[1:] if message["role"] == "assistant"]
        if not others or others[0]["role"] != "user" or not all(answers) or len(answers) != len(others) - 1:
            return None
        if not all(isinstance(part, str) for part in first["content"]):
            return None
        return "".join(first["content"]), self._item(others[:1])

    def _item(self, messages: Sequence[Mapping[str, Any]]) -> Item:
        media = iter(self.media)
        parts = [part for message in messages for part in message["content"]]
        return item_of([part if isinstance(part, str) else next(media) for part in parts])


class ChunkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a long text is cut into chunks."""

    max_tokens: int  # of a chunk, specials not counted
    # rows: exactly so many tokens of the sequence that the model reads, specials counted; for late chunking only
    by: Literal["tokens", "sentences", "rows"] = "tokens"
    overlap_tokens: int = 0  # shared with the chunk before; whole sentences if cut by sentences


class Muvera(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One vector of a text in place of one per token: MUVERA's fixed dimensional encoding, for inner products.

    Vectors with other values, or of a model of another width, cannot be compared.
    """

    k_sim: Annotated[int, Meta(ge=1, le=10)] = 5  # hyperplanes of a repetition: they make 2**k_sim clusters
    dim_proj: Annotated[int, Meta(ge=1, le=128)] = 16  # numbers of a cluster
    r_reps: Annotated[int, Meta(ge=1, le=64)] = 20  # repetitions
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 42

    @property
    def width(self) -> int:
        return self.r_reps * self.dim_proj << self.k_sim


class MultiVectorOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of ColBERT vectors. They are cut, pooled and encoded in this order. Clients send these fields."""

    dimensions: Annotated[int, Meta(ge=1, lt=2**31)] | None = None  # leading numbers to keep; the length is 1 again
    # Of documents: keep 1 / pool_factor of the vectors, the means of similar ones.
    pool_factor: Annotated[float, Meta(ge=1, le=1000)] = 1.0
    protected_tokens: Annotated[int, Meta(ge=0, lt=2**31)] = 1  # leading vectors that are not pooled
    precision: Precision = "float"
    muvera: Muvera | None = None  # also encode each text as one float vector
    rows: bool = True  # False: the encoding alone


COLBERT_ROWS = MultiVectorOptions()


class EmbedRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Vectors of texts, all kinds from one forward pass; without `outputs`, none."""

    inputs: Sequence[Input]
    model: str | None = None  # None: the first served model that supports `outputs`
    text: TextOptions = TextOptions()
    outputs: frozenset[VectorKind] = frozenset({"dense"})
    normalize: bool = True  # dense only: L2, after `dimensions`
    dimensions: int | None = None  # dense only: keep this many leading numbers
    force_dimensions: bool = False  # also to a width that the model was not trained for
    precisions: tuple[Precision, ...] = ("float",)  # dense only: one result for each
    colbert: MultiVectorOptions = COLBERT_ROWS
    patches: bool = False  # ColBERT only: also the part of an image that each vector belongs to
    pictures: bool = False  # also a small picture of each page of a PDF
    expect_fingerprint: str | None = None  # as Caller's, for clients that cannot set a header
    partial: bool = False  # an input that cannot be embedded fails alone; False: it fails the request
    conversations: Sequence[Conversation] = ()  # the inputs, in place of `inputs`
    waits: bool = False  # at a full server: as long as the server's longest wait; False: as its setting says

    @property
    def has_only_texts(self) -> bool:
        """Whether each input is one text, as usual: no image, no token ids, no conversation."""
        return not self.conversations and set(map(type, self.inputs)) == {str}


class DocumentsRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Long texts in pieces: a dense vector for each chunk."""

    documents: Sequence[str]
    chunks: ChunkOptions | None  # None: the chunks are `spans`
    spans: Sequence[Sequence[Span]] | None = None  # the chunks of each document, in order and disjoint
    model: str | None = None
    text: TextOptions = TextOptions()
    vectors: bool = True  # False: only the spans of the chunks; nothing is computed
    late: bool = False  # the model reads the whole text, and each chunk's vector is pooled from its own tokens
    mean: bool = False  # also return the mean of each document's chunks
    normalize: bool = True
    dimensions: int | None = None
    precisions: tuple[Precision, ...] = ("float",)  # of the chunks' vectors; the mean is float
    force_dimensions: bool = False
    expect_fingerprint: str | None = None


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Scores of passages for a query."""

    query: Item
    passages: Sequence[Item]
    model: str | None = None  # None: the first served model with scores of its own, else the first that embeds
    text: TextOptions = TextOptions()
    method: RerankMethod | None = None  # None: the model's own scores, else its best vectors
    weights: tuple[float, float, float] | None = None  # weighted: of dense, sparse, colbert; None: BGE-M3's own
    raw: bool | None = None  # scores: the logit (True) or the model's activation of it; None: the model's default
    instruction: str | None = None  # for language models; None: the model's own
    chunks: ChunkOptions | None = None  # score each chunk of a passage; the best one counts
    max_passage_tokens: int | None = None  # a longer passage is cut to this, also without `truncate`
    max_query_tokens: int | None = None  # the same for the query


class ClassifyRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Scores of all labels for texts or pairs of texts."""

    inputs: Sequence[str | tuple[str, str]]
    ids: Sequence[Sequence[int]] = ()  # token ids of each input, in place of `inputs`
    model: str | None = None  # None: the first served model that classifies
    text: TextOptions = TextOptions()
    raw: bool = False  # the logits
    each_token: bool = False  # scores of every token, by a model that was trained for that
    conversations: Sequence[Conversation] = ()  # the inputs, in place of `inputs`


class SimilarityRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Cosine of one text with each of several."""

    source: str
    sentences: Sequence[str]
    model: str | None = None
    text: TextOptions = TextOptions()


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    inputs: Sequence[str]
    model: str | None = None
    add_special_tokens: bool = True
    prompt_name: str | None = None
    conversations: Sequence[Conversation] = ()  # the inputs, in place of `inputs`


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    ids: Sequence[Sequence[int]]
    model: str | None = None
    skip_special_tokens: bool = True


class ListModels(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """All served models, or the one named `model` (ModelNotFound if it is not served)."""

    model: str | None = None


class LoadModel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load a served model now; returns when it is ready. For operators only."""

    model: str


class UnloadModel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Unload a model after its last request; it loads again on its next use."""

    model: str


class PullModel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Begin to fetch a model from the hub, or report how far it is; serves it at the end. For operators only."""

    model: str


class RemoveModel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop serving a pulled model, and delete its files from the cache. For operators only."""

    model: str


class MultiRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Several requests in one body: all are answered, or the first failure is."""

    requests: Sequence[EmbedRequest | RerankRequest | ClassifyRequest]


# Requests that one model answers.
ModelRequest: TypeAlias = (
    EmbedRequest
    | DocumentsRequest
    | SimilarityRequest
    | RerankRequest
    | ClassifyRequest
    | TokenizeRequest
    | DecodeRequest
)
ManageRequest: TypeAlias = ListModels | LoadModel | UnloadModel | PullModel | RemoveModel
Request: TypeAlias = ModelRequest | ManageRequest | MultiRequest
# The requests that need a forward pass; in metrics and logs, too.
Operation: TypeAlias = Literal["embed", "documents", "similarity", "rerank", "classify"]


class ImageFacts(msgspec.Struct, frozen=True, array_like=True):
    """An image as sent, turned by its EXIF orientation, or a page of a PDF as drawn."""

    width: int  # pixels
    height: int
    format: str  # in lower case: "png", "jpeg", "pdf"
    bit_depth: int  # of a pixel, with all its channels


class TextLength(msgspec.Struct, frozen=True, array_like=True):
    """The length of an input before and after truncation. Tokens include specials and prompt."""

    seen: int  # tokens of the text; a lower bound if `characters_cut` is not 0
    kept: int  # tokens that the model read
    characters_cut: int = 0  # characters cut before tokenization, far above any token limit
    foreign: bool = False  # token ids that are read as the model's own, and that its tokenizer would not make
    images: Sequence[ImageFacts] = ()
    image_tokens: int = 0  # of `kept`: the rows of the images

    @property
    def truncated(self) -> bool:
        return self.kept < self.seen or self.characters_cut > 0

    @property
    def pixels(self) -> int:
        return sum(image.width * image.height for image in self.images)


class TextLengths(msgspec.Struct, frozen=True, array_like=True):
    """The lengths of N inputs in order: a number for each, and an object only where there is more to say."""

    kept: Sequence[int] = ()  # (N,) most inputs have the length TextLength(kept, kept)
    details: Mapping[int, TextLength] = {}  # the lengths of the others, by the place of their input, ascending

    @classmethod
    def of(cls, lengths: Sequence[TextLength]) -> TextLengths:
        details = {i: one for i, one in enumerate(lengths) if one != TextLength(one.kept, one.kept)}
        return cls([one.kept for one in lengths], details)

    @classmethod
    def join(cls, parts: Sequence[TextLengths]) -> TextLengths:
        starts = accumulate(map(len, parts), initial=0)
        details = {
            start + i: one for start, part in zip(starts, parts, strict=False) for i, one in part.details.items()
        }
        return cls([*chain.from_iterable(part.kept for part in parts)], details)

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, place: int) -> TextLength:
        return self.details.get(place) or TextLength(self.kept[place], self.kept[place])

    def __iter__(self) -> Iterator[TextLength]:
        return (self[place] for place in range(len(self.kept)))

    @property
    def truncated(self) -> Sequence[int]:
        """The places of truncated inputs."""
        return [place for place, length in self.details.items() if length.truncated]


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """When a request began, entered the queue, began its first forward pass, ended its last one, and ended, by
    time.perf_counter, which all processes of a machine share. Without a forward pass, queued_s, first_s and last_s are
    equal."""

    began_s: float = 0.0
    queued_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    ended_s: float = 0.0
    tokenizing_s: float = 0.0  # seconds of tokenization, before the queue

    @property
    def total_s(self) -> float:
        return self.ended_s - self.began_s

    @property
    def waiting_s(self) -> float:
        return self.first_s - self.queued_s

    @property
    def computing_s(self) -> float:
        return self.last_s - self.first_s


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    lengths: TextLengths  # of each input; of a pair: both texts together
    characters: int  # of the inputs as sent, before truncation
    timings: Timings = Timings()
    further_tokens: int = 0  # beyond `lengths`: run by a second model, or a query's own
    device: str = ""  # as in ModelInfo, of the model that ran `lengths`; "": none

    @property
    def tokens(self) -> int:
        """The tokens that were run and are billed."""
        return sum(self.lengths.kept) + self.further_tokens

    @property
    def image_tokens(self) -> int:
        return sum(length.image_tokens for length in self.lengths.details.values())

    @property
    def pixels(self) -> int:
        """Of the images as sent."""
        return sum(length.pixels for length in self.lengths.details.values())


class Sparse(msgspec.Struct, frozen=True):
    """Weights above 0 of words of the vocabulary; each index once."""

    indices: Int32  # (n,) in order of first appearance, or ascending for SPLADE
    values: Float32  # (n,)


class Span(msgspec.Struct, frozen=True):
    """Characters of the client's text: text[start:stop]."""

    start: int
    stop: int


class EmbedResult(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Row i belongs to `inputs[i]`, or to `pages[i]`. Kinds that were not requested are empty or None."""

    model: str
    fingerprint: str
    usage: Usage
    pages: Sequence[InputPage] = ()  # of all rows, if one of the inputs is a PDF
    dense: Mapping[Precision, npt.NDArray[np.generic]] = {}  # (N, D); binary: (N, D / 8)
    sparse: Sequence[Sparse] | None = None
    colbert: Sequence[npt.NDArray[np.generic]] | None = None  # (n_i, C) each, rows of length 1; binary: (n_i, C / 8)
    muvera: Float32 | None = None  # (N, Muvera.width)
    # (n_i, 4) each: left, top, right and bottom, in fractions of the image; a row of NaN, or None: words
    patches: Sequence[Float32 | None] | None = None
    pictures: Sequence[bytes] = ()  # JPEG files of `pages`; b"": no page, or one that cannot be drawn
    tokens: Sequence[Float32] | None = None  # (n_i, H) each
    sources: Mapping[VectorKind, str] = {}  # the model that made each kind
    lengths: Mapping[str, TextLengths] = {}  # by model: each has its own tokenizer
    limits: Mapping[str, int] = {}  # the token limit of each of those models
    failures: Mapping[int, VectordError] = {}  # by row, which has no meaning


class DocumentChunk(msgspec.Struct, frozen=True, kw_only=True):
    span: Span
    tokens: int  # content tokens, specials not counted


class ChunkedDocument(msgspec.Struct, frozen=True, kw_only=True):
    chunks: Sequence[DocumentChunk]
    vectors: Mapping[Precision, npt.NDArray[np.generic]]  # (chunks, D); binary: (chunks, D / 8)
    mean: Float32 | None = None  # (D,)


class DocumentsResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model: str
    fingerprint: str
    documents: Sequence[ChunkedDocument]
    usage: Usage


class RerankResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`scores[i]` belongs to `passages[i]`; higher is better for every kind."""

    model: str
    fingerprint: str
    scores: Float32  # (N,)
    logits: Float32 | None = None  # (N,) before the activation function, if there is one: see `best_first`
    kind: ScoreKind
    usage: Usage
    query: TextLength  # as read by the model
    passages: TextLengths
    max_tokens: int  # of the model, for query and passage together if it reads pairs
    spans: Sequence[Span] | None = None  # the best chunk of each passage, if chunks were requested


class ClassifyResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model: str
    fingerprint: str
    labels: Sequence[str]
    scores: Float32  # (N, labels); with `each_token`, of all tokens of all inputs in order, specials included
    logits: Float32 | None = None  # likewise, before the activation function, if there is one: see `best_first`
    tokens: Sequence[int] = ()  # with `each_token`: how many rows of `scores` each input has
    kind: ScoreKind
    usage: Usage


class SimilarityResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model: str
    fingerprint: str
    scores: Float32  # (N,) cosine
    usage: Usage


class Token(msgspec.Struct, frozen=True):
    """`start` and `stop` are byte offsets into the text with its prompt; null for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenizeResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model: str
    tokens: Sequence[Sequence[Token]]
    usage: Usage
    max_input_tokens: int = 0  # of the model


class DecodeResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model: str
    texts: Sequence[str]


class Gpu(msgspec.Struct, frozen=True):
    """The hardware of a device such as cuda:0."""

    name: str  # NVIDIA H100 80GB HBM3
    memory_bytes: int

    @property
    def memory_gb(self) -> float:
        return round(self.memory_bytes / 2**30, 2)


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a served model, for `/info` and `/v1/models`; limits are the enforced ones."""

    name: str  # the served name
    model_id: str  # as configured: a hub id, a folder's name, a package
    revision: str | None
    fingerprint: str  # identifies the vector space
    architecture: str  # config.json's model_type
    outputs: frozenset[VectorKind]  # the vectors it makes
    reranks: bool  # scores pairs of query and passage
    labels: Sequence[str]  # of a classifier
    pooling: str  # "" if it makes no dense vector
    dimensions: int  # of a request that names none; 0 if it makes none
    full_dimensions: int  # the most that a request may name
    matryoshka: Sequence[int] | None  # the widths that it was trained to be cut to; None: unknown
    max_input_tokens: int
    dtype: str
    device: str  # the devices that run it, each once: cuda:0,cuda:1
    backend: str
    state: Literal["unloaded", "loading", "ready", "failed", "stalled"]
    pinned: bool  # never unloaded to free memory
    created_unix_s: int
    modalities: Sequence[Modality] = ("text",)  # the inputs that it reads
    prompts: Mapping[str, str] = {}
    devices: Mapping[str, DeviceState] = {}  # each device or replica that runs it
    sources: Mapping[VectorKind, str] = {}  # of a composite: the served model for each kind
    gpu: Gpu | None = None  # that runs it, the first of several; None: the processor, or unknown
    adapters: Sequence[str] = ()  # each is served as MODEL:ADAPTER, too
    token_labels: Sequence[str] = ()  # of a classifier of tokens
    aliases: Sequence[str] = ()  # further names that select it
    failure: str = ""  # why it could not be loaded, for operators; "": it could

    @property
    def names(self) -> Sequence[str]:
        """Every name that selects the model, without those of its adapters."""
        return (self.name, *self.aliases)

    def seen_by(self, caller: Caller) -> ModelInfo:
        """These facts without the ones that only operators see."""
        return self if caller.operator or not self.failure else replace(self, failure="")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    max_inputs_per_request: int
    max_batch_tokens: int
    max_batch_texts: int | None
    max_concurrent_requests: int
    tokenization_workers: int
    truncates: bool | None  # the server's setting; None: each product's default


class ModelList(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    models: Sequence[ModelInfo]
    limits: Limits
    starting: bool = False  # models still load at the start, and reject requests
    required: Literal["any", "first", "all"] = "any"  # models that must answer before the server is ready


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a device with its own memory. allocated, reserved: by this process."""

    allocated: int
    reserved: int
    free: int
    total: int


class Gauges(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's state at one moment."""

    queued_texts: int
    queued_tokens: Mapping[Lane, int]
    active: Mapping[str, int]  # requests that the engine has admitted, by operation
    wait_s: float  # predicted for the longest queue of a model
    max_wait_s: float  # above which requests are rejected
    queued_embeds: int  # requests for vectors with queued texts
    under_way: int  # requests in the engine
    places: int  # most requests in the engine
    cached_texts: int
    cache_bytes: int
    cache_limit_bytes: int  # 0: no cache
    memory_bytes: Mapping[str, int]  # by model, estimated; 0: not loaded
    devices: Mapping[str, DeviceMemory]  # with their own memory, by name


class MultiResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The result of each request, in order."""

    results: Sequence[EmbedResult | RerankResult | ClassifyResult]
    usage: Usage  # of all together, lengths in order


class PullResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model: str  # the requested name; the served one at the end
    state: Literal["pulling", "served"]
    done_bytes: int = 0
    total_bytes: int = 0  # of all needed files


class RemoveResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    model: str  # the hub id
    freed_bytes: int


Result: TypeAlias = (
    EmbedResult
    | DocumentsResult
    | SimilarityResult
    | RerankResult
    | ClassifyResult
    | TokenizeResult
    | DecodeResult
    | ModelList
    | PullResult
    | RemoveResult
    | MultiResult
)
