"""Vectors as columns. Called by output.py.

dense      fixed_size_list<float|halffloat|int8|uint8>[D]
sparse     list<struct<index: uint32, value: float>>
colbert    list<fixed_size_list<float|halffloat>[C]>, a vector a token
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from vectord.bulk.rows import Array
from vectord.schema import Sparse


def dense_column(rows: Array, failed: Array) -> Any:
    """rows: (N, D). failed: (N,), of rows that are null instead."""
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1], mask=pa.array(failed))


def sparse_column(vectors: Sequence[Sparse | None], failed: Array) -> Any:
    offsets = _offsets([0 if vector is None else len(vector.indices) for vector in vectors])
    some = [vector for vector in vectors if vector is not None]
    indices = np.concatenate([vector.indices for vector in some] or [np.zeros(0, np.int32)]).astype(np.uint32)
    values = np.concatenate([vector.values for vector in some] or [np.zeros(0, np.float32)])
    pairs = pa.StructArray.from_arrays([pa.array(indices), pa.array(values)], ["index", "value"])
    return pa.ListArray.from_arrays(offsets, pairs, mask=pa.array(failed))


def token_vectors_column(vectors: Sequence[Array | None], failed: Array, width: int, dtype: str) -> Any:
    offsets = _offsets([0 if vector is None else len(vector) for vector in vectors])
    some = [vector for vector in vectors if vector is not None and len(vector)]
    numbers = np.concatenate(some).astype(dtype) if some else np.zeros((0, width), dtype)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), width)
    return pa.ListArray.from_arrays(offsets, rows, mask=pa.array(failed))


def _offsets(lengths: Sequence[int]) -> Any:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))  # (N + 1,)
