"""How vLLM writes the numbers of vectors: as JSON, or in base64 of a type and byte order that the body names."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.errors import InvalidField
from vectord.products.common.vectors import read_encoding
from vectord.products.vllm.wire import EmbeddingBody
from vectord.schema import Float32

DType: TypeAlias = np.dtype[np.floating[Any]]

_TYPES: Mapping[str, str] = {"float32": "f4", "float16": "f2"}
_ORDERS: Mapping[str, str] = {"native": "=", "little": "<", "big": ">"}


@dataclass(frozen=True, slots=True)
class Numbers:
    base64: DType | None  # None: JSON

    def shown(self, numbers: Float32) -> str | Float32:
        """`numbers` of any shape as dump_json takes them. Raises InvalidField if they do not fit the type asked for."""
        if self.base64 is None:
            return np.ascontiguousarray(numbers)
        return b2a_base64(_cast(numbers, self.base64).tobytes(), newline=False).decode("ascii")


def read_numbers(body: EmbeddingBody) -> Numbers:
    """Raises InvalidField for a format, type or byte order that is not served."""
    encoding = read_encoding(body.encoding_format)
    kind = _word(body.embed_dtype, _TYPES, "embed_dtype", "'float32' or 'float16'")
    order = _word(body.endianness, _ORDERS, "endianness", "'native', 'little' or 'big'")
    return Numbers(np.dtype(f"{order}{kind}") if encoding == "base64" else None)


def _word(value: str | None, words: Mapping[str, str], field: str, known: str) -> str:
    """What the word means; nothing said means the first."""
    if value is None:
        return next(iter(words.values()))
    if value not in words:
        raise InvalidField(f"`{field}` must be {known}.", field=field)
    return words[value]


def _cast(numbers: Float32, dtype: DType) -> npt.NDArray[np.floating[Any]]:
    with np.errstate(over="ignore"):
        cast = numbers.astype(dtype)
    if not np.isfinite(cast).all():
        raise InvalidField("`embed_dtype`: these vectors have numbers too large for float16.", field="embed_dtype")
    return cast
