"""Chroma's embedding functions: HuggingFaceEmbeddingServer, OpenAI's and Ollama's."""

from __future__ import annotations

import ollama
import openai
import pytest
from chromadb.utils.embedding_functions import (
    HuggingFaceEmbeddingServer,
    OllamaEmbeddingFunction,
    OpenAIEmbeddingFunction,
)
from tests.clients.texts import MODEL, TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture(autouse=True)
def openai_key(monkeypatch):
    monkeypatch.setenv("CHROMA_OPENAI_API_KEY", "any key")


@pytest.mark.parametrize("path", ["/embed", "/"])
def test_huggingface_server(server, own, path):
    """It posts to the exact address and sends only `inputs`; long texts are truncated, as in TEI."""
    function = HuggingFaceEmbeddingServer(url=f"{server}{path}")
    assert_same_vectors(function(TEXTS), own.embed(TEXTS))
    assert_same_vectors(function([TOO_LONG]), own.embed([TOO_LONG], truncate=True))


def test_openai(server, own):
    """The SDK's default encoding, and its exceptions."""
    function = OpenAIEmbeddingFunction(model_name=MODEL, api_base=f"{server}/v1")
    assert_same_vectors(function(TEXTS), own.embed(TEXTS))
    with pytest.raises(openai.BadRequestError, match="256 tokens"):
        function([TOO_LONG])
    with pytest.raises(openai.NotFoundError, match="No such model"):
        OpenAIEmbeddingFunction(api_base=f"{server}/v1")(["a"])


def test_ollama(server, own):
    """With each of Ollama's addresses; its default model is not served here."""
    for path in ("", "/api/embeddings"):
        function = OllamaEmbeddingFunction(url=f"{server}{path}", model_name=MODEL)
        assert_same_vectors(function(TEXTS), own.embed(TEXTS))
    with pytest.raises(ollama.ResponseError, match="model not found"):
        OllamaEmbeddingFunction(url=server)(["a"])
