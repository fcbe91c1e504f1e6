"""The reference for the clients' results is right."""

from __future__ import annotations

import numpy as np
from tests.clients.texts import TEXTS, assert_same_vectors


def test_own_vectors_are_those_of_sentence_transformers(own, written):
    """With the default model and its real weights, through a socket."""
    assert_same_vectors(own.embed(TEXTS), np.load(written / "vectors.npy"))
