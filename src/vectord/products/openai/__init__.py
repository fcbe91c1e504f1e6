"""OpenAI's embeddings and models API, with the keys that Jina, Voyage, vLLM and Simple Inference Server add to it.

requests.py reads the bodies, answers.py writes the answers, errors.py says what went wrong.
Runs on the event loop, called by the server's handler.
"""

from __future__ import annotations

from vectord.products.common.dialect import Dialect, get, post
from vectord.products.common.models import ListedModels, ModelItem
from vectord.products.openai.errors import render_error
from vectord.products.openai.requests import parse_embeddings, parse_model, parse_models
from vectord.products.openai.wire import Embeddings, EmbeddingsBody

DIALECT = Dialect(
    name="openai",
    title="OpenAI",
    routes=(
        *post(
            "/v1/embeddings",
            "/embeddings",
            parse=parse_embeddings,
            summary="Embed texts or token ids",
            body=EmbeddingsBody,
            answer=Embeddings,
            example={"model": "sentence-transformers/all-MiniLM-L6-v2", "input": ["a happy person", "a rainy day"]},
            keys=["input"],
            signs=["partial_results", "expect_fingerprint"],
        ),
        *get("/v1/models", "/models", parse=parse_models, summary="List served models", answer=ListedModels),
        *get(
            "/v1/models/{model:path}",
            "/models/{model:path}",
            parse=parse_model,
            summary="Show one served model",
            answer=ModelItem,
        ),
    ),
    render_error=render_error,
    prefix="/v1/",
)
