"""Cohere's API, v1 and v2: embed, rerank, tokenize and detokenize.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong.
Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from functools import partial

from vectord.products.cohere.errors import render_error
from vectord.products.cohere.requests import parse_detokenize, parse_embed, parse_rerank, parse_tokenize
from vectord.products.cohere.wire import (
    DetokenizeAnswer,
    DetokenizeBody,
    EmbedAnswer,
    EmbedBody,
    RerankAnswer,
    RerankBody,
    TokenizeAnswer,
    TokenizeBody,
)
from vectord.products.common.dialect import Dialect, post

_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
_TEXTS = {"texts": ["a happy person", "a rainy day"], "input_type": "search_document"}
_QUESTION = {
    "query": "What is the capital of France?",
    "documents": ["Paris is the capital of France.", "Cats sleep most of the day."],
}
_V1_EMBED = {**_TEXTS, "truncate": "END"}
_V2_EMBED = {"model": _MODEL, **_TEXTS, "embedding_types": ["float", "ubinary"]}
_RERANK_SIGNS = ["rank_fields", "max_chunks_per_doc", "max_tokens_per_doc"]

# The SDK appends v1/... and v2/... to its base URL, which then may end in /v1 already.
DIALECT = Dialect(
    name="cohere",
    title="Cohere",
    routes=(
        *post(
            "/v1/embed",
            "/v1/v1/embed",
            parse=partial(parse_embed, "1"),
            summary="Embed texts, as Cohere's v1 does",
            body=EmbedBody,
            answer=EmbedAnswer,
            example=_V1_EMBED,
            keys=["texts", "images"],
        ),
        *post(
            "/embed",
            parse=partial(parse_embed, "1"),
            summary="Embed texts, as Cohere's v1 does",
            body=EmbedBody,
            answer=EmbedAnswer,
            example=_V1_EMBED,
            keys=["texts"],  # the path is others' too, by other keys
        ),
        *post(
            "/v2/embed",
            "/v1/v2/embed",
            parse=partial(parse_embed, "2"),
            summary="Embed texts, as Cohere's v2 does",
            body=EmbedBody,
            answer=EmbedAnswer,
            example=_V2_EMBED,
            keys=["texts", "inputs", "images"],
        ),
        *post(
            "/v1/rerank",
            "/v1/v1/rerank",
            parse=partial(parse_rerank, "1"),
            summary="Rank documents by how well they answer a query, as Cohere's v1 does",
            body=RerankBody,
            answer=RerankAnswer,
            example={**_QUESTION, "return_documents": True},
            keys=["documents"],
            signs=_RERANK_SIGNS,
        ),
        *post(
            "/v2/rerank",
            "/v1/v2/rerank",
            parse=partial(parse_rerank, "2"),
            summary="Rank documents by how well they answer a query, as Cohere's v2 does",
            body=RerankBody,
            answer=RerankAnswer,
            example={"model": _MODEL, **_QUESTION, "top_n": 1},
            keys=["documents"],
            signs=_RERANK_SIGNS,
        ),
        *post(
            "/v1/tokenize",
            "/v1/v1/tokenize",
            parse=parse_tokenize,
            summary="Tokenize a text, without special tokens",
            body=TokenizeBody,
            answer=TokenizeAnswer,
            example={"model": _MODEL, "text": "a happy person"},
            keys=["text"],
        ),
        *post(
            "/v1/detokenize",
            "/v1/v1/detokenize",
            parse=parse_detokenize,
            summary="Turn token ids back into a text",
            body=DetokenizeBody,
            answer=DetokenizeAnswer,
            example={"model": _MODEL, "tokens": [1037, 3407, 2711]},
            keys=["tokens"],
        ),
    ),
    render_error=render_error,
)
