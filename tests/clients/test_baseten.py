"""Baseten's performance client: many concurrent requests with small batches, some of them sent twice."""

from __future__ import annotations

import pytest
from baseten_performance_client import PerformanceClient, RequestProcessingPreference
from tests.clients.texts import MODEL, QUERY, TEXTS, assert_same_vectors

MANY = [f"{text} {number}" for number in range(10) for text in TEXTS]
SMALL_BATCHES = RequestProcessingPreference(batch_size=3, max_concurrent_requests=64)


@pytest.fixture
def client(server):
    return PerformanceClient(base_url=server, api_key="any key")


def test_embeds_many_at_once(client, own):
    """Batches of three on 64 connections are joined in order."""
    answer = client.embed(input=MANY, model=MODEL, preference=SMALL_BATCHES)
    assert len(answer.individual_request_times) >= len(MANY) / 3
    assert_same_vectors(answer.numpy(), own.embed(MANY))


def test_sums_usage_over_its_batches(client, own):
    """Of eight texts in three requests."""
    answer = client.embed(input=TEXTS, model=MODEL, preference=SMALL_BATCHES)
    assert answer.usage.total_tokens == own.count_tokens(TEXTS)


async def test_duplicates_of_slow_requests_are_harmless(client, own):
    """With a tiny delay every request may be sent twice; the vectors are the same."""
    hedging = RequestProcessingPreference(batch_size=3, hedge_delay=0.2, hedge_budget_pct=3.0)
    answer = await client.async_embed(input=MANY, model=MODEL, preference=hedging)
    assert_same_vectors(answer.numpy(), own.embed(MANY))


def test_embeds_in_base64(client, own):
    """It returns the base64 text of a vector: four bytes for each number."""
    (item,) = client.embed(input=["a"], model=MODEL, encoding_format="base64").data
    assert len(item.embedding) == 2048


def test_reranks(client, own):
    """TEI's plain list; the client numbers the passages over its batches."""
    answer = client.rerank(query=QUERY, texts=TEXTS, return_text=True)
    assert [(one.index, one.text) for one in answer.data] == [(i, TEXTS[i]) for i, _ in own.rank(QUERY, TEXTS)]
    scores = {one.index: one.score for one in client.rerank(QUERY, TEXTS, preference=SMALL_BATCHES).data}
    assert scores == pytest.approx(dict(own.rank(QUERY, TEXTS)), abs=1e-3)


def test_classifies(client, own):
    """The first model with labels answers, regardless of `model`: TEI's bodies name no model."""
    answer = client.classify(inputs=TEXTS)
    got = [{one.label: one.score for one in text} for text in answer.data]
    for given, expected in zip(got, own.labels(TEXTS, model="tiny-classifier"), strict=True):
        assert given == pytest.approx(expected, abs=1e-3)


def test_posts_any_body(client):
    """batch_post to a route of another API."""
    bodies = [{"query": QUERY, "documents": TEXTS[:3], "model": "tiny-reranker", "top_n": 1}] * 3
    answers = client.batch_post(url_path="/v2/rerank", payloads=bodies).data
    assert [len(answer["results"]) for answer in answers] == [1, 1, 1]
