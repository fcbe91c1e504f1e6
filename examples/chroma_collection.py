"""Chroma: a collection that embeds added documents and queries.

    pip install chromadb openai
    vectord serve
    python chroma_collection.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key. Here the collection is in this process's memory:
chromadb.HttpClient(...) asks a Chroma of yours instead.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

import chromadb
from chromadb.utils.embedding_functions import OpenAIEmbeddingFunction

URL = os.environ.get("VECTORD_URL", "http://127.0.0.1:8000")
os.environ.setdefault("OPENAI_API_KEY", os.environ.get("VECTORD_API_KEY", "none is needed"))
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
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


def main(question: str) -> None:
    client = chromadb.EphemeralClient()
    embedding = OpenAIEmbeddingFunction(api_key_env_var="OPENAI_API_KEY", api_base=f"{URL}/v1", model_name=MODEL)
    collection = client.create_collection(
        "passages", embedding_function=embedding, configuration={"hnsw": {"space": "cosine"}}
    )
    collection.add(ids=[str(index) for index in range(len(PASSAGES))], documents=PASSAGES)
    found = collection.query(query_texts=[question], n_results=3)
    for distance, passage in zip(found["distances"][0], found["documents"][0], strict=True):
        print(f"{1 - distance:.3f}  {passage}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
