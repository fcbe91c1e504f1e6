"""A variant of the OpenVINO op set that holds the matrices of linear layers in 8 or 4 bits.

The runtime keeps them so in memory, and converts them while it multiplies in the plan's type: memory shrinks, and the
inputs of a layer are not rounded. It does so for exactly these nodes, without the mark that keeps 16 bits packed: with
KEEP_PACKED on the conversion it computes the scaled matrix once and holds that in 32 bits.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.weight import fill_rows
from vectord.compute.ops.openvino import OpenvinoOps, op, ov
from vectord.schema import Float32

Bits: TypeAlias = Literal[4, 8]

GROUP = 32  # numbers with one scale, as in GGUF files


class PackedWeightsOps(OpenvinoOps):
    """Rounds by the rules of Q8_0 and Q4_0 in GGUF files, so that the matrices of such a file are the same again."""

    def __init__(self, bits: Bits, *, bfloat16: bool = False) -> None:
        super().__init__(bfloat16=bfloat16)
        self._bits = bits

    def matrix(self, weight: Weight) -> ov.Node:
        outputs, inputs = weight.shape
        if inputs % GROUP:
            return self.constant(weight)
        scales = self.scratch.array((outputs, inputs // GROUP, 1), np.float32)
        whole = self.scratch.array((outputs, inputs * self._bits // 8), np.uint8)
        start = 0
        for part in weight.parts():
            end = start + len(part)
            packed, scales[start:end] = _in_8_bits(part) if self._bits == 8 else _in_4_bits(part)
            fill_rows(whole[start:end], [packed])
            start = end
        dtype = ov.Type.i8 if self._bits == 8 else ov.Type.i4
        grouped = ov.Tensor(whole.reshape(-1), [outputs, inputs // GROUP, GROUP], dtype)
        numbers = op.convert(op.constant(grouped, shared_memory=True), "f32")
        scaled = op.multiply(numbers, op.constant(ov.Tensor(scales, scales.shape, ov.Type.f32), shared_memory=True))
        return op.reshape(scaled, op.constant(np.array([outputs, inputs], np.int64)), False)


def _in_8_bits(rows: Float32) -> tuple[npt.NDArray[np.uint8], Float32]:
    """rows (N, H) -> (N, H) the bits of whole numbers from -127 to 127, and each group's scale (N, H / GROUP, 1)."""
    groups = rows.reshape(len(rows), -1, GROUP)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    whole = np.rint(groups * _inverse(scales)).astype(np.int8)
    return whole.view(np.uint8).reshape(rows.shape), scales


def _in_4_bits(rows: Float32) -> tuple[npt.NDArray[np.uint8], Float32]:
    """As `_in_8_bits`, from -8 to 7, two numbers a byte, the first in the lower bits. The largest of a group is -8."""
    groups = rows.reshape(len(rows), -1, GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=-1)[..., None], axis=-1)
    scales = largest / np.float32(-8)
    whole = np.clip(np.rint(groups * _inverse(scales)), -8, 7).astype(np.int8).view(np.uint8) & 15
    whole = whole.reshape(len(rows), -1)
    return whole[:, ::2] | (whole[:, 1::2] << 4), scales


def _inverse(scales: Float32) -> Float32:
    """1 / scale, and 0 for a group of zeros."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
