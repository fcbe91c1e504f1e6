"""LangChain: OpenAI embeddings from this server, and a vector store in memory.

    pip install langchain-openai numpy
    vectord serve
    python langchain_retriever.py "when did it rain?"

VECTORD_URL and VECTORD_API_KEY name another server, and its key.
"""

# ruff: noqa: T201
from __future__ import annotations

import os
import sys

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings

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
    embeddings = OpenAIEmbeddings(
        base_url=f"{URL}/v1",
        api_key=KEY,
        model=MODEL,
        check_embedding_ctx_length=False,  # send texts, not token ids of OpenAI's vocabulary
    )
    store = InMemoryVectorStore.from_texts(PASSAGES, embeddings)
    for document, score in store.similarity_search_with_score(question, k=3):
        print(f"{score:.3f}  {document.page_content}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else QUESTION)
