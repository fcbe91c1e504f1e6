"""An answer as bytes for a cache outside this process, and back. Pure; called by shared.py.

    digest (16 bytes), then for each kind, sorted by name:   code, dtype, rows, columns, numbers
                                                             (dense, scores: one array; sparse: indices, then values)

Stored bytes are untrusted: `decode` states what it expects and rejects everything else. The digest includes the name,
so that a value is invalid under another name. With a key it proves that the writer had the key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.engine.queue.batch import Answer
from vectord.schema import AnswerKind, Float32, Int32, Sparse

Shape: TypeAlias = tuple[int, int]  # rows, columns
Shapes: TypeAlias = Mapping[AnswerKind, Shape | None]  # expected shapes; None for sparse: any number of words
NumberArray: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.int32]

DIGEST_BYTES = 16
HEAD = struct.Struct("<BBII")  # code, dtype, rows, columns
DENSE, SCORES, INDICES, WEIGHTS = 1, 2, 3, 4
FLOAT32, INT32 = 1, 2
DTYPES: Mapping[int, str] = {FLOAT32: "<f4", INT32: "<i4"}
LARGEST = 1e16  # far above any model's numbers; 4,096 times its square is still a finite float32


def key_of(secret: bytes) -> bytes:
    """The key of a secret of any length."""
    return blake2b(secret, digest_size=64, person=b"vectord-cache").digest()


def encode(name: bytes, answer: Answer, key: bytes = b"") -> bytes:
    """answer: of kinds dense, sparse and scores. name: its name in the store. key: see `key_of`."""
    body = b"".join(_encoded(answer))
    return _digest(name, body, key) + body


def decode(name: bytes, value: bytes, shapes: Shapes, key: bytes = b"") -> Answer | None:
    """The answer: exactly these kinds in these shapes, finite, in arrays of its own. None for any other value, or one
    that was not written with this key."""
    body = value[DIGEST_BYTES:]
    if not compare_digest(value[:DIGEST_BYTES], _digest(name, body, key)):
        return None
    try:
        return _decoded(body, shapes)
    except _NotAsExpected:
        return None


class _NotAsExpected(Exception):
    pass


def _digest(name: bytes, body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES, salt=blake2b(name, digest_size=16).digest(), key=key).digest()


def _encoded(answer: Answer) -> Iterator[bytes]:
    for kind in sorted(answer):
        numbers = answer[kind]
        if isinstance(numbers, Sparse):
            yield from _part(INDICES, INT32, numbers.indices[:, None])
            yield from _part(WEIGHTS, FLOAT32, numbers.values[:, None])
        else:
            yield from _part(DENSE if kind == "dense" else SCORES, FLOAT32, numbers)


def _part(code: int, dtype: int, numbers: NumberArray) -> Iterator[bytes]:
    yield HEAD.pack(code, dtype, *numbers.shape)
    yield numbers.astype(DTYPES[dtype], copy=False).tobytes()


def _decoded(body: bytes, shapes: Shapes) -> Answer:
    reader = _ArrayReader(body)
    answer: dict[AnswerKind, Float32 | Sparse] = {}
    for kind, shape in sorted(shapes.items()):
        if kind == "sparse":
            answer[kind] = _sparse(reader)
        else:
            answer[kind] = _floats(reader.take(DENSE if kind == "dense" else SCORES, FLOAT32, shape))
    reader.end()
    return answer


def _sparse(reader: _ArrayReader) -> Sparse:
    indices: Int32 = reader.take(INDICES, INT32, None)[:, 0]
    values = _floats(reader.take(WEIGHTS, FLOAT32, (len(indices), 1)))[:, 0]
    if len(indices) and (indices.min() < 0 or values.min() <= 0 or len(np.unique(indices)) < len(indices)):
        raise _NotAsExpected
    return Sparse(indices, values)


def _floats(numbers: Float32) -> Float32:
    if numbers.size and not np.abs(numbers).max() <= LARGEST:  # also rejects NaN
        raise _NotAsExpected
    return numbers


class _ArrayReader:
    """Reads one array after the other from a body. Checks a length before it reads or allocates."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, code: int, dtype: int, shape: Shape | None) -> npt.NDArray[Any]:
        """shape None: a column of any length."""
        start = self._at + HEAD.size
        if start > len(self._body):
            raise _NotAsExpected
        *what, rows, columns = HEAD.unpack_from(self._body, self._at)
        fits = columns == 1 if shape is None else (rows, columns) == shape
        stop = start + 4 * rows * columns
        if what != [code, dtype] or not fits or stop > len(self._body):
            raise _NotAsExpected
        self._at = stop
        found = np.frombuffer(self._body[start:stop], DTYPES[dtype])
        return found.reshape(rows, columns).astype(
            found.dtype.newbyteorder("=")
        )  # a copy, without the rest of the body

    def end(self) -> None:
        if self._at != len(self._body):
            raise _NotAsExpected
