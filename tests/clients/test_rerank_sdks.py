"""The SDKs of Together, Mixedbread and Xinference, which rank by a route of their own or read further keys."""

from __future__ import annotations

import pytest
from mixedbread import Mixedbread
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, assert_same_vectors
from together import Together
from xinference_client import RESTfulClient

RERANKER = "tiny-reranker"


@pytest.fixture
def wanted(own) -> list[tuple[int, float]]:
    return [(index, pytest.approx(score, abs=1e-3)) for index, score in own.rank(QUERY, PASSAGES, model=RERANKER)]


def test_together_reads_the_usage(server, own, wanted):
    client = Together(api_key="none is needed", base_url=f"{server}/v1")
    answer = client.rerank.create(model=RERANKER, query=QUERY, documents=PASSAGES)
    assert [(result.index, result.relevance_score) for result in answer.results] == wanted
    assert [result.document.text for result in answer.results] == [PASSAGES[result.index] for result in answer.results]
    assert answer.usage.completion_tokens == 0
    assert answer.usage.total_tokens > 0


def test_mixedbread_ranks_by_its_route(server, wanted):
    client = Mixedbread(api_key="none is needed", base_url=server)
    answer = client.rerank(model=RERANKER, query=QUERY, input=PASSAGES, return_input=True)
    assert [(item.index, item.score) for item in answer.data] == wanted
    assert [item.input for item in answer.data] == [PASSAGES[item.index] for item in answer.data]


def test_xinference_finds_what_a_model_does(server, own, wanted):
    """By `model_type` of GET /v1/models/{model}."""
    client = RESTfulClient(server)
    vectors = client.get_model(MODEL).create_embedding(TEXTS)
    assert_same_vectors([item["embedding"] for item in vectors["data"]], own.embed(TEXTS))
    ranked = client.get_model(RERANKER).rerank(PASSAGES, QUERY)
    assert [(item["index"], item["relevance_score"]) for item in ranked["results"]] == wanted
