"""Vectors on the wire: JSON numbers of the shortest float32 round trip, or base64 of little-endian numbers.

Shared by all dialects; `embedding_items` by those whose answers are OpenAI's list of items.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from vectord.errors import InvalidField

T = TypeVar("T")
Encoding: TypeAlias = Literal["float", "base64"]
Vector: TypeAlias = npt.NDArray[np.generic]  # (D,) float32, or int8 and uint8 where a precision says so


_LITTLE_ENDIAN = frozenset(map(np.dtype, ("<f4", "<f2", "i1", "u1")))
_pieces: ContextVar[bool] = ContextVar("_pieces", default=False)


def dump_json(answer: object) -> bytes:
    """`answer` as JSON. It may hold C-contiguous arrays of numbers; the engine has made sure that they are finite."""
    if _pieces.get():
        return orjson.dumps(answer, default=_piece)
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def in_pieces(render: Callable[[], T]) -> T:
    """What `render` gives, for a thread beside the event loop: orjson lets no other thread run while it dumps, so its
    arrays are dumped row by row, with a chance for the others in between. It costs a tenth more."""
    mark = _pieces.set(True)
    try:
        return render()
    finally:
        _pieces.reset(mark)


def _piece(array: Any) -> object:
    """What dump_json puts in the place of numpy's arrays and numbers, which orjson does not know by itself then."""
    if isinstance(array, np.ndarray) and array.ndim > 1:
        return list(array)
    return orjson.Fragment(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))


def read_encoding(name: str | None) -> Encoding:
    """OpenAI's `encoding_format`; null is "float". Raises InvalidField for any other word."""
    if name is None or name == "float":
        return "float"
    if name == "base64":
        return "base64"
    raise InvalidField("`encoding_format` must be 'float' or 'base64'.", field="encoding_format")


def embedding_items(vectors: Vector | Sequence[Vector], encoding: Encoding) -> list[dict[str, object]]:
    """OpenAI's `data`: one item a vector (D,), in order."""
    shown = encoded_rows(vectors, encoding)
    return [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)]


def encoded_rows(vectors: Vector | Sequence[Vector], encoding: Encoding) -> list[Any]:
    """Each row as an answer holds it: an array that dump_json writes as numbers, or base64."""
    if encoding == "float":
        return list(vectors)
    if isinstance(vectors, np.ndarray):
        vectors = _little_endian(vectors)  # all at once: row by row it takes a fifth longer
    return [to_base64(vector) for vector in vectors]


def to_base64(vector: Vector) -> str:
    """vector (D,) -> base64 of its numbers' bytes, little-endian, without line breaks."""
    return b2a_base64(_little_endian(vector).data, newline=False).decode("ascii")


def _little_endian(array: Vector) -> Vector:
    """The same numbers, contiguous; the same array where it is that already."""
    if array.flags.c_contiguous and array.dtype in _LITTLE_ENDIAN:
        return array
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
