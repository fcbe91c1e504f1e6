"""text-embeddings-inference: its own routes and its OpenAI routes, for every kind of model.

tei_requests.py reads the bodies, tei_answers.py writes the answers, tei_errors.py says what went wrong; texts of errors
are TEI's where clients may know them. Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from vectord.dialects.base import Dialect, Incoming, Rendered, Route
from vectord.dialects.tei_answers import (
    render_decode,
    render_embed,
    render_embed_all,
    render_embed_sparse,
    render_info,
    render_openai,
    render_predict,
    render_rerank,
    render_root,
    render_similarity,
    render_tokenize,
)
from vectord.dialects.tei_errors import render_error, render_openai_error
from vectord.dialects.tei_requests import (
    parse_decode,
    parse_embed,
    parse_embed_all,
    parse_embed_sparse,
    parse_info,
    parse_openai,
    parse_predict,
    parse_rerank,
    parse_root,
    parse_similarity,
    parse_tokenize,
)
from vectord.dialects.tei_wire import (
    DecodeBody,
    EmbedBody,
    Info,
    OpenAIAnswer,
    OpenAIBody,
    PredictBody,
    Prediction,
    Rank,
    RerankBody,
    SimilarityBody,
    SparseEntry,
    TextsBody,
    TokenAnswer,
    TokenizeBody,
)
from vectord.schema import Request, Result


def _post(
    path: str,
    parse: Callable[[Incoming], Request],
    render: Callable[[Request, Result], Rendered],
    body: type[msgspec.Struct],
    summary: str,
    *,
    answer: object,
    key: str = "inputs",
    sees_models: bool = False,
) -> Route:
    return Route(
        method="POST",
        path=path,
        parse=parse,
        render=render,
        summary=summary,
        body=body,
        answer=answer,
        keys=frozenset({key}),
        sees_models=sees_models,
        render_error=render_openai_error if body is OpenAIBody else None,
    )


def _root(path: str) -> tuple[Route, Route]:
    """What one URL for everything answers: `texts` are reranked, `inputs` are for whatever the first model does."""
    summary = "Embed, classify or compare, by the first model and the kind of `inputs`"
    usual = _post(path, parse_root, render_root, EmbedBody, summary, answer=_VECTORS, sees_models=True)
    return usual, _post(path, parse_rerank, render_rerank, RerankBody, _RERANK, answer=_RANKS, key="texts")


def _openai(path: str) -> Route:
    summary = "Embed texts or token ids, in OpenAI's shape"
    return _post(path, parse_openai, render_openai, OpenAIBody, summary, answer=OpenAIAnswer, key="input")


_RERANK = "Rank texts by how well they answer a query"
_VECTORS = list[list[float]]
_SCORES = list[float]
_TOKENS = list[list[TokenAnswer]]
_RANKS = list[Rank]
_PREDICTIONS = list[Prediction | list[Prediction]]
_SPARSE = list[list[SparseEntry]]

DIALECT = Dialect(
    name="tei",
    title="text-embeddings-inference",
    routes=(
        _post("/embed", parse_embed, render_embed, EmbedBody, "Embed texts or token ids", answer=_VECTORS),
        _post("/embed_all", parse_embed_all, render_embed_all, TextsBody, "Embed tokens", answer=list[_VECTORS]),
        _post("/embed_sparse", parse_embed_sparse, render_embed_sparse, TextsBody, "Weigh words", answer=_SPARSE),
        _post("/similarity", parse_similarity, render_similarity, SimilarityBody, "Compare sentences", answer=_SCORES),
        _post("/rerank", parse_rerank, render_rerank, RerankBody, _RERANK, answer=_RANKS, key="texts"),
        _post("/predict", parse_predict, render_predict, PredictBody, "Classify texts or pairs", answer=_PREDICTIONS),
        _post("/tokenize", parse_tokenize, render_tokenize, TokenizeBody, "Tokenize texts", answer=_TOKENS),
        _post("/decode", parse_decode, render_decode, DecodeBody, "Decode token ids", answer=list[str], key="ids"),
        *_root("/"),
        *_root("/invocations"),
        _openai("/v1/embeddings"),
        _openai("/embeddings"),
        Route(
            method="GET",
            path="/info",
            parse=parse_info,
            render=render_info,
            summary="Show the first served model and the limits in force",
            answer=Info,
        ),
    ),
    render_error=render_error,
)
