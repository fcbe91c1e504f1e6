"""The reference itself, against numbers worked out by hand or by the standard library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.models import batch_of

from vectord.artifacts.checkpoint import Weight
from vectord.ops.base import Activation, AttentionSpec
from vectord.ops.numpy import NumpyOps, pack

OPS = NumpyOps()

ACTIVATIONS_AT_ONE = {
    "gelu": 0.5 * (1 + math.erf(1 / math.sqrt(2))),
    "gelu_tanh": 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715)),
    "relu": 1.0,
    "silu": 1 / (1 + math.exp(-1)),
    "tanh": math.tanh(1),
    "identity": 1.0,
}


def tokens_of(*lengths: int):
    batch = batch_of(*([0] * length for length in lengths))
    return pack(batch.ids, batch.type_ids, batch.cu_seqlens)


def test_positions_count_from_zero_in_each_text() -> None:
    """A text's first token is at place 0, wherever the text stands in the batch."""
    assert tokens_of(3, 1, 2).positions.tolist() == [0, 1, 2, 0, 0, 1]


def test_constants_are_exact() -> None:
    """Every checkpoint dtype becomes the float64 of the same value; bfloat16 comes as its raw bits."""
    values = np.array([1.5, -0.25, 3.0], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    for weight in (
        Weight("w", "F32", values),
        Weight("w", "F16", values.astype(np.float16)),
        Weight("w", "BF16", bits),
    ):
        constant = OPS.constant(weight)
        assert constant.dtype == np.float64
        assert constant.tolist() == [1.5, -0.25, 3.0]


@pytest.mark.parametrize("kind", ACTIVATIONS_AT_ONE)
def test_activation(kind: Activation) -> None:
    """Each activation has its formula's value, and no overflow far out."""
    values = OPS.activation(np.array([1.0, -1000.0, 1000.0]), kind)
    assert values[0] == pytest.approx(ACTIVATIONS_AT_ONE[kind], abs=1e-15)
    assert np.isfinite(values).all()


def test_layer_norm() -> None:
    """Two numbers become minus one and one; eps counts inside the root."""
    one, zero = np.ones(2), np.zeros(2)
    assert OPS.layer_norm(np.array([[3.0, 5.0]]), one, zero, 1e-30).tolist() == [[-1.0, 1.0]]
    assert OPS.layer_norm(np.array([[3.0, 5.0]]), one * 2, one, 3.0).tolist() == [[0.0, 2.0]]


def test_linear_takes_weights_by_output() -> None:
    """A weight is (outputs, inputs), as torch stores it."""
    x, weight = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 10.0], [1.0, 1.0]])
    assert OPS.linear(x, weight, None).tolist() == [[1.0, 20.0, 3.0]]
    assert OPS.linear(x, weight, np.array([1.0, 1.0, 1.0])).tolist() == [[2.0, 21.0, 4.0]]


def test_attention_stays_inside_its_text() -> None:
    """Equal scores average the values of the same text, by head; a text of one token gets its own value."""
    tokens = tokens_of(2, 1)
    same = np.zeros((3, 2))
    values = np.array([[1.0, 10.0], [3.0, 30.0], [7.0, 70.0]])
    attended = OPS.attention(same, same, values, tokens, AttentionSpec(heads=2, head_size=1))
    assert attended.tolist() == [[2.0, 20.0], [2.0, 20.0], [7.0, 70.0]]


def test_attention_weighs_by_scaled_product() -> None:
    """Shares are the softmax of scale times query times key; scale is head_size to the -1/2 unless given."""
    tokens = tokens_of(2)
    q = np.full((2, 4), 1.0)
    k = np.array([[0.0] * 4, [1.0] * 4])  # products 0 and 4
    v = np.array([[0.0] * 4, [1.0] * 4])
    for scale, used in ((None, 0.5), (0.25, 0.25)):
        attended = OPS.attention(q, k, v, tokens, AttentionSpec(heads=1, head_size=4, scale=scale))
        assert attended[0, 0] == pytest.approx(1 / (1 + math.exp(-4 * used)), abs=1e-15)


def test_attention_survives_large_scores() -> None:
    """A product in the thousands takes all the share; it does not overflow."""
    q, k, v = np.array([[100.0], [100.0]]), np.array([[50.0], [0.0]]), np.array([[3.0], [4.0]])
    assert OPS.attention(q, k, v, tokens_of(2), AttentionSpec(heads=1, head_size=1)).tolist() == [[3.0], [3.0]]


def test_pooling() -> None:
    """first, last and mean give one row a text, from that text's rows."""
    tokens = tokens_of(3, 1)
    x = np.array([[1.0], [2.0], [6.0], [8.0]])
    assert OPS.first(x, tokens).tolist() == [[1.0], [8.0]]
    assert OPS.last(x, tokens).tolist() == [[6.0], [8.0]]
    assert OPS.mean(x, tokens).tolist() == [[3.0], [8.0]]
