"""huggingface_hub's InferenceClient, which posts to the URL itself and expects TEI's responses."""

from __future__ import annotations

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from tests.clients.texts import TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture
def client(server: str) -> InferenceClient:
    return InferenceClient(server)


def test_feature_extraction_at_the_root(client, own):
    """One text gives one row, a list gives rows in order."""
    assert_same_vectors(client.feature_extraction(TEXTS[0]), own.embed(TEXTS[:1]))
    assert_same_vectors(client.feature_extraction(TEXTS), own.embed(TEXTS))


def test_feature_extraction_options(client, own):
    """normalize, truncate and truncation_direction reach the server."""
    raw = np.asarray(client.feature_extraction(TEXTS[:2], normalize=False))
    assert np.all(np.abs(np.linalg.norm(raw, axis=1) - 1) > 1e-3)
    assert_same_vectors(raw, own.embed(TEXTS[:2]))
    cut = client.feature_extraction(f"{TOO_LONG} {TEXTS[0]}", truncate=True, truncation_direction="left")
    assert_same_vectors(cut, own.embed([f"{TOO_LONG} {TEXTS[0]}"], truncate=True, truncate_side="left"))


@pytest.mark.parametrize("path", ["", "/similarity"], ids=["root", "its own route"])
def test_sentence_similarity_known_answers(server, path):
    """The model card's own example: 0.695, 0.943, 0.257."""
    scores = InferenceClient(f"{server}{path}").sentence_similarity(
        "That is a happy person",
        other_sentences=["That is a happy dog", "That is a very happy person", "Today is a sunny day"],
    )
    np.testing.assert_allclose(scores, [0.695, 0.943, 0.257], atol=4e-3)  # bfloat16


def test_text_classification(server, own):
    """With the model that has labels. The client shows the first, which is the best, of TEI's flat list."""
    best = InferenceClient(f"{server}/predict").text_classification(TEXTS[0])
    (labels,) = own.labels(TEXTS[:1])
    assert (best.label, pytest.approx(best.score, abs=1e-3)) == next(iter(labels.items()))


def test_errors_have_the_message_of_the_server(client):
    """The status, then TEI's message."""
    with pytest.raises(HfHubHTTPError, match="must have less than 256 tokens"):
        client.feature_extraction(TOO_LONG, truncate=False)
    with pytest.raises(HfHubHTTPError, match="prompt_name"):
        client.feature_extraction("x", prompt_name="no-such-prompt")
