"""Results -> OpenAI's answers. Pure but for an answer's `id` and `created`; requests.py says which call reads how."""

from __future__ import annotations

import time
import uuid

from vectord.products.common.dialect import Rendered
from vectord.products.common.models import listed_models, model_item
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import Encoding, dump_json, embedding_items
from vectord.products.openai.errors import error_object
from vectord.schema import EmbedResult, ModelList, Precision, Result


def render_embeddings(precision: Precision, encoding: Encoding, result: Result) -> Rendered:
    """An input that failed alone has its error in its place."""
    assert isinstance(result, EmbedResult)
    items = embedding_items(result.dense[precision], encoding)
    for index, error in result.failures.items():
        items[index] = {"object": "error", "index": index, "error": error_object(error)}
    shown = {
        "object": "list",
        "data": items,
        "model": result.model,
        "usage": token_usage(result.usage) | {"completion_tokens": None},  # null, as Simple Inference Server has it
        "id": f"embd-{uuid.uuid4().hex}",
        "created": int(time.time()),
    }
    return Rendered(body=dump_json(shown))


def render_models(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return Rendered(body=dump_json(listed_models(result)))


def render_model(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    (info,) = result.models
    return Rendered(body=dump_json(model_item(info)))
