"""Results -> answers of Simple Inference Server. Pure; requests.py says which of these answers what."""

from __future__ import annotations

from collections.abc import Sequence

from vectord.products.common.dialect import Rendered
from vectord.products.common.models import listed_models
from vectord.products.common.ranking import ranked
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import Encoding, dump_json, embedding_items
from vectord.schema import EmbedResult, ModelList, RerankResult, Result


def render_embeddings(encoding: Encoding, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    shown = {
        "object": "list",
        "data": embedding_items(result.dense["float"], encoding),
        "model": result.model,
        "usage": token_usage(result.usage) | {"completion_tokens": None},
    }
    return Rendered(body=dump_json(shown))


def render_ranking(documents: Sequence[str], top_n: int | None, result: Result) -> Rendered:
    """Best first; each document is the text itself, not an object with it."""
    assert isinstance(result, RerankResult)
    shown = {
        "model": result.model,
        "results": ranked(result, documents, top_n=top_n, document=str, text=False),
        "usage": token_usage(result.usage),
    }
    return Rendered(body=dump_json(shown))


def render_models(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return Rendered(body=dump_json(listed_models(result)))
