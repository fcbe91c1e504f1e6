"""Named weights over a memory map, and which files hold them. Pages are read when a graph first reads the weights.

`find_weight_files` names the files of a model and `open_checkpoint` maps them, both while a model loads. The checkpoint
then belongs to that model's backend.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from vectord.checkpoints.files.gguf_file import is_gguf
from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.checkpoints.files.packed_table import REST, TABLE, read_packed_table
from vectord.checkpoints.files.read import map_file, read_json_object
from vectord.checkpoints.files.safetensors_file import read_safetensors
from vectord.checkpoints.files.torch_file import read_torch_file
from vectord.checkpoints.files.weight import Weight
from vectord.checkpoints.gguf.weights import read_weights
from vectord.errors import ModelUnavailable

__all__ = ["GRAPHS", "Checkpoint", "Weight", "find_weight_files", "find_weights", "open_checkpoint"]

INDEX_LIMIT_BYTES = 64 * 2**20
GRAPHS = ("onnx/model.onnx", "model.onnx", "onnx/model_quantized.onnx", "model_quantized.onnx")

_READERS: Mapping[str, Callable[[Path, mmap.mmap], dict[str, Weight]]] = {
    ".safetensors": read_safetensors,
    ".bin": read_torch_file,
    ".pt": read_torch_file,
    TABLE: read_packed_table,
}


class Checkpoint(dict[str, Weight]):
    """The tensors of one or more weight files, by name."""

    def __init__(self, weights: Mapping[str, Weight], maps: Sequence[mmap.mmap]) -> None:
        super().__init__(weights)
        self._maps = tuple(maps)

    def release(self) -> None:
        """Return the pages read so far to the system. The weights stay usable and are paged in again when read."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        for mapped in self._maps:
            if not mapped.closed:
                mapped.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Drop the weights. A file is unmapped when no array over it, such as a graph's constant, is left."""
        self.clear()
        for mapped in self._maps:
            with suppress(BufferError):  # an array over the map is alive
                mapped.close()


def open_checkpoint(paths: Sequence[Path], others: tuple[str, ...] = ()) -> Checkpoint:
    """Map .safetensors files, .bin and .pt files of torch, or a GGUF file. Reads only the headers.

    others: leave out tensors whose names begin with one of these."""
    weights: dict[str, Weight] = {}
    maps = []
    for path in paths:
        read = read_weights if is_gguf(path) else _READERS.get(path.name, _READERS.get(path.suffix))
        if read is None:
            raise ModelUnavailable(f"{path}: weights are read from .safetensors, .bin, .pt and GGUF files")
        mapped = map_file(path)
        maps.append(mapped)
        found = read(path, mapped)
        if twice := weights.keys() & found.keys():
            raise ModelUnavailable(f"{path}: tensor {min(twice)!r} is in an earlier file too")
        weights.update(found)
    return Checkpoint({name: weight for name, weight in weights.items() if not name.startswith(others)}, maps)


def tensor_shape(path: Path, name: str) -> tuple[int, ...]:
    """Return the shape of a tensor, from the header of its file; () if the file has no such tensor."""
    checkpoint = open_checkpoint((path,))
    shape = checkpoint[name].shape if name in checkpoint else ()
    checkpoint.close()
    return shape


def find_tensor(paths: Iterable[Path], name: str) -> tuple[Path, tuple[int, ...]] | None:
    """Return the file that has the tensor, and its shape; None: no file. Graphs are not searched."""
    for path in paths:
        if path.suffix != ".onnx" and (shape := tensor_shape(path, name)):
            return path, shape
    return None


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """Return a GGUF file itself, the files of `find_weights`, or an ONNX graph followed by the files of its tensors.

    Graphs come last because they run on padded batches.
    """
    if is_gguf(folder):
        return (folder,)
    try:
        return find_weights(folder)
    except ModelUnavailable:
        graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
        if graph is None or any(folder.glob("*.index.json")):  # missing shards are a broken download
            raise
        return (graph, *read_onnx(graph).data)


def find_weights(folder: Path) -> tuple[Path, ...]:
    """Return model.safetensors, else the shards of its index in order, else pytorch_model.bin or its shards, else a
    packed table."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        single, index = folder / name, folder / f"{name}.index.json"
        if single.is_file():
            return (single,)
        if not index.is_file():
            continue
        weight_map = read_json_object(index, limit_bytes=INDEX_LIMIT_BYTES).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelUnavailable(f"{index}: weight_map is missing or empty")
        for shard in weight_map.values():
            if not isinstance(shard, str) or not shard.endswith(single.suffix) or any(c in shard for c in "/\\:\0"):
                raise ModelUnavailable(f"{index}: weight_map may only name {single.suffix} files of its own folder")
        paths = tuple(folder / shard for shard in sorted(set(weight_map.values())))
        for path in paths:
            if not path.is_file():
                raise ModelUnavailable(f"{path}: missing, though {index.name} names it")
        return paths
    if (folder / TABLE).is_file():
        return folder / REST, folder / TABLE
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.onnx", "*.gguf") for path in folder.glob(pattern))
    found = f"; found {', '.join(others[:5])}" if others else ""
    raise ModelUnavailable(f"{folder}: no model.safetensors, no pytorch_model.bin, and no index of either{found}")
