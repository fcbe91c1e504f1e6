"""Choose the ONNX graph of a model's folder: `find_graph(folder, dtype, named)`.

engine/models calls it at start for backends that run graphs. Exporters write the same model in several data types, and
name the type in the file's name.
"""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from vectord.checkpoints.checkpoint import GRAPHS
from vectord.errors import ConfigError, ModelUnavailable

logger = logging.getLogger(__name__)

FOLDERS = ("onnx", ".")
SHOWN = 20  # files named in an error

# The names that transformers.js, optimum, sentence-transformers and fastembed use, the best first.
_FLOAT32 = ("model.onnx", "model_optimized.onnx", "model_O3.onnx", "model_O2.onnx", "model_O1.onnx")
_FLOAT16 = ("model_fp16.onnx", "model_float16.onnx", "model_O4.onnx")
_QUANTIZED = ("model_quantized.onnx", "model_int8.onnx", "model_uint8.onnx")
_INT8_X86 = ("model_qint8_avx512_vnni.onnx", "model_qint8_avx512.onnx", "model_quint8_avx2.onnx")
_INT8_ARM = ("model_qint8_arm64.onnx",)

_DTYPE_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "int8": re.compile(r"q?u?int8|quantized", re.IGNORECASE),
    "float16": re.compile(r"fp16|float16|_o4", re.IGNORECASE),
}


def find_graph(folder: Path, dtype: str, named: str | None = None, *, sums_int8: bool = True) -> Path:
    """Return `named`, a path inside the folder, or the best file for `dtype`; float32 with a warning if there is none.

    sums_int8: whether the processor has instructions that sum int8 products. Raises ConfigError for a path that leads
    out of the folder, ModelUnavailable if there is no such file.
    """
    if named is not None:
        place = PurePath(named)
        if place.is_absolute() or ".." in place.parts or place.suffix != ".onnx":
            raise ConfigError("onnx_file: expected a .onnx file inside the model's folder, such as onnx/model_O4.onnx")
        if not (folder / place).is_file():
            raise ModelUnavailable(f"{folder / place}: no such file, but onnx_file names it")
        return folder / place
    for name in _names(dtype, sums_int8):
        if found := _find(folder, name):
            return found
    for name in _FLOAT32:
        if found := _find(folder, name):
            logger.warning("%s has no graph in %s (--onnx-file names one): running %s", folder, dtype, found.name)
            return found
    files = sorted(str(path.relative_to(folder)) for place in FOLDERS for path in (folder / place).glob("*.onnx"))
    raise ModelUnavailable(
        f"{folder}: no ONNX graph with a known name, such as {GRAPHS[0]}; "
        f"found: {', '.join(files[:SHOWN]) or 'none'}; set --onnx-file to choose one"
    )


def graph_patterns(dtype: str, named: str | None = None, *, sums_int8: bool = True) -> tuple[str, ...]:
    """Return patterns of the files that find_graph would look for, and of the files that hold their tensors."""
    names = [named] if named is not None else [*_names(dtype, sums_int8), GRAPHS[1]]
    places = [""] if named is not None else ["onnx/", ""]
    return tuple(f"{place}{name}{data}" for name in names for place in places for data in ("", "_data*", ".data"))


def dtype_of(graph: Path) -> str:
    """Return the data type in the file's name; float32 if it names none."""
    return next((dtype for dtype, pattern in _DTYPE_PATTERNS.items() if pattern.search(graph.stem)), "float32")


def _names(dtype: str, sums_int8: bool) -> Sequence[str]:
    if dtype in {"auto", "float32"}:
        return _FLOAT32
    if dtype == "float16":
        return _FLOAT16
    if dtype != "int8":
        return ()
    # Files for this processor first. Without int8 sums, weights of 8 bits overflow and the avx2 file comes first.
    if platform.machine().lower() in {"arm64", "aarch64"}:
        return _INT8_ARM + _QUANTIZED
    return (_INT8_X86 if sums_int8 else _INT8_X86[::-1]) + _QUANTIZED


def _find(folder: Path, name: str) -> Path | None:
    return next((path for place in FOLDERS if (path := folder / place / name).is_file()), None)
