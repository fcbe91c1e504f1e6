"""LanceDB's registry of embedding functions: OpenAI's, Ollama's, Cohere's and Jina's."""

from __future__ import annotations

import cohere
import lancedb
import ollama
import pytest
from lancedb.embeddings import EmbeddingFunctionRegistry, jinaai
from lancedb.embeddings.cohere import CohereEmbeddingFunction
from lancedb.pydantic import LanceModel, Vector
from tests.clients.texts import MODEL, TEXTS, assert_same_vectors

REGISTRY = EmbeddingFunctionRegistry.get_instance()


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in ("OPENAI", "COHERE", "JINA"):
        monkeypatch.setenv(f"{name}_API_KEY", "any key")


@pytest.fixture
def openai_function(server):
    return REGISTRY.get("openai").create(name=MODEL, base_url=f"{server}/v1")


def test_openai(openai_function, own):
    """It does not send an empty text, which has no vector."""
    *vectors, missing = openai_function.compute_source_embeddings([*TEXTS, ""])
    assert_same_vectors(vectors, own.embed(TEXTS))
    assert missing is None


def test_ollama_in_a_table(server, own, tmp_path):
    """The server reports the width; rows are embedded when they are added, and queries when they are searched."""
    function = REGISTRY.get("ollama").create(name=MODEL, host=server)

    class Row(LanceModel):
        text: str = function.SourceField()
        vector: Vector(function.ndims()) = function.VectorField()

    table = lancedb.connect(tmp_path).create_table("rows", schema=Row)
    table.add([{"text": text} for text in TEXTS])
    rows = {row["text"]: row["vector"] for row in table.to_arrow().to_pylist()}
    assert_same_vectors([rows[text] for text in TEXTS], own.embed(TEXTS))
    (found,) = table.search("a joyful human being").limit(1).to_list()
    assert found["text"] == "That is a happy person"
    with pytest.raises(ollama.ResponseError, match="model not found"):
        REGISTRY.get("ollama").create(name="none", host=server).ndims()


def test_cohere(server, own, monkeypatch):
    """Texts and queries with version 1 of the SDK, whose client reads its address at import."""
    monkeypatch.setattr(CohereEmbeddingFunction, "client", cohere.Client("any key", base_url=server))
    function = REGISTRY.get("cohere").create(name=MODEL)
    assert_same_vectors(function.compute_source_embeddings(TEXTS), own.embed(TEXTS))
    assert_same_vectors(function.compute_query_embeddings(TEXTS[0]), own.embed(TEXTS[:1]))
    with pytest.raises(cohere.NotFoundError):
        REGISTRY.get("cohere").create().compute_source_embeddings(["a"])


def test_jina(server, own, monkeypatch):
    """The address is set in the module; an error is a RuntimeError with `detail`."""
    monkeypatch.setattr(jinaai, "API_URL", f"{server}/v1/embeddings")
    function = REGISTRY.get("jina").create(name=MODEL)
    assert_same_vectors(function.compute_source_embeddings(TEXTS), own.embed(TEXTS))
    assert_same_vectors(function.compute_query_embeddings(TEXTS[0]), own.embed(TEXTS[:1]))
    with pytest.raises(RuntimeError, match="No such model"):
        REGISTRY.get("jina").create().compute_source_embeddings(["a"])
    with pytest.raises(RuntimeError, match="this model embeds texts only"):
        function.generate_image_embedding(b"not a picture")
