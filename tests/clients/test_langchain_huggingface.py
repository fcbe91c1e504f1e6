"""langchain-huggingface, which embeds with huggingface_hub's client."""

from __future__ import annotations

import pytest
from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_huggingface import HuggingFaceEndpointEmbeddings
from tests.clients.texts import MODEL, TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture
def embeddings(server: str) -> HuggingFaceEndpointEmbeddings:
    """It accepts no URL since version 1, so its two clients are replaced by ones with the URL."""
    made = HuggingFaceEndpointEmbeddings(model=MODEL, provider="hf-inference")
    made.client, made.async_client = InferenceClient(server), AsyncInferenceClient(server)
    return made


def test_documents_and_queries(embeddings, own):
    """It always sends a list, with newlines replaced by spaces."""
    one_line = [text.replace("\n", " ") for text in TEXTS]
    assert_same_vectors(embeddings.embed_documents(TEXTS), own.embed(one_line))
    assert_same_vectors([embeddings.embed_query(TEXTS[0])], own.embed(TEXTS[:1]))


def test_options_reach_the_server(embeddings, own):
    """model_kwargs are those of TEI."""
    embeddings.model_kwargs = {"truncate": True, "normalize": False}
    assert_same_vectors(embeddings.embed_documents([TOO_LONG]), own.embed([TOO_LONG], truncate=True))
    embeddings.model_kwargs = {"truncate": False}
    with pytest.raises(HfHubHTTPError, match="must have less than 256 tokens"):
        embeddings.embed_documents([TOO_LONG])
