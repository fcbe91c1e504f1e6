"""qdrant-client in memory: a collection with three kinds of vectors, searched by each and by all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from qdrant_client import QdrantClient, models
from tests.clients.own_api import OwnApi
from tests.clients.texts import QUERY, TEXTS

MODEL = "tiny-bge-m3"
PASSAGES = [
    "The quick, brown fox jumps over the lazy dog!",
    "many small birds sing in green old trees",
    "Zürich's café sells naïve crêpes",
    "今日は天気がいいですね。",
]
KINDS = ["dense", "sparse", "colbert"]


def vectors_of(own: OwnApi, texts: list[str]) -> list[dict]:
    """All three kinds of each text in Qdrant's types, which are lists of numbers except for sparse vectors."""
    items = own.kinds(texts, KINDS, model=MODEL)
    return [{kind: item[kind] for kind in KINDS} | {"sparse": models.SparseVector(**item["sparse"])} for item in items]


@pytest.fixture(scope="module")
def collection(own) -> Iterator[QdrantClient]:
    """Cosine, dot product, and MaxSim: the sum over the query's tokens of the best passage token."""
    cosine = models.Distance.COSINE
    late = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    client = QdrantClient(":memory:")
    client.create_collection(
        "passages",
        vectors_config={
            "dense": models.VectorParams(size=32, distance=cosine),
            "colbert": models.VectorParams(size=32, distance=cosine, multivector_config=late),
        },
        sparse_vectors_config={"sparse": models.SparseVectorParams()},
    )
    points = [
        models.PointStruct(id=index, vector=vectors, payload={"text": PASSAGES[index]})
        for index, vectors in enumerate(vectors_of(own, PASSAGES))
    ]
    client.upsert("passages", points)
    yield client
    client.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("query", ["birds sing in old trees", "the lazy fox"])
def test_a_search_scores_as_rerank_does(own, collection, kind, query):
    """Qdrant's scores and order for the stored vectors equal those of vectord's rerank with the same kind."""
    (vectors,) = vectors_of(own, [query])
    found = collection.query_points("passages", query=vectors[kind], using=kind).points
    scores = dict(own.rank(query, PASSAGES, model=MODEL, method=kind, scores="model"))
    per_token = len(vectors[kind]) if kind == "colbert" else 1  # vectord has the mean over the query's tokens
    matched = {point.id: point.score / per_token for point in found}
    if kind == "sparse":  # Qdrant leaves out passages without a word of the query
        scores = {index: score for index, score in scores.items() if score}
    assert matched == pytest.approx(scores, abs=1e-2)  # the precision of bfloat16
    assert found[0].id == max(scores, key=scores.get)


@pytest.mark.parametrize("index", range(len(PASSAGES)))
def test_a_hybrid_search_finds_the_text(own, collection, index):
    """Dense and sparse candidates, then ColBERT's order; a passage is its own best match."""
    (vectors,) = vectors_of(own, [PASSAGES[index]])
    prefetch = [models.Prefetch(query=vectors[kind], using=kind, limit=3) for kind in ("dense", "sparse")]
    found = collection.query_points("passages", prefetch=prefetch, query=vectors["colbert"], using="colbert").points
    assert found[0].payload == {"text": PASSAGES[index]}


def test_real_vectors_find_texts_by_meaning(own):
    """With the default model; the query and the texts share no words."""
    client = QdrantClient(":memory:")
    client.create_collection("texts", models.VectorParams(size=384, distance=models.Distance.COSINE))
    client.upload_collection("texts", vectors=own.embed(TEXTS), payload=[{"text": text} for text in TEXTS])
    (found,) = client.query_points("texts", query=own.embed([QUERY])[0], limit=1).points
    client.close()
    assert found.payload == {"text": "That is a happy dog"}
