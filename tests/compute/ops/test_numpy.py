"""The reference itself, against numbers computed by hand or by the standard library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.models import pack_texts

from vectord.compute.ops.base import AttentionSpec, Tokens
from vectord.compute.ops.numpy import NumpyOps, pack

OPS = NumpyOps()


def tokens_of(*lengths: int, **options: Any) -> Tokens[np.ndarray]:
    """options: further fields of PackedTexts, as lists."""
    arrays = {name: np.array(values, np.int32) for name, values in options.items()}
    return pack(pack_texts(*([0] * length for length in lengths), **arrays))


def test_normalize() -> None:
    """Rows get norm 1; a row of zeros is unchanged."""
    assert OPS.normalize(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist() == [[0.6, 0.8], [0.0, 0.0]]


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


def test_pooling_of_spans() -> None:
    """One row a span, in their order."""
    tokens = tokens_of(3, 1, spans=[[1, 3], [3, 4], [0, 2]])
    x = np.array([[1.0], [2.0], [6.0], [8.0]])
    assert OPS.first(x, tokens).tolist() == [[2.0], [8.0], [1.0]]
    assert OPS.last(x, tokens).tolist() == [[6.0], [8.0], [2.0]]
    assert OPS.mean(x, tokens).tolist() == [[4.0], [8.0], [1.5]]
    assert OPS.max(x, tokens).tolist() == [[6.0], [8.0], [2.0]]
