"""Pack rows of several texts into one array of an npz file, and unpack them.

The scripts here write with `pack`, in the reference environment; tests read with `unpack`. numpy only, so both can.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def pack(name: str, rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays end to end under `name`, and their ends under `name`_cu_seqlens, (N + 1,)."""
    return {name: np.concatenate(rows), f"{name}_cu_seqlens": np.cumsum([0, *map(len, rows)], dtype=np.int32)}


def unpack(answers: Mapping[str, np.ndarray], name: str) -> list[np.ndarray]:
    """Return the arrays packed under `name`, one per text, in order."""
    return np.split(answers[name], answers[f"{name}_cu_seqlens"][1:-1])
