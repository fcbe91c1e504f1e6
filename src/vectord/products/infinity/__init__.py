"""infinity's API: embeddings, rerank, classify and the list of models.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong. Runs on the event loop,
called by the server's handler.
"""

from __future__ import annotations

from functools import partial

from vectord.products.common.dialect import Dialect, Route, get, post
from vectord.products.common.models import ListedModels
from vectord.products.infinity.errors import render_error
from vectord.products.infinity.requests import (
    parse_classify,
    parse_embeddings,
    parse_models,
    parse_rerank,
    refuse_modality,
)
from vectord.products.infinity.wire import (
    Classes,
    ClassifyBody,
    Embeddings,
    EmbeddingsBody,
    Ranking,
    RerankBody,
)

# With /v1 and without: infinity has it where its url_prefix says so.
DIALECT = Dialect(
    name="infinity",
    title="infinity",
    routes=(
        *post(
            "/embeddings",
            "/v1/embeddings",
            parse=parse_embeddings,
            summary="Embed texts",
            body=EmbeddingsBody,
            answer=Embeddings,
            example={"input": ["a happy person", "a rainy day"], "modality": "text"},
            keys=["input"],
            signs=["modality", "output_dimension"],  # the latter is Voyage's, too: the order settles it
        ),
        *post(
            "/rerank",
            "/v1/rerank",
            parse=parse_rerank,
            summary="Rank documents by how well they answer a query",
            body=RerankBody,
            answer=Ranking,
            example={
                "query": "Where is Munich?",
                "documents": ["Munich is in Germany.", "The sky is blue."],
                "return_documents": True,
                "raw_scores": False,
            },
            keys=["documents"],
            signs=["raw_scores"],
        ),
        *post(
            "/classify",
            "/v1/classify",
            parse=parse_classify,
            summary="Score the labels of a classifier, the best first",
            body=ClassifyBody,
            answer=Classes,
            example={"input": ["I am not having a great day."], "raw_scores": False},
            keys=["input"],
            signs=["raw_scores"],
        ),
        *get("/models", "/v1/models", parse=parse_models, summary="List served models", answer=ListedModels),
        Route(
            method="POST",
            path="/embeddings_image",
            parse=partial(refuse_modality, "image"),
            summary="Refused: image is not served",
        ),
        Route(
            method="POST",
            path="/embeddings_audio",
            parse=partial(refuse_modality, "audio"),
            summary="Refused: audio is not served",
        ),
    ),
    render_error=render_error,
)
