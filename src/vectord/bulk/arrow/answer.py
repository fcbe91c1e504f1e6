"""A server's Arrow answer as an Answer. Called by remote.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from vectord.bulk.embedder import without_place
from vectord.bulk.rows import Answer, Array
from vectord.schema import Sparse, VectorKind


def read_answer(body: bytes, texts: int, kinds: Sequence[VectorKind], counts: Mapping[str, Any]) -> Answer:
    """counts: what stands in the answer's headers. Raises ValueError for bytes that are no such answer."""
    try:
        batch = pa.ipc.open_stream(body).read_next_batch()
        batch.validate(full=True)  # offsets that point elsewhere would be followed
    except (pa.ArrowException, OSError, StopIteration) as cause:
        raise ValueError("no Arrow stream") from cause
    if batch.num_rows != texts:
        raise ValueError("another number of vectors than of texts")
    columns = {name: batch.column(name) for name in batch.schema.names}
    errors = enumerate(columns["error"].to_pylist())
    return Answer(
        dense=_matrix(columns["dense"]) if "dense" in kinds else None,
        sparse=_each_sparse(columns["sparse"]) if "sparse" in kinds else None,
        colbert=_each_matrix(columns["colbert"]) if "colbert" in kinds else None,
        failures={i: without_place(message, i) for i, message in errors if message is not None},
        **counts,
    )


def _matrix(column: Any) -> Array:
    """Lists of one length: (n, D)."""
    return np.asarray(column.flatten()).reshape(len(column), column.type.list_size)


def _each_matrix(column: Any) -> list[Array]:
    return np.split(_matrix(column.values), np.asarray(column.offsets)[1:-1])


def _each_sparse(column: Any) -> list[Sparse]:
    indices, values = column.field("indices"), column.field("values")
    bounds = np.asarray(indices.offsets)[1:-1]
    pairs = zip(np.split(np.asarray(indices.values), bounds), np.split(np.asarray(values.values), bounds), strict=True)
    return [Sparse(*pair) for pair in pairs]
