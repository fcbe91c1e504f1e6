"""infinity_client, generated from infinity's OpenAPI document, which it follows strictly."""

from __future__ import annotations

from http import HTTPStatus

import numpy as np
import pytest
from infinity_client import Client
from infinity_client.api.default import classify, embeddings, health, models, rerank
from infinity_client.errors import UnexpectedStatus
from infinity_client.models import (
    ClassifyInput,
    HTTPValidationError,
    OpenAIEmbeddingInputImage,
    OpenAIEmbeddingInputImageModality,
    OpenAIEmbeddingInputText,
    RerankInput,
)
from infinity_client.vision_client import InfinityVisionAPI
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture(params=["", "/v1"], ids=["root", "under v1"])
def client(request: pytest.FixtureRequest, server: str) -> Client:
    """infinity's paths have no prefix by default."""
    return Client(base_url=f"{server}{request.param}", raise_on_unexpected_status=True)


def test_embeddings_by_its_own_model_name_and_ours(client, own):
    """By default it sends "default/not-specified" and dimensions 0: the first model, and the whole vector."""
    for body in (OpenAIEmbeddingInputText(input_=TEXTS), OpenAIEmbeddingInputText(input_=TEXTS, model=MODEL)):
        answer = embeddings.sync(client=client, body=body)
        assert [item.index for item in answer.data] == list(range(len(TEXTS)))
        # infinity strips both ends of a text.
        assert_same_vectors([item.embedding for item in answer.data], own.embed([text.strip() for text in TEXTS]))
        assert answer.usage.total_tokens == own.count_tokens([text.strip() for text in TEXTS])


def test_long_texts_are_truncated(client, own):
    """As in infinity, by default."""
    answer = embeddings.sync(client=client, body=OpenAIEmbeddingInputText(input_=TOO_LONG))
    assert_same_vectors([answer.data[0].embedding], own.embed([TOO_LONG], truncate=True))


def test_a_ranked_document_is_a_plain_string(client, own):
    """Only on request; scores are probabilities by default."""
    answer = rerank.sync(client=client, body=RerankInput(query=QUERY, documents=PASSAGES))
    expected = own.rank(QUERY, PASSAGES)
    assert [result.index for result in answer.results] == [at for at, _ in expected]
    scores = [result.relevance_score for result in answer.results]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-3)
    assert [result.document for result in answer.results] == [None] * 3
    assert answer.usage.total_tokens > len(PASSAGES)
    asked = RerankInput(query=QUERY, documents=PASSAGES, return_documents=True, raw_scores=True, top_n=2)
    raw = rerank.sync(client=client, body=asked)
    assert [result.document for result in raw.results] == [PASSAGES[at] for at, _ in expected[:2]]
    logits = np.array([result.relevance_score for result in raw.results])
    np.testing.assert_allclose(1 / (1 + np.exp(-logits)), scores[:2], atol=1e-3)


def test_classify(client, own):
    """The labels of each text, best first."""
    answer = classify.sync(client=client, body=ClassifyInput(input_=TEXTS[:2]))
    got = [{one.label: one.score for one in labels} for labels in answer.data]
    for labels, expected in zip(got, own.labels(TEXTS[:2]), strict=True):
        assert list(labels) == list(expected)
        assert labels == pytest.approx(expected, abs=1e-3)


def test_an_invalid_body_is_a_return_value(client):
    """422 is returned instead of raised, and its detail must be a list."""
    fault = embeddings.sync(client=client, body=OpenAIEmbeddingInputText(input_=[]))
    assert isinstance(fault, HTTPValidationError)
    assert fault.detail[0].loc == ["body", "input"]
    assert "empty" in fault.detail[0].msg
    picture = OpenAIEmbeddingInputImage(
        input_="http://example.invalid/x.png", modality=OpenAIEmbeddingInputImageModality.IMAGE
    )
    fault = embeddings.sync(client=client, body=picture)
    assert "this server fetches none" in fault.detail[0].msg


def test_an_unknown_model_is_an_unexpected_status(client):
    """400, as in infinity."""
    with pytest.raises(UnexpectedStatus) as refused:
        embeddings.sync(client=client, body=OpenAIEmbeddingInputText(input_="x", model="no-such-model"))
    assert refused.value.status_code == HTTPStatus.BAD_REQUEST


@pytest.mark.parametrize("as_infinity", [True, False], ids=["profile", "its own door"])
def test_models_and_health(serve, server, as_infinity):
    """The client requires models owned by "infinity"; under another profile /dialects/infinity has them."""
    url = serve(MODEL, "--profile", "infinity") if as_infinity else f"{server}/dialects/infinity"
    client = Client(base_url=url, raise_on_unexpected_status=True)
    listed = models.sync(client=client)
    assert (listed.data[0].id, listed.data[0].capabilities) == (MODEL, ["embed"])
    assert health.sync(client=Client(base_url=url if as_infinity else server)).additional_properties["unix"] > 0


def test_the_vision_client_embeds_texts(server, own):
    """Hand-written with requests: it requests floats once, to learn the width, and then base64."""
    ((vectors, tokens),) = [InfinityVisionAPI(server, model=MODEL).embed(MODEL, TEXTS[:3]).result()]
    assert_same_vectors(np.concatenate(vectors), own.embed(TEXTS[:3]))
    assert tokens == own.count_tokens(TEXTS[:3])


def test_pictures_by_their_modality(pictures):
    """As data URIs, the vectors of transformers."""
    body = OpenAIEmbeddingInputImage(input_=pictures.uris, modality=OpenAIEmbeddingInputImageModality.IMAGE)
    answer = embeddings.sync(client=Client(base_url=pictures.url), body=body)
    assert_same_vectors([item.embedding for item in answer.data], pictures.vectors)
