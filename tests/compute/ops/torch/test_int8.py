"""Matrices in 8 bits: their accuracy, and their use by an op set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vectord.checkpoints.checkpoint import Weight
from vectord.compute.ops.torch import TorchOps
from vectord.compute.ops.torch.ops import quantize, restore

CPU = torch.device("cpu")


@given(rows=st.integers(1, 5), width=st.integers(1, 40), exponent=st.integers(-30, 20), seed=st.integers(0, 99))
def test_a_row_is_accurate_to_half_its_scale(rows: int, width: int, exponent: int, seed: int) -> None:
    """Whatever its magnitude, and whatever the other rows."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.randn(rows, width, generator=generator) * 2.0**exponent
    matrix[0] *= 1000
    numbers, scales = quantize(matrix)
    assert numbers.dtype == torch.int8
    assert (restore(numbers, scales, torch.float32) - matrix).abs().le(scales * 0.5001).all()


def test_a_row_of_zeros_stays_zeros() -> None:
    """It has no scale."""
    assert not restore(*quantize(torch.zeros(2, 3)), torch.float32).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_linear_multiplies_the_rounded_matrix(dtype: torch.dtype) -> None:
    """In the op set's own dtype, with scales that float16 could not hold."""
    array = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32) * 1e-3
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 32))).to(dtype)
    ops = TorchOps(CPU, dtype, int8=True)
    matrix = ops.matrix(Weight("m", "F32", array))
    got = ops.linear(x, matrix, None)
    assert matrix.dtype == torch.int8
    assert got.dtype == dtype
    want = x.double() @ torch.from_numpy(array).double().T
    assert torch.nn.functional.cosine_similarity(got.double(), want).min() > 0.999


def test_tables_and_norms_stay_unrounded() -> None:
    """Only matrices of `linear` are rounded."""
    ops = TorchOps(CPU, torch.float32, int8=True)
    assert ops.constant(Weight("words", "F32", np.ones((4, 3), np.float32))).dtype == torch.float32
