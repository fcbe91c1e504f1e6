"""One tensor of a checkpoint, in no file format's terms.

safetensors_file.py and torch_file.py make them while a model loads; checkpoint.py hands them on to networks and ops.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Dtype = Literal["F32", "F16", "BF16", "I32"]  # I32: tables that networks make; none is read from a file

KEPT: Mapping[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a checkpoint: its bits, C order, over the map."""

    name: str
    dtype: Dtype
    array: npt.NDArray[np.generic]  # in the tensor's shape; for BF16 the raw bits as uint16


def is_shape(sizes: Sequence[Any]) -> bool:
    """Whether an array may have this shape. Zeros aside, even of an empty array numpy multiplies the sizes and the 8
    bytes of an item, and must not overflow."""
    if len(sizes) > 8 or not all(type(size) is int and 0 <= size < 2**60 for size in sizes):
        return False
    items: int = prod(size for size in sizes if size)
    return items < 2**60


def array_over(mapped: mmap.mmap, dtype: str, shape: Sequence[int], start: int) -> npt.NDArray[np.generic]:
    """The array at byte `start` of the map, of a KEPT dtype. That it lies inside is the caller's to have checked."""
    array = np.frombuffer(mapped, KEPT[dtype], count=prod(shape), offset=start).reshape(shape)
    if not array.flags.aligned:  # writers of safetensors before 0.3 did not pad the header; runtimes want alignment
        array = array.copy()
    return array
