"""vLLM's forms of a vector: JSON numbers, or base64 of a type and byte order that the body names."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from vectord.errors import InvalidField
from vectord.products.common.vectors import read_encoding
from vectord.schema import Float32

DType: TypeAlias = np.dtype[np.floating[Any]]

_TYPES: Mapping[str | None, str] = {None: "f4", "float32": "f4", "float16": "f2"}
_ORDERS: Mapping[str | None, str] = {None: "=", "native": "=", "little": "<", "big": ">"}


@dataclass(frozen=True, slots=True)
class Numbers:
    base64: DType | None  # None: JSON

    def shown(self, numbers: Float32) -> str | Float32:
        """`numbers` of any shape, for dump_json. Raises InvalidField if a number is too large for the type."""
        if self.base64 is None:
            return np.ascontiguousarray(numbers)
        with np.errstate(over="ignore"):
            cast = numbers.astype(self.base64)
        if not np.isfinite(cast).all():
            template = "{field}: these vectors have numbers too large for float16."
            raise InvalidField(template, field="embed_dtype")
        return b2a_base64(cast.tobytes(), newline=False).decode("ascii")


def read_numbers(encoding_format: str | None, embed_dtype: str | None, endianness: str | None) -> Numbers:
    """Raises InvalidField for an unknown format, type or byte order."""
    encoding = read_encoding(encoding_format)
    if embed_dtype not in _TYPES:
        raise InvalidField("{field} must be 'float32' or 'float16'.", field="embed_dtype")
    if endianness not in _ORDERS:
        raise InvalidField("{field} must be 'native', 'little' or 'big'.", field="endianness")
    dtype = np.dtype(_ORDERS[endianness] + _TYPES[embed_dtype])
    return Numbers(dtype if encoding == "base64" else None)
