"""MPNet's differences from BERT; test_conformance.py compares its numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.compute.networks.case import numpy_answer, padded_states, texts_of
from tests.compute.networks.tiny_encoders import CASES, change_config, reference_model, write_tiny
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder

from vectord.compute.networks.roberta import buckets
from vectord.errors import ModelUnavailable


def test_buckets_equal_transformers() -> None:
    """At every distance, above all at the powers of two where buckets begin."""
    distances = np.arange(-1000, 1001)
    want = MPNetEncoder.relative_position_bucket(torch.from_numpy(distances), num_buckets=32).numpy()
    np.testing.assert_array_equal(buckets(distances, 32), want)


def test_long_texts_equal_transformers(tmp_path: Path) -> None:
    """Distances up to and beyond 128, in a text of the maximum length."""
    folder = write_tiny(tmp_path, "MPNet", max_position_embeddings=302)
    texts = texts_of(300, 129, 3)
    want = padded_states(reference_model(folder, "MPNet"), texts, filler=1)
    np.testing.assert_allclose(numpy_answer(CASES["mpnet"].spec(folder, max_tokens=300), texts), want, atol=1e-8)
    with pytest.raises(ModelUnavailable, match="has 300 positions, fewer than the model's maximum of 301 tokens"):
        numpy_answer(CASES["mpnet"].spec(folder, max_tokens=301), texts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relative_attention_num_buckets": 64}, "relative_attention_num_buckets must be 32; found 64"),
        ({"max_position_embeddings": 2}, "max_position_embeddings must be above 2"),
    ],
)
def test_an_unsuitable_config_is_refused(tmp_path: Path, change: dict[str, int], message: str) -> None:
    """Another number of buckets is meaningless in transformers too, and so are positions without room for a token."""
    folder = change_config(write_tiny(tmp_path, "MPNet"), **change)
    with pytest.raises(ModelUnavailable, match=message):
        numpy_answer(CASES["mpnet"].spec(folder, max_tokens=1), texts_of(1))
