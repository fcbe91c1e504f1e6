"""Tests of checkpoints/files/weight.py."""

from __future__ import annotations

import numpy as np

from vectord.checkpoints.files.weight import Weight, in_bfloat16


def test_bfloat16_is_rounded_as_torch_does() -> None:
    """To the nearest, and halves to even; infinities and NaN stay."""
    import torch

    bits = np.random.default_rng(0).integers(0, 2**32, (5000, 8), np.uint32)
    halves = np.array(
        [[0x3F808000, 0x3F818000, 0x3F808001, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF, 0]], np.uint32
    )
    numbers = np.concatenate([bits, halves]).view(np.float32)
    rounded = Weight("w", "BF16", in_bfloat16(numbers))
    expected = torch.from_numpy(numbers).bfloat16().float().numpy()
    np.testing.assert_array_equal(rounded.as_float32(), expected)
