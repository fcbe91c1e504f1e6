"""Haystack: text-embeddings-inference's ranker and embedders, dense and sparse, and OpenAI's embedders."""

from __future__ import annotations

import pytest
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.utils import Secret
from haystack_integrations.components.embedders.huggingface_api import (
    HuggingFaceAPIDocumentEmbedder,
    HuggingFaceAPITextEmbedder,
    HuggingFaceTEISparseDocumentEmbedder,
    HuggingFaceTEISparseTextEmbedder,
)
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker, TruncationDirection
from tests.clients.texts import MODEL, QUERY, TEXTS, TOO_LONG, assert_same_vectors

DOCUMENTS = [Document(content=text) for text in TEXTS]
KEY = Secret.from_token("any key")


def tei(component, server, **options):
    return component(api_type="text_embeddings_inference", api_params={"url": server}, **options)


# --- the ranker -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/", "/some/prefix"])
def test_ranks(server, own, path):
    """It takes the first results of the response, and drops the path of the address."""
    ranker = HuggingFaceTEIRanker(url=f"{server}{path}", top_k=2)
    ranked = ranker.run(QUERY, DOCUMENTS)["documents"]
    expected = own.rank(QUERY, TEXTS)[:2]
    assert [document.content for document in ranked] == [TEXTS[index] for index, _ in expected]
    assert [document.score for document in ranked] == pytest.approx([score for _, score in expected], abs=1e-4)


async def test_ranks_by_logits(server, own):
    """With `raw_scores`, asynchronously."""
    ranker = HuggingFaceTEIRanker(url=server, raw_scores=True)
    ranked = (await ranker.run_async(QUERY, DOCUMENTS))["documents"]
    expected = own.rank(QUERY, TEXTS, scores="raw")
    assert [document.score for document in ranked] == pytest.approx([score for _, score in expected], abs=1e-3)


def test_truncates_on_the_requested_side(server, own):
    """A direction turns truncation on; the two ends of a long text have different scores."""
    long = Document(content=f"{TEXTS[0]}. {TOO_LONG}. {TEXTS[2]}.")
    ranker = HuggingFaceTEIRanker(url=server)
    scores = {
        ranker.run(QUERY, [long], truncation_direction=direction)["documents"][0].score
        for direction in TruncationDirection
    }
    assert len(scores) == 2


def test_errors_of_the_ranker(server):
    """A document without a text, such as a picture. The error has TEI's message, and there is no retry."""
    with pytest.raises(RuntimeError, match=r"422.*texts\[0\]"):
        HuggingFaceTEIRanker(url=server).run(QUERY, [Document(id="picture")])


# --- the embedders of text-embeddings-inference ---------------------------------------------------------------


async def test_embeds_a_text(server, own):
    """The integration requests truncation and no normalization."""
    embedder = tei(HuggingFaceAPITextEmbedder, server)
    expected = own.embed([QUERY], normalize=False)
    assert_same_vectors([embedder.run(QUERY)["embedding"]], expected)
    assert_same_vectors([(await embedder.run_async(QUERY))["embedding"]], expected)
    assert embedder.run(QUERY)["embedding"] == pytest.approx(expected[0].tolist(), abs=1e-3)
    assert_same_vectors([embedder.run(TOO_LONG)["embedding"]], own.embed([TOO_LONG], truncate=True))


def test_embeds_documents(server, own):
    """In batches, normalized on request."""
    embedder = tei(HuggingFaceAPIDocumentEmbedder, server, normalize=True, batch_size=3)
    documents = embedder.run(DOCUMENTS)["documents"]
    assert_same_vectors([document.embedding for document in documents], own.embed(TEXTS))


# --- sparse vectors -------------------------------------------------------------------------------------------


def test_embeds_sparsely(server, own):
    """A text and documents have the indices and weights of vectord's own API."""
    texts = ["many small birds", "the lazy dog"]
    expected = [item["sparse"] for item in own.kinds(texts, ["sparse"], model="tiny-bge-m3")]
    embedder = HuggingFaceTEISparseTextEmbedder(api_base_url=server)
    assert embedder.run(texts[0])["sparse_embedding"].to_dict() == expected[0]
    embedder = HuggingFaceTEISparseDocumentEmbedder(api_base_url=server)
    documents = embedder.run([Document(content=text) for text in texts])["documents"]
    assert [document.sparse_embedding.to_dict() for document in documents] == expected


# --- OpenAI's embedders ---------------------------------------------------------------------------------------


def test_openai_embedders(server, own):
    """Vectors and usage of one text and of documents."""
    text = OpenAITextEmbedder(api_base_url=f"{server}/v1", api_key=KEY, model=MODEL)
    found = text.run(QUERY)
    assert_same_vectors([found["embedding"]], own.embed([QUERY]))
    assert found["meta"]["model"] == MODEL
    assert found["meta"]["usage"]["prompt_tokens"] == len(own.token_ids(QUERY))
    documents = OpenAIDocumentEmbedder(api_base_url=f"{server}/v1", api_key=KEY, model=MODEL, batch_size=3)
    found = documents.run(DOCUMENTS)
    assert_same_vectors([document.embedding for document in found["documents"]], own.embed(TEXTS))
    assert found["meta"]["usage"]["total_tokens"] == own.count_tokens(TEXTS)
