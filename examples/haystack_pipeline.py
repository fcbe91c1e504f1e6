"""Haystack: a pipeline that embeds a question, retrieves documents, and ranks them.

    pip install haystack-ai huggingface-api-haystack
    vectord serve
    python haystack_pipeline.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key. The default model ranks by cosine: beside a reranker
(vectord serve sentence-transformers/all-MiniLM-L6-v2 BAAI/bge-reranker-v2-m3) the order is the reranker's.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

from haystack import Document, Pipeline
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack.utils import Secret
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker

URL = os.environ.get("VECTORD_URL", "http://127.0.0.1:8000")
KEY = Secret.from_token(os.environ.get("VECTORD_API_KEY", "none is needed"))
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
    openai = {"api_key": KEY, "api_base_url": f"{URL}/v1", "model": MODEL}
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    embedder = OpenAIDocumentEmbedder(**openai, progress_bar=False)
    store.write_documents(embedder.run([Document(content=passage) for passage in PASSAGES])["documents"])

    pipeline = Pipeline()
    pipeline.add_component("embedder", OpenAITextEmbedder(**openai))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=6))
    pipeline.add_component("ranker", HuggingFaceTEIRanker(url=URL, token=KEY, top_k=3))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    pipeline.connect("retriever.documents", "ranker.documents")
    found = pipeline.run({"embedder": {"text": question}, "ranker": {"query": question}})
    for document in found["ranker"]["documents"]:
        print(f"{document.score:.3f}  {document.content}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
