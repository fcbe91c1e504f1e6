"""Cohere's official SDK, by its clients of v1 and of v2."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import cohere
import numpy as np
import pytest
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors

TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
PAGE_TEXTS = 96  # in one request of the v1 client


@pytest.fixture(params=["", "/v1"], ids=["root", "base URL that ends in v1"])
def base_url(request: pytest.FixtureRequest, server: str) -> str:
    """The SDK appends v1/... and v2/... to any URL."""
    return f"{server}{request.param}"


@pytest.fixture
def v1(base_url: str) -> Iterator[cohere.Client]:
    with cohere.Client("none is needed", base_url=base_url) as client:
        yield client


@pytest.fixture
def v2(base_url: str) -> Iterator[cohere.ClientV2]:
    with cohere.ClientV2("none is needed", base_url=base_url) as client:
        yield client


def ranking(answer: cohere.RerankResponse) -> list[tuple[int, float]]:
    return [(result.index, pytest.approx(result.relevance_score, abs=1e-3)) for result in answer.results]


def test_v1_needs_no_model_and_returns_floats(v1, own):
    """The response also contains the texts and the token count."""
    answer = v1.embed(texts=TEXTS)
    assert answer.response_type == "embeddings_floats"
    assert answer.texts == TEXTS
    assert answer.meta.billed_units.input_tokens == own.count_tokens(TEXTS)
    assert_same_vectors(answer.embeddings, own.embed(TEXTS))


def test_v1_sends_pages_and_joins_their_results(v1, own):
    """In the order of the texts; it joins their ids as strings."""
    texts = [f"text number {number}" for number in range(2 * PAGE_TEXTS + 1)]
    answer = v1.embed(texts=texts, model=MODEL, input_type="search_document")
    assert len(answer.id.split(", ")) == 3
    assert_same_vectors(answer.embeddings, own.embed(texts))


def test_every_type_contains_the_same_vectors(v1, v2, own):
    """In six formats in one response, and in both versions."""
    floats = own.embed(TEXTS)
    asked = {"texts": TEXTS, "model": MODEL, "input_type": "search_document", "embedding_types": TYPES}
    for answer in (v1.embed(**asked), v2.embed(**asked)):
        assert answer.response_type == "embeddings_by_type"
        got = answer.embeddings
        assert_same_vectors(got.float_, floats)
        decoded = [np.frombuffer(base64.b64decode(row), "<f4") for row in got.base64]
        np.testing.assert_array_equal(decoded, np.float32(got.float_))
        np.testing.assert_array_equal(np.array(got.uint8) - 128, got.int8)
        assert np.corrcoef(np.ravel(got.int8), np.ravel(floats))[0, 1] > 0.999
        np.testing.assert_array_equal(np.array(got.ubinary) - 128, got.binary)
        bits = np.unpackbits(np.array(got.ubinary, np.uint8), axis=1)
        assert np.mean(bits == (floats > 0)) > 0.999  # except numbers close to 0


def test_v2_accepts_inputs_of_parts(v2, own):
    """Content instead of texts: the parts of one input become lines of one text."""
    parts = [{"type": "text", "text": "That is"}, {"type": "text", "text": "a happy person"}]
    answer = v2.embed(inputs=[{"content": parts}], model=MODEL, input_type="search_query", embedding_types=["float"])
    assert_same_vectors(answer.embeddings.float_, own.embed(["That is\na happy person"]))


def test_v1_ranks_without_a_model(v1, own):
    """With the served reranker; documents may be objects, and are returned."""
    assert v1.rerank(query=QUERY, documents=PASSAGES).results != []
    answer = v1.rerank(query=QUERY, documents=[{"text": text, "n": "1"} for text in PASSAGES], return_documents=True)
    assert ranking(answer) == own.rank(QUERY, PASSAGES)
    assert [result.document.text for result in answer.results] == [PASSAGES[at] for at, _ in own.rank(QUERY, PASSAGES)]


def test_v1_ranks_by_fields(v1, own):
    """Only the named fields are read, one line each."""
    documents = [{"title": text, "text": "nothing"} for text in PASSAGES]
    answer = v1.rerank(query=QUERY, documents=documents, rank_fields=["title"], top_n=2)
    assert ranking(answer) == own.rank(QUERY, [f"title: {text}" for text in PASSAGES])[:2]


def test_v2_ranks_by_the_named_model(v2, own):
    """Also with an embedding model; the fields of v2 are read."""
    first = {"additional_body_parameters": {"priority": 1}}
    answer = v2.rerank(
        model=MODEL, query=QUERY, documents=PASSAGES, top_n=2, max_tokens_per_doc=50, request_options=first
    )
    assert ranking(answer) == own.rank(QUERY, PASSAGES, model=MODEL, scores="model")[:2]
    assert answer.meta.billed_units.search_units == 1


def test_tokenize_and_detokenize_are_inverse(v1, own):
    """The SDK finds no tokenizer to download and calls the server."""
    tokens = v1.tokenize(text="a happy person", model=MODEL).tokens
    assert tokens == own.token_ids("a happy person")[1:-1]
    assert v1.detokenize(tokens=tokens, model=MODEL).text == "a happy person"


def test_long_texts_are_truncated_by_default(v1, own):
    """END is Cohere's default; START keeps the end; NONE is a bad request. A warning reports the truncation."""
    text = f"{TEXTS[0]} {TOO_LONG} {TEXTS[1]}"
    answer = v1.embed(texts=[text], batching=False)
    assert_same_vectors(answer.embeddings, own.embed([text], truncate=True))
    assert answer.meta.warnings == ["`texts` truncated: 0."]
    start = v1.embed(texts=[text], truncate="START")
    assert_same_vectors(start.embeddings, own.embed([text], truncate=True, truncate_side="left"))
    with pytest.raises(cohere.BadRequestError, match="256"):
        v1.embed(texts=[text], truncate="NONE")


def test_an_unknown_model_is_not_found(v1, v2):
    """In both versions, on both routes."""
    for asked in (
        lambda: v1.embed(texts=TEXTS, model="no-such-model"),
        lambda: v2.rerank(query=QUERY, documents=PASSAGES, model="no-such-model"),
    ):
        with pytest.raises(cohere.NotFoundError, match="No such model"):
            asked()
