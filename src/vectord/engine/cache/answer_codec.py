"""An answer as bytes for a cache outside this process, and back. Pure; called by shared.py.

    digest (16 bytes), then msgpack: for each kind its shape, its numbers, and of sparse vectors the indices

Stored bytes are untrusted: `decode` states what it expects and rejects everything else. The digest includes the name,
so that a value is invalid under another name. With a key it proves that the writer had the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from hmac import compare_digest
from typing import TypeAlias

import msgspec
import numpy as np

from vectord.engine.queue.batch import Answer
from vectord.schema import AnswerKind, Float32, Int32, Sparse

Shape: TypeAlias = tuple[int, int]  # rows, columns
Shapes: TypeAlias = Mapping[AnswerKind, Shape | None]  # expected shapes; None for sparse: any number of words

DIGEST_BYTES = 16
LARGEST = 1e16  # far above any model's numbers; 4,096 times its square is still a finite float32


class StoredArray(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    shape: Shape  # of a sparse vector (words, 1)
    numbers: bytes  # little-endian float32
    indices: bytes = b""  # little-endian int32


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[AnswerKind, StoredArray]).decode


def key_of(secret: bytes) -> bytes:
    """The key of a secret of any length."""
    return blake2b(secret, digest_size=64, person=b"vectord-cache").digest()


def encode(name: bytes, answer: Answer, key: bytes = b"") -> bytes:
    """answer: of kinds dense, sparse and scores. name: its name in the store. key: see `key_of`."""
    body = _encode({kind: _stored(value) for kind, value in answer.items()})
    return _digest(name, body, key) + body


def decode(name: bytes, value: bytes, shapes: Shapes, key: bytes = b"") -> Answer | None:
    """The answer: exactly these kinds in these shapes, finite, in arrays of its own. None for any other value, or one
    that was not written with this key."""
    body = value[DIGEST_BYTES:]
    if not compare_digest(value[:DIGEST_BYTES], _digest(name, body, key)):
        return None
    try:
        stored = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if stored.keys() != shapes.keys():
        return None
    answer: dict[AnswerKind, Float32 | Sparse] = {}
    for kind, shape in shapes.items():
        found = _sparse(stored[kind]) if shape is None else _matrix(stored[kind], shape)
        if found is None:
            return None
        answer[kind] = found
    return answer


def _digest(name: bytes, body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=DIGEST_BYTES, salt=blake2b(name, digest_size=16).digest(), key=key).digest()


def _stored(value: Float32 | Sparse) -> StoredArray:
    if isinstance(value, Sparse):
        words = len(value.indices), 1
        return StoredArray(words, value.values.astype("<f4").tobytes(), value.indices.astype("<i4").tobytes())
    rows, columns = value.shape
    return StoredArray((rows, columns), value.astype("<f4").tobytes())


def _matrix(stored: StoredArray, shape: Shape) -> Float32 | None:
    if stored.shape != shape or len(stored.numbers) != 4 * shape[0] * shape[1]:
        return None
    numbers: Float32 = np.frombuffer(stored.numbers, "<f4").astype(np.float32).reshape(shape)
    return numbers if not numbers.size or np.abs(numbers).max() <= LARGEST else None  # None for NaN, too


def _sparse(stored: StoredArray) -> Sparse | None:
    numbers = _matrix(stored, (len(stored.indices) // 4, 1))
    if numbers is None or len(stored.indices) % 4:
        return None
    indices: Int32 = np.frombuffer(stored.indices, "<i4").astype(np.int32)
    values = numbers[:, 0]
    if len(indices) and (indices.min() < 0 or values.min() <= 0 or len(np.unique(indices)) < len(indices)):
        return None
    return Sparse(indices, values)
