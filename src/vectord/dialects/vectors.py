"""Vectors on the wire: JSON numbers of the shortest float32 round trip, or base64 of little-endian float32.

Shared by the dialects whose answers are OpenAI's list of items.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Sequence

import numpy as np
import orjson

from vectord.errors import InvalidField
from vectord.schema import Encoding, Float32


def dump_json(answer: object) -> bytes:
    """`answer` as JSON. It may hold C-contiguous float32 arrays; the engine has made sure that they are finite."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def read_encoding(name: str | None) -> Encoding:
    """OpenAI's `encoding_format`; null is "float". Raises InvalidField for any other word."""
    if name is None or name == "float":
        return "float"
    if name == "base64":
        return "base64"
    raise InvalidField("`encoding_format` must be 'float' or 'base64'.", field="encoding_format")


def embedding_items(vectors: Float32 | Sequence[Float32], encoding: Encoding) -> list[dict[str, object]]:
    """OpenAI's `data`: one item a vector (D,), in order."""
    shown: Iterable[object] = map(to_base64, vectors) if encoding == "base64" else vectors
    return [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(shown)]


def to_base64(vector: Float32) -> str:
    """vector (D,) -> base64 of its 4 * D bytes, little-endian, without line breaks."""
    return b2a_base64(np.ascontiguousarray(vector, dtype="<f4").data, newline=False).decode("ascii")
