"""The reference itself, against numbers computed by hand or by the standard library."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.models import pack_texts

from vectord.checkpoints.checkpoint import Weight
from vectord.compute.ops.base import Activation, AttentionSpec, Tokens
from vectord.compute.ops.numpy import NumpyOps, pack

OPS = NumpyOps()

ACTIVATIONS_AT_ONE = {
    "gelu": 0.5 * (1 + math.erf(1 / math.sqrt(2))),
    "gelu_tanh": 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715)),
    "relu": 1.0,
    "silu": 1 / (1 + math.exp(-1)),
    "tanh": math.tanh(1),
    "identity": 1.0,
}


def tokens_of(*lengths: int, **options: Any) -> Tokens[np.ndarray]:
    """options: further fields of PackedTexts, as lists."""
    arrays = {name: np.array(values, np.int32) for name, values in options.items()}
    return pack(pack_texts(*([0] * length for length in lengths), **arrays))


def test_positions_count_from_zero_in_each_text() -> None:
    """A text's first token has position 0, anywhere in the batch."""
    assert tokens_of(3, 1, 2).positions.tolist() == [0, 1, 2, 0, 0, 1]


def test_positions_continue_from_the_parents() -> None:
    """The parent's positions come before the text's own."""
    assert tokens_of(3, 1, 2, parents=[-1, -1, 0]).positions.tolist() == [0, 1, 2, 0, 3, 4]


def test_constants_are_exact() -> None:
    """Every checkpoint dtype becomes the float64 of the same value; bfloat16 is stored as its raw bits."""
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
    """Each activation has its formula's value, without overflow for large arguments."""
    values = OPS.activation(np.array([1.0, -1000.0, 1000.0]), kind)
    assert values[0] == pytest.approx(ACTIVATIONS_AT_ONE[kind], abs=1e-15)
    assert np.isfinite(values).all()


def test_layer_norm() -> None:
    """Two numbers become minus one and one; eps is added inside the root."""
    one, zero = np.ones(2), np.zeros(2)
    assert OPS.layer_norm(np.array([[3.0, 5.0]]), one, zero, 1e-30).tolist() == [[-1.0, 1.0]]
    assert OPS.layer_norm(np.array([[3.0, 5.0]]), one * 2, one, 3.0).tolist() == [[0.0, 2.0]]


def test_rms_norm() -> None:
    """Each run of weight-many numbers is divided by its own root mean square; eps is inside."""
    x = np.array([[3.0, 3.0, 0.0, 4.0]])
    assert OPS.rms_norm(x, np.array([1.0, 2.0]), 0).tolist() == [[1.0, 2.0, 0.0, 4 / math.sqrt(8) * 2]]
    assert OPS.rms_norm(np.array([[1.0, 1.0]]), np.ones(2), 3.0).tolist() == [[0.5, 0.5]]


def test_normalize() -> None:
    """Rows get norm 1; a row of zeros is unchanged."""
    assert OPS.normalize(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0.0, 0.0]]


def test_rotate_turns_halves_against_each_other() -> None:
    """By a quarter turn, the first half becomes minus the second and the second the first, in each head separately."""
    x, cos, sin = np.array([[1.0, 2.0, 3.0, 4.0]]), np.array([[0.0]]), np.array([[1.0]])
    assert OPS.rotate(x, cos, sin, head_size=2).tolist() == [[-2.0, 1.0, -4.0, 3.0]]


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


def test_attention_uses_the_scaled_product() -> None:
    """Weights are the softmax of scale times query times key; scale is head_size to the -1/2 by default."""
    tokens = tokens_of(2)
    q = np.full((2, 4), 1.0)
    k = np.array([[0.0] * 4, [1.0] * 4])  # products 0 and 4
    v = np.array([[0.0] * 4, [1.0] * 4])
    for scale, used in ((None, 0.5), (0.25, 0.25)):
        attended = OPS.attention(q, k, v, tokens, AttentionSpec(heads=1, head_size=4, scale=scale))
        assert attended[0, 0] == pytest.approx(1 / (1 + math.exp(-4 * used)), abs=1e-15)


ONE_HEAD = AttentionSpec(heads=1, head_size=1)
CASES = {
    "all": (ONE_HEAD, {}, [14, 14, 14, 14]),
    "causal": (AttentionSpec(heads=1, head_size=1, causal=True), {}, [8, 10, 12, 14]),
    "window": (AttentionSpec(heads=1, head_size=1, window=1), {}, [10, 12, 16, 18]),
    "causal, window": (AttentionSpec(heads=1, head_size=1, causal=True, window=1), {}, [8, 10, 14, 18]),
    "keys": (ONE_HEAD, {"keys": [2]}, [10, 10, 10, 10]),
    "keys, window": (AttentionSpec(heads=1, head_size=1, window=1), {"keys": [1]}, [8, 8, 0, 0]),
    "no key, causal, window": (AttentionSpec(heads=1, head_size=1, causal=True, window=0), {"keys": [1]}, [8, 0, 0, 0]),
}


@pytest.mark.parametrize(("spec", "options", "want"), CASES.values(), ids=CASES)
def test_attention_averages_the_visible_keys(spec: AttentionSpec, options: dict[str, Any], want: list[float]) -> None:
    """Equal scores average the values of visible keys; a query without any gets zeros, not NaN."""
    same, values = np.zeros((4, 1)), np.array([[8.0], [12.0], [16.0], [20.0]])
    assert OPS.attention(same, same, values, tokens_of(4, **options), spec)[:, 0].tolist() == want


def test_attention_includes_the_parent() -> None:
    """All of an earlier text, as if it came before the text's own rows; siblings do not see each other."""
    tokens = tokens_of(1, 2, 1, parents=[-1, 0, 0])
    same, values = np.zeros((4, 1)), np.array([[8.0], [10.0], [12.0], [2.0]])
    causal = AttentionSpec(heads=1, head_size=1, causal=True)
    assert OPS.attention(same, same, values, tokens, ONE_HEAD)[:, 0].tolist() == [8, 10, 10, 5]
    assert OPS.attention(same, same, values, tokens, causal)[:, 0].tolist() == [8, 9, 10, 5]


def test_queries_share_keys_in_order() -> None:
    """With half as many keys as queries, the first two heads read the first value, the others the second."""
    shared = AttentionSpec(heads=4, head_size=1, kv_heads=2)
    attended = OPS.attention(np.zeros((1, 4)), np.zeros((1, 2)), np.array([[3.0, 7.0]]), tokens_of(1), shared)
    assert attended.tolist() == [[3.0, 3.0, 7.0, 7.0]]


def test_bias_depends_on_the_distance() -> None:
    """Entry j - i + M - 1 is added to the score of query i and key j: here only the next token counts."""
    same, values = np.zeros((3, 1)), np.array([[1.0], [2.0], [3.0]])
    bias = np.array([[-np.inf, -np.inf, -1000.0, 0.0, 0.0]])  # from two before to two after
    assert OPS.attention(same, same, values, tokens_of(3), ONE_HEAD, bias)[:, 0].tolist() == [2.5, 3.0, 3.0]


def test_disentangled_scores_add_places() -> None:
    """Query i uses the bucket of i - j, key j the same one; an omitted table adds nothing."""
    one, values, places = np.ones((2, 1)), np.array([[1.0], [3.0]]), np.array([[0.0], [1000.0]])
    buckets = np.array([1, 0, 0])  # of i - j = -1, 0, 1
    for given in ((places, None), (None, places), (places, places)):
        mixed = OPS.disentangled_attention(one, one, values, *given, buckets, tokens_of(2), ONE_HEAD)
        assert mixed[:, 0].tolist() == [3.0, 2.0]
    mixed = OPS.disentangled_attention(one, one, values, None, None, buckets, tokens_of(2), ONE_HEAD)
    assert mixed[:, 0].tolist() == [2.0, 2.0]


def test_attention_survives_large_scores() -> None:
    """A product in the thousands takes all the weight, without overflow."""
    q, k, v = np.array([[100.0], [100.0]]), np.array([[50.0], [0.0]]), np.array([[3.0], [4.0]])
    assert OPS.attention(q, k, v, tokens_of(2), AttentionSpec(heads=1, head_size=1)).tolist() == [[3.0], [3.0]]


def test_pooling() -> None:
    """Each gives one row per text, from that text's rows."""
    tokens = tokens_of(3, 1)
    x = np.array([[1.0], [2.0], [6.0], [-8.0]])
    assert OPS.first(x, tokens).tolist() == [[1.0], [-8.0]]
    assert OPS.last(x, tokens).tolist() == [[6.0], [-8.0]]
    assert OPS.mean(x, tokens).tolist() == [[3.0], [-8.0]]
    assert OPS.max(x, tokens).tolist() == [[6.0], [-8.0]]
    assert OPS.max_linear(x, np.array([[1.0], [-1.0]]), np.array([0.0, 0.5]), tokens).tolist() == [[6, -0.5], [-8, 8.5]]


def test_pooling_of_spans() -> None:
    """One row a span, in their order."""
    tokens = tokens_of(3, 1, spans=[[1, 3], [3, 4], [0, 2]])
    x = np.array([[1.0], [2.0], [6.0], [8.0]])
    assert OPS.first(x, tokens).tolist() == [[2.0], [8.0], [1.0]]
    assert OPS.last(x, tokens).tolist() == [[6.0], [8.0], [2.0]]
    assert OPS.mean(x, tokens).tolist() == [[4.0], [8.0], [1.5]]
    assert OPS.max(x, tokens).tolist() == [[6.0], [8.0], [2.0]]
