"""The weights of a safetensors file: `read_safetensors(path, mapped)`. What the format's own reader refuses, this does.

checkpoint.py calls it, in the loading thread. It reads the header and makes arrays over the rest.
The format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np

from vectord.checkpoints.files.json_file import parse_json
from vectord.checkpoints.files.weight import KEPT, Dtype, Weight, array_over, is_shape
from vectord.errors import ModelUnavailable

HEADER_LIMIT_BYTES = 100_000_000  # safetensors' own limit

_SKIPPED: Mapping[str, int] = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_ITEM_BYTES: Mapping[str, int] = {**{name: np.dtype(kind).itemsize for name, kind in KEPT.items()}, **_SKIPPED}


@dataclass(frozen=True, slots=True)
class _Entry:
    """One checked line of the header; start and stop count bytes from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def read_safetensors(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    """The float tensors of the file at `path`, mapped.

    Raises ModelUnavailable, naming the file: cut off, or not what its header says.
    """
    header, data_at = _read_header(path, mapped)
    entries = [_entry(path, name, fields) for name, fields in header.items() if name != "__metadata__"]
    _check_layout(path, entries, data_bytes=len(mapped) - data_at)
    return {entry.name: _weight(mapped, entry, data_at) for entry in entries if entry.dtype in KEPT}


def _read_header(path: Path, mapped: mmap.mmap) -> tuple[dict[str, Any], int]:
    if len(mapped) < 8:
        raise ModelUnavailable(f"{path}: {len(mapped)} bytes are too few for a safetensors file")
    (header_bytes,) = struct.unpack("<Q", mapped[:8])
    if header_bytes > HEADER_LIMIT_BYTES:
        raise ModelUnavailable(f"{path}: a header of {header_bytes:,} bytes; the limit is {HEADER_LIMIT_BYTES:,}")
    if 8 + header_bytes > len(mapped):
        raise ModelUnavailable(f"{path}: cut off inside its header")
    header = parse_json(mapped[8 : 8 + header_bytes], path)
    if not isinstance(header, dict):
        raise ModelUnavailable(f"{path}: the header is not a JSON object")
    return header, 8 + header_bytes


def _entry(path: Path, name: str, fields: Any) -> _Entry:
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, stop]}:
            ends = (start, stop)
        case _:
            raise ModelUnavailable(f"{path}: tensor {name!r} has no proper dtype, shape and data_offsets")
    if not is_shape(shape) or not all(type(end) is int and 0 <= end < 2**63 for end in ends):
        raise ModelUnavailable(f"{path}: tensor {name!r} has an impossible shape or place")
    if dtype not in _ITEM_BYTES:
        raise ModelUnavailable(f"{path}: tensor {name!r} has dtype {dtype[:20]!r}; weights are read as F32, F16, BF16")
    if prod(shape) * _ITEM_BYTES[dtype] != stop - start:
        raise ModelUnavailable(f"{path}: tensor {name!r} has {stop - start} bytes, not those of {shape} {dtype}")
    return _Entry(name, dtype, tuple(shape), start, stop)


def _check_layout(path: Path, entries: Sequence[_Entry], *, data_bytes: int) -> None:
    """Tensors lie end to end and fill the file: no overlap, no gap, nothing outside (safetensors' own rule)."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            raise ModelUnavailable(f"{path}: tensor {entry.name!r} starts at byte {entry.start}, not at {end}")
        end = entry.stop
    if end != data_bytes:
        raise ModelUnavailable(f"{path}: {data_bytes:,} bytes of tensors where its header says {end:,}; incomplete?")


def _weight(mapped: mmap.mmap, entry: _Entry, data_at: int) -> Weight:
    array = array_over(mapped, entry.dtype, entry.shape, data_at + entry.start)
    return Weight(entry.name, cast(Dtype, entry.dtype), array)
