"""One tensor of a checkpoint, independent of the file format."""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Dtype = Literal["F32", "F16", "BF16", "F64", "F8_E4M3", "BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64"]

DTYPES: Mapping[str, type[np.generic]] = {
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,
    "F64": np.float64,
    "F8_E4M3": np.uint8,
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
}
ROWS_AT_ONCE = 4096  # so that converting a table of words takes no further copy of it
NETWORK_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})  # of the tensors that a network may read


_EXPONENTS, _FRACTIONS = np.arange(128) >> 3, (np.arange(128) & 7) / 8
_POSITIVE = np.where(_EXPONENTS, (1 + _FRACTIONS) * 2.0 ** (_EXPONENTS - 7), _FRACTIONS * 2.0**-6)
_POSITIVE[-1] = np.nan
# (256,) the numbers of F8_E4M3: a sign, 4 bits of exponent and 3 of fraction; no infinities.
E4M3: npt.NDArray[np.float32] = np.concatenate([_POSITIVE, -_POSITIVE]).astype(np.float32)


class Weight:
    """A tensor over the map of its file."""

    __slots__ = ("_array", "dtype", "name")

    def __init__(self, name: str, dtype: Dtype, array: npt.NDArray[np.generic]) -> None:
        """array: in the tensor's shape, C order; BF16 as its bits in uint16, F8_E4M3 in uint8."""
        self.name = name
        self.dtype = dtype
        self._array = array

    @property
    def array(self) -> npt.NDArray[np.generic]:
        return self._array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def as_float32(self) -> npt.NDArray[np.float32]:
        """Return a copy in float32."""
        if self.dtype == "BF16":  # the upper half of a float32
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        if self.dtype == "F8_E4M3":
            numbers: npt.NDArray[np.float32] = E4M3[self.array.astype(np.intp)]
            return numbers
        return self.array.astype(np.float32)

    def parts(self) -> Iterator[npt.NDArray[np.float32]]:
        """Return the tensor's rows in float32, a few thousand at a time."""
        for start in range(0, len(self.array), ROWS_AT_ONCE):
            yield Weight(self.name, self.dtype, self.array[start : start + ROWS_AT_ONCE]).as_float32()


class ComputedWeight(Weight):
    """A float32 tensor that is computed when its array is needed, and again if nothing holds that array any more."""

    __slots__ = ("_compute", "_held", "_shape")

    def __init__(
        self, name: str, shape: Sequence[int], compute: Callable[[], Iterable[npt.NDArray[np.float32]]]
    ) -> None:
        """shape: of the arrays that `compute` returns, end to end, in C order."""
        self.name = name
        self.dtype = "F32"
        self._shape = tuple(shape)
        self._compute = compute
        self._held: weakref.ref[npt.NDArray[np.float32]] | None = None

    @property
    def array(self) -> npt.NDArray[np.generic]:
        array = None if self._held is None else self._held()
        if array is None:
            array = np.empty(self._shape, np.float32)
            fill_rows(array, self._compute())
            self._held = weakref.ref(array)
        return array

    def parts(self) -> Iterator[npt.NDArray[np.float32]]:
        return iter(self._compute())

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape


def fill_rows(array: npt.NDArray[np.generic], parts: Iterable[npt.NDArray[np.generic]]) -> None:
    """Write the parts into the rows of the array, one after the other."""
    start = 0
    for part in parts:
        array[start : start + len(part)] = part
        start += len(part)


def in_bfloat16(numbers: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return the bits of the numbers rounded to bfloat16, half to even; NaN stays NaN."""
    bits = numbers.view(np.uint32)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, upper).astype(np.uint16)


def is_shape(sizes: Sequence[Any]) -> bool:
    """Return whether a numpy array can have this shape.

    Even for an empty array numpy multiplies the other sizes and 8 bytes an item, and that must not overflow.
    """
    if len(sizes) > 8 or not all(type(size) is int and 0 <= size < 2**60 for size in sizes):
        return False
    items: int = prod(size for size in sizes if size)
    return items < 2**60


def array_over(mapped: mmap.mmap, dtype: str, shape: Sequence[int], start: int) -> npt.NDArray[np.generic]:
    """Return the array at byte `start` of the map. The caller has checked its dtype, and that it lies inside."""
    array: npt.NDArray[np.generic] = np.frombuffer(mapped, DTYPES[dtype], count=prod(shape), offset=start).reshape(
        shape
    )
    if not array.flags.aligned:  # safetensors before 0.3 did not pad the header, and runtimes require alignment
        array = array.copy()
    return array
