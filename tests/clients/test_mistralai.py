"""Mistral's official SDK, which validates the whole response."""

from __future__ import annotations

from mistralai.client import Mistral
from tests.clients.texts import MODEL, TEXTS, assert_same_vectors


def test_texts_are_embedded(server, own):
    """Its usage must have numbers only."""
    with Mistral(api_key="none is needed", server_url=server) as client:
        answer = client.embeddings.create(model=MODEL, inputs=TEXTS)
    assert_same_vectors([item.embedding for item in answer.data], own.embed(TEXTS))
    assert answer.usage.total_tokens == own.count_tokens(TEXTS)
