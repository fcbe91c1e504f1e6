"""litellm, which uses the API of the provider that its configuration names."""

from __future__ import annotations

import litellm
import pytest
from litellm.exceptions import BadRequestError, NotFoundError
from tests.clients.texts import MODEL, PASSAGES, QUERY, TEXTS, TOO_LONG, assert_same_vectors

litellm.suppress_debug_info = True  # or it prints a list of providers at every error

# The provider, and the path that it needs after the server's URL.
EMBEDDING = [
    ("openai", "/v1"),
    ("openai_like", "/v1"),
    ("lm_studio", "/v1"),
    ("hosted_vllm", "/v1"),
    ("cohere", "/v1/embed"),
    ("cohere", "/v2/embed"),
    ("jina_ai", "/v1"),
    ("voyage", "/v1"),
    ("infinity", ""),
    ("ollama", ""),
]
RERANKING = [
    ("cohere", ""),
    ("cohere", "/v1"),
    ("jina_ai", ""),
    ("hosted_vllm", ""),
    ("voyage", "/dialects/voyage/v1"),
    ("infinity", "/dialects/infinity"),
]


def ask(server: str, provider: str, path: str, model: str = MODEL) -> dict[str, str]:
    return {"model": f"{provider}/{model}", "api_base": f"{server}{path}", "api_key": "none is needed"}


@pytest.mark.parametrize(("provider", "path"), EMBEDDING)
def test_embedding(server, own, provider, path):
    """Vectors in order, and the token count."""
    answer = litellm.embedding(**ask(server, provider, path), input=TEXTS)
    assert_same_vectors([item["embedding"] for item in answer.data], own.embed(TEXTS))
    assert answer.usage.total_tokens == own.count_tokens(TEXTS)


def test_an_encoding_of_null_is_the_default(server, own):
    """Some of its versions send it."""
    answer = litellm.embedding(**ask(server, "openai", "/v1"), input=TEXTS[:2], encoding_format=None)
    assert_same_vectors([item["embedding"] for item in answer.data], own.embed(TEXTS[:2]))


@pytest.mark.parametrize(("provider", "path"), RERANKING)
def test_rerank(server, own, provider, path):
    """The best two of three, with their texts."""
    asked = ask(server, provider, path, "tiny-reranker")
    answer = litellm.rerank(**asked, query=QUERY, documents=PASSAGES, top_n=2)
    expected = own.rank(QUERY, PASSAGES)[:2]
    assert [result["index"] for result in answer.results] == [at for at, _ in expected]
    scores = [result["relevance_score"] for result in answer.results]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-3)
    assert [result["document"]["text"] for result in answer.results] == [PASSAGES[at] for at, _ in expected]


def test_rerank_as_huggingface(server, own):
    """As TEI, whose servers have one reranker: no model is sent."""
    answer = litellm.rerank(**ask(server, "huggingface", ""), query=QUERY, documents=PASSAGES)
    assert [result["index"] for result in answer.results] == [at for at, _ in own.rank(QUERY, PASSAGES)]


def test_infinity_at_the_root(serve, models):
    """With the profile infinity, whose documents are plain strings, the root also serves reranking."""
    asked = ask(serve(*models, "--profile", "infinity"), "infinity", "", "tiny-reranker")
    answer = litellm.rerank(**asked, query=QUERY, documents=PASSAGES, return_documents=True)
    assert sorted(result["document"]["text"] for result in answer.results) == sorted(PASSAGES)


def test_errors_are_litellms_own_classes(server):
    """An unknown model and an invalid request have different classes, for every provider."""
    with pytest.raises(NotFoundError, match="No such model"):
        litellm.embedding(**ask(server, "openai", "/v1", "no-such-model"), input=TEXTS)
    with pytest.raises(BadRequestError, match="at most 256 tokens"):
        litellm.embedding(**ask(server, "openai", "/v1"), input=[TOO_LONG])
    with pytest.raises(NotFoundError, match="No such model"):
        litellm.rerank(**ask(server, "cohere", "", "no-such-model"), query=QUERY, documents=PASSAGES)
    with pytest.raises(BadRequestError, match="No such model"):
        litellm.rerank(**ask(server, "infinity", "", "no-such-model"), query=QUERY, documents=PASSAGES)
