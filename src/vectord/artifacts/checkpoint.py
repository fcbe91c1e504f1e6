"""Named weights over a memory map. Nothing is copied; pages come in as the graph reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Dtype = Literal["F32", "F16", "BF16"]


@dataclass(frozen=True, slots=True)
class Weight:
    """One tensor of a checkpoint: its bits, C order, over the map."""

    name: str
    dtype: Dtype
    array: npt.NDArray[np.generic]  # float32, float16, or for BF16 the raw bits as uint16; in the tensor's shape
