"""Voyage's official SDK."""

from __future__ import annotations

import numpy as np
import pytest
import voyageai
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors


@pytest.fixture
def client(server: str) -> voyageai.Client:
    return voyageai.Client(api_key="none is needed", base_url=f"{server}/v1")


def test_default_base64_gives_the_models_vectors(client, own):
    """By default the SDK requests base64 and decodes it."""
    answer = client.embed(TEXTS, model=MODEL)
    assert_same_vectors(answer.embeddings, own.embed(TEXTS))
    assert answer.total_tokens == own.count_tokens(TEXTS)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "binary", "ubinary"])
def test_bytes_are_decoded_by_their_dtype(client, own, dtype):
    """The SDK decodes base64 as the requested type: one byte for each number, or for eight."""
    got = np.array(client.embed(TEXTS, model=MODEL, input_type="document", output_dtype=dtype).embeddings)
    floats = own.embed(TEXTS)
    if dtype in ("int8", "uint8"):
        assert np.corrcoef(np.ravel(got), np.ravel(floats))[0, 1] > 0.999
    else:
        packed = np.uint8(got + 128) if dtype == "binary" else np.uint8(got)
        assert np.mean(np.unpackbits(packed, axis=1) == (floats > 0)) > 0.999  # except numbers close to 0
    assert got.min() < 0 or dtype in ("uint8", "ubinary")


def test_chunks_of_a_document_are_embedded_in_its_context(client, own):
    """Late chunking: a chunk has another vector among others than alone, with a similar meaning."""
    alone, together = client.contextualized_embed([TEXTS[:1], TEXTS[:3]], model=MODEL, input_type="document").results
    assert_same_vectors(alone.embeddings, own.chunks(TEXTS[0], max_tokens=100))
    cosines = (np.array(together.embeddings) * own.embed(TEXTS[:3])).sum(1)
    assert 0.4 < cosines.min() <= cosines.max() < 0.95


def test_queries_have_no_context(client, own):
    """Each text of a plain list is one result."""
    results = client.contextualized_embed(TEXTS[:3], model=MODEL, input_type="query").results
    assert_same_vectors([result.embeddings[0] for result in results], own.embed(TEXTS[:3]))


def test_documents_are_split_on_the_server(client, own):
    """The chunks come back with their vectors, complete and in order."""
    text = "The quick brown fox jumps over the lazy dog. " * 20
    cut = {"enable_auto_chunking": True, "chunk_size": 40}
    (document,) = client.contextualized_embed([text], model=MODEL, input_type="document", **cut).results
    assert "".join(document.chunk_texts).split() == text.split()
    assert len(document.chunk_texts) > 4
    assert_same_vectors(document.embeddings, own.chunks(text, max_tokens=40))


def test_ranks_are_read_from_data(client, own):
    """Sorted, with the document of each; `top_k` or all."""
    for top_k in (None, 2):
        answer = client.rerank(QUERY, PASSAGES, model="tiny-reranker", top_k=top_k)
        expected = own.rank(QUERY, PASSAGES)[:top_k]
        assert [result.index for result in answer.results] == [at for at, _ in expected]
        assert [result.document for result in answer.results] == [PASSAGES[at] for at, _ in expected]
        scores = [result.relevance_score for result in answer.results]
        assert scores == pytest.approx([score for _, score in expected], abs=1e-3)
        assert answer.total_tokens > len(PASSAGES)


def test_errors_are_the_sdks_own_classes(client):
    """An invalid request is an InvalidRequestError; an unreadable body is malformed."""
    with pytest.raises(voyageai.error.InvalidRequestError, match="No such model"):
        client.embed(TEXTS, model="no-such-model")
    with pytest.raises(voyageai.error.InvalidRequestError, match="256"):
        client.embed([TOO_LONG], model=MODEL, truncation=False)
    with pytest.raises(voyageai.error.MalformedRequestError, match="input_type"):
        client.embed(TEXTS, model=MODEL, input_type=7)


def test_long_texts_are_truncated_by_default(client, own):
    """Voyage's `truncation` is true by default."""
    assert_same_vectors(client.embed([TOO_LONG], model=MODEL).embeddings, own.embed([TOO_LONG], truncate=True))


async def test_the_async_client_returns_the_same(server, own):
    """AsyncClient."""
    client = voyageai.AsyncClient(api_key="none is needed", base_url=f"{server}/v1")
    assert_same_vectors((await client.embed(TEXTS, model=MODEL)).embeddings, own.embed(TEXTS))
