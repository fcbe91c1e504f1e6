"""LightRAG's functions for embeddings and reranking, by the servers that it names."""

from __future__ import annotations

import pytest
from lightrag.llm.jina import jina_embed
from lightrag.llm.nvidia_openai import nvidia_openai_embed
from lightrag.llm.openai import openai_embed
from lightrag.rerank import cohere_rerank, jina_rerank
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, assert_same_vectors

RERANKER = "tiny-reranker"


@pytest.mark.parametrize(
    ("embed", "path", "options"),
    [
        pytest.param(openai_embed, "/v1", {}, id="openai"),
        pytest.param(nvidia_openai_embed, "/v1", {"input_type": "query", "trunc": "END"}, id="nvidia"),
        pytest.param(jina_embed, "/v1/embeddings", {"embedding_dim": 384}, id="jina"),
    ],
)
async def test_texts_are_embedded(server, own, embed, path, options):
    """`func` is the function without the dimensions of its default model."""
    vectors = await embed.func(TEXTS, model=MODEL, base_url=server + path, api_key="any key", **options)
    assert_same_vectors(vectors, own.embed(TEXTS))


@pytest.mark.parametrize(
    ("rerank", "path"),
    [(jina_rerank, "/v1/rerank"), (cohere_rerank, "/v2/rerank")],
    ids=["jina", "cohere"],
)
async def test_documents_are_ranked(server, own, rerank, path):
    """Best first, by index and score."""
    ranks = await rerank(QUERY, PASSAGES, top_n=2, api_key="any key", model=RERANKER, base_url=server + path)
    expected = own.rank(QUERY, PASSAGES)[:2]
    assert [rank["index"] for rank in ranks] == [index for index, _ in expected]
    assert [rank["relevance_score"] for rank in ranks] == pytest.approx([score for _, score in expected], abs=1e-3)
