"""Tests of ops/packed_weights.py."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from vectord.checkpoints.checkpoint import Weight
from vectord.checkpoints.files.weight import ComputedWeight
from vectord.compute.ops.openvino import op, ov
from vectord.compute.ops.packed_weights import GROUP, Bits, PackedWeightsOps, Packing

KINDS: dict[Bits, Type] = {8: Type.Q8_0, 4: Type.Q4_0}
INPUTS = 2 * GROUP


def compiled(bits: Bits, weight: Weight) -> tuple[ov.CompiledModel, PackedWeightsOps]:
    """A model of one linear layer, in float32. The op set owns the memory of its constants."""
    ops = PackedWeightsOps(Packing(bits))
    x = op.parameter([-1, weight.shape[1]], np.float32)
    model = ov.Model([ops.linear(x, ops.matrix(weight), None)], [x])
    facts = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    return ov.Core().compile_model(model, "CPU", facts), ops


def computed(bits: Bits, weight: Weight) -> np.ndarray:
    """(O, H) the matrix, as the layer's results of unit vectors."""
    model, ops = compiled(bits, weight)
    rows = model(np.eye(weight.shape[1], dtype=np.float32))[0].T.copy()
    del ops
    return rows


def matrix(rows: int = 96, inputs: int = INPUTS) -> np.ndarray:
    numbers = np.random.default_rng(0).standard_normal((rows, inputs)).astype(np.float32)
    numbers[0] = 0  # groups without a scale
    return numbers


@pytest.mark.parametrize("bits", KINDS)
def test_a_matrix_of_a_file_in_such_blocks_is_unchanged(bits: Bits) -> None:
    """Of Q8_0 and Q4_0: packing loses nothing that the file has."""
    of_file = gguf.quants.dequantize(gguf.quants.quantize(matrix(), KINDS[bits]), KINDS[bits])
    np.testing.assert_allclose(computed(bits, Weight("w", "F32", of_file)), of_file, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("bits", "steps"), [(8, 127), (4, 8)])
def test_each_number_is_rounded_to_its_groups_steps(bits: Bits, steps: int) -> None:
    """Half a step of the group's largest number; in 4 bits the largest of the other sign may be cut by a step."""
    numbers = matrix()
    off = np.abs(computed(bits, Weight("w", "F32", numbers)) - numbers).reshape(len(numbers), -1, GROUP)
    largest = np.abs(numbers).reshape(off.shape).max(axis=-1, keepdims=True)
    assert (off <= largest / steps * (0.5 if bits == 8 else 1) + 1e-6).all()
    assert off.max() > 0


@pytest.mark.parametrize("bits", KINDS)
def test_parts_of_a_computed_matrix_are_packed_in_their_order(bits: Bits) -> None:
    """A matrix that its file holds in blocks is never there as a whole."""
    numbers = matrix()

    def parts() -> Iterator[np.ndarray]:
        yield from (numbers[start:stop] for start, stop in pairwise((0, 1, 50, 96)))

    whole = computed(bits, Weight("w", "F32", numbers))
    np.testing.assert_array_equal(computed(bits, ComputedWeight("w", numbers.shape, parts)), whole)


@pytest.mark.parametrize(("bits", "dtype"), [(8, "i8"), (4, "i4")])
def test_the_runtime_holds_the_matrix_packed(bits: Bits, dtype: str) -> None:
    """It recognizes the nodes: otherwise it would compute the matrix once and hold it in 32 bits."""
    model, ops = compiled(bits, Weight("w", "F32", matrix()))
    if " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the runtime packs weights on processors with AVX2")
    held = [node.get_rt_info()["outputPrecisions"].astype(str) for node in model.get_runtime_model().get_ordered_ops()]
    assert dtype in held
    del ops


@pytest.mark.parametrize("bits", KINDS)
def test_a_width_without_whole_groups_is_held_in_the_plans_type(bits: Bits) -> None:
    numbers = matrix(inputs=GROUP + 4)
    np.testing.assert_allclose(computed(bits, Weight("w", "F32", numbers)), numbers, atol=1e-6)
