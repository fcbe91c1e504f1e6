"""Vectors on the wire: JSON numbers of the shortest float32 round trip, or base64 of little-endian numbers.

Shared by all dialects; `embedding_items` by those whose answers are OpenAI's list of items.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from vectord.errors import InvalidField

Encoding: TypeAlias = Literal["float", "base64"]
Vector: TypeAlias = npt.NDArray[np.generic]  # (D,) float32, or int8 and uint8 where a precision says so


def dump_json(answer: object) -> bytes:
    """`answer` as JSON. It may hold C-contiguous arrays of numbers; the engine has made sure that they are finite."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


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
    return [to_base64(vector) for vector in vectors] if encoding == "base64" else list(vectors)


def to_base64(vector: Vector) -> str:
    """vector (D,) -> base64 of its numbers' bytes, little-endian, without line breaks."""
    little_endian = np.ascontiguousarray(vector, dtype=vector.dtype.newbyteorder("<"))
    return b2a_base64(little_endian.data, newline=False).decode("ascii")
