"""Qdrant: dense and sparse vectors find candidates, and ColBERT vectors rank them. One pass of BGE-M3 makes all three.

    pip install qdrant-client httpx
    vectord serve BAAI/bge-m3
    python qdrant_hybrid.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key. Here the collection is in this process's memory:
QdrantClient(url=...) asks a Qdrant of yours instead.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys
from typing import Any

import httpx
from qdrant_client import QdrantClient, models

URL = os.environ.get("VECTORD_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("VECTORD_API_KEY", "none is needed")
MODEL = "BAAI/bge-m3"
KINDS = ["dense", "sparse", "colbert"]
PASSAGES = [
    "The library opens at nine in the morning.",
    "A ticket for the night bus costs three euros.",
    "The bakery on the corner sells rye bread.",
    "Dogs must be on a lead in the park.",
    "The swimming pool is closed for repairs until May.",
    "Bicycles are lent at the station, for a day at most.",
    "The museum shows paintings of the seventeenth century.",
    "Rain is expected in the north on Sunday.",
]
QUESTION = "How much is public transport after midnight?"


def embed(texts: list[str]) -> list[dict[str, Any]]:
    """All vectors of each text, in Qdrant's form."""
    headers = {"authorization": f"Bearer {KEY}"}
    body = {"model": MODEL, "inputs": texts, "outputs": KINDS}
    answer = httpx.post(f"{URL}/vectord/embed", json=body, headers=headers, timeout=60).raise_for_status()
    items = answer.json()["data"]
    return [
        {"dense": item["dense"], "sparse": models.SparseVector(**item["sparse"]), "colbert": item["colbert"]}
        for item in items
    ]


def collect(client: QdrantClient, passages: list[str]) -> None:
    vectors = embed(passages)
    cosine = models.Distance.COSINE
    best_per_token = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    unsearched = models.HnswConfigDiff(m=0)  # ColBERT vectors only rank candidates, without an index
    colbert = models.VectorParams(
        size=len(vectors[0]["colbert"][0]), distance=cosine, multivector_config=best_per_token, hnsw_config=unsearched
    )
    client.create_collection(
        "passages",
        vectors_config={
            "dense": models.VectorParams(size=len(vectors[0]["dense"]), distance=cosine),
            "colbert": colbert,
        },
        sparse_vectors_config={"sparse": models.SparseVectorParams()},
    )
    points = [
        models.PointStruct(id=index, vector=vector, payload={"text": passage})
        for index, (vector, passage) in enumerate(zip(vectors, passages, strict=True))
    ]
    client.upsert("passages", points)


def search(client: QdrantClient, question: str, limit: int) -> list[models.ScoredPoint]:
    (vector,) = embed([question])
    candidates = [models.Prefetch(query=vector[kind], using=kind, limit=20) for kind in ("dense", "sparse")]
    return client.query_points(
        "passages", prefetch=candidates, query=vector["colbert"], using="colbert", limit=limit
    ).points


def main(question: str) -> None:
    client = QdrantClient(":memory:")
    collect(client, PASSAGES)
    for point in search(client, question, limit=3):
        print(f"{point.score:.3f}  {point.payload['text']}")
    client.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
