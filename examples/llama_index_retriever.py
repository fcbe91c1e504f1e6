"""LlamaIndex: an index with vectors from this server, and a reranker for its results.

    pip install llama-index-core llama-index-embeddings-openai-like llama-index-postprocessor-tei-rerank
    vectord serve
    python llama_index_retriever.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key. The default model ranks by cosine: beside a reranker
(vectord serve sentence-transformers/all-MiniLM-L6-v2 BAAI/bge-reranker-v2-m3) the order is the reranker's.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

from llama_index.core import VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

URL = os.environ.get("VECTORD_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("VECTORD_API_KEY", "none is needed")
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
    embedding = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key=KEY)
    index = VectorStoreIndex([TextNode(text=passage) for passage in PASSAGES], embed_model=embedding)
    candidates = index.as_retriever(similarity_top_k=6).retrieve(question)
    reranker = TextEmbeddingInference(base_url=URL, auth_token=KEY, top_n=3)
    for found in reranker.postprocess_nodes(candidates, query_str=question):
        print(f"{found.score:.3f}  {found.text}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
