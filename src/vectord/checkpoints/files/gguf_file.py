"""Read the header of a GGUF file: `read_gguf(path, mapped) -> GgufFile`.

It parses the metadata, and returns tensors as bytes that view the memory map. The `gguf` package has a reader too, but
not for hostile files: it does not check counts, lengths and offsets, and makes several arrays for each word of a
vocabulary.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.files.weight import is_shape
from vectord.errors import ModelUnavailable

MAGIC = b"GGUF"
SUFFIX = ".gguf"
ALIGNMENT = 32  # without general.alignment
_ALIGNMENT_LIMIT = 2**16
_DIMENSIONS_LIMIT = 4
_VERSIONS = (2, 3)

# Types of values. 8 is a text, 9 a list.
_NUMBERS: Mapping[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_TEXT, _LIST = 8, 9


class TensorType(msgspec.Struct, frozen=True):
    """How the numbers of a tensor are stored: in blocks of `items` numbers, each of `bytes` bytes."""

    name: str
    items: int
    bytes: int


# By ggml's number. Types with tables and fewer than 4 bits a number (IQ1 ... IQ3, TQ) are not supported.
TENSOR_TYPES: Mapping[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    20: TensorType("IQ4_NL", 32, 18),
    23: TensorType("IQ4_XS", 256, 136),
    30: TensorType("BF16", 1, 2),
}


class GgufTensor(msgspec.Struct, frozen=True):
    name: str
    type: TensorType
    shape: tuple[int, ...]  # as numpy orders it: rows first
    at: int  # the tensor's first byte in the file
    blocks: npt.NDArray[np.uint8]  # its bytes, in the shape of its rows: (..., bytes of a row)


class GgufFile(msgspec.Struct, frozen=True):
    metadata: Mapping[str, Any]  # int, float, bool, str, list of str, or an array of numbers
    tensors: Mapping[str, GgufTensor]


def is_gguf(path: Path) -> bool:
    """Return whether the path is a GGUF file, by suffix or first bytes: a store may name files by their digest."""
    try:
        if not path.is_file():
            return False
        if path.suffix == SUFFIX:
            return True
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_gguf(path: Path, mapped: mmap.mmap) -> GgufFile:
    """Return the metadata and tensors of the mapped file."""
    return _Header(path, mapped).read()


class _Header:
    """Reads one file from its start."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self._path = path
        self._mapped = mapped
        self._at = 0
        self._field = "the header"  # that is being read, for messages

    def read(self) -> GgufFile:
        if self._mapped[: len(MAGIC)] != MAGIC:
            raise self._refuse("not a GGUF file: it does not begin with GGUF")
        self._at = len(MAGIC)
        version = self._whole("<I")
        if version not in _VERSIONS:
            why = "big-endian files are not read" if version & 0xFFFF == 0 else "2 and 3 are read"
            raise self._refuse(f"version {version} of GGUF; {why}")
        tensors, keys = self._whole("<Q"), self._whole("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._name("a metadata key")
            if key in metadata:
                raise self._refuse("occurs twice")
            metadata[key] = self._value(self._whole("<I"))
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= _ALIGNMENT_LIMIT or alignment & (alignment - 1):
            self._field = "general.alignment"
            raise self._refuse(f"must be a power of two up to {_ALIGNMENT_LIMIT}")
        return GgufFile(metadata, self._tensors(tensors, alignment))

    # --- metadata ---------------------------------------------------------------------------------------------

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _LIST:
            kind, count = self._whole("<I"), self._whole("<Q")
            return self._texts(count) if kind == _TEXT else self._numbers(kind, count)
        return self._numbers(kind, 1)[0].item()

    def _numbers(self, kind: int, count: int) -> npt.NDArray[np.generic]:
        if kind not in _NUMBERS:
            raise self._refuse(f"has values of the type {kind}, which is not supported")
        dtype = np.dtype(_NUMBERS[kind])
        start = self._take(count * dtype.itemsize)
        # As bytes first: a boolean of another value than 0 and 1 is undefined in numpy.
        data = np.frombuffer(self._mapped[start : self._at], np.uint8)
        if dtype.kind == "b" and (data > 1).any():
            raise self._refuse("is neither true nor false")
        return data.view(dtype)

    def _texts(self, count: int) -> list[str]:
        mapped, at, end = self._mapped, self._at, len(self._mapped)
        texts = []
        try:
            for _ in range(count):  # 0.2 s for 500,000: no call of _text
                first = at + 8
                at = first + int.from_bytes(mapped[at:first], "little")
                if first > end or at > end:
                    raise self._refuse("is cut off")
                texts.append(mapped[first:at].decode())
        except UnicodeDecodeError:
            raise self._refuse("has a text that is not UTF-8") from None
        self._at = at
        return texts

    # --- tensors ----------------------------------------------------------------------------------------------

    def _tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        """Offsets count from the first aligned byte after the header; each tensor begins where the last one ends."""
        headers = [self._tensor_header() for _ in range(count)]
        start = self._at = _aligned(self._at, alignment)
        tensors: dict[str, GgufTensor] = {}
        for name, kind, shape, offset in headers:
            self._field = f"tensor {name[:100]!r}"
            if name in tensors:
                raise self._refuse("occurs twice")
            if start + offset != self._at:
                raise self._refuse(f"starts at byte {start + offset}, not at {self._at}")
            row_bytes = shape[-1] // kind.items * kind.bytes
            self._take(prod(shape[:-1]) * row_bytes)
            blocks = np.frombuffer(self._mapped, np.uint8, prod(shape[:-1]) * row_bytes, start + offset)
            tensors[name] = GgufTensor(name, kind, shape, start + offset, blocks.reshape(*shape[:-1], row_bytes))
            self._at = _aligned(self._at, alignment)
        return tensors

    def _tensor_header(self) -> tuple[str, TensorType, tuple[int, ...], int]:
        name = self._name("a tensor's name")
        self._field = f"tensor {name[:100]!r}"
        dimensions = self._whole("<I")
        if not 0 < dimensions <= _DIMENSIONS_LIMIT:
            raise self._refuse(f"has {dimensions:,} dimensions; supported are 1 to {_DIMENSIONS_LIMIT}")
        shape = tuple(self._whole("<Q") for _ in range(dimensions))[::-1]
        number, offset = self._whole("<I"), self._whole("<Q")
        kind = TENSOR_TYPES.get(number)
        if kind is None:
            names = ", ".join(known.name for known in TENSOR_TYPES.values())
            raise self._refuse(f"has ggml's type {number}, which is not supported; supported are {names}")
        if not is_shape(shape) or 0 in shape or shape[-1] % kind.items:
            raise self._refuse(f"has a shape that is impossible for {kind.name}")
        return name, kind, shape, offset

    # --- parts ------------------------------------------------------------------------------------------------

    def _take(self, count: int) -> int:
        """Skip `count` bytes; returns the position of the first."""
        start = self._at
        if start + count > len(self._mapped):
            raise self._refuse("is cut off")
        self._at += count
        return start

    def _whole(self, form: str) -> int:
        (number,) = struct.unpack_from(form, self._mapped, self._take(struct.calcsize(form)))
        return int(number)

    def _name(self, what: str) -> str:
        self._field = what
        self._field = self._text()
        return self._field

    def _text(self) -> str:
        start = self._take(self._whole("<Q"))
        try:
            return self._mapped[start : self._at].decode()
        except UnicodeDecodeError:
            raise self._refuse("is not UTF-8") from None

    def _refuse(self, why: str) -> ModelUnavailable:
        return ModelUnavailable(f"{self._path}: {self._field[:1000]} {why}" if self._at else f"{self._path}: {why}")


def _aligned(at: int, alignment: int) -> int:
    return -(-at // alignment) * alignment
