"""langchain-cohere, over Cohere's SDK 5."""

from __future__ import annotations

import cohere
import pytest
from langchain_cohere import CohereEmbeddings, CohereRerank
from langchain_core.documents import Document
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture(params=["", "/v1"], ids=["root", "base URL that ends in v1"])
def asked(request: pytest.FixtureRequest, server: str) -> dict[str, str]:
    return {"base_url": f"{server}{request.param}", "cohere_api_key": "none is needed"}


def test_documents_and_queries(asked, own):
    """With v1's route and input types; this model has no prompt for queries."""
    embeddings = CohereEmbeddings(model=MODEL, **asked)
    assert_same_vectors(embeddings.embed_documents(TEXTS), own.embed(TEXTS))
    assert_same_vectors([embeddings.embed_query(TEXTS[0])], own.embed(TEXTS[:1]))


def test_truncation_reaches_the_server(asked, own):
    """By default a long text is truncated; NONE is a bad request. Without max_retries, this client would wait 8 s."""
    assert_same_vectors(
        CohereEmbeddings(model=MODEL, **asked).embed_documents([TOO_LONG]), own.embed([TOO_LONG], truncate=True)
    )
    with pytest.raises(cohere.BadRequestError, match="256"):
        CohereEmbeddings(model=MODEL, truncate="NONE", max_retries=1, **asked).embed_documents([TOO_LONG])


def test_documents_are_compressed_to_the_best(asked, own):
    """With v2's route: each document keeps its text and gets a score."""
    reranker = CohereRerank(model="tiny-reranker", top_n=2, **asked)
    best = reranker.compress_documents([Document(text, metadata={"at": at}) for at, text in enumerate(PASSAGES)], QUERY)
    expected = own.rank(QUERY, PASSAGES)[:2]
    assert [(document.metadata["at"], document.page_content) for document in best] == [
        (at, PASSAGES[at]) for at, _ in expected
    ]
    scores = [document.metadata["relevance_score"] for document in best]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-3)


def test_an_unknown_model_is_not_found(asked):
    """As Cohere's own error."""
    with pytest.raises(cohere.NotFoundError, match="No such model"):
        CohereRerank(model="no-such-model", **asked).rerank(PASSAGES, QUERY)
