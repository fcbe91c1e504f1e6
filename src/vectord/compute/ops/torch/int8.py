"""Matrices with 8 bits a weight: each row of a linear layer as int8 with its own scale.

They are converted to the compute dtype before each product, so a model takes half the memory of its 16-bit form in
the same time.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127  # symmetric: -128 is not used


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(O, H) to int8 (O, H) and float32 scales (O, 1); their product differs by at most half a scale in each row."""
    largest = matrix.float().abs().amax(dim=1, keepdim=True)
    scales = torch.where(largest > 0, largest / LARGEST, 1.0)
    return (matrix.float() / scales).round().clamp(-LARGEST, LARGEST).to(torch.int8), scales


def restore(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rounded matrix. Multiplied in float32, because a scale may be too small for float16."""
    return (numbers * scales).to(dtype)
