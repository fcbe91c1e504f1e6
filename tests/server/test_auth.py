"""Keys: who may ask, and that nobody forgot a route."""

from __future__ import annotations

import re

import pytest
from tests.server.asgi import call
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.dialects.folder import load_dialects
from vectord.errors import Unauthorized
from vectord.server.app import build_table, create_app
from vectord.server.auth import Keys
from vectord.server.routing import Endpoint
from vectord.server.shutdown import Shutdown
from vectord.telemetry.metrics import Metrics

DIALECTS = load_dialects(("openai", "tei"))
PUBLIC = {
    "/",
    "/health",
    "/health/live",
    "/health/ready",
    "/ping",
    "/metrics",
    "/docs",
    "/docs/start.js",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/openapi.json",
    "/api-doc/openapi.json",
}


def endpoints() -> list[Endpoint]:
    return list(build_table(FakeEngine(), DIALECTS, Shutdown(), Metrics("0")))


@pytest.mark.parametrize("endpoint", endpoints(), ids=lambda endpoint: f"{endpoint.method} {endpoint.path}")
async def test_every_route_but_the_public_ones_demands_the_key(endpoint: Endpoint) -> None:
    """Walks the route table: without the key 401 and no work, on every route that is not in the list above."""
    engine = FakeEngine()
    app = create_app(engine, DIALECTS, ServerConfig(api_key="secret"), Metrics("0"))
    path = re.sub(r"\{.*?\}", "some/model", endpoint.path)
    reply = await call(app, endpoint.method, path, b'{"input": "x", "inputs": "x"}')
    if endpoint.method == "GET" and endpoint.path in PUBLIC:
        assert reply.status == 200
    else:
        assert reply.status == 401
        assert reply.headers["www-authenticate"] == "Bearer"
    assert engine.callers == []


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/docs/nothing", "/health/nothing", "/dialects/tei/no"])
async def test_a_stranger_learns_nothing_about_paths(path: str) -> None:
    """Without the key an unserved path is 401 as well."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="secret"))
    assert (await call(app, "GET", path)).status == 401


@pytest.mark.parametrize("path", ["/health", "/", "/docs"])
async def test_only_reading_is_public(path: str) -> None:
    """Another method on a public path demands the key."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="secret"))
    assert (await call(app, "POST", path, b"{}")).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer s\xc3\xa9cret"},
        {"authorization": "bearer s\xc3\xa9cret"},
        {"authorization": "BEARER  s\xc3\xa9cret "},
        {"authorization": "s\xc3\xa9cret"},
        {"x-api-key": "s\xc3\xa9cret"},
    ],
    ids=["bearer", "lower case", "blanks", "bare", "x-api-key"],
)
def test_the_key_opens_however_clients_send_it(headers: dict[str, str]) -> None:
    """Bearer in any case, the bare value of llama-index, or x-api-key; headers are latin-1, keys UTF-8."""
    Keys("s\xe9cret").check(headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer secre"},
        {"authorization": "Bearer secret2"},
        {"authorization": "Basic secret"},
        {"authorization": "Bearer \xff"},
        {"x-api-key": ""},
        {"x-api-key": "SECRET"},
        {"api-key": "secret"},
    ],
    ids=repr,
)
def test_nothing_else_opens(headers: dict[str, str]) -> None:
    """No prefix, no other case, no other scheme, no other header."""
    with pytest.raises(Unauthorized):
        Keys("secret").check(headers)


def test_any_of_several_keys_opens() -> None:
    """Each key stands for itself; an absent or empty one opens nothing."""
    keys = Keys("one", None, "two", "")
    keys.check({"x-api-key": "one"})
    keys.check({"x-api-key": "two"})
    with pytest.raises(Unauthorized):
        keys.check({"x-api-key": ""})


@pytest.mark.parametrize("key", [None, ""])
def test_without_a_key_everyone_may_ask(key: str | None) -> None:
    """No key configured, none demanded, and one that is sent does no harm."""
    Keys(key).check({})
    Keys(key).check({"authorization": "Bearer whatever"})


def test_keys_are_not_kept() -> None:
    """A dump of the object shows digests only."""
    assert "secret" not in repr(vars(Keys("secret")))
