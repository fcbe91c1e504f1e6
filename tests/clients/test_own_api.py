"""What the clients' answers are compared with is right itself."""

from __future__ import annotations

import numpy as np
from tests.clients.texts import TEXTS, assert_same_vectors


def test_own_vectors_are_those_of_sentence_transformers(own, written):
    """By the default model, with its real weights, through a socket."""
    assert_same_vectors(own.embed(TEXTS), np.load(written / "vectors.npy"))
