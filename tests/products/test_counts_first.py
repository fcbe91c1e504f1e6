"""Bodies of too many inputs are refused for their number before anything else is made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.products.results import parsers
from tests.server.asgi import call
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.errors import TooManyInputs
from vectord.products import tei, vllm
from vectord.products.common.dialect import Call, Guards, Incoming, load_dialects
from vectord.products.jina.requests import parse_embeddings as parse_jina
from vectord.products.voyage.requests import parse_contextualized
from vectord.server.http.app import create_app

LIMIT = 2048
WRONG = ""  # a text that is refused by itself, so that whoever looks at texts first says something else

BODIES: dict[str, tuple[Callable[[Incoming], Call], dict[str, Any], str]] = {
    "vllm score, one to many": (
        parsers(vllm.DIALECT)["/score"],
        {"text_1": "a", "text_2": [WRONG] * (LIMIT + 1)},
        "text_2",
    ),
    "vllm score, pairs": (
        parsers(vllm.DIALECT)["/score"],
        {"text_1": ["a"] * (LIMIT + 1), "text_2": [WRONG] * (LIMIT + 1)},
        "text_2",
    ),
    "voyage, documents": (parse_contextualized, {"model": "m", "inputs": [[WRONG]] * (LIMIT + 1)}, "inputs"),
    "voyage, chunks": (parse_contextualized, {"model": "m", "inputs": [[WRONG] * LIMIT, ["a"]]}, "inputs"),
    "jina, late": (parse_jina, {"model": "m", "input": [WRONG] * (LIMIT + 1), "late_chunking": True}, "input"),
    "tei vertex": (parsers(tei.DIALECT)["/vertex"], {"instances": [{"wrong": []}] * (LIMIT + 1)}, "instances"),
}


@pytest.mark.parametrize(("parse", "body", "field"), BODIES.values(), ids=BODIES)
def test_the_count_comes_first(parse: Callable[[Incoming], Call], body: dict[str, Any], field: str) -> None:
    """With the field, what came and the limit, though the inputs are wrong, too."""
    with pytest.raises(TooManyInputs) as refused:
        parse(Incoming(body=json.dumps(body).encode(), guards=Guards(max_inputs=LIMIT)))
    assert (refused.value.field_name, refused.value.limit, refused.value.given) == (field, LIMIT, LIMIT + 1)


@pytest.mark.parametrize(
    ("dialect", "path", "body", "status", "words"),
    [
        ("vllm", "/score", {"text_1": "a", "text_2": [f"text {n:040}" for n in range(LIMIT + 1)]}, 400, "text_2"),
        ("tei", "/vertex", {"instances": [{"inputs": [[n] * 16]} for n in range(LIMIT + 1)]}, 422, "batch size"),
        ("voyage", "/v1/contextualizedembeddings", {"model": "m", "inputs": [["x" * 40]] * (LIMIT + 1)}, 400, "inputs"),
        ("jina", "/v1/embeddings", {"model": "m", "input": ["x" * 40] * (LIMIT + 1), "late_chunking": True}, 422, "in"),
    ],
)
async def test_a_large_body_of_a_few_too_many_is_told_so(
    dialect: str, path: str, body: dict[str, Any], status: int, words: str
) -> None:
    """In the dialect's own words and not as a body too large, for which it may pass at first sight."""
    app = create_app(FakeEngine(), load_dialects([dialect]), ServerConfig())
    content = json.dumps(body).encode()
    assert len(content) > 65_536
    reply = await call(app, "POST", path, content, headers={"content-type": "application/json"})
    assert reply.status == status
    assert words in reply.body.decode()
    assert str(LIMIT + 1) in reply.body.decode()
