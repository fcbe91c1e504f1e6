"""infinity's own end-to-end tests, in our words, on servers of its profile, with infinity's paths.

Score: 24 of 46. Of the others, 16 need an image or a sound, four compare the reference library with itself, one
compares the OpenAPI document with infinity's, and one counts a ColBERT's rows without its marker token. The models here
are MiniLM, a random cross-encoder and a random classifier.
"""

from __future__ import annotations

import base64
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.clients.conftest import Serve
from tests.clients.texts import MODEL, TEXTS, assert_same_vectors

RERANKER, CLASSIFIER = "tiny-reranker", "tiny-classifier"
TOWER = "Where does the Eiffel Tower stand?"
PLACES = [f"The Eiffel Tower stands in {place}." for place in ("Rome", "Paris", "London")]


@pytest.fixture(scope="module")
def url(serve: Serve, written: Path) -> str:
    return serve(MODEL, *(str(written / name) for name in (RERANKER, CLASSIFIER)), "--profile", "infinity")


def post(url: str, path: str, **body: Any) -> httpx.Response:
    return httpx.post(url + path, json={"model": MODEL, **body}, timeout=60)


def embed(url: str, given: Any, **options: Any) -> list[Any]:
    answer = post(url, "/embeddings", input=given, **options).raise_for_status().json()
    return [item["embedding"] for item in answer["data"]]


# --- models: one test in each of seven files -----------------------------------------------------------------


def test_models_are_listed_in_order(url):
    """With `stats` of each; /health has the time."""
    listed = httpx.get(f"{url}/models").raise_for_status().json()["data"]
    assert [item["id"] for item in listed] == [MODEL, RERANKER, CLASSIFIER]
    assert all(isinstance(item["stats"], dict) for item in listed)
    assert "unix" in httpx.get(f"{url}/health").raise_for_status().json()


# --- embeddings: dummy model, sentence-transformers, optimum, CTranslate2 --------------------------------------


@pytest.fixture(scope="module")
def reference(written: Path) -> np.ndarray:
    """sentence-transformers' vectors of TEXTS."""
    return np.load(written / "vectors.npy")


@pytest.mark.parametrize("count", [1, 2])
def test_vectors_are_those_of_sentence_transformers(url, reference, count):
    """One text and two: three tests there, of three engines, and one of the dummy model."""
    assert_same_vectors(embed(url, TEXTS[:count]), reference[:count])


def test_concurrent_requests_keep_their_order(url, reference):
    """Four tests there, with the texts of a data set; each vector has a cosine above 0.94."""
    places = list(range(len(TEXTS))) * 8
    parts = [places[at : at + 12] for at in range(0, len(places), 12)]
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda part: embed(url, [TEXTS[place] for place in part]), parts))
    assert_same_vectors(list(itertools.chain(*made)), reference[places])


def test_a_text_has_at_most_122_880_characters(url):
    """One more is refused, for every model that embeds."""
    assert post(url, "/embeddings", input="%_" * 61_455).status_code == 422
    answer = post(url, "/embeddings", input="%_" * 61_440).raise_for_status().json()
    assert answer["model"] == MODEL


def test_base64_has_the_same_numbers(url):
    """In float32."""
    (numbers,), (packed,) = (embed(url, "Hello", encoding_format=encoding) for encoding in ("float", "base64"))
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == np.float32(numbers).tolist()


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS[:2]], ids=["one", "two"])
def test_dimensions_keep_the_first_numbers(url, texts):
    """Up to their scale: infinity does not normalize again."""
    for cut, whole in zip(embed(url, texts, dimensions=10), embed(url, texts), strict=True):
        assert np.allclose(cut, whole[:10] / np.linalg.norm(whole[:10]), atol=1e-5)


# --- classify --------------------------------------------------------------------------------------------------


def test_texts_are_classified(url):
    """With the model and the usage."""
    answer = post(url, "/classify", model=CLASSIFIER, input=["I love it!", "I do not!", "Perhaps."]).json()
    assert answer["model"] == CLASSIFIER
    assert answer["usage"]["total_tokens"] > 0
    assert [len(labels) for labels in answer["data"]] == [3, 3, 3]


# --- rerank ----------------------------------------------------------------------------------------------------


def rank(url: str, documents: list[str], **options: Any) -> list[dict[str, Any]]:
    body = {"model": RERANKER, "query": TOWER, "documents": documents, **options}
    results: list[dict[str, Any]] = post(url, "/rerank", **body).raise_for_status().json()["results"]
    return results


def test_scores_are_those_of_each_pair(url):
    """There, those of transformers' pipeline."""
    together = {result["index"]: result["relevance_score"] for result in rank(url, PLACES)}
    alone = [rank(url, [text])[0]["relevance_score"] for text in PLACES]
    assert [together[index] for index in range(3)] == pytest.approx(alone, abs=0.01)


@pytest.mark.parametrize("top_n", [1, 2, 8000])
@pytest.mark.parametrize("shows", [True, False], ids=["documents", "no documents"])
def test_the_best_document_is_first_in_any_order(url, top_n, shows):
    """Concurrently, and with a limit above the number of documents."""
    best = rank(url, PLACES, return_documents=True)[0]["document"]

    def check(documents: list[str]) -> None:
        results = rank(url, documents, top_n=top_n, return_documents=shows)
        assert len(results) == min(top_n, 3)
        assert results[0]["index"] == documents.index(best)
        assert results[0]["document"] == (best if shows else None)

    with ThreadPoolExecutor() as pool:
        list(pool.map(check, map(list, itertools.permutations(PLACES))))


@pytest.mark.parametrize("top_n", [-1, 0])
def test_top_n_is_at_least_one(url, top_n):
    """As a fault of the body."""
    body = {"model": RERANKER, "query": TOWER, "documents": PLACES, "top_n": top_n}
    assert post(url, "/rerank", **body).status_code == 422


@pytest.mark.parametrize("path", ["/embeddings", "/classify"])
def test_a_reranker_does_nothing_else(url, path):
    """As a bad request. So it is when an embedding model is asked to classify, in a test of images there."""
    for model in (RERANKER, MODEL) if path == "/classify" else (RERANKER,):
        assert post(url, path, model=model, input=PLACES).status_code == 400


# --- keys ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/models", None),
        ("POST", "/embeddings", {"input": "a"}),
        ("POST", "/rerank", {"query": "q", "documents": ["a"]}),
    ],
    ids=["models", "embeddings", "rerank"],
)
def test_a_key_opens_every_route(guarded_server, key, method, path, body):
    """401 without it. A model that does not rerank is a bad request then."""
    address = f"{guarded_server}/dialects/infinity{path}"
    assert httpx.request(method, address, json=body).status_code == 401
    allowed = httpx.request(method, address, json=body, headers={"Authorization": f"Bearer {key}"})
    assert allowed.status_code in (200, 400)
