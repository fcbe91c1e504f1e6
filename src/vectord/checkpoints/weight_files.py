"""The files that hold a model's weights, whatever their format: `find_weight_files(folder)`.

reader.py and snapshot.py ask at start. A graph counts only where there is nothing better: it is run as it is, padded.
"""

from __future__ import annotations

from pathlib import Path

from vectord.checkpoints.checkpoint import find_weights
from vectord.checkpoints.files.onnx_file import read_onnx
from vectord.errors import ModelUnavailable

GRAPHS = ("onnx/model.onnx", "model.onnx")


def find_weight_files(folder: Path) -> tuple[Path, ...]:
    """Safetensors, else torch files (checkpoint.py), else an ONNX graph and then the files it keeps its tensors in.

    Raises ModelUnavailable: none there, a shard that is missing, a graph that names files outside its folder.
    """
    try:
        return find_weights(folder)
    except ModelUnavailable:
        graph = next((folder / name for name in GRAPHS if (folder / name).is_file()), None)
        if graph is None or any(folder.glob("*.index.json")):  # shards that are missing are a broken download
            raise
        return (graph, *read_onnx(graph).data)
