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
    numbers, scales = quantize(matrix, "int8")
    assert numbers.dtype == torch.int8
    assert (restore(numbers, scales, torch.float32) - matrix).abs().le(scales * 0.5001).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_linear_multiplies_the_rounded_matrix(dtype: torch.dtype) -> None:
    """In the op set's own dtype, with scales that float16 could not hold."""
    array = np.random.default_rng(0).standard_normal((24, 32)).astype(np.float32) * 1e-3
    x = torch.from_numpy(np.random.default_rng(1).standard_normal((5, 32))).to(dtype)
    ops = TorchOps(CPU, dtype, matrices="int8")
    matrix = ops.matrix(Weight("m", "F32", array))
    got = ops.linear(x, matrix, None)
    assert matrix.dtype == torch.int8
    assert got.dtype == dtype
    want = x.double() @ torch.from_numpy(array).double().T
    assert torch.nn.functional.cosine_similarity(got.double(), want).min() > 0.999


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fp8_multiplies_rounded_rows(dtype: torch.dtype) -> None:
    """A number of either factor is rounded to 3 bits after its first; rows have scales of their own."""
    rng = np.random.default_rng(0)
    array = rng.standard_normal((48, 32)).astype(np.float32) * 10.0 ** rng.integers(-5, 5, (48, 1)).astype(np.float32)
    x = torch.from_numpy(rng.standard_normal((5, 32)) * 10.0 ** rng.integers(-5, 5, (5, 1))).to(dtype)
    ops = TorchOps(CPU, dtype, matrices="fp8")
    matrix, bias = ops.matrix(Weight("m", "F32", array)), torch.zeros(48, dtype=dtype)
    got = ops.linear(x, matrix, bias)
    assert (matrix.dtype, got.dtype) == (torch.float8_e4m3fn, dtype)
    want = x.double() @ torch.from_numpy(array).double().T
    of_factors = torch.outer(x.double().norm(dim=1), torch.from_numpy(array).double().norm(dim=1))
    assert ((got.double() - want).abs() / of_factors).max() < 1 / 8
