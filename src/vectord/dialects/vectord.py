"""Our own API, under /vectord/: it can ask all that schema.py can, and answers all that a result holds.

vectord_requests.py reads the bodies, vectord_answers.py writes the answers, vectord_errors.py says what went wrong.
Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from vectord.dialects import vectord_wire as wire
from vectord.dialects.base import Dialect, Incoming, Rendered, Route
from vectord.dialects.vectord_answers import (
    render_classify,
    render_decode,
    render_documents,
    render_embed,
    render_model,
    render_models,
    render_rerank,
    render_similarity,
    render_tokenize,
)
from vectord.dialects.vectord_errors import render_error
from vectord.dialects.vectord_requests import (
    parse_classify,
    parse_decode,
    parse_documents,
    parse_embed,
    parse_load,
    parse_model,
    parse_models,
    parse_rerank,
    parse_similarity,
    parse_tokenize,
    parse_unload,
)
from vectord.schema import Request, Result

Parse = Callable[[Incoming], Request]
Render = Callable[[Request, Result], Rendered]


def _post(
    name: str, parse: Parse, render: Render, body: type[msgspec.Struct], answer: object, summary: str, *, key: str
) -> Route:
    return Route(
        method="POST",
        path=f"/vectord/{name}",
        parse=parse,
        render=render,
        summary=summary,
        body=body,
        answer=answer,
        keys=frozenset({key}),
    )


def _models(path: str, parse: Parse, render: Render, answer: object, summary: str, method: str = "GET") -> Route:
    """About models. What is not a GET changes them, and is the operator's."""
    return Route(
        method=method,
        path=f"/vectord/models{path}",
        parse=parse,
        render=render,
        summary=summary,
        answer=answer,
        admin=method != "GET",
    )


DIALECT = Dialect(
    name="vectord",
    title="vectord",
    routes=(
        _post(
            "embed",
            parse_embed,
            render_embed,
            wire.EmbedBody,
            wire.EmbedAnswer,
            "Turn texts into dense, sparse, ColBERT and token vectors at once",
            key="inputs",
        ),
        _post(
            "documents",
            parse_documents,
            render_documents,
            wire.DocumentsBody,
            wire.DocumentsAnswer,
            "Cut documents into chunks and embed each",
            key="documents",
        ),
        _post(
            "rerank",
            parse_rerank,
            render_rerank,
            wire.RerankBody,
            wire.RerankAnswer,
            "Rank passages by how well they answer a query",
            key="passages",
        ),
        _post(
            "classify",
            parse_classify,
            render_classify,
            wire.ClassifyBody,
            wire.ClassifyAnswer,
            "Score the labels of texts or pairs",
            key="inputs",
        ),
        _post(
            "similarity",
            parse_similarity,
            render_similarity,
            wire.SimilarityBody,
            wire.SimilarityAnswer,
            "Compare a text with others",
            key="sentences",
        ),
        _post(
            "tokenize",
            parse_tokenize,
            render_tokenize,
            wire.TokenizeBody,
            wire.TokenizeAnswer,
            "Tokenize texts",
            key="inputs",
        ),
        _post(
            "decode",
            parse_decode,
            render_decode,
            wire.DecodeBody,
            wire.DecodeAnswer,
            "Decode token ids",
            key="ids",
        ),
        _models("", parse_models, render_models, wire.ModelsAnswer, "List served models and the limits in force"),
        _models("/{model:path}", parse_model, render_model, wire.ModelAnswer, "Show one served model"),
        _models("/{model:path}/load", parse_load, render_model, wire.ModelAnswer, "Load a model now", "POST"),
        _models("/{model:path}/unload", parse_unload, render_model, wire.ModelAnswer, "Unload a model", "POST"),
    ),
    render_error=render_error,
)
