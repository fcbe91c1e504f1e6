"""Our own API, under /vectord/: it can ask all that schema.py can, and answers all that a result holds.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong.
Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, Route, get, post
from vectord.products.vectord import requests, wire
from vectord.products.vectord.errors import render_error

_RIVER = "The river rose after two days of rain. The bridge was closed by noon."

DIALECT = Dialect(
    name="vectord",
    title="vectord",
    routes=(
        *post(
            "/vectord/embed",
            parse=requests.parse_embed,
            summary="Turn texts into dense, sparse, ColBERT and token vectors at once",
            body=wire.EmbedBody,
            answer=wire.EmbedAnswer,
            example={"inputs": ["a happy person"], "dimensions": 384},
            keys=["inputs"],
        ),
        *post(
            "/vectord/documents",
            parse=requests.parse_documents,
            summary="Cut documents into chunks and embed each",
            body=wire.DocumentsBody,
            answer=wire.DocumentsAnswer,
            example={"documents": [_RIVER], "chunk": {"max_tokens": 20, "by": "sentences"}, "late": True},
            keys=["documents"],
        ),
        *post(
            "/vectord/rerank",
            parse=requests.parse_rerank,
            summary="Rank passages by how well they answer a query",
            body=wire.RerankBody,
            answer=wire.RerankAnswer,
            example={"query": "happy", "passages": ["rain", "joy"], "return_passages": True},
            keys=["passages"],
        ),
        *post(
            "/vectord/classify",
            parse=requests.parse_classify,
            summary="Score the labels of texts or pairs",
            body=wire.ClassifyBody,
            answer=wire.ClassifyAnswer,
            example={"inputs": ["what a day", ["a pair", "of texts"]]},
            keys=["inputs"],
        ),
        *post(
            "/vectord/similarity",
            parse=requests.parse_similarity,
            summary="Compare a text with others",
            body=wire.SimilarityBody,
            answer=wire.SimilarityAnswer,
            example={"source": "happy", "sentences": ["rain", "joy"]},
            keys=["sentences"],
        ),
        *post(
            "/vectord/tokenize",
            parse=requests.parse_tokenize,
            summary="Tokenize texts",
            body=wire.TokenizeBody,
            answer=wire.TokenizeAnswer,
            example={"inputs": "Hello, world"},
            keys=["inputs"],
        ),
        *post(
            "/vectord/decode",
            parse=requests.parse_decode,
            summary="Decode token ids",
            body=wire.DecodeBody,
            answer=wire.DecodeAnswer,
            example={"ids": [[101, 7592, 102]]},
            keys=["ids"],
        ),
        *get(
            "/vectord/models",
            parse=requests.parse_models,
            summary="List served models and the limits in force",
            answer=wire.ModelsAnswer,
        ),
        *get(
            "/vectord/models/{model:path}",
            parse=requests.parse_model,
            summary="Show one served model",
            answer=wire.ModelAnswer,
        ),
        Route(
            method="POST",
            path="/vectord/models/{model:path}/load",
            parse=requests.parse_load,
            summary="Load a model now",
            answer=wire.ModelAnswer,
            admin=True,
        ),
        Route(
            method="POST",
            path="/vectord/models/{model:path}/unload",
            parse=requests.parse_unload,
            summary="Unload a model",
            answer=wire.ModelAnswer,
            admin=True,
        ),
    ),
    render_error=render_error,
    prefix="/vectord/",
)
