"""Simple Inference Server: the order of its limits. cases/simple_inference_server.json has the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.products.results import parsed

from vectord.errors import InvalidRequest
from vectord.products.common.dialect import Guards
from vectord.products.simple_inference_server import DIALECT


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param({"input": ["a", "a", "x" * 9]}, "Batch too large; max 2 items", id="before the characters"),
        pytest.param(
            {"input": ["a"] * 3, "encoding_format": "int7"},
            "Only 'float' encoding_format is supported",
            id="behind the encoding",
        ),
    ],
)
def test_limits_are_checked_in_the_products_order(body: dict[str, Any], text: str) -> None:
    """Before the model: too many inputs for an unknown model are 400, not 404."""
    guards = Guards(max_inputs=2, max_text_chars=8)
    with pytest.raises(InvalidRequest) as caught:
        parsed(DIALECT, "/v1/embeddings", {"model": "unknown", **body}, guards=guards)
    rendered = DIALECT.render_error(caught.value)
    assert (rendered.status, json.loads(rendered.body)) == (400, {"detail": text})
