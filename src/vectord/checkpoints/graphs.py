"""Choose the ONNX graph of a model's folder: `find_graph(folder, dtype, named)`.

engine/models calls it at start for backends that run graphs. Exporters write one file per data type, and the name of
the file contains the type.
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
MAX_FILES_NAMED = 20  # in an error

# File names that transformers.js, optimum, sentence-transformers and fastembed use, in order of preference.
_FLOAT32 = ("model.onnx", "model_optimized.onnx", "model_O3.onnx", "model_O2.onnx", "model_O1.onnx")
_FLOAT16 = ("model_fp16.onnx", "model_float16.onnx", "model_O4.onnx")
_QUANTIZED = ("model_quantized.onnx", "model_int8.onnx", "model_uint8.onnx")
_INT8_X86 = ("model_qint8_avx512_vnni.onnx", "model_qint8_avx512.onnx", "model_quint8_avx2.onnx")
_INT8_ARM = ("model_qint8_arm64.onnx",)

_DTYPE_PATTERNS: Mapping[str, re.Pattern[str]] = {
    "int8": re.compile(r"q?u?int8|quantized", re.IGNORECASE),
    "float16": re.compile(r"fp16|float16|_o4", re.IGNORECASE),
}


def find_graph(folder: Path, dtype: str, named: str | None = None, *, has_vnni: bool = True) -> Path:
    """Return the graph file to load: `named`, a path inside the folder, or the preferred file for `dtype`.

    Without a file for `dtype`, logs a warning and returns the float32 file, or else a quantized one. has_vnni: whether
    the processor has instructions that add int8 products in 32 bits.
    """
    if named is not None:
        path = PurePath(named)
        if path.is_absolute() or ".." in path.parts or path.suffix != ".onnx":
            raise ConfigError("onnx_file: expected a .onnx file inside the model's folder, such as onnx/model_O4.onnx")
        if not (folder / path).is_file():
            raise ModelUnavailable(f"{folder / path}: no such file, but onnx_file names it")
        return folder / path
    for name in _file_names(dtype, has_vnni):
        if found := _find(folder, name):
            return found
    for name in (*_FLOAT32, *_QUANTIZED):
        if found := _find(folder, name):
            logger.warning("no graph in %s in %s: using %s (--onnx-file chooses another)", dtype, folder, found.name)
            return found
    files = sorted(str(path.relative_to(folder)) for place in FOLDERS for path in (folder / place).glob("*.onnx"))
    raise ModelUnavailable(
        f"{folder}: no ONNX graph with a known name, such as {GRAPHS[0]}; "
        f"found: {', '.join(files[:MAX_FILES_NAMED]) or 'none'}; set --onnx-file to choose one"
    )


def graph_patterns(dtype: str, named: str | None = None, *, has_vnni: bool = True) -> tuple[str, ...]:
    """Return patterns of the files that find_graph looks for, and of the files that contain their tensors."""
    names = [named] if named is not None else [*_file_names(dtype, has_vnni), GRAPHS[1]]
    prefixes = [""] if named is not None else ["onnx/", ""]
    return tuple(f"{prefix}{name}{data}" for name in names for prefix in prefixes for data in ("", "_data*", ".data"))


def dtype_of(graph: Path) -> str:
    """Return the data type in the file's name, or float32 if the name has none."""
    return next((dtype for dtype, pattern in _DTYPE_PATTERNS.items() if pattern.search(graph.stem)), "float32")


def _file_names(dtype: str, has_vnni: bool) -> Sequence[str]:
    if dtype in {"auto", "float32"}:
        return _FLOAT32
    if dtype == "float16":
        return _FLOAT16
    if dtype != "int8":
        return ()
    # Files for this processor first. Without VNNI, products with signed weights (qint8) saturate in 16 bits, so the
    # file with unsigned weights (quint8_avx2) comes first.
    if platform.machine().lower() in {"arm64", "aarch64"}:
        return _INT8_ARM + _QUANTIZED
    return (_INT8_X86 if has_vnni else _INT8_X86[::-1]) + _QUANTIZED


def _find(folder: Path, name: str) -> Path | None:
    return next((path for place in FOLDERS if (path := folder / place / name).is_file()), None)
