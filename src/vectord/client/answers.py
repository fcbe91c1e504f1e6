"""What calls give back. Frozen values; arrays are the caller's own, writable and C-contiguous."""

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


class Batch(NamedTuple):
    """Some of the texts that embed_iter was given, in order, and their vectors."""

    texts: Sequence[str]
    vectors: Array  # (texts, D)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embeddings:
    """Row i belongs to the caller's text i. What was not asked for is None."""

    model: str  # "" if there were no texts
    fingerprint: str  # of the vector space; "" if there were no texts
    dense: Float32 | None  # (N, D)
    sparse: scipy.sparse.csr_array | None  # (N, 2**18 or more) float32, a column a token id: sparse.py says how wide
    colbert: Sequence[Float32] | None = field(repr=False)  # (n_i, C) each, a vector a token
    tokens: Sequence[Float32] | None = field(repr=False)  # (n_i, H) each, the network's last hidden states
    truncated: Sequence[int]  # the texts that a model did not read to their end
    tokens_read: int  # by all models together


class Span(msgspec.Struct, frozen=True):
    """Characters of a text as it was given: text[start:stop]."""

    start: int
    stop: int


class Ranked(msgspec.Struct, frozen=True):
    """A passage and how well it answers the query."""

    index: int  # of the passage, as given
    score: float
    passage: str
    span: Span | None = None  # the chunk that scored so, where chunks were asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking(Sequence[Ranked]):
    """Passages, best first; equal scores in the order given."""

    ranked: Sequence[Ranked]
    score_kind: str  # logit, probability, cosine, maxsim, dot or weighted; scores of two kinds cannot be compared
    model: str
    fingerprint: str
    truncated: Sequence[int]  # the passages that were not read to their end, also of those that top_n left out
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
    """One of a classifier's, and its score for a text."""

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
    """A text in chunks: chunk i is text[spans[i].start : spans[i].stop], of tokens[i] tokens, with vectors[i]."""

    spans: Sequence[Span]
    tokens: Sequence[int]
    vectors: Float32  # (chunks, D)
    mean: Float32 | None  # (D,), where it was asked for


class Model(msgspec.Struct, frozen=True):
    """What is served under a name. docs/api.md, "Models", says what the fields mean."""

    name: str
    model_id: str
    fingerprint: str
    architecture: str
    outputs: Sequence[str]  # the vectors it makes
    reranks: bool
    labels: Sequence[str]
    dimensions: int  # 0: it makes no dense vectors
    matryoshka: Sequence[int] | None
    max_input_tokens: int
    prompts: Mapping[str, str]
    state: str  # unloaded, loading, ready or failed


class Health(msgspec.Struct, frozen=True):
    """How the server is."""

    status: str  # healthy or unhealthy
    states: Mapping[str, str]  # of each model: unloaded, loading, ready, failed or stalled
    version: str

    @property
    def ready(self) -> bool:
        """Whether requests will be answered."""
        return self.status == "healthy"
