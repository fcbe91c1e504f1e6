"""Limits that a product checks by itself, in its order, before the engine checks any."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.products.results import parsed
from tests.refusals import refuses

from vectord.errors import InvalidRequest, TooManyInputs, WrongType
from vectord.products import simple_inference_server
from vectord.products.common.dialect import Guards, load_dialects
from vectord.products.infinity import MAX_TEXT_CHARS
from vectord.products.tei.routes import MAX_INSTANCES

LIMIT = 2048
BLANK = ""  # invalid by itself, so a check of the texts would raise another error first

BODIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "one query": ("vllm", "/score", {"text_1": "a", "text_2": [BLANK] * (LIMIT + 1)}, "text_2"),
    "pairs": ("vllm", "/score", {"text_1": ["a"] * (LIMIT + 1), "text_2": [BLANK] * (LIMIT + 1)}, "text_2"),
    "documents": ("voyage", "/v1/contextualizedembeddings", {"inputs": [[BLANK]] * (LIMIT + 1)}, "inputs"),
    "chunks": ("voyage", "/v1/contextualizedembeddings", {"inputs": [[BLANK] * LIMIT, ["a"]]}, "inputs"),
    "late chunking": ("jina", "/v1/embeddings", {"input": [BLANK] * (LIMIT + 1), "late_chunking": True}, "input"),
    "instances": ("tei", "/vertex", {"instances": [{"wrong": []}] * (LIMIT + 1)}, "instances"),
}


@pytest.mark.parametrize(("dialect", "path", "body", "field"), BODIES.values(), ids=BODIES)
def test_the_count_is_checked_first(dialect: str, path: str, body: dict[str, Any], field: str) -> None:
    """The error has the field, the limit and the number."""
    (found,) = load_dialects([dialect])
    with pytest.raises(TooManyInputs) as caught:
        parsed(found, path, body, guards=Guards(max_inputs=LIMIT))
    assert (caught.value.field_name, caught.value.limit, caught.value.given) == (field, LIMIT, LIMIT + 1)


def test_instances_have_a_limit_without_a_setting() -> None:
    """Parsing one costs as much as a small request."""
    (tei,) = load_dialects(["tei"])
    with refuses(TooManyInputs, limit=MAX_INSTANCES, given=MAX_INSTANCES + 1):
        parsed(tei, "/vertex", {"instances": [7] * (MAX_INSTANCES + 1)})


def test_a_text_may_be_as_long_as_infinity_takes() -> None:
    """The limit itself is accepted."""
    (infinity,) = load_dialects(["infinity"])
    assert parsed(infinity, "/embeddings", {"input": "b" * MAX_TEXT_CHARS}).request.inputs == ["b" * MAX_TEXT_CHARS]
    with pytest.raises(WrongType) as refused:
        parsed(infinity, "/embeddings", {"input": ["a", "b" * (MAX_TEXT_CHARS + 1)]})
    assert (refused.value.field_name, refused.value.index) == ("input", 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param({"input": ["a", "a", "x" * 9]}, "Batch too large; max 2 items", id="before the characters"),
        pytest.param(
            {"input": ["a"] * 3, "encoding_format": "int7"},
            "Only 'float' encoding_format is supported",
            id="after the encoding",
        ),
    ],
)
def test_limits_are_checked_in_simple_inference_servers_order(body: dict[str, Any], text: str) -> None:
    """Before the model: too many inputs for an unknown model are 400, not 404."""
    dialect = simple_inference_server.DIALECT
    with pytest.raises(InvalidRequest) as caught:
        guards = Guards(max_inputs=2, product={"max_text_chars": 8})
        parsed(dialect, "/v1/embeddings", {"model": "unknown", **body}, guards=guards)
    rendered = dialect.render_error(caught.value)
    assert (rendered.status, json.loads(rendered.body)) == (400, {"detail": text})
