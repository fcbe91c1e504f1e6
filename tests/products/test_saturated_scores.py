"""Scores that an activation function rounds to one value are listed in the order of their logits."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tests.dialects import all_dialects
from tests.products.results import classify_result, incoming, rerank_result

from vectord.products.common.dialect import Route
from vectord.schema import ClassifyRequest, RerankRequest

LOGITS = np.array([29, 41, 33, 36], np.float32)  # a sigmoid in float32 is 1 for all of them
BEST_FIRST = [1, 3, 2, 0]


def routes(kind: type) -> list[Any]:
    """Every route that sorts passages or labels; Weaviate's keeps the order of the request."""
    return [
        pytest.param(route, id=f"{dialect.name} {route.path}")
        for dialect in all_dialects()
        for route in dialect.routes
        if any(word in route.path for word in ("rank", "predict", "classify")) and dialect.name != "weaviate"
        if route.example and "{" not in route.path and isinstance(route.parse(incoming(route.example)).request, kind)
    ]


def listed(body: Any) -> list[dict[str, Any]]:
    """The items of a response: a list, or the value of a key."""
    if isinstance(body, dict):
        (body,) = (value for value in body.values() if isinstance(value, list) and value)
    return body


@pytest.mark.parametrize("route", routes(RerankRequest))
def test_passages_of_equal_scores_are_ranked_by_their_logits(route: Route) -> None:
    """On every route that ranks."""
    (field,) = (key for key, value in route.example.items() if isinstance(value, list))
    body = {**route.example, field: route.example[field][:1] * len(LOGITS)}
    limits = {key: len(LOGITS) for key in ("top_n", "top_k") if key in body}
    result = rerank_result(*np.ones(len(LOGITS)), logits=LOGITS)
    rendered = route.parse(incoming(body | limits)).answered(result)
    ranks = [item for item in listed(json.loads(rendered.body)) if "index" in item]
    assert [item["index"] for item in ranks] == BEST_FIRST


@pytest.mark.parametrize("route", routes(ClassifyRequest))
def test_labels_of_equal_scores_are_ranked_by_their_logits(route: Route) -> None:
    """On every route that classifies."""
    result = classify_result(np.ones(len(LOGITS)), labels=("0", "1", "2", "3"), logits=LOGITS[None])
    (item,) = listed(json.loads(route.parse(incoming(route.example)).answered(result).body))
    labels = item.get("labels", [item]) if isinstance(item, dict) else item
    assert [int(label["label"]) for label in labels] == BEST_FIRST[: len(labels)]
