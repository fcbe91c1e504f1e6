"""The values that calls return. All are frozen; arrays are writable, C-contiguous copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload

import msgspec
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import scipy.sparse  # type: ignore[import-untyped]

Array: TypeAlias = npt.NDArray[Any]
Float32: TypeAlias = npt.NDArray[np.float32]


class VectorBatch(NamedTuple):
    """Some texts of `embed_iter`, in order, and their vectors."""

    texts: Sequence[str]
    vectors: Array  # (texts, D)


class InputPage(msgspec.Struct, frozen=True):
    """The origin of a row of vectors."""

    index: int  # in the list of texts
    page: int | None  # of a PDF, counted from 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """Vectors of several kinds. Row i belongs to text i, or to `pages[i]`; a kind that was not requested is None."""

    model: str  # "" if there were no texts
    fingerprint: str  # of the vector space; "" if there were no texts
    dense: Float32 | None  # (N, D)
    sparse: scipy.sparse.csr_array | None  # (N, 2**18 or more) float32, one column for each token id
    colbert: Sequence[Array] | None = field(repr=False)  # (n_i, C) each, one vector for each token
    muvera: Float32 | None = field(repr=False)  # (N, F), if the option `colbert` requests it
    tokens: Sequence[Float32] | None = field(repr=False)  # (n_i, H) each, the network's last hidden states
    truncated: Sequence[int]  # indices of the texts that a model did not read to the end
    tokens_read: int  # by all models together
    pages: Sequence[InputPage] = field(default=(), repr=False)  # if one of the texts is a PDF: the origin of each row


class Span(msgspec.Struct, frozen=True):
    """A range of characters: text[start:stop]."""

    start: int
    stop: int


class Ranked(msgspec.Struct, frozen=True):
    """A passage and its score for the query."""

    index: int  # in the list of passages
    score: float
    passage: Any  # as it was given
    span: Span | None = None  # the best chunk, if `chunk` was set


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Sequence[Ranked]):
    """Passages, best first; equal scores by their logits, then in the order of the request."""

    ranked: Sequence[Ranked]
    score_kind: str  # logit, probability, cosine, maxsim, dot or weighted; scores of two kinds cannot be compared
    model: str
    fingerprint: str
    truncated: Sequence[int]  # indices of the truncated passages, including those that `top_n` left out
    query_truncated: bool
    tokens_read: int

    def __len__(self) -> int:
        return len(self.ranked)

    @overload
    def __getitem__(self, place: int) -> Ranked: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Ranked]: ...
    def __getitem__(self, place: int | slice) -> Ranked | Sequence[Ranked]:
        return self.ranked[place]


class Label(msgspec.Struct, frozen=True):
    """A label of a classifier, and its score for a text."""

    label: str
    score: float


class Token(msgspec.Struct, frozen=True):
    """start, stop: BYTE offsets into the text with its prompt; None for special tokens."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Document:
    """A text in chunks. Chunk i is text[spans[i].start : spans[i].stop]; it has tokens[i] tokens and vectors[i]."""

    spans: Sequence[Span]
    tokens: Sequence[int]
    vectors: Float32  # (chunks, D)
    mean: Float32 | None  # (D,), if it was requested


class Model(msgspec.Struct, frozen=True):
    """A served model. docs/api.md, "Models", explains the fields."""

    name: str
    model_id: str
    fingerprint: str
    architecture: str
    outputs: Sequence[str]  # kinds of vectors
    reranks: bool
    labels: Sequence[str]
    dimensions: int  # 0: no dense vectors
    matryoshka: Sequence[int] | None
    max_input_tokens: int
    prompts: Mapping[str, str]
    state: str  # unloaded, loading, ready or failed


class Health(msgspec.Struct, frozen=True):
    """The state of the server."""

    status: str  # healthy or unhealthy
    states: Mapping[str, str]  # of each model: unloaded, loading, ready, failed or stalled
    version: str

    @property
    def ready(self) -> bool:
        """Whether the server answers requests."""
        return self.status == "healthy"
