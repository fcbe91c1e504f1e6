"""Named weights over a memory map. Nothing is copied; pages come in as the graph reads them.

`find_weights(folder)` names the weight files, `open_checkpoint(paths)` maps them. Called by backends while a model
loads, in the loading thread; the checkpoint then belongs to that model's backend. The formats: safetensors_file.py,
torch_file.py.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vectord.checkpoints.files.json_file import read_json_object
from vectord.checkpoints.files.safetensors_file import read_safetensors
from vectord.checkpoints.files.torch_file import read_torch_file
from vectord.checkpoints.files.weight import Weight
from vectord.errors import ModelUnavailable

__all__ = ["Checkpoint", "Weight", "find_weights", "open_checkpoint"]

INDEX_LIMIT_BYTES = 64 * 2**20

_READERS: Mapping[str, Callable[[Path, mmap.mmap], dict[str, Weight]]] = {
    ".safetensors": read_safetensors,
    ".bin": read_torch_file,
    ".pt": read_torch_file,
}


class Checkpoint(Mapping[str, Weight]):
    """The float tensors of one or more weight files, by name. Integer tensors (position_ids) are left out."""

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
    """Map the files `paths`: .safetensors, or .bin and .pt of torch. Reads what says where the tensors lie, no more.

    Raises ModelUnavailable, naming the file: unreadable, cut off, of another kind, or not what it says it is.
    """
    weights: dict[str, Weight] = {}
    maps = []
    for path in paths:
        read = _READERS.get(path.suffix)
        if read is None:
            raise ModelUnavailable(f"{path}: weights are read from {', '.join(_READERS)} files")
        mapped = _map(path)
        maps.append(mapped)
        found = read(path, mapped)
        if twice := weights.keys() & found.keys():
            raise ModelUnavailable(f"{path}: tensor {min(twice)!r} is in an earlier file too")
        weights.update(found)
    return Checkpoint(weights, maps)


def find_weights(folder: Path) -> tuple[Path, ...]:
    """The weight files of a model's folder: model.safetensors or the shards its index names, in order; only where
    there are neither, pytorch_model.bin or its shards.

    Raises ModelUnavailable: none there, or an index that names a file that is missing or outside the folder.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        single, index = folder / name, folder / f"{name}.index.json"
        if single.is_file():
            return (single,)
        if index.is_file():
            return _shards(index, suffix=single.suffix)
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.onnx", "*.gguf") for path in folder.glob(pattern))
    found = f"; found {', '.join(others[:5])}" if others else ""
    raise ModelUnavailable(f"{folder}: no model.safetensors, no pytorch_model.bin, and no index of either{found}")


def _shards(index: Path, *, suffix: str) -> tuple[Path, ...]:
    weight_map = read_json_object(index, limit_bytes=INDEX_LIMIT_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelUnavailable(f"{index}: weight_map is missing or empty")
    names = weight_map.values()
    if not all(isinstance(name, str) and _is_plain_file_name(name, suffix) for name in names):
        raise ModelUnavailable(f"{index}: weight_map may only name {suffix} files of its own folder")
    paths = tuple(index.parent / name for name in sorted(set(names)))
    for path in paths:
        if not path.is_file():
            raise ModelUnavailable(f"{path}: missing, though {index.name} names it")
    return paths


def _is_plain_file_name(name: str, suffix: str) -> bool:
    return name.endswith(suffix) and not any(character in name for character in "/\\:\0")


def _map(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            # Copy on write: the arrays count as writable, which some libraries demand, and the file cannot change.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise ModelUnavailable(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelUnavailable(f"{path}: the file is empty") from error
