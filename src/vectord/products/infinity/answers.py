"""Results -> infinity's answers. Pure but for an answer's `id` and `created`; requests.py says which reads how."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

from vectord.products.common.dialect import Rendered
from vectord.products.common.models import listed_models
from vectord.products.common.ranking import best_first, ranked
from vectord.products.common.usage import token_usage
from vectord.products.common.vectors import Encoding, dump_json, embedding_items
from vectord.schema import ClassifyResult, EmbedResult, Float32, ModelList, RerankResult, Result


def render_embeddings(encoding: Encoding, result: Result) -> Rendered:
    assert isinstance(result, EmbedResult)
    return _answer("list", "data", embedding_items(result.dense["float"], encoding), result)


def render_ranking(documents: Sequence[str], top_n: int | None, result: Result, *, shows: bool) -> Rendered:
    """shows: whether each result has its document, which is a plain string here, or null."""
    assert isinstance(result, RerankResult)
    results = ranked(result, documents, top_n=top_n, document=lambda document: document if shows else None, text=False)
    return _answer("rerank", "results", results, result)


def render_classes(result: Result) -> Rendered:
    assert isinstance(result, ClassifyResult)
    return _answer("classify", "data", [_labelled(scores, result.labels) for scores in result.scores], result)


def render_models(result: Result) -> Rendered:
    assert isinstance(result, ModelList)
    return Rendered(body=dump_json(listed_models(result, owned_by="infinity")))


def _labelled(scores: Float32, labels: Sequence[str]) -> list[dict[str, Any]]:
    """scores (labels,): of one text."""
    return [{"score": scores[index], "label": labels[index]} for index in best_first(scores)]


def _answer(kind: str, key: str, items: Sequence[Any], result: EmbedResult | RerankResult | ClassifyResult) -> Rendered:
    shown = {
        "object": kind,
        key: items,
        "model": result.model,
        "usage": token_usage(result.usage),
        "id": f"infinity-{uuid.uuid4()}",
        "created": int(time.time()),
    }
    return Rendered(body=dump_json(shown))
