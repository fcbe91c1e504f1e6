"""Named weights over a memory map. Nothing is copied; pages come in as the graph reads them.

`find_weights(folder)` names the safetensors files, `open_checkpoint(paths)` maps them. Called by backends while a
model loads, in the loading thread; the checkpoint then belongs to that model's backend.
The format: https://github.com/huggingface/safetensors, "Format". What its own reader refuses, this one refuses.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from vectord.artifacts.json_file import parse_json, read_json_object
from vectord.errors import ModelUnavailable

Dtype = Literal["F32", "F16", "BF16"]

HEADER_LIMIT_BYTES = 100_000_000  # safetensors' own limit
INDEX_LIMIT_BYTES = 64 * 2**20

_KEPT: Mapping[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_SKIPPED: Mapping[str, int] = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "U32": 4, "I32": 4, "U64": 8, "I64": 8}
_ITEM_BYTES: Mapping[str, int] = {**{name: np.dtype(kind).itemsize for name, kind in _KEPT.items()}, **_SKIPPED}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a checkpoint: its bits, C order, over the map."""

    name: str
    dtype: Dtype
    array: npt.NDArray[np.generic]  # float32, float16, or for BF16 the raw bits as uint16; in the tensor's shape


class Checkpoint(Mapping[str, Weight]):
    """The float tensors of one or more safetensors files, by name. Integer tensors (position_ids) are left out."""

    def __init__(self, weights: Mapping[str, Weight], maps: Sequence[mmap.mmap]) -> None:
        self._weights = dict(weights)
        self._maps = tuple(maps)

    def __getitem__(self, name: str) -> Weight:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def release(self) -> None:
        """Give the pages read so far back to the system. The weights stay usable and are paged in again when read."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        for mapped in self._maps:
            if not mapped.closed:
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Forget the weights. A file is unmapped when nothing, such as a graph, uses an array over it any more."""
        self._weights = {}
        for mapped in self._maps:
            with suppress(BufferError):  # an array over the map is alive; the map goes with the last one
                mapped.close()


def open_checkpoint(paths: Sequence[Path]) -> Checkpoint:
    """Map the safetensors files `paths`. Reads their headers alone.

    Raises ModelUnavailable, naming the file: unreadable, cut off, or not what its header says.
    """
    weights: dict[str, Weight] = {}
    maps = []
    for path in paths:
        mapped = _map(path)
        maps.append(mapped)
        found = _read_weights(path, mapped)
        if twice := weights.keys() & found.keys():
            raise ModelUnavailable(f"{path}: tensor {min(twice)!r} is in an earlier file too")
        weights.update(found)
    return Checkpoint(weights, maps)


def find_weights(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a model's folder: model.safetensors, or the shards its index names, in order.

    Raises ModelUnavailable: none there, or an index that names a file that is missing or outside the folder.
    """
    single = folder / "model.safetensors"
    if single.is_file():
        return (single,)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _shards(index)
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.onnx", "*.gguf") for path in folder.glob(pattern))
    found = f"; found {', '.join(others[:5])}, which this version does not read" if others else ""
    raise ModelUnavailable(f"{folder}: no model.safetensors and no model.safetensors.index.json{found}")


def _shards(index: Path) -> tuple[Path, ...]:
    weight_map = read_json_object(index, limit_bytes=INDEX_LIMIT_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelUnavailable(f"{index}: weight_map is missing or empty")
    names = weight_map.values()
    if not all(isinstance(name, str) and _is_plain_file_name(name) for name in names):
        raise ModelUnavailable(f"{index}: weight_map may only name .safetensors files of its own folder")
    paths = tuple(index.parent / name for name in sorted(set(names)))
    for path in paths:
        if not path.is_file():
            raise ModelUnavailable(f"{path}: missing, though model.safetensors.index.json names it")
    return paths


def _is_plain_file_name(name: str) -> bool:
    return name.endswith(".safetensors") and not any(character in name for character in "/\\:\0")


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            # Copy on write: the arrays count as writable, which some libraries demand, and the file cannot change.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelUnavailable(f"{path}: the file is empty") from error


@dataclass(frozen=True, slots=True)
class _Entry:
    """One checked line of the header; start and stop count bytes from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def _read_weights(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    header, data_at = _read_header(path, mapped)
    entries = [_entry(path, name, fields) for name, fields in header.items() if name != "__metadata__"]
    _check_layout(path, entries, data_bytes=len(mapped) - data_at)
    return {entry.name: _weight(mapped, entry, data_at) for entry in entries if entry.dtype in _KEPT}


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
            sizes = [*shape, start, stop]
        case _:
            raise ModelUnavailable(f"{path}: tensor {name!r} has no proper dtype, shape and data_offsets")
    if not all(type(size) is int and 0 <= size < 2**63 for size in sizes) or len(shape) > 8:
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
    kind = _KEPT[entry.dtype]
    array = np.frombuffer(mapped, kind, count=prod(entry.shape), offset=data_at + entry.start).reshape(entry.shape)
    if not array.flags.aligned:  # writers before safetensors 0.3 did not pad the header; runtimes want alignment
        array = array.copy()
    return Weight(entry.name, cast(Dtype, entry.dtype), array)
