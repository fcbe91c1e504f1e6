"""Semantic Explorer's embedding inference API: the routes of its document, and under /api/ its source's.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong. Runs on the event loop,
called by the server's handler. /health/live and /health/ready are pages of the server. A model that is not served is
refused, where the product would fetch it from the hub: here the operator names models at start.
"""

from __future__ import annotations

from functools import partial

from vectord.products.common.dialect import Dialect, get, post
from vectord.products.common.models import ListedModels
from vectord.products.semantic_explorer import requests, wire
from vectord.products.semantic_explorer.errors import EMBEDDING, RERANKING, render_error

_QUESTION = "machine learning"
_DOCUMENTS = ["Deep learning is a subset of machine learning", "The weather is nice today"]

_render_embed_error = partial(render_error, failed=EMBEDDING)
_render_rerank_error = partial(render_error, failed=RERANKING)

DIALECT = Dialect(
    name="semantic_explorer",
    title="Semantic Explorer",
    routes=(
        *post(
            "/embed",
            parse=requests.parse_embed,
            summary="Embed texts",
            body=wire.EmbedBody,
            answer=wire.Embeddings,
            example={"input": ["hello world", "semantic search"]},
            keys=["input"],
            render_error=_render_embed_error,
        ),
        *post(
            "/rerank",
            parse=requests.parse_rerank,
            summary="Rank documents by how well they answer a query",
            body=wire.RerankBody,
            answer=wire.Ranking,
            example={"query": _QUESTION, "documents": _DOCUMENTS, "top_n": 1},
            keys=["documents"],
            render_error=_render_rerank_error,
        ),
        *get("/models", parse=requests.parse_models, summary="List served models", answer=ListedModels),
        *post(
            "/api/embed",
            parse=requests.parse_embed_text,
            summary="Embed one text",
            body=wire.TextBody,
            answer=wire.CountedEmbeddings,
            example={"text": "hello world"},
            keys=["text"],
            render_error=_render_embed_error,
        ),
        *post(
            "/api/embed/batch",
            parse=requests.parse_embed_texts,
            summary="Embed texts",
            body=wire.TextsBody,
            answer=wire.CountedEmbeddings,
            example={"texts": ["hello world", "semantic search"]},
            keys=["texts"],
            render_error=_render_embed_error,
        ),
        *post(
            "/api/rerank",
            parse=requests.parse_rerank_named,
            summary="Rank documents that may have ids",
            body=wire.RerankNamedBody,
            answer=wire.RankingNamed,
            example={"query": _QUESTION, "documents": [{"text": _DOCUMENTS[0], "id": "a"}, {"text": _DOCUMENTS[1]}]},
            keys=["documents"],
            render_error=_render_rerank_error,
        ),
        *get(
            "/api/embedders",
            parse=requests.parse_embedders,
            summary="List models that embed",
            answer=list[wire.Described],
        ),
        *get(
            "/api/rerankers",
            parse=requests.parse_rerankers,
            summary="List models that rerank",
            answer=list[wire.Described],
        ),
        *get(
            "/health/status",
            parse=requests.parse_status,
            summary="Whether models of each kind answer",
            answer=wire.Status,
            public=True,
        ),
    ),
    render_error=render_error,
)
