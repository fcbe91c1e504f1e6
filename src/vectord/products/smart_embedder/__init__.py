"""Smart Embedder: the three vectors of BGE-M3 and a reranker, with a warning for everything that was cut.

requests.py reads the bodies and flags.py their booleans, answers.py writes the answers, errors.py says what went wrong.
`/health` is the server's own page, for everyone. Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, Rate, get, post
from vectord.products.smart_embedder import requests, wire
from vectord.products.smart_embedder.errors import render_error, render_rerank_error
from vectord.products.smart_embedder.health import health, ready_lines

DIALECT = Dialect(
    name="smart_embedder",
    title="Smart Embedder",
    routes=(
        *post(
            "/embeddings",
            parse=requests.parse_embeddings,
            summary="Turn sentences into dense, sparse and ColBERT vectors",
            body=wire.EmbeddingsBody,
            answer=wire.EmbeddingsAnswer,
            example={"sentences": ["Hello world!", "Ciao mondo!"], "return_sparse": False, "return_colbert": False},
            keys=["sentences"],
            signs=["sentences"],
        ),
        *post(
            "/rerank",
            parse=requests.parse_rerank,
            summary="Rank passages by how well they answer a query",
            body=wire.RerankBody,
            answer=wire.RerankAnswer,
            example={
                "query": "What is machine learning?",
                "passages": ["Machine learning is a subset of AI.", "The weather is nice today."],
                "normalize": True,
            },
            keys=["passages"],
            signs=["passages"],
            render_error=render_rerank_error,
        ),
        *get(
            "/stats",
            parse=requests.parse_stats,
            summary="What was embedded since the start",
            answer=wire.StatsAnswer,
            public=True,
        ),
    ),
    render_error=render_error,
    rate=Rate(3600, period_s=60, burst=120),
    health=health,
    ready_lines=ready_lines,
)
