"""A body with too many inputs is rejected for their number before its texts are processed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.products.results import parsed
from tests.server.asgi import call
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.errors import TooManyInputs
from vectord.products.common.dialect import Guards, load_dialects
from vectord.server.http.app import create_app

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


@pytest.mark.parametrize(
    ("dialect", "path", "body", "status", "words"),
    [
        ("vllm", "/score", {"text_1": "a", "text_2": [f"text {n:040}" for n in range(LIMIT + 1)]}, 400, "text_2"),
        ("tei", "/vertex", {"instances": [{"inputs": [[n] * 16]} for n in range(LIMIT + 1)]}, 422, "batch size"),
        ("voyage", "/v1/contextualizedembeddings", {"inputs": [["x" * 40]] * (LIMIT + 1)}, 400, "inputs"),
        ("jina", "/v1/embeddings", {"input": ["x" * 40] * (LIMIT + 1), "late_chunking": True}, 422, "input"),
    ],
)
async def test_a_large_body_with_a_few_inputs_too_many_has_the_products_error(
    dialect: str, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    """The server's check of the body's shape does not reject it first as too large."""
    app = create_app(FakeEngine(), load_dialects([dialect]), ServerConfig())
    content = json.dumps(body).encode()
    assert len(content) > 65_536
    reply = await call(app, "POST", path, content, headers={"content-type": "application/json"})
    assert reply.status == status
    assert words in reply.body.decode()
    assert str(LIMIT + 1) in reply.body.decode()
