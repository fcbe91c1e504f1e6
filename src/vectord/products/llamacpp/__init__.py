"""llama.cpp's server, as far as it embeds, reranks and tokenises: its own routes and its OpenAI route.

requests.py reads the bodies, answers.py writes the answers, norms.py has its norms of a vector, errors.py says what
went wrong. Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, get, post
from vectord.products.common.models import ListedModels
from vectord.products.llamacpp import wire
from vectord.products.llamacpp.errors import render_error
from vectord.products.llamacpp.requests import (
    parse_detokenize,
    parse_health,
    parse_models,
    parse_native,
    parse_openai,
    parse_props,
    parse_rerank,
    parse_slots,
    parse_tokenize,
)

_SIGNS = ["content", "embd_normalize"]

DIALECT = Dialect(
    name="llamacpp",
    title="llama.cpp",
    routes=(
        *post(
            "/embedding",
            "/embeddings",
            parse=parse_native,
            summary="Embed texts or token ids, as a bare array",
            body=wire.EmbeddingBody,
            answer=list[wire.Embedded],
            example={"content": ["A bank of a river.", "A bank for savings."], "embd_normalize": 2},
            keys=["content", "input"],
            signs=_SIGNS,
        ),
        *post(
            "/v1/embeddings",
            parse=parse_openai,
            summary="Embed texts or token ids, in OpenAI's shape",
            body=wire.EmbeddingBody,
            answer=wire.OpenAIAnswer | list[wire.Embedded],
            example={"input": "A bank of a river.", "embd_normalize": -1},
            keys=["content", "input"],
            signs=_SIGNS,
        ),
        *post(
            "/rerank",
            "/reranking",
            "/v1/rerank",
            "/v1/reranking",
            parse=parse_rerank,
            summary="Rank texts by how well they answer a query, by logits",
            body=wire.RerankBody,
            answer=list[wire.Rank] | wire.Reranked,
            example={"query": "Where do pandas live?", "documents": ["In China.", "In a can."], "top_n": 1},
            keys=["documents", "texts"],
        ),
        *post(
            "/tokenize",
            parse=parse_tokenize,
            summary="Tokenize a text",
            body=wire.TokenizeBody,
            answer=wire.Tokens,
            example={"content": "A bank of a river.", "with_pieces": True},
            keys=["content"],
        ),
        *post(
            "/detokenize",
            parse=parse_detokenize,
            summary="Decode token ids",
            body=wire.DetokenizeBody,
            answer=wire.Detokenized,
            example={"tokens": [1037, 2924]},
            keys=["tokens"],
        ),
        *get(
            "/v1/health",
            parse=parse_health,
            summary="Whether requests will be answered",
            answer=wire.Health,
            public=True,
        ),
        *get(
            "/props",
            parse=parse_props,
            summary="Show the first served model and the limits in force",
            answer=wire.Props,
        ),
        *get("/slots", parse=parse_slots, summary="Show the state of each served model", answer=list[wire.Slot]),
        *get("/v1/models", "/models", parse=parse_models, summary="List served models", answer=ListedModels),
    ),
    render_error=render_error,
)
