"""Which ONNX graph of a model's folder is run: `find_graph(folder, dtype, named)`.

models/ asks at start, where a backend that runs graphs was asked for. A folder may have many: exporters write the same
model in several numbers, and say which in the file's name.
"""

from __future__ import annotations

import logging
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from vectord.checkpoints.weight_files import GRAPHS
from vectord.errors import ConfigError, ModelUnavailable

logger = logging.getLogger(__name__)

FOLDERS = ("onnx", ".")
SHOWN = 20  # files named in an error

# As transformers.js, optimum, sentence-transformers and fastembed name them, the best first.
_FLOAT32 = ("model.onnx", "model_optimized.onnx", "model_O3.onnx", "model_O2.onnx", "model_O1.onnx")
_FLOAT16 = ("model_fp16.onnx", "model_float16.onnx", "model_O4.onnx")
_QUANTIZED = ("model_quantized.onnx", "model_int8.onnx", "model_uint8.onnx")
_INT8_OF_X86 = ("model_qint8_avx512_vnni.onnx", "model_qint8_avx512.onnx", "model_quint8_avx2.onnx")
_INT8_OF_ARM = ("model_qint8_arm64.onnx",)

_IN_A_NAME: Mapping[str, re.Pattern[str]] = {
    "int8": re.compile(r"q?u?int8|quantized", re.IGNORECASE),
    "float16": re.compile(r"fp16|float16|_o4", re.IGNORECASE),
}


def find_graph(folder: Path, dtype: str, named: str | None = None, *, sums_int8: bool = True) -> Path:
    """The file to run: `named`, a path inside the folder, or the best for `dtype`; float32 with a warning if none is.

    sums_int8: whether the processor has instructions for it. Raises ConfigError for a path that leads out of the
    folder, ModelUnavailable if there is no such file.
    """
    if named is not None:
        return _named(folder, named)
    for name in _names(dtype, sums_int8):
        if found := _there(folder, name):
            return found
    for name in _FLOAT32:
        if found := _there(folder, name):
            logger.warning("%s has no graph in %s (--onnx-file names one): running %s", folder, dtype, found.name)
            return found
    there = sorted(str(path.relative_to(folder)) for place in FOLDERS for path in (folder / place).glob("*.onnx"))
    raise ModelUnavailable(
        f"{folder}: no ONNX graph under a name that is known, such as {GRAPHS[0]}; "
        f"there are: {', '.join(there[:SHOWN]) or 'none'}; --onnx-file names one"
    )


def graph_patterns(dtype: str, named: str | None = None, *, sums_int8: bool = True) -> tuple[str, ...]:
    """Patterns of the files that find_graph would look for, and of those that they keep their tensors in."""
    names = [named] if named is not None else [*_names(dtype, sums_int8), GRAPHS[1]]
    places = [""] if named is not None else ["onnx/", ""]
    return tuple(f"{place}{name}{data}" for name in names for place in places for data in ("", "_data*", ".data"))


def dtype_of(graph: Path) -> str:
    """What the file's name says of its numbers; float32 where it says nothing."""
    return next((dtype for dtype, pattern in _IN_A_NAME.items() if pattern.search(graph.stem)), "float32")


def _names(dtype: str, sums_int8: bool) -> Sequence[str]:
    if dtype in {"auto", "float32"}:
        return _FLOAT32
    if dtype == "float16":
        return _FLOAT16
    return _names_of_int8(sums_int8) if dtype == "int8" else ()


def _names_of_int8(sums_int8: bool) -> Sequence[str]:
    """What was made for this processor first; weights of 8 bits overflow where it has no such instructions."""
    if platform.machine().lower() in {"arm64", "aarch64"}:
        return _INT8_OF_ARM + _QUANTIZED
    of_x86 = _INT8_OF_X86 if sums_int8 else _INT8_OF_X86[::-1]
    return of_x86 + _QUANTIZED


def _there(folder: Path, name: str) -> Path | None:
    return next((path for place in FOLDERS if (path := folder / place / name).is_file()), None)


def _named(folder: Path, named: str) -> Path:
    place = PurePath(named)
    if place.is_absolute() or ".." in place.parts or place.suffix != ".onnx":
        raise ConfigError("onnx_file: expected a .onnx file inside the model's folder, such as onnx/model_O4.onnx")
    path = folder / place
    if not path.is_file():
        raise ModelUnavailable(f"{path}: no such file, and onnx_file names it")
    return path
