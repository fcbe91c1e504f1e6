"""A variant of the OpenVINO op set that holds the matrices of linear layers in 8 or 4 bits.

The runtime keeps them so in memory. It converts them while it multiplies in the plan's type, or rounds the inputs of a
layer to 8 bits as well (`Packing.rounds_inputs`, a setting of the plan) and multiplies int8. It does so for exactly
these nodes, without the mark that keeps 16 bits packed: with KEEP_PACKED on the conversion it computes the scaled
matrix once and holds that in 32 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.weight import fill_rows
from vectord.compute.ops.openvino import OpenvinoOps, op, ov
from vectord.schema import Float32

Bits: TypeAlias = Literal[4, 8]

GROUP = 32  # numbers with one scale, as in GGUF files


class Packing(msgspec.Struct, frozen=True):
    """The format of the matrices of linear layers."""

    bits: Bits
    group: int = GROUP
    rounds_inputs: bool = False  # to 8 bits as well, each group with a scale of its own, so that int8 is multiplied


# int8: larger groups are faster, but change the order of texts more, and widths such as 1,024 must be divisible.
PACKINGS: Mapping[str, Packing] = {
    "int8": Packing(8, 128, rounds_inputs=True),
    "int8-weights": Packing(8),
    "int4-weights": Packing(4),
}


class PackedWeightsOps(OpenvinoOps):
    """Rounds by the rules of Q8_0 and Q4_0 in GGUF files, so that in groups of 32 the matrices of such a file are the
    same again. A matrix whose width is not a multiple of the group is not packed."""

    def __init__(self, packing: Packing, *, bfloat16: bool = False) -> None:
        super().__init__(bfloat16=bfloat16)
        self._bits = packing.bits
        self._group = packing.group

    def matrix(self, weight: Weight) -> ov.Node:
        outputs, inputs = weight.shape
        if inputs % self._group:
            return self.constant(weight)
        scales = self.scratch.array((outputs, inputs // self._group, 1), np.float32)
        whole = self.scratch.array((outputs, inputs * self._bits // 8), np.uint8)
        start = 0
        for part in weight.parts():
            end = start + len(part)
            pack = _in_8_bits if self._bits == 8 else _in_4_bits
            packed, scales[start:end] = pack(part, self._group)
            fill_rows(whole[start:end], [packed])
            start = end
        dtype = ov.Type.i8 if self._bits == 8 else ov.Type.i4
        grouped = ov.Tensor(whole.reshape(-1), [outputs, inputs // self._group, self._group], dtype)
        numbers = op.convert(op.constant(grouped, shared_memory=True), "f32")
        scaled = op.multiply(numbers, op.constant(ov.Tensor(scales, scales.shape, ov.Type.f32), shared_memory=True))
        return op.reshape(scaled, op.constant(np.array([outputs, inputs], np.int64)), False)


def _in_8_bits(rows: Float32, group: int) -> tuple[npt.NDArray[np.uint8], Float32]:
    """rows (N, H) -> (N, H) the bits of whole numbers from -127 to 127, and each group's scale (N, H / group, 1)."""
    groups = rows.reshape(len(rows), -1, group)
    scales = np.abs(groups).max(axis=-1, keepdims=True) / np.float32(127)
    whole = np.rint(groups * _inverse(scales)).astype(np.int8)
    return whole.view(np.uint8).reshape(rows.shape), scales


def _in_4_bits(rows: Float32, group: int) -> tuple[npt.NDArray[np.uint8], Float32]:
    """As `_in_8_bits`, from -8 to 7, two numbers a byte, the first in the lower bits. The largest of a group is -8."""
    groups = rows.reshape(len(rows), -1, group)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(axis=-1)[..., None], axis=-1)
    scales = largest / np.float32(-8)
    whole = np.clip(np.rint(groups * _inverse(scales)), -8, 7).astype(np.int8).view(np.uint8) & 15
    whole = whole.reshape(len(rows), -1)
    return whole[:, ::2] | (whole[:, 1::2] << 4), scales


def _inverse(scales: Float32) -> Float32:
    """1 / scale, and 0 for a group of zeros."""
    return np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
