"""Voyage's API: embeddings, contextualized chunk embeddings and rerank.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong.
Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, post
from vectord.products.voyage.errors import render_error
from vectord.products.voyage.requests import parse_contextualized, parse_embeddings, parse_rerank
from vectord.products.voyage.wire import (
    ContextualizedBody,
    ContextualizedEmbeddings,
    Embeddings,
    EmbeddingsBody,
    Ranking,
    RerankBody,
)

_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

DIALECT = Dialect(
    name="voyage",
    title="Voyage",
    routes=(
        *post(
            "/v1/embeddings",
            "/embeddings",
            parse=parse_embeddings,
            summary="Embed texts, as Voyage does",
            body=EmbeddingsBody,
            answer=Embeddings,
            example={
                "model": _MODEL,
                "input": ["a happy person", "a rainy day"],
                "input_type": "document",
                "output_dtype": "int8",
            },
            keys=["input"],
            signs=["output_dtype", "output_dimension"],
        ),
        *post(
            "/v1/contextualizedembeddings",
            "/contextualizedembeddings",
            parse=parse_contextualized,
            summary="Embed chunks of documents, each as part of its document",
            body=ContextualizedBody,
            answer=ContextualizedEmbeddings,
            example={
                "model": _MODEL,
                "inputs": [["a happy person", "who walks in the rain"]],
                "input_type": "document",
            },
            keys=["inputs"],
        ),
        *post(
            "/v1/rerank",
            "/rerank",
            parse=parse_rerank,
            summary="Rank documents by how well they answer a query, as Voyage does",
            body=RerankBody,
            answer=Ranking,
            example={
                "model": _MODEL,
                "query": "What is the capital of France?",
                "documents": ["Paris is the capital of France.", "Cats sleep most of the day."],
                "top_k": 1,
            },
            keys=["documents"],
            signs=["top_k"],
        ),
    ),
    render_error=render_error,
)
