"""llama.cpp's own tests of embeddings and reranking, in our words, on a server of its profile.

Score: 49 of 49. The original's models are GGUF files. Here MiniLM embeds and, by its vectors, ranks in a sensible
order; a random cross-encoder counts tokens and refuses to embed.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from openai import OpenAI
from tests.clients.conftest import Serve
from tests.clients.texts import MODEL

RERANKER = "tiny-reranker"
LONGER = "The meaning of life is, I believe,"  # 11 tokens, special tokens included
TEXTS = [LONGER, "Tell me a story about a server whose answers nobody cuts off", "One more test", "And another one"]
DOCUMENTS = [
    "A machine transforms power into a movement that does work. Engines, pulleys and levers are simple examples.",
    "Learning means to acquire knowledge, skills or habits. People and animals can do it.",
    "Machine learning is the part of computer science in which algorithms learn from data and generalize.",
    "Paris est la capitale de la France, au bord de la Seine, avec de larges boulevards et de nombreux musées.",
]
QUERY = "machine learning is"


@pytest.fixture(scope="module")
def url(serve: Serve, written: Path) -> str:
    return serve(MODEL, str(written / RERANKER), "--profile", "llama-cpp")


@pytest.fixture(scope="module")
def reranker(serve: Serve, written: Path) -> str:
    """The API on a server with nothing but a reranker, shared with another test."""
    return serve(str(written / RERANKER)) + "/dialects/llamacpp"


@pytest.fixture(scope="module")
def client(url: str) -> OpenAI:
    return OpenAI(api_key="any", base_url=f"{url}/v1")


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=60)


def embed(url: str, given: Any) -> dict[str, Any]:
    answer: dict[str, Any] = post(url, "/v1/embeddings", input=given).raise_for_status().json()
    return answer


def vectors(url: str, given: Any) -> list[list[float]]:
    return [item["embedding"] for item in embed(url, given)["data"]]


# --- embeddings: 31 tests -------------------------------------------------------------------------------------


def test_one_text_has_one_vector_of_unit_length(url):
    """Two tests there, for the poolings last and mean."""
    (vector,) = vectors(url, LONGER)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("texts", [TEXTS, TEXTS[:3]], ids=["four", "three"])
def test_texts_have_a_vector_each(url, texts):
    """With the poolings last and mean there."""
    assert np.shape(vectors(url, texts)) == (len(texts), 384)


def test_texts_of_about_256_tokens(url):
    """Lengths at which its attention kernel changes. 256 is also the limit of this model."""
    assert len(vectors(url, ["a " * 251, "b " * 252, "c " * 253, "d " * 254])) == 4


@pytest.mark.parametrize(
    ("given", "count"),
    [
        ("", 1),
        ("text", 1),
        ([1012, 1034, 1056], 1),
        ([1012, 1034, "text", 1056, 1078], 1),
        (["one", "two"], 2),
        (["one", [1012, 1034, 1056]], 2),
        ([[1012, 1034, 1056], [1012, 1034, 1056]], 2),
        ([[1012, 1034, 1056], [1012, "text", 1034, 1056]], 2),
        ({"prompt_string": "text"}, 1),
        ({"content": [{"type": "text", "text": "text"}]}, 1),
        (["one", {"prompt_string": "two"}, {"content": [{"type": "text", "text": "three"}]}], 3),
    ],
    ids=str,
)
def test_inputs_are_texts_ids_and_objects_in_any_mixture(url, given, count):
    """Also an empty text."""
    assert len(vectors(url, given)) == count


def test_the_parts_of_an_object_are_one_text(url):
    """Joined without anything in between."""
    parts = [{"type": "text", "text": "good "}, {"type": "text", "text": "morning"}]
    whole, joined = vectors(url, ["good morning", {"content": parts}])
    assert whole == joined


@pytest.mark.parametrize(
    "given",
    [
        [],
        {"content": "text"},
        {"content": [{"type": "input_audio", "input_audio": {}}]},
        {"content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
    ],
    ids=str,
)
def test_other_inputs_are_refused(url, given):
    """No sound and no image."""
    assert post(url, "/v1/embeddings", input=given).status_code == 400


def test_openais_client_embeds_one_text(client):
    """Under any name of a model, while one model embeds. Here two are served, so the name counts."""
    assert len(client.embeddings.create(model=MODEL, input=LONGER).data[0].embedding) == 384


def test_openais_client_embeds_texts(client):
    """A vector for each."""
    assert [len(one.embedding) for one in client.embeddings.create(model=MODEL, input=TEXTS).data] == [384] * 4


def test_a_text_that_is_too_long_is_refused(url):
    """In words that clients look for."""
    answer = post(url, "/v1/embeddings", input="Testing a test " * 512)
    assert answer.status_code == 400
    assert "too large" in answer.json()["error"]["message"]


def test_equal_texts_have_equal_vectors(url):
    """In one request."""
    first, *others = vectors(url, [LONGER] * 5)
    assert all(np.allclose(first, other, atol=1e-3) for other in others)


@pytest.mark.parametrize(("given", "tokens"), [(LONGER, 11), ("One more test", 5), ([LONGER] * 2, 22)], ids=str)
def test_usage_counts_the_tokens_of_all_texts(url, given, tokens):
    """Three tests there. Special tokens count."""
    usage = embed(url, given)["usage"]
    assert (usage["prompt_tokens"], usage["total_tokens"]) == (tokens, tokens)


def test_base64_has_the_same_numbers(url):
    """In float32."""
    (item,) = post(url, "/v1/embeddings", input=LONGER, encoding_format="base64").json()["data"]
    decoded = np.frombuffer(base64.b64decode(item["embedding"]), "<f4")
    assert np.allclose(decoded, vectors(url, LONGER)[0], atol=1e-3)


@pytest.fixture(scope="module")
def without_pooling(serve: Serve) -> str:
    return serve(MODEL, "--profile", "llama-cpp", "--pooling", "none")


def test_without_pooling_each_token_has_a_vector(without_pooling):
    """Not normalized. Special tokens count: two more than those of the text."""
    (item,) = post(without_pooling, "/embeddings", input="hello hello hello").raise_for_status().json()
    assert np.shape(item["embedding"]) == (5, 384)
    assert all(abs(length - 1) > 1e-3 for length in np.linalg.norm(item["embedding"], axis=1))


def test_without_pooling_openais_route_is_refused(without_pooling):
    """Its answer has one vector for each text."""
    answer = post(without_pooling, "/v1/embeddings", input="hello hello hello")
    assert (answer.status_code, list(answer.json())) == (400, ["error"])


# --- reranking: 18 tests --------------------------------------------------------------------------------------


def rerank(url: str, **body: Any) -> httpx.Response:
    return post(url, "/rerank", **{"model": MODEL, "query": QUERY, **body})


@pytest.mark.parametrize(("key", "score"), [("documents", "relevance_score"), ("texts", "score")])
def test_the_best_and_the_worst_document_are_found(url, key, score):
    """In Jina's form and in TEI's."""
    answer = rerank(url, **{key: DOCUMENTS}).raise_for_status().json()
    ranks = answer if key == "texts" else answer["results"]
    in_order = sorted(ranks, key=lambda rank: rank[score])
    assert [len(ranks), in_order[-1]["index"], in_order[0]["index"]] == [4, 2, 3]


@pytest.mark.parametrize("documents", [[], None, 123, [1, 2, 3]], ids=str)
def test_anything_but_texts_is_refused(url, documents):
    """With an error in its form."""
    answer = rerank(url, documents=documents)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("query", "documents"),
    [("machine learning is", ["a machine", "learning is"]), ("which city?", ["machine learning is ", "Paris, France"])],
    ids=str,
)
def test_usage_counts_the_query_with_each_document(url, query, documents):
    """And the special tokens of each pair."""
    usage = rerank(url, model=RERANKER, query=query, documents=documents).json()["usage"]

    def tokens(text: str) -> int:
        return len(post(url, "/tokenize", model=RERANKER, content=text).json()["tokens"])

    frame = len(post(url, "/tokenize", model=RERANKER, content="", add_special=True).json()["tokens"])
    pairs = sum(tokens(query) + tokens(document) for document in documents)
    between = usage["prompt_tokens"] - pairs - frame * len(documents)
    assert between in (len(documents), 2 * len(documents))  # special tokens between the two texts of a pair
    assert usage["total_tokens"] == usage["prompt_tokens"]


@pytest.mark.parametrize("key", ["documents", "texts"])
@pytest.mark.parametrize(("top_n", "count"), [(None, 4), (2, 2), (4, 4), (99, 4)], ids=str)
def test_top_n_bounds_the_results(url, key, top_n, count):
    """A larger number than that of the documents is no error."""
    answer = rerank(url, **{key: DOCUMENTS}, **({} if top_n is None else {"top_n": top_n})).json()
    assert len(answer if key == "texts" else answer["results"]) == count


@pytest.mark.parametrize("path", ["/embeddings", "/v1/embeddings"])
def test_a_reranker_does_not_embed(reranker, path):
    """The error names what it can do."""
    answer = post(reranker, path, input="hello")
    assert answer.status_code == 400
    assert "rerank" in answer.json()["error"]["message"]
