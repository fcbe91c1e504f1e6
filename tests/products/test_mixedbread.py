"""Mixedbread's reranking: the body of its SDK, and the keys that it reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.products.results import parsed, rerank_result

from vectord.errors import EmptyInput
from vectord.products.mixedbread import DIALECT
from vectord.schema import RerankRequest, TextOptions

BODY = {"model": "m", "query": "q", "input": ["a", "b"]}


def test_a_body_becomes_a_request() -> None:
    text = TextOptions(truncate_by_default=True)
    request = RerankRequest(query="q", passages=["a", "b"], model="m", text=text, raw=False)
    assert parsed(DIALECT, "/v1/reranking", BODY).request == request


@pytest.mark.parametrize(
    ("options", "data"),
    [
        ({}, [(1, 0.5, None), (0, 0.25, None)]),
        ({"top_k": 1}, [(1, 0.5, None)]),
        ({"return_input": True}, [(1, 0.5, "b"), (0, 0.25, "a")]),
    ],
)
def test_texts_are_shown_best_first(options: dict[str, Any], data: list[tuple[Any, ...]]) -> None:
    rendered = parsed(DIALECT, "/v1/reranking", {**BODY, **options}).answered(rerank_result(0.25, 0.5))
    shown = json.loads(rendered.body)
    assert [(item["index"], item["score"], item["input"]) for item in shown["data"]] == data
    assert (shown["object"], shown["top_k"], shown["return_input"]) == ("list", len(data), "return_input" in options)
    assert shown["usage"] == {"prompt_tokens": 18, "total_tokens": 18, "completion_tokens": 0}


def test_an_error_has_fastapis_detail() -> None:
    error = EmptyInput("{field} must not be empty.", field="passages").named({"passages": "input"})
    rendered = DIALECT.render_error(error)
    assert (rendered.status, json.loads(rendered.body)) == (400, {"detail": "`input` must not be empty."})
