"""huggingface_hub's InferenceClient, which posts to the URL itself and expects TEI's answers."""

from __future__ import annotations

import numpy as np
from huggingface_hub import AsyncInferenceClient, InferenceClient
from tests.sdk.texts import API_KEY, TEXTS, cosines


def test_feature_extraction_at_the_root(server, reference):
    """One text in gives one row, a list gives rows in order."""
    client = InferenceClient(server, token=API_KEY)
    one = client.feature_extraction(TEXTS[0])
    many = client.feature_extraction(TEXTS)
    assert cosines(np.asarray(one).reshape(1, -1), reference[:1]).min() >= 0.9999
    assert cosines(many, reference).min() >= 0.9999


def test_feature_extraction_options(server, reference):
    """normalize, truncate and truncation_direction reach the server."""
    client = InferenceClient(server, token=API_KEY)
    raw = np.asarray(client.feature_extraction(TEXTS[:2], normalize=False, truncate=True, truncation_direction="Left"))
    assert np.all(np.abs(np.linalg.norm(raw, axis=1) - 1) > 1e-3)
    assert cosines(raw, reference[:2]).min() >= 0.9999


async def test_the_async_client(server, reference):
    """AsyncInferenceClient too."""
    async with AsyncInferenceClient(server, token=API_KEY) as client:
        assert cosines(await client.feature_extraction(TEXTS), reference).min() >= 0.9999


def test_sentence_similarity_known_answers(server):
    """The model card's own example: 0.695, 0.943, 0.257."""
    client = InferenceClient(f"{server}/similarity", token=API_KEY)
    scores = client.sentence_similarity(
        "That is a happy person",
        other_sentences=["That is a happy dog", "That is a very happy person", "Today is a sunny day"],
    )
    assert np.allclose(scores, [0.695, 0.943, 0.257], atol=2e-3)
