"""Replies -> values and vectors. Every function raises ServerFailed for a reply that docs/api.md does not describe."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from .answers import Array, Document, Float32, Health, Label, Model, Span, Token
from .errors import ServerFailed
from .options import VectorKind
from .requests import HttpReply

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

T = TypeVar("T")

FLOATS = "<f4"  # of vectors in base64
LAYOUTS: Mapping[str, str] = {"float": FLOATS, "int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1"}

# No reply states the size of the vocabulary, and matrices of two calls must be equally wide to be multiplied. So all
# are as wide as Gemma's vocabulary, the largest in docs/models.md, or a power of two beyond it.
LEAST_WIDTH = 2**18

# The exceptions that a reply of the wrong shape causes in the code that reads it.
UNREADABLE = (
    ValueError,
    LookupError,
    OverflowError,
    AttributeError,
    TypeError,
    RecursionError,
    msgspec.MsgspecError,
)


@contextmanager
def reading(reply: HttpReply) -> Iterator[None]:
    """Turns every failure within into ServerFailed."""
    try:
        yield
    except UNREADABLE as cause:
        raise ServerFailed(
            "docs/api.md does not describe such a response.",
            status=reply.status,
            request_id=reply.headers.get("x-request-id"),
        ) from cause


# --- values ---------------------------------------------------------------------------------------------------


class _RankedPassage(msgspec.Struct):
    index: int
    score: float
    logit: float = 0.0  # orders equal scores; absent without an activation function
    span: Span | None = None


class _Warning(msgspec.Struct):
    type: str
    index: int | None = None


class RankedPassages(msgspec.Struct):
    model: str
    score_kind: str
    results: list[_RankedPassage]
    warnings: list[_Warning]


class _Data(msgspec.Struct, Generic[T]):
    data: list[T]


class _Labels(msgspec.Struct):
    labels: list[Label]


class _Scores(msgspec.Struct):
    scores: list[float]


class _TokenizedText(msgspec.Struct):
    tokens: list[Token]


class _Text(msgspec.Struct):
    text: str


class _Models(msgspec.Struct):
    models: list[Model]


class _Chunk(msgspec.Struct):
    start: int
    stop: int
    tokens: int
    vector: str


class _Document(msgspec.Struct):
    chunks: list[_Chunk]
    mean: str | None = None


def read_ranked(reply: HttpReply, passages: int, top_n: int | None) -> RankedPassages:
    with reading(reply):
        answer = msgspec.json.decode(reply.body, type=RankedPassages)
        if len(answer.results) != min(top_n or passages, passages):
            raise ValueError("the number of passages differs from the request")
        indices = {one.index for one in answer.results}
        if len(indices) < len(answer.results) or not indices <= set(range(passages)):
            raise ValueError("a passage appears twice, or was not sent")
        return answer


def _reader(kind: Any, values: Callable[[Any], list[T]]) -> Callable[[HttpReply, int], list[T]]:
    """A function that reads a reply as JSON of the type `kind`, of which `values` has one for each of so many items."""
    decoder = msgspec.json.Decoder(kind)

    def read(reply: HttpReply, items: int) -> list[T]:
        with reading(reply):
            found = values(decoder.decode(reply.body))
            if len(found) != items:
                raise ValueError("the number of values differs from the number of items")
            return found

    return read


def _document(found: _Document) -> Document:
    return Document(
        spans=[Span(chunk.start, chunk.stop) for chunk in found.chunks],
        tokens=[chunk.tokens for chunk in found.chunks],
        vectors=_decode_rows([chunk.vector for chunk in found.chunks]),
        mean=None if found.mean is None else _decode_rows([found.mean])[0],
    )


read_labels = _reader(_Data[_Labels], lambda found: [one.labels for one in found.data])
read_scores = _reader(_Scores, lambda found: found.scores)
read_tokens = _reader(_Data[_TokenizedText], lambda found: [one.tokens for one in found.data])
read_texts = _reader(_Data[_Text], lambda found: [one.text for one in found.data])
read_documents = _reader(_Data[_Document], lambda found: [*map(_document, found.data)])


def read_models(reply: HttpReply) -> list[Model]:
    with reading(reply):
        return msgspec.json.decode(reply.body, type=_Models).models


def read_health(reply: HttpReply) -> Health:
    with reading(reply):
        return msgspec.json.decode(reply.body, type=Health)


# --- vectors --------------------------------------------------------------------------------------------------


class SparseVector(NamedTuple):
    """One text's weights: ids (m,) and weights (m,)."""

    ids: npt.NDArray[np.int32]
    weights: Float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyVectors:
    """All vectors of one reply. truncated: indices within the request. failures: why rows have zeros or no vectors.
    pages: the index within the request and the page, if any, of each row."""

    model: str
    dense: Array | None
    sparse: Sequence[SparseVector] | None
    colbert: Sequence[Array] | None
    muvera: Float32 | None
    tokens: Sequence[Float32] | None
    truncated: Sequence[int]
    failures: Mapping[int, str]
    pages: Sequence[tuple[int, int | None]]


class _Sparse(msgspec.Struct):
    indices: list[int]
    values: list[float]


class _Failure(msgspec.Struct):
    message: str


class _Embedded(msgspec.Struct):
    index: int
    page: int | None = None
    dense: str | None = None
    sparse: _Sparse | None = None
    colbert: list[str] | None = None
    muvera: str | None = None
    tokens: list[str] | None = None
    truncated: list[Any] | None = None
    error: _Failure | None = None


class _EmbedBody(msgspec.Struct):
    model: str
    data: list[_Embedded]


def read_vectors(
    reply: HttpReply,
    outputs: Collection[VectorKind | Literal["muvera"]],
    texts: int,
    *,
    layout: str = FLOATS,
    rows_layout: str = FLOATS,
    partial: bool = False,
) -> ReplyVectors:
    """All of `outputs`, for each of the texts, in order; a PDF has a row for each page.

    layout, rows_layout: numpy's names of the numbers of dense and of ColBERT vectors.
    partial: the request accepts failures of single texts.
    """
    with reading(reply):
        answer = msgspec.json.decode(reply.body, type=_EmbedBody)
        failures = {index: one.error.message for index, one in enumerate(answer.data) if one.error is not None}
        if failures and not partial:
            raise ValueError("a text has no vectors")

        def given(kind: str) -> list[Any]:
            """The vectors of the texts that have some; None for a text that failed."""
            return [value for one in answer.data if (value := getattr(one, kind)) is not None or one.error is not None]

        indices = [one.index for one in answer.data]
        if sorted({*indices}) != [*range(texts)] or indices != sorted(indices):
            raise ValueError("a text has no vectors, or they are out of order")
        for kind in outputs:
            if len(given(kind)) != len(indices):
                raise ValueError("the number of vectors differs from the number of texts")
        dense = given("dense")
        return ReplyVectors(
            model=answer.model,
            dense=_decode_rows(dense, layout) if dense else None,
            sparse=list(map(_sparse, given("sparse"))) or None,
            colbert=[_decode_rows(rows or (), rows_layout) for rows in given("colbert")] or None,
            muvera=_decode_rows(encodings) if (encodings := given("muvera")) else None,
            tokens=[_decode_rows(rows or ()) for rows in given("tokens")] or None,
            truncated=[one.index for one in answer.data if one.truncated],
            failures=failures,
            pages=[(one.index, one.page) for one in answer.data],
        )


def _decode_rows(encoded: Sequence[str | None], layout: str = FLOATS) -> Array:
    """Vectors in base64, all of one width: (n, D), a writable copy; zeros for None."""
    rows = [None if one is None else a2b_base64(one) for one in encoded]
    zeros = bytes(len(next(filter(None, rows), b"")))
    numbers = np.frombuffer(b"".join(zeros if row is None else row for row in rows), layout)
    numbers = numbers.astype(numbers.dtype.newbyteorder("="))
    return numbers.reshape(len(encoded), -1) if encoded else numbers.reshape(0, 0)


def _sparse(vector: _Sparse | None) -> SparseVector:
    """Raises ValueError for negative ids and for arrays of different lengths."""
    if vector is None:
        return SparseVector(np.empty(0, np.int32), np.empty(0, np.float32))
    found = SparseVector(np.array(vector.indices, np.int32), np.array(vector.values, np.float32))
    if len(found.ids) != len(found.weights) or found.ids.min(initial=0) < 0:
        raise ValueError("invalid sparse vector")
    return found


def csr_of(rows: Sequence[SparseVector]) -> csr_array:
    """(N, LEAST_WIDTH or more) float32; the token ids of a row ascend."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - an extra, which takes 0.3 s to import

    ends = np.cumsum([0, *(len(row.ids) for row in rows)])  # (N + 1,)
    ids = np.concatenate([np.empty(0, np.int32), *(row.ids for row in rows)])
    weights = np.concatenate([np.empty(0, np.float32), *(row.weights for row in rows)])
    width = max(LEAST_WIDTH, 1 << int(ids.max(initial=0)).bit_length())
    matrix = csr_array((weights, ids, ends), shape=(len(rows), width))
    matrix.sort_indices()
    return matrix
