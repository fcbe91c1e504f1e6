"""The fake backend: deterministic vectors for tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models import batch_of, pack_texts

from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import PackedTexts, TokenBatch
from vectord.compute.backends.fake import FakeBackend

GOLDEN_DENSE = np.array([[-0.2906186282634735, 0.7794753313064575, -0.005951517727226019]], np.float32)
GOLDEN_TOKENS = np.array(
    [[0.493924081325531, 0.9712284803390503], [0.6776674389839172, 0.3950173556804657]], np.float32
)
WIDTHS: dict[Output, int] = {"dense": 12, "tokens": 7, "colbert": 5, "lexical": 1, "splade": 30, "scores": 3}
TEXTS = st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20), min_size=1, max_size=8)


def answer(texts: PackedTexts, output: Output = "dense", width: int = 384) -> np.ndarray:
    backend = FakeBackend({output: width})
    return backend.forward(TokenBatch(texts=texts, outputs=frozenset({output})), 0)[output]


@given(texts=TEXTS)
def test_a_text_has_one_result(texts: list[list[int]]) -> None:
    """Alone and in any batch, to the last bit."""
    backend = FakeBackend(WIDTHS)
    together = backend.forward(batch_of(*texts, outputs=WIDTHS), 0)
    alone = [backend.forward(batch_of(text, outputs=WIDTHS), 0) for text in texts]
    for output, rows in together.items():
        np.testing.assert_array_equal(rows, np.concatenate([one[output] for one in alone]))


def test_results_are_the_same_on_every_machine() -> None:
    """Other tests and users may write these numbers down."""
    np.testing.assert_array_equal(answer(pack_texts([101, 7, 102]), width=3), GOLDEN_DENSE)
    np.testing.assert_array_equal(answer(pack_texts([101, 7]), "tokens", width=2), GOLDEN_TOKENS)


@pytest.mark.parametrize("output", WIDTHS)
def test_a_text_after_its_parent_equals_the_whole_text(output: Output) -> None:
    """A shared beginning changes no result, and neither does the order of rows."""
    shared = pack_texts([1, 2], [3], [4, 5], [6], parents=np.array([-1, 0, 0, -1], np.int32))
    got = answer(shared, output, WIDTHS[output])
    want = answer(pack_texts([1, 2], [1, 2, 3], [1, 2, 4, 5], [6]), output, WIDTHS[output])
    per_token = [0, 1, 4, 7, 8, 9]  # the rows of [1, 2] [3] [4, 5] [6] among those of the whole texts
    np.testing.assert_array_equal(got, want[per_token] if len(want) > 4 else want)
