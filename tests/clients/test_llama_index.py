"""LlamaIndex: OpenAI's embeddings of any server, text-embeddings-inference's, its reranker, and Jina's."""

from __future__ import annotations

import numpy as np
import pytest
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.embeddings.jinaai import JinaEmbedding
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference as Reranker
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors


def one_line(texts: list[str]) -> list[str]:
    """Texts as the OpenAI class sends them."""
    return [text.replace("\n", " ") for text in texts]


def nodes(texts: list[str]) -> list[NodeWithScore]:
    return [NodeWithScore(node=TextNode(text=text), score=0.5) for text in texts]


@pytest.fixture
def openai_like(server):
    return OpenAILikeEmbedding(model_name=MODEL, api_base=f"{server}/v1")


def jina(server, **options):
    """The class does not pass the address on, so the inner class gets it."""
    embedding = JinaEmbedding(**{"model": MODEL, "api_key": "any key", **options})
    embedding._api.api_url = f"{server}/v1/embeddings"
    return embedding


# --- OpenAI's -------------------------------------------------------------------------------------------------


async def test_openai_like_embeds(openai_like, own):
    """In batches, one by one as a query, and asynchronously."""
    expected = own.embed(one_line(TEXTS))
    assert_same_vectors(openai_like.get_text_embedding_batch(TEXTS), expected)
    assert_same_vectors([openai_like.get_query_embedding(QUERY)], own.embed([QUERY]))
    assert_same_vectors(await openai_like.aget_text_embedding_batch(TEXTS), expected)


# --- text-embeddings-inference's ------------------------------------------------------------------------------


async def test_tei_embeds(server, own):
    """In batches, one by one as a query, and asynchronously; this client requests truncation."""
    embedding = TextEmbeddingsInference(model_name=MODEL, base_url=server)
    expected = own.embed([text.strip() for text in TEXTS])
    assert_same_vectors(embedding.get_text_embedding_batch(TEXTS), expected)
    assert_same_vectors(await embedding.aget_text_embedding_batch(TEXTS), expected)
    assert_same_vectors([embedding.get_query_embedding(QUERY)], own.embed([QUERY]))
    assert_same_vectors([embedding.get_text_embedding(TOO_LONG)], own.embed([TOO_LONG.strip()], truncate=True))


def test_tei_reranks(server, own):
    """The scores belong to the right nodes, and the best come first."""
    ranked = Reranker(base_url=server, top_n=2).postprocess_nodes(nodes(PASSAGES), query_str=QUERY)
    expected = own.rank(QUERY, PASSAGES)[:2]
    assert [node.text for node in ranked] == [PASSAGES[index] for index, _ in expected]
    assert [node.score for node in ranked] == pytest.approx([score for _, score in expected])


def test_the_embedder_sends_its_key_as_bearer_and_the_reranker_bare(guarded_server, key):
    """`Authorization: KEY` is accepted like `Authorization: Bearer KEY`; an error is no vector."""
    embedding = TextEmbeddingsInference(model_name=MODEL, base_url=guarded_server, auth_token=key)
    assert len(embedding.get_text_embedding("a")) == 384
    (ranked,) = Reranker(base_url=guarded_server, auth_token=key).postprocess_nodes(nodes(["a"]), query_str="a")
    assert ranked.score == pytest.approx(1, abs=1e-3)
    stranger = TextEmbeddingsInference(model_name=MODEL, base_url=guarded_server, auth_token="other")
    with pytest.raises(ValueError, match="Expecting value"):  # the error of TEI's path is no JSON
        stranger.get_text_embedding("a")


# --- Jina's ---------------------------------------------------------------------------------------------------


async def test_jina_embeds(server, own):
    """In batches, as a query, and asynchronously; a long text is truncated, as by Jina."""
    embedding = jina(server)
    expected = own.embed(TEXTS)
    assert_same_vectors(embedding.get_text_embedding_batch(TEXTS), expected)
    assert_same_vectors(await embedding.aget_text_embedding_batch(TEXTS), expected)
    assert_same_vectors([embedding.get_query_embedding(QUERY)], own.embed([QUERY]))
    assert_same_vectors([embedding.get_text_embedding(TOO_LONG)], own.embed([TOO_LONG], truncate=True))


def test_jina_bits_are_the_signs(server, own):
    """`encoding_type`, today's `embedding_type` of Jina: bytes of eight signs, which the class unpacks."""
    embedding = jina(server, encoding_queries="ubinary", encoding_documents="binary")
    positive = own.embed(PASSAGES) > 0
    assert np.mean(embedding.get_text_embedding_batch(PASSAGES) == positive) > 0.999  # except numbers close to 0
    assert np.mean(embedding.get_query_embedding(PASSAGES[0]) == positive[0]) > 0.99


def test_jina_late_chunks_depend_on_their_context(server, own):
    """With `late_chunking` each chunk has one vector, which differs from that of the chunk alone."""
    late = jina(server, late_chunking=True, task="retrieval.passage").get_text_embedding_batch(PASSAGES)
    alone = own.embed(PASSAGES)
    assert len(late) == len(PASSAGES)
    with pytest.raises(AssertionError):
        assert_same_vectors(late, alone)


def test_jina_raises_a_runtime_error(server):
    """The message is in the RuntimeError that the class makes of `detail`."""
    with pytest.raises(RuntimeError, match="No such model"):
        jina(server, model="jina-embeddings-v3").get_text_embedding("a")
    with pytest.raises(RuntimeError, match="not trained to be cut"):
        jina(server, dimensions=64).get_text_embedding("a")
    with pytest.raises(RuntimeError, match="fetches none"):
        jina(server).get_image_embedding("http://127.0.0.1/a.png")
