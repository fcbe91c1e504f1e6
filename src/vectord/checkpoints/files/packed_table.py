"""The table of RikkaBotan's module SSEQ: `embedding.q4_k_m.bin`, with numbers of 4 bits and a scale for each row.

The name is all that it shares with GGUF's formats. All rows come first, two columns a byte, the upper half first; then
a float32 scale for each row. A number q from 0 to 15 stands for (q / 7.5 - 1) times the row's scale.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.files.read import map_file
from vectord.checkpoints.files.safetensors_file import read_safetensors
from vectord.checkpoints.files.weight import ROWS_AT_ONCE, ComputedWeight, Weight
from vectord.errors import ModelUnavailable

TABLE = "embedding.q4_k_m.bin"
REST = "model_rest.safetensors"  # next to it: a number for each column


def read_packed_table(path: Path, mapped: mmap.mmap) -> dict[str, Weight]:
    """Return embedding.weight, (rows, columns) float32, which is computed when it is read."""
    rest = path.with_name(REST)
    scale = read_safetensors(rest, map_file(rest)).get("dyt.alpha")
    columns = scale.shape[0] if scale is not None and len(scale.shape) == 1 else 0
    row_bytes = columns // 2 + np.dtype(np.float32).itemsize
    if columns < 2 or columns % 2 or len(mapped) % row_bytes:
        raise ModelUnavailable(f"{path}: {len(mapped):,} bytes are not rows of {columns} numbers, as {REST} says")
    rows = len(mapped) // row_bytes
    packed = np.frombuffer(mapped, np.uint8, rows * columns // 2).reshape(rows, columns // 2)
    scales = np.frombuffer(mapped, "<f4", rows, offset=packed.size)

    def expand() -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, rows, ROWS_AT_ONCE):
            part = packed[start : start + ROWS_AT_ONCE]
            numbers = np.stack((part >> 4, part & 15), axis=2).reshape(len(part), columns).astype(np.float32)
            yield (numbers / np.float32(7.5) - 1) * scales[start : start + ROWS_AT_ONCE, None]

    return {"embedding.weight": ComputedWeight("embedding.weight", (rows, columns), expand)}
