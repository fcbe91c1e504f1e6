"""vLLM's forms of a vector: JSON numbers, or base64 or bytes of a type and byte order that the body names."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.errors import InvalidField
from vectord.schema import Float32

Encoding: TypeAlias = Literal["float", "base64", "bytes", "bytes_only"]

ENCODINGS: Mapping[str | None, Encoding] = {None: "float", **{name: name for name in get_args(Encoding)}}
_ORDERS: Mapping[str, Literal["=", "<", ">"]] = {"native": "=", "little": "<", "big": ">"}
_EXPONENT_BITS: Mapping[str, int] = {"fp8_e4m3": 4, "fp8_e5m2": 5}
_TYPES = ("float32", "float16", "bfloat16", *_EXPONENT_BITS)


class Numbers(msgspec.Struct, frozen=True):
    encoding: Encoding
    embed_dtype: str
    endianness: str

    @property
    def as_bytes(self) -> bool:
        """The response is bytes instead of JSON."""
        return self.encoding in ("bytes", "bytes_only")

    def shown(self, numbers: Float32) -> str | Float32:
        """`numbers` of any shape, for dump_json. Raises InvalidField if a number is too large for the type."""
        if self.encoding == "float":
            return np.ascontiguousarray(numbers)
        return b2a_base64(self.packed(numbers), newline=False).decode("ascii")

    def packed(self, numbers: Float32) -> bytes:
        """The bytes of `numbers`. Raises InvalidField if a number is too large for the type."""
        with np.errstate(over="ignore"):
            cast = _cast(numbers, self.embed_dtype)
        if cast is None:
            template = "{field}: these vectors have numbers too large for {dtype}."
            raise InvalidField(template, field="embed_dtype", dtype=self.embed_dtype)
        return cast.astype(cast.dtype.newbyteorder(_ORDERS[self.endianness])).tobytes()


def read_numbers(encoding_format: str | None, embed_dtype: str | None, endianness: str | None) -> Numbers:
    """Raises InvalidField for an unknown format, type or byte order."""
    if encoding_format not in ENCODINGS:
        raise InvalidField("{field} must be 'float', 'base64', 'bytes' or 'bytes_only'.", field="encoding_format")
    if embed_dtype not in (None, *_TYPES):
        template = "{field} must be 'float32', 'float16', 'bfloat16', 'fp8_e4m3' or 'fp8_e5m2'."
        raise InvalidField(template, field="embed_dtype")
    if endianness not in (None, *_ORDERS):
        raise InvalidField("{field} must be 'native', 'little' or 'big'.", field="endianness")
    return Numbers(ENCODINGS[encoding_format], embed_dtype or "float32", endianness or "native")


def _cast(numbers: Float32, dtype: str) -> npt.NDArray[Any] | None:
    """`numbers` in this type, or the integers with its bits; None if one is too large."""
    if dtype in ("float32", "float16"):
        cast = numbers.astype(dtype)
        return cast if np.isfinite(cast).all() else None
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
        # To the nearest, ties to even.
        rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        return None if (rounded & 0x7F80 == 0x7F80).any() else rounded
    values = _float8(dtype)
    sizes = np.abs(numbers).astype(np.float64)
    if (sizes > values[-1] + (values[-1] - values[-2]) / 2).any():
        return None
    above = np.clip(np.searchsorted(values, sizes), 1, len(values) - 1)
    below = above - 1
    middle = (values[above] + values[below]) / 2
    up = (sizes > middle) | ((sizes == middle) & (above % 2 == 0))
    codes: npt.NDArray[np.uint8] = (np.where(up, above, below) | np.signbit(numbers) * 0x80).astype(np.uint8)
    return codes


@cache
def _float8(dtype: str) -> npt.NDArray[np.float64]:
    """The finite numbers that are not negative, by their bits. e4m3 has no infinity; its last code is NaN."""
    exponent_bits = _EXPONENT_BITS[dtype]
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(0x7F if dtype == "fp8_e4m3" else 0x7C)
    exponents, mantissas = codes >> mantissa_bits, (codes & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    bias = (1 << exponent_bits - 1) - 1
    normal = (1 + mantissas) * 2.0 ** (exponents - bias)
    return np.where(exponents > 0, normal, mantissas * 2.0 ** (1 - bias))
