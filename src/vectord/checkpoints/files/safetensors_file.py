"""Read the weights of a safetensors file: `read_safetensors(path, mapped)`.

checkpoint.py calls it in the loading thread. It parses the header and returns arrays that view the memory map. It
refuses the files that the safetensors library refuses.
The format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import mmap
from math import prod
from pathlib import Path
from typing import Annotated, cast

import msgspec
import numpy as np

from vectord.checkpoints.files.read import parse_json
from vectord.checkpoints.files.weight import DTYPES, Dtype, Weight, array_over, is_shape
from vectord.errors import ModelUnavailable

HEADER_LIMIT_BYTES = 100_000_000  # safetensors' own limit

_NonNegative = Annotated[int, msgspec.Meta(ge=0)]


class _TensorHeader(msgspec.Struct):
    """The header's entry for one tensor. The offsets count from the end of the header."""

    dtype: str
    shape: list[_NonNegative]
    data_offsets: tuple[_NonNegative, _NonNegative]


def read_safetensors(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    """Return the tensors of the mapped file by name."""
    header_bytes = int.from_bytes(mapped[:8], "little")
    if len(mapped) < 8:
        raise ModelUnavailable(f"{path}: {len(mapped)} bytes are too few for a safetensors file")
    if header_bytes > HEADER_LIMIT_BYTES:
        raise ModelUnavailable(f"{path}: the header has {header_bytes:,} bytes; the limit is {HEADER_LIMIT_BYTES:,}")
    data_at = 8 + header_bytes
    if data_at > len(mapped):
        raise ModelUnavailable(f"{path}: cut off inside its header")
    header = parse_json(mapped[8:data_at], path)
    if not isinstance(header, dict):
        raise ModelUnavailable(f"{path}: the header is not a JSON object")
    header.pop("__metadata__", None)
    entries = [(name, _entry(path, name, fields)) for name, fields in header.items()]
    end = 0
    for name, entry in sorted(entries, key=lambda named: named[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end:
            raise ModelUnavailable(f"{path}: tensor {name!r} starts at byte {start}, not at {end}")
        end = stop
    if data_at + end != len(mapped):
        raise ModelUnavailable(
            f"{path}: the file has {len(mapped) - data_at:,} bytes of tensors, but its header describes {end:,}; "
            "incomplete?"
        )
    return {
        name: Weight(
            name,
            cast(Dtype, entry.dtype),
            array_over(mapped, entry.dtype, entry.shape, data_at + entry.data_offsets[0]),
        )
        for name, entry in entries
    }


def _entry(path: Path, name: str, fields: object) -> _TensorHeader:
    try:
        entry = msgspec.convert(fields, _TensorHeader)
    except msgspec.ValidationError as error:
        raise ModelUnavailable(f"{path}: tensor {name!r}: {error}") from error
    start, stop = entry.data_offsets
    if entry.dtype not in DTYPES:
        raise ModelUnavailable(
            f"{path}: tensor {name!r} has dtype {entry.dtype[:20]!r}; supported are {', '.join(DTYPES)}"
        )
    if not is_shape(entry.shape):  # not in the message: a header has room for millions of sizes
        raise ModelUnavailable(f"{path}: tensor {name!r} has an impossible shape")
    if prod(entry.shape) * np.dtype(DTYPES[entry.dtype]).itemsize != stop - start:
        raise ModelUnavailable(
            f"{path}: tensor {name!r} has {stop - start} bytes, which do not fit shape {entry.shape} of {entry.dtype}"
        )
    return entry
