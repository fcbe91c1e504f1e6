"""T5Gemma 2: its scores are those of transformers' class after the script's steps, on every backend."""

from __future__ import annotations

import numpy as np
import pytest
from tests.checkpoints.reading import spec_of
from tests.compute.networks.two_networks import TwoNetworks, read
from tests.t5gemma2 import NAME, Reference, write_t5gemma2

from vectord.checkpoints.spec import ModelSpec
from vectord.text.sequence import Texts

QUERY = "the quick fox"
PASSAGES = ["a", "the lazy dog sleeps", "many birds sing in the morning, " * 9]  # some longer than the window


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return spec_of(write_t5gemma2(tmp_path_factory.mktemp("t5gemma2")), name=NAME)


@pytest.fixture(scope="module")
def reference(spec: ModelSpec) -> Reference:
    return Reference(spec.folder)


@pytest.fixture(scope="module")
def texts(spec: ModelSpec) -> Texts:
    return read(spec, PASSAGES, query=QUERY)


def test_rows_are_means_of_the_encoders_states(spec: ModelSpec, texts: Texts, reference: Reference) -> None:
    expected = np.concatenate([reference.rows(passage) for passage in PASSAGES])
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(TwoNetworks(spec).images(texts), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["numpy", "openvino", "torch"])
def test_scores_equal_its_own_class(name: str, spec: ModelSpec, texts: Texts, reference: Reference) -> None:
    """In one batch."""
    expected = [reference.score(QUERY, passage) for passage in PASSAGES]
    assert np.ptp(expected) > 0.01
    with TwoNetworks(spec, name) as networks:
        logits = networks.answer(texts, "scores")
    np.testing.assert_allclose(1 / (1 + np.exp(logits[:, 0] - logits[:, 1])), expected, atol=1e-5)
