"""`model` on every route with a body: an unserved name is refused, and a served one selects that model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
import pytest
from tests.dialects import all_dialects
from tests.engine.fakes import FakeBackend, source
from tests.products.results import incoming, keys_of, model_info
from tests.server.asgi import call

from vectord.config import ServerConfig
from vectord.engine.engine import Engine
from vectord.errors import InvalidField
from vectord.products.common.dialect import Dialect, Guards, Route
from vectord.schema import MultiRequest
from vectord.server.http.app import create_app

MODELS = (model_info("first"), model_info("second", aliases=("another name",)))
# With one model they accept any name; alone, as under their profiles, those without such a field of their own also
# with several.
ANY_NAME = {"embedding_server", "infinity", "llamacpp", "smart_embedder", "tei", "weaviate"}
ANY_NAME_ALONE = ANY_NAME - {"infinity", "llamacpp"}


def routes() -> Iterator[Any]:
    for dialect in all_dialects():
        for route in dialect.routes:
            if route.body is not None:
                name = f"{dialect.name} {route.path} {min(keys_of(route), default='')}"
                yield pytest.param(dialect, route, id=name)


def naming(route: Route, model: str) -> dict[str, Any]:
    """The example of the documentation, for this model."""
    return {**route.example, ("name" if set(route.example) == {"name"} else "model"): model}


def models_of(route: Route, model: str, **facts: Any) -> set[str | None]:
    path = {"model": model} if "{model" in route.path else {}
    request = route.parse(incoming(naming(route, model), path=path, **facts)).request
    return {one.model for one in (request.requests if isinstance(request, MultiRequest) else [request])}


@pytest.mark.parametrize(("dialect", "route"), list(routes()))
def test_a_request_is_for_the_model_that_it_names(dialect: Dialect, route: Route) -> None:
    """By any of its names, where several are served. An unserved name stays, and the engine refuses it."""
    assert models_of(route, "second", models=MODELS) == {"second"}
    assert models_of(route, "another name", models=MODELS) <= {"second", "another name"}
    assert models_of(route, "no/such", models=MODELS) == {"no/such"}


@pytest.mark.parametrize(("dialect", "route"), list(routes()))
def test_products_of_one_model_accept_any_name(dialect: Dialect, route: Route) -> None:
    """With one model, or under their own profile. A served name selects its model even there."""
    alone = Guards(alone=dialect.name)
    one = models_of(route, "no/such", models=MODELS[:1])
    several = models_of(route, "no/such", models=MODELS, guards=alone)
    chosen = {None} if dialect.name != "smart_embedder" or "rerank" in route.path else {"first"}
    assert one == (chosen if dialect.name in ANY_NAME else {"no/such"})
    assert several == (chosen if dialect.name in ANY_NAME_ALONE else {"no/such"})
    assert models_of(route, "second", models=MODELS, guards=alone) == {"second"}


async def test_a_product_accepts_any_name_under_its_profile() -> None:
    """With several models, too; on the routes of other products the name must be served."""
    engine = Engine([source(FakeBackend(), "first"), source(FakeBackend(), "second")])
    await engine.start()
    await engine.loaded.wait()
    app = create_app(engine, all_dialects(), ServerConfig(imitates="tei"))
    statuses = {}
    for path, field in (("/dialects/tei/embed", "inputs"), ("/dialects/openai/v1/embeddings", "input")):
        reply = await call(app, "POST", path, orjson.dumps({field: "Why?", "model": "no/such"}))
        statuses[path] = reply.status
    await engine.close()
    assert list(statuses.values()) == [200, 404]


@pytest.mark.parametrize(
    "route",
    [route for _, route in (param.values for param in routes()) if "{model" in route.path and "model" in route.known],
    ids=lambda route: route.path,
)
def test_the_names_in_path_and_body_select_one_model(route: Route) -> None:
    """A name in the body that is not served is not refused: Azure's and NVIDIA's clients send some."""
    with pytest.raises(InvalidField, match="selects another model than the path"):
        route.parse(incoming(naming(route, "second"), path={"model": "first"}, models=MODELS))
    alias = route.parse(incoming(naming(route, "another name"), path={"model": "second"}, models=MODELS)).request
    assert alias.model in ("second", "another name")
    assert route.parse(incoming(naming(route, "no/such"), path={"model": "first"}, models=MODELS)).request.model


@pytest.fixture(scope="module")
def refusals() -> Mapping[str, tuple[int, bytes]]:
    """The response of every route to an unserved name, on a server with two models and every product."""

    async def ask() -> dict[str, tuple[int, bytes]]:
        engine = Engine([source(FakeBackend(), "first"), source(FakeBackend(), "second")])
        await engine.start()
        await engine.loaded.wait()
        app = create_app(engine, all_dialects(), ServerConfig())
        found = {}
        for dialect in all_dialects():
            for route in dialect.routes:
                if route.body is not None:
                    path = f"/dialects/{dialect.name}" + re.sub(r"\{\w+(:path)?\}", "no/such", route.path)
                    reply = await call(app, "POST", path, orjson.dumps(naming(route, "no/such")))
                    found[f"{dialect.name} {route.path} {sorted(keys_of(route))}"] = reply.status, reply.body
        await engine.close()
        return found

    return asyncio.run(ask())


@pytest.mark.parametrize(("dialect", "route"), list(routes()))
def test_an_unserved_name_is_refused(dialect: Dialect, route: Route, refusals: Mapping[str, Any]) -> None:
    """404, or the product's status for it, in the product's form."""
    status, body = refusals[f"{dialect.name} {route.path} {sorted(keys_of(route))}"]
    assert status == (400 if dialect.name in FASTAPI_STYLE else 404), body
    assert b"Served: first, second. The option --model-aliases" in body or body == SHORT


SHORT = b'{"detail":"Model not found"}'  # Simple Inference Server's
FASTAPI_STYLE = {"infinity", "jina", "semantic_explorer", "voyage"}  # 404 would mean a wrong path
