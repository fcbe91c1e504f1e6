"""A model that could not be loaded, as clients of the server see it."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from tests.dialects import all_dialects
from tests.engine.fakes import ByteEncoder, FakeBackend, source, spec
from tests.server.asgi import call

from vectord.config import ServerConfig
from vectord.engine.engine import Engine
from vectord.engine.models.registry import ModelSource
from vectord.errors import ModelUnavailable
from vectord.server.http.app import create_app

REASON = "no such folder"
DIALECTS = all_dialects()


def load() -> tuple[ByteEncoder, list[FakeBackend]]:
    raise ModelUnavailable(REASON)


def requests_of_examples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and body of each route that computes."""
    for dialect in DIALECTS:
        for route in dialect.routes:
            if route.method == "POST" and route.example and route.path not in ("/api/show", "/api/pull"):
                path = re.sub(r"\{model[^}]*\}", "broken", f"/dialects/{dialect.name}{route.path}")
                yield path, dict(route.example)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine([ModelSource("broken", (), spec(), load), source(FakeBackend(), "fine")])
    await engine.start()
    await engine.loaded.wait()
    yield engine
    await engine.close()


def app_with(engine: Engine, *, keys: bool) -> Starlette:
    config = ServerConfig(api_key="reader", admin_key="boss") if keys else ServerConfig()
    return create_app(engine, DIALECTS, config)


@pytest.mark.parametrize(("key", "shown"), [(None, True), ("boss", True), ("reader", False)], ids=str)
async def test_operators_see_why_a_model_failed(engine: Engine, key: str | None, shown: bool) -> None:
    """The admin key, and everyone on a server without keys; in the list of models and in the 503."""
    app = app_with(engine, keys=key is not None)
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    listed = (await call(app, "GET", "/vectord/models", headers=headers)).json["models"]
    assert [(model["state"], model["failure"]) for model in listed] == [
        ("failed", REASON if shown else None),
        ("ready", None),
    ]
    for path, body in (
        ("/v1/embeddings", b'{"input": "a", "model": "broken"}'),
        ("/api/embed", b'{"model": "broken"}'),
    ):
        refused = await call(app, "POST", path, body, headers=headers)
        assert refused.status == 503
        assert (REASON.encode() in refused.body) is shown


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", b'{"input": "a"}'),
        ("/embed", b'{"inputs": "a"}'),
        ("/embeddings", b'{"sentences": ["a"], "return_sparse": false, "return_colbert": false}'),
        ("/rerank", b'{"query": "a", "texts": ["b"]}'),
        ("/tokenize", b'{"inputs": "a"}'),
        ("/vertex", b'{"instances": [{"inputs": "a"}]}'),
        ("/invocations", b'{"inputs": "a"}'),
        ("/api/embed", b'{"input": "a"}'),
        ("/pooling", b'{"input": "a"}'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_requests_without_a_model_are_answered_by_another(engine: Engine, path: str, body: bytes) -> None:
    """On the routes of every kind. The server is ready, and /info describes the model that answers."""
    app = app_with(engine, keys=False)
    assert (await call(app, "POST", path, body)).status == 200
    assert (await call(app, "GET", "/health/ready")).status == 200
    assert (await call(app, "GET", "/dialects/tei/info")).json["served_model_name"] == "fine"


async def test_every_route_says_why_its_model_failed() -> None:
    """In the words of any product: the operator's next step is in the reason."""
    requests = list(requests_of_examples())
    names = {str(body["model"]).removesuffix(":latest") for _, body in requests if "model" in body}
    able = spec(("dense", "tokens", "colbert", "lexical", "scores"), labels=("a", "b", "c"))
    engine = Engine([ModelSource("broken", tuple(names), able, load)])
    await engine.start()
    await engine.loaded.wait()
    app = app_with(engine, keys=False)
    silent = []
    for path, body in requests:
        body.pop("dimensions", None)  # of another model
        refused = await call(app, "POST", path, json.dumps(body).encode())
        if refused.status != 503 or REASON.encode() not in refused.body:
            silent.append((path, refused.status, refused.body))
    await engine.close()
    assert not silent
    assert len(requests) > 50
