"""Matrices of 8 bits a weight: each row of a linear layer as int8 with a scale of its own.

They are made whole again in the product's own numbers before each product, so that a model takes half the memory of its
16-bit self and no less time.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127  # symmetric: -128 is not used


def quantise(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(O, H) to int8 (O, H) and float32 scales (O, 1) whose product it is, each row to within half its scale."""
    largest = matrix.float().abs().amax(dim=1, keepdim=True)
    scales = torch.where(largest > 0, largest / LARGEST, 1.0)
    return (matrix.float() / scales).round().clamp(-LARGEST, LARGEST).to(torch.int8), scales


def restore(numbers: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix, as near as it was kept. Multiplied in float32: a scale may be too small for float16."""
    return (numbers * scales).to(dtype)
