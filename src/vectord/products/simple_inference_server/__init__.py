"""Simple Inference Server: OpenAI's embeddings with guards, and its later versions' rerank.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong. Of its wish list the
dialect llamacpp has the routes. Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, get, post
from vectord.products.common.models import ListedModels
from vectord.products.simple_inference_server.errors import render_error, render_rerank_error
from vectord.products.simple_inference_server.requests import parse_embeddings, parse_models, parse_rerank
from vectord.products.simple_inference_server.wire import Embeddings, EmbeddingsBody, Ranking, RerankBody

_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

DIALECT = Dialect(
    name="simple_inference_server",
    title="Simple Inference Server",
    routes=(
        *post(
            "/v1/embeddings",
            parse=parse_embeddings,
            summary="Embed texts or token ids",
            body=EmbeddingsBody,
            answer=Embeddings,
            example={"model": _MODEL, "input": ["hello", "world"]},
            keys=["input"],
        ),
        *post(
            "/v1/rerank",
            parse=parse_rerank,
            summary="Rank documents by how well they answer a query",
            body=RerankBody,
            answer=Ranking,
            example={"model": _MODEL, "query": "happy", "documents": ["rain", "joy"], "top_n": 1},
            keys=["documents"],
            render_error=render_rerank_error,
        ),
        *get("/v1/models", parse=parse_models, summary="List served models", answer=ListedModels),
    ),
    render_error=render_error,
    health=lambda served, ready: {} if ready else {"detail": "The server is not ready."},
)
