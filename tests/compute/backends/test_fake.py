"""The fake backend: deterministic vectors for tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import ScriptedBackend
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


@settings(deadline=None, max_examples=60)
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


# The scripted backend, which the engine's tests use.


def test_scripted_failures_hit_the_batch_they_name() -> None:
    """A batch with the token fails as scripted; others have the plain fake's results."""
    scripted = ScriptedBackend(raise_on=13, nan_on=14, kill_on=15, memory_tokens=4)
    good = batch_of([1, 2], [3])
    plain = FakeBackend({"dense": 8}).forward(good, 0)
    np.testing.assert_array_equal(scripted.forward(good, 0)["dense"], plain["dense"])
    with pytest.raises(RuntimeError):
        scripted.forward(batch_of([13]), 0)
    with pytest.raises(SystemExit):
        scripted.forward(batch_of([1], [15]), 0)
    with pytest.raises(MemoryError):
        scripted.forward(batch_of([1, 2, 3], [4, 5]), 0)
    answers = scripted.forward(batch_of([1], [2, 14], [3], outputs=("dense", "tokens")), 0)
    assert np.isnan(answers["dense"]).all(axis=1).tolist() == [False, True, False]
    assert np.isnan(answers["tokens"]).all(axis=1).tolist() == [False, True, True, False]
    assert len(scripted.batches) == 5
