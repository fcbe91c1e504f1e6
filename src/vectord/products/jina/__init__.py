"""Jina's API: embeddings, late chunking, multi-vectors and rerank.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong. Runs on the event loop,
called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, post
from vectord.products.jina.errors import render_error
from vectord.products.jina.requests import parse_embeddings, parse_multivector, parse_rerank
from vectord.products.jina.wire import (
    Embeddings,
    EmbeddingsBody,
    MultiVectorBody,
    MultiVectors,
    Ranking,
    RerankBody,
)

_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

DIALECT = Dialect(
    name="jina",
    title="Jina",
    routes=(
        *post(
            "/v1/embeddings",
            "/embeddings",
            parse=parse_embeddings,
            summary="Embed texts, or the pieces of one text in sight of all of it",
            body=EmbeddingsBody,
            answer=Embeddings,
            example={
                "model": _MODEL,
                "task": "retrieval.passage",
                "late_chunking": True,
                "embedding_type": "float",
                "input": ["Berlin is the capital of Germany.", "Its more than 3.8 million inhabitants make it large."],
            },
            keys=["input"],
            signs=[
                "task",
                "normalized",
                "late_chunking",
                "embedding_type",
                "encoding_type",
                "return_multivector",
                "return_tokenized_input",
            ],
        ),
        *post(
            "/v1/multi-vector",
            "/multi-vector",
            parse=parse_multivector,
            summary="Embed each token of texts",
            body=MultiVectorBody,
            answer=MultiVectors,
            example={"input_type": "document", "input": ["a happy person"]},
            keys=["input"],
        ),
        *post(
            "/v1/rerank",
            "/rerank",
            parse=parse_rerank,
            summary="Rank documents by how well they answer a query",
            body=RerankBody,
            answer=Ranking,
            example={
                "model": _MODEL,
                "query": "What is the capital of France?",
                "documents": ["Paris is the capital of France.", "Cats sleep most of the day."],
                "top_n": 1,
            },
            keys=["documents"],
            signs=["max_doc_length", "return_embeddings", "return_len"],  # the last one is Xinference's
        ),
    ),
    render_error=render_error,
)
