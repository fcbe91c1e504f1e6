"""An answer as bytes for a cache outside this process, and back. Pure; called by shared_cache.py.

    digest (16 bytes), then of each kind, by name:   code, dtype, rows, columns, numbers
                                                     (dense, scores: one array; sparse: indices, then values)

What comes back is nobody's word: `decode` says what it expects, and whatever differs from that is no answer. The digest
is over the name, too, so that a value under another name is none. Keyed, it proves that who wrote it has the key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.engine.queue.batch import Answer, Kind
from vectord.schema import Float32, Int32, Sparse

Shape: TypeAlias = tuple[int, int]  # rows, columns
Shapes: TypeAlias = Mapping[Kind, Shape | None]  # what an answer must be like; None of sparse, any number of words
Numbers: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.int32]

DIGEST_BYTES = 16
HEAD = struct.Struct("<BBII")  # code, dtype, rows, columns
DENSE, SCORES, INDICES, WEIGHTS = 1, 2, 3, 4
FLOAT32, INT32 = 1, 2
DTYPES: Mapping[int, str] = {FLOAT32: "<f4", INT32: "<i4"}
LARGEST = 1e16  # beside which no number of a model's comes close; its square, 4,096 times, is still a float32


def key_of(secret: bytes) -> bytes:
    """The key of a secret of any length."""
    return blake2b(secret, digest_size=64, person=b"vectord-cache").digest()


def encode(name: bytes, answer: Answer, key: bytes = b"") -> bytes:
    """answer: dense, sparse and scores, no others. name: under which it will be looked for. key: see `key_of`."""
    body = b"".join(_encoded(answer))
    return _digest(name, body, key) + body


def decode(name: bytes, value: bytes, shapes: Shapes, key: bytes = b"") -> Answer | None:
    """Exactly these kinds in these shapes, all numbers finite, in arrays of their own; None if it is anything else, or
    was not written with this key."""
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


def _part(code: int, dtype: int, numbers: Numbers) -> Iterator[bytes]:
    yield HEAD.pack(code, dtype, *numbers.shape)
    yield numbers.astype(DTYPES[dtype], copy=False).tobytes()


def _decoded(body: bytes, shapes: Shapes) -> Answer:
    reader = _Reader(body)
    answer: dict[Kind, Float32 | Sparse] = {}
    for kind, shape in sorted(shapes.items()):
        if kind == "sparse":
            answer[kind] = _sparse(reader)
        else:
            answer[kind] = _floats(reader.take(DENSE if kind == "dense" else SCORES, FLOAT32, shape))
    reader.end()
    return answer


def _sparse(reader: _Reader) -> Sparse:
    indices: Int32 = reader.take(INDICES, INT32, None)[:, 0]
    values = _floats(reader.take(WEIGHTS, FLOAT32, (len(indices), 1)))[:, 0]
    if len(indices) and (indices.min() < 0 or values.min() <= 0 or len(np.unique(indices)) < len(indices)):
        raise _NotAsExpected
    return Sparse(indices, values)


def _floats(numbers: Float32) -> Float32:
    if numbers.size and not np.abs(numbers).max() <= LARGEST:  # false of NaN, too
        raise _NotAsExpected
    return numbers


class _Reader:
    """Takes one array after the other from a body; nothing is read or made room for before its length is checked."""

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
        return found.reshape(rows, columns).astype(found.dtype.newbyteorder("="))  # its own, to be kept alone

    def end(self) -> None:
        if self._at != len(self._body):
            raise _NotAsExpected
