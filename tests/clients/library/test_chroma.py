"""vectord.library.chroma in Chroma's own collections."""

from __future__ import annotations

import chromadb
import pytest
from chromadb.config import Settings
from tests.clients.texts import PASSAGES, QUERY, TEXTS, assert_same_vectors

from vectord.library.chroma import VectordEmbeddingFunction

IDS = [str(i) for i in range(len(TEXTS))]
FOUND = "a joyful human being"
SETTINGS = Settings(anonymized_telemetry=False)


def test_embeds_documents_and_queries_with_their_prompts(embedder):
    function = VectordEmbeddingFunction(embedder)
    assert_same_vectors(function(TEXTS), embedder.embed(TEXTS, prompt="passage: "))
    assert_same_vectors(function.embed_query([QUERY]), embedder.embed([QUERY], prompt="query: "))


def test_a_collection_embeds_its_documents_and_queries(embedder, tmp_path):
    """By cosine, and with the prompt of queries."""
    client = chromadb.PersistentClient(tmp_path, SETTINGS)
    collection = client.create_collection("texts", embedding_function=VectordEmbeddingFunction(embedder))
    collection.add(ids=IDS, documents=TEXTS)
    stored = collection.get(ids=IDS, include=["embeddings"])["embeddings"]
    assert_same_vectors(stored, embedder.embed(TEXTS, prompt="passage: "))
    found = collection.query(query_texts=[FOUND], n_results=2)
    assert found["documents"] == [PASSAGES[:2]]
    cosine = stored[0] @ embedder.embed(FOUND, prompt="query: ")
    assert found["distances"][0][0] == pytest.approx(1 - cosine, abs=1e-3)


def test_a_stored_collection_makes_its_function_again(embedder, tmp_path):
    """From the settings and options that Chroma keeps, without being given one."""
    client = chromadb.PersistentClient(tmp_path, SETTINGS)
    function = VectordEmbeddingFunction(embedder, dimensions=64, force_dimensions=True)
    client.create_collection("texts", embedding_function=function).add(ids=IDS, documents=TEXTS)
    del client
    collection = chromadb.PersistentClient(tmp_path, SETTINGS).get_collection("texts")
    assert collection.query(query_texts=[FOUND], n_results=1)["documents"] == [[PASSAGES[0]]]
