"""Answers -> vectors: one matrix of bytes, or all kinds at once in Arrow or JSON. Pure.

Each function raises ServerFailed for what docs/api.md does not describe.
"""

from __future__ import annotations

from binascii import a2b_base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.client.answers import Array, Float32
from vectord.client.messages import Reply
from vectord.client.options import Dtype, VectorKind
from vectord.client.reading import reading

OCTETS = "application/octet-stream"
ARROW = "application/vnd.apache.arrow.stream"

# On the wire little-endian; of ubinary a byte is eight bits, the first one highest.
LAYOUTS: Mapping[Dtype, str] = MappingProxyType({"float32": "<f4", "float16": "<f2", "int8": "i1", "ubinary": "u1"})


def read_matrix(reply: Reply, dtype: Dtype, rows: int) -> Array:
    """(rows, D), a read-only view of the answer's bytes."""
    with reading(reply):
        if reply.headers["x-vectord-dtype"] != dtype:
            raise ValueError("another dtype than was asked for")
        matrix = np.frombuffer(reply.body, LAYOUTS[dtype]).reshape(rows, -1)
        if reply.headers["x-vectord-shape"] != f"{rows},{matrix.shape[1]}":
            raise ValueError("another shape than its bytes have")
        return matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """All vectors of one request's texts, and which of them were cut, from 0."""

    model: str
    dense: Float32 | None
    sparse: SparsePiece | None
    colbert: Sequence[Float32] | None
    tokens: Sequence[Float32] | None
    truncated: Sequence[int]

    def count_of(self, kind: VectorKind) -> int:
        """How many texts have such vectors."""
        made = {"dense": self.dense, "sparse": self.sparse, "colbert": self.colbert, "tokens": self.tokens}[kind]
        return 0 if made is None else len(made)


@dataclass(frozen=True, slots=True)
class SparsePiece:
    """Token ids and weights (m,) text after text, and how many belong to each, lengths (n,).

    Raises ValueError for ids below 0, and where those three do not fit together.
    """

    lengths: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int32]
    weights: Float32

    def __post_init__(self) -> None:
        if not self.lengths.sum() == len(self.ids) == len(self.weights) or self.ids.min(initial=0) < 0:
            raise ValueError("sparse vectors that are none")

    def __len__(self) -> int:
        return len(self.lengths)


def has_arrow() -> bool:
    return find_spec("pyarrow") is not None


def read_piece(reply: Reply, outputs: Collection[VectorKind], texts: int) -> Piece:
    """Arrow or JSON, whichever it is; all of `outputs`, of each of the texts."""
    with reading(reply):
        piece = _read_arrow(reply) if reply.headers.get("content-type") == ARROW else _read_json(reply)
        if any(piece.count_of(kind) != texts for kind in outputs):
            raise ValueError("another number of vectors than of texts")
        return piece


class _Sparse(msgspec.Struct):
    indices: list[int]
    values: list[float]


class _Embedded(msgspec.Struct):
    dense: str | None = None
    sparse: _Sparse | None = None
    colbert: list[str] | None = None
    tokens: list[str] | None = None
    truncated: list[Any] | None = None


class _EmbedAnswer(msgspec.Struct):
    model: str
    data: list[_Embedded]


def _read_json(reply: Reply) -> Piece:
    answer = msgspec.json.decode(reply.body, type=_EmbedAnswer)
    dense = [one.dense for one in answer.data if one.dense is not None]
    sparse = [one.sparse for one in answer.data if one.sparse is not None]
    return Piece(
        model=answer.model,
        dense=decode_rows(dense) if dense else None,
        sparse=_sparse(sparse) if sparse else None,
        colbert=_each(one.colbert for one in answer.data),
        tokens=_each(one.tokens for one in answer.data),
        truncated=[index for index, one in enumerate(answer.data) if one.truncated],
    )


def decode_rows(encoded: Sequence[str]) -> Float32:
    """Vectors in base64, all of one width: (n, D)."""
    numbers = np.frombuffer(b"".join(map(a2b_base64, encoded)), "<f4").astype(np.float32)
    return numbers.reshape(len(encoded), -1) if encoded else numbers.reshape(0, 0)


def _each(texts: Iterator[list[str] | None]) -> list[Float32] | None:
    made = [decode_rows(vectors) for vectors in texts if vectors is not None]
    return made or None


def _sparse(vectors: Sequence[_Sparse]) -> SparsePiece:
    return SparsePiece(
        np.array([len(vector.indices) for vector in vectors], np.int64),
        np.fromiter(chain.from_iterable(vector.indices for vector in vectors), np.int32),
        np.fromiter(chain.from_iterable(vector.values for vector in vectors), np.float32),
    )


def _read_arrow(reply: Reply) -> Piece:
    batch = _read_batch(reply.body)
    columns = {name: batch.column(name) for name in batch.schema.names}
    cut = _numbers(columns["tokens_kept"]) < _numbers(columns["tokens_seen"])
    # Texts whose end was not even tokenised, and those that a second model cut, are in the header alone.
    told = reply.headers.get("x-vectord-truncated-inputs", "")
    return Piece(
        model=(batch.schema.metadata or {})[b"model"].decode(),
        dense=_fixed(columns["dense"]) if "dense" in columns else None,
        sparse=_sparse_column(columns["sparse"]) if "sparse" in columns else None,
        colbert=_lists(columns["colbert"]) if "colbert" in columns else None,
        tokens=_lists(columns["tokens"]) if "tokens" in columns else None,
        truncated=sorted({*np.flatnonzero(cut).tolist(), *map(int, filter(None, told.split(",")))}),
    )


def _read_batch(stream: bytes) -> Any:
    """A pyarrow.RecordBatch. Raises ValueError for bytes that are no whole stream of one."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    try:
        batch = pa.ipc.open_stream(stream).read_next_batch()
        batch.validate(full=True)  # offsets that point elsewhere would be followed
    except (pa.ArrowException, OSError, StopIteration) as cause:
        raise ValueError("no Arrow stream") from cause
    return batch


def _numbers(column: Any) -> Array:
    """The caller's own: what Arrow gives is the answer's bytes, read-only."""
    return np.array(column.to_numpy(zero_copy_only=False))


def _fixed(column: Any) -> Float32:
    """Lists of one length: (n, D)."""
    return _numbers(column.flatten()).reshape(len(column), column.type.list_size)


def _lists(column: Any) -> list[Float32]:
    """Lists of lists of one length: (n_i, C) of each text."""
    return np.split(_fixed(column.values), _numbers(column.offsets)[1:-1])


def _sparse_column(column: Any) -> SparsePiece:
    indices, values = column.field("indices"), column.field("values")
    return SparsePiece(np.diff(_numbers(indices.offsets)), _numbers(indices.values), _numbers(values.values))
