"""Replies -> values and vectors. Every function raises ServerFailed for a reply that docs/api.md does not describe."""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.client.answers import Array, Document, Float32, Health, Label, Model, Span, Token
from vectord.client.errors import ServerFailed
from vectord.client.options import Dtype, VectorKind
from vectord.client.requests import HttpReply

if TYPE_CHECKING:
    from scipy.sparse import csr_array  # type: ignore[import-untyped]

T = TypeVar("T")
ReplyReader: TypeAlias = Callable[[HttpReply], T]

OCTETS = "application/octet-stream"
ARROW = "application/vnd.apache.arrow.stream"

# Little-endian on the wire; a byte of ubinary has eight bits, the first one highest.
LAYOUTS: Mapping[Dtype, str] = MappingProxyType({"float32": "<f4", "float16": "<f2", "int8": "i1", "ubinary": "u1"})

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


# --- JSON -----------------------------------------------------------------------------------------------------


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

    @property
    def truncated(self) -> list[int]:
        return [warning.index for warning in self.warnings if warning.index is not None]

    @property
    def query_truncated(self) -> bool:
        return any(warning.type == "query_truncated" for warning in self.warnings)


class _Labels(msgspec.Struct):
    labels: list[Label]


class _Classified(msgspec.Struct):
    data: list[_Labels]


class _Scores(msgspec.Struct):
    scores: list[float]


class _TokenizedText(msgspec.Struct):
    tokens: list[Token]


class _Tokenized(msgspec.Struct):
    data: list[_TokenizedText]


class _Text(msgspec.Struct):
    text: str


class _Decoded(msgspec.Struct):
    data: list[_Text]


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


class _Documents(msgspec.Struct):
    data: list[_Document]


def read_ranked(reply: HttpReply, passages: int, top_n: int | None) -> RankedPassages:
    with reading(reply):
        answer = msgspec.json.decode(reply.body, type=RankedPassages)
        if len(answer.results) != min(top_n or passages, passages):
            raise ValueError("the number of passages differs from the request")
        indices = {one.index for one in answer.results}
        if len(indices) < len(answer.results) or not indices <= set(range(passages)):
            raise ValueError("a passage appears twice, or was not sent")
        return answer


def _reader(kind: type[Any], values: Callable[[Any], T]) -> ReplyReader[T]:
    """A function that reads a reply as JSON of the type `kind` and returns `values` of it."""
    decoder = msgspec.json.Decoder(kind)

    def read(reply: HttpReply) -> T:
        with reading(reply):
            return values(decoder.decode(reply.body))

    return read


def _document(found: _Document) -> Document:
    return Document(
        spans=[Span(chunk.start, chunk.stop) for chunk in found.chunks],
        tokens=[chunk.tokens for chunk in found.chunks],
        vectors=_decode_rows([chunk.vector for chunk in found.chunks]),
        mean=None if found.mean is None else _decode_rows([found.mean])[0],
    )


read_labels: ReplyReader[list[list[Label]]] = _reader(_Classified, lambda found: [one.labels for one in found.data])
read_scores: ReplyReader[list[float]] = _reader(_Scores, lambda found: found.scores)
read_tokens: ReplyReader[list[list[Token]]] = _reader(_Tokenized, lambda found: [one.tokens for one in found.data])
read_texts: ReplyReader[list[str]] = _reader(_Decoded, lambda found: [one.text for one in found.data])
read_documents: ReplyReader[list[Document]] = _reader(_Documents, lambda found: list(map(_document, found.data)))
read_models: ReplyReader[list[Model]] = _reader(_Models, lambda found: found.models)
read_health: ReplyReader[Health] = _reader(Health, lambda found: found)


# --- vectors --------------------------------------------------------------------------------------------------


def read_matrix(reply: HttpReply, dtype: Dtype, rows: int) -> Array:
    """(rows, D), a read-only view of the reply's bytes."""
    with reading(reply):
        if reply.headers["x-vectord-dtype"] != dtype:
            raise ValueError("the dtype differs from the request")
        matrix = np.frombuffer(reply.body, LAYOUTS[dtype]).reshape(rows, -1)
        if reply.headers["x-vectord-shape"] != f"{rows},{matrix.shape[1]}":
            raise ValueError("the shape does not fit the number of bytes")
        return matrix


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The sparse vectors of n texts, one after another. ids and weights (m,); lengths (n,) how many each text has.

    Raises ValueError for negative ids and for arrays of different lengths.
    """

    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    weights: Float32

    def __post_init__(self) -> None:
        if not self.lengths.sum() == len(self.ids) == len(self.weights) or self.ids.min(initial=0) < 0:
            raise ValueError("invalid sparse vectors")

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyVectors:
    """All vectors of one reply. truncated: indices within the request. failures: why texts have zeros or no vectors."""

    model: str
    dense: Array | None
    sparse: SparseRows | None
    colbert: Sequence[Float32] | None
    tokens: Sequence[Float32] | None
    truncated: Sequence[int]
    failures: Mapping[int, str]


def has_arrow() -> bool:
    return find_spec("pyarrow") is not None


def read_vectors(
    reply: HttpReply,
    outputs: Collection[VectorKind],
    texts: int,
    *,
    layout: str = LAYOUTS["float32"],
    partial: bool = False,
) -> ReplyVectors:
    """From Arrow or JSON, as the reply's content type says; all of `outputs`, for each of the texts.

    layout: of dense vectors in JSON. partial: the request accepts failures of single texts.
    """
    with reading(reply):
        found = _read_arrow(reply) if reply.headers.get("content-type") == ARROW else _read_json(reply, layout)
        if found.failures and not partial:
            raise ValueError("a text has no vectors")
        for kind in outputs:
            vectors: Any = getattr(found, kind)
            if (0 if vectors is None else len(vectors)) != texts:
                raise ValueError("the number of vectors differs from the number of texts")
        return found


def csr_of(pieces: Sequence[SparseRows]) -> csr_array:
    """(N, LEAST_WIDTH or more) float32; the token ids of a row ascend."""
    from scipy.sparse import csr_array  # noqa: PLC0415 - an extra, which takes 0.3 s to import

    lengths = np.concatenate([np.zeros(1, np.int64), *(piece.lengths for piece in pieces)])  # (N + 1,)
    ids = np.concatenate([np.empty(0, np.int32), *(piece.ids for piece in pieces)])
    weights = np.concatenate([np.empty(0, np.float32), *(piece.weights for piece in pieces)])
    width = max(LEAST_WIDTH, 1 << int(ids.max(initial=0)).bit_length())
    matrix = csr_array((weights, ids, np.cumsum(lengths)), shape=(len(lengths) - 1, width))
    matrix.sort_indices()
    return matrix


class _Sparse(msgspec.Struct):
    indices: list[int]
    values: list[float]


class _Failure(msgspec.Struct):
    message: str


class _Embedded(msgspec.Struct):
    dense: str | None = None
    sparse: _Sparse | None = None
    colbert: list[str] | None = None
    tokens: list[str] | None = None
    truncated: list[Any] | None = None
    error: _Failure | None = None


class _EmbedBody(msgspec.Struct):
    model: str
    data: list[_Embedded]


def _read_json(reply: HttpReply, layout: str) -> ReplyVectors:
    answer = msgspec.json.decode(reply.body, type=_EmbedBody)

    def given(kind: str) -> list[Any]:
        """The vectors of the texts that have some; None for a text that failed."""
        return [value for one in answer.data if (value := getattr(one, kind)) is not None or one.error is not None]

    dense, sparse = given("dense"), given("sparse")
    return ReplyVectors(
        model=answer.model,
        dense=_decode_rows(dense, layout) if dense else None,
        sparse=_sparse(sparse) if sparse else None,
        colbert=[_decode_rows(rows or ()) for rows in given("colbert")] or None,
        tokens=[_decode_rows(rows or ()) for rows in given("tokens")] or None,
        truncated=[index for index, one in enumerate(answer.data) if one.truncated],
        failures={index: one.error.message for index, one in enumerate(answer.data) if one.error is not None},
    )


def _decode_rows(encoded: Sequence[str | None], layout: str = LAYOUTS["float32"]) -> Array:
    """Vectors in base64, all of one width: (n, D); zeros for None."""
    rows = [None if one is None else a2b_base64(one) for one in encoded]
    zeros = bytes(len(next(filter(None, rows), b"")))
    numbers = np.frombuffer(b"".join(zeros if row is None else row for row in rows), layout)
    numbers = numbers.astype(numbers.dtype.newbyteorder("="))  # a writable copy
    return numbers.reshape(len(encoded), -1) if encoded else numbers.reshape(0, 0)


def _sparse(vectors: Sequence[_Sparse | None]) -> SparseRows:
    some = [vector for vector in vectors if vector is not None]
    return SparseRows(
        np.array([0 if vector is None else len(vector.indices) for vector in vectors], np.int64),
        np.fromiter(chain.from_iterable(vector.indices for vector in some), np.int32),
        np.fromiter(chain.from_iterable(vector.values for vector in some), np.float32),
    )


def _read_arrow(reply: HttpReply) -> ReplyVectors:
    batch = _read_batch(reply.body)
    columns = {name: batch.column(name) for name in batch.schema.names}
    truncated = _numbers(columns["tokens_kept"]) < _numbers(columns["tokens_seen"])
    # Only the header names texts that were cut before tokenization, and those that a second model truncated.
    header = reply.headers.get("x-vectord-truncated-inputs", "")
    errors = columns["error"].to_pylist() if "error" in columns else ()
    return ReplyVectors(
        model=(batch.schema.metadata or {})[b"model"].decode(),
        dense=_matrix(columns["dense"]) if "dense" in columns else None,
        sparse=_sparse_rows(columns["sparse"]) if "sparse" in columns else None,
        colbert=_matrices(columns["colbert"]) if "colbert" in columns else None,
        tokens=_matrices(columns["tokens"]) if "tokens" in columns else None,
        truncated=sorted({*np.flatnonzero(truncated).tolist(), *map(int, filter(None, header.split(",")))}),
        failures={index: str(message) for index, message in enumerate(errors) if message is not None},
    )


def _read_batch(stream: bytes) -> Any:
    """The pyarrow.RecordBatch of an Arrow stream. Raises ValueError if it is invalid."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    try:
        batch = pa.ipc.open_stream(stream).read_next_batch()
        batch.validate(full=True)  # or invalid offsets would be followed
    except (pa.ArrowException, OSError, StopIteration) as cause:
        raise ValueError("no Arrow stream") from cause
    return batch


def _numbers(column: Any) -> Array:
    """A writable copy of a column, whose own memory is the read-only reply."""
    return np.array(column.to_numpy(zero_copy_only=False))


def _matrix(column: Any) -> Array:
    """Lists of one length: (n, D)."""
    return _numbers(column.flatten()).reshape(len(column), column.type.list_size)


def _matrices(column: Any) -> list[Float32]:
    """Lists of lists of one length: (n_i, C) for each text."""
    return np.split(_matrix(column.values), _numbers(column.offsets)[1:-1])


def _sparse_rows(column: Any) -> SparseRows:
    indices, values = column.field("indices"), column.field("values")
    return SparseRows(np.diff(_numbers(indices.offsets)), _numbers(indices.values), _numbers(values.values))
