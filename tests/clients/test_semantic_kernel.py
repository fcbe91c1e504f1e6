"""Semantic Kernel's text embeddings, with OpenAI's and NVIDIA's connectors."""

from __future__ import annotations

from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.nvidia import NvidiaTextEmbedding
from semantic_kernel.connectors.ai.open_ai import OpenAITextEmbedding
from tests.clients.texts import MODEL, TEXTS, assert_same_vectors


async def test_openais_connector_embeds(server, own):
    """It adds up `usage`: a null among its numbers would be an error."""
    client = AsyncOpenAI(api_key="any key", base_url=f"{server}/v1")
    connector = OpenAITextEmbedding(ai_model_id=MODEL, async_client=client)
    assert_same_vectors(await connector.generate_embeddings(TEXTS), own.embed(TEXTS))
    assert (connector.total_tokens, connector.completion_tokens) == (own.count_tokens(TEXTS), 0)


async def test_nvidias_connector_embeds(server, own):
    """With `truncate: "NONE"`."""
    connector = NvidiaTextEmbedding(ai_model_id=MODEL, api_key="any key", base_url=f"{server}/v1")
    assert_same_vectors(await connector.generate_embeddings(TEXTS), own.embed(TEXTS))
