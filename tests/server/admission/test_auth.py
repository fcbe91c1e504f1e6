"""Which routes need a key, and which keys open them."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.resources import files

import pytest
from tests.server.admission.checks import check, check_admin
from tests.server.asgi import call
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.errors import NoSuchRoute, Unauthorized
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import dialect_names, load_dialects
from vectord.server.admission import keys as module
from vectord.server.admission.keys import Keys
from vectord.server.http.app import build_table, create_app
from vectord.server.http.routing import Endpoint
from vectord.server.pipeline import Shutdown

DIALECTS = load_dialects(dialect_names())
PAGES = {
    "/",
    "/health",
    "/health/live",
    "/health/ready",
    "/ping",
    "/metrics",
    "/docs",
    "/redoc",
    "/swagger-ui",
    "/docs/start.js",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/openapi.json",
    "/api-doc/openapi.json",
    "/api/openapi.json",
    "/console",
    "/console/calls",
    *(
        f"/console/{file.name}"
        for file in files("vectord").joinpath("server/pages/console").iterdir()
        if file.name != "index.html"
    ),
}
REDIRECTS = {f"/console/console/{name}" for name in ("icon.svg", "main.js", "style.css")}  # for /console/
# What products show to everyone: that they are there, and how busy.
SHOWN = {
    "llamacpp": "/v1/health",
    "ollama": "/api/version",
    "semantic_explorer": "/health/status",
    "smart_embedder": "/stats",
    "weaviate": "/.well-known/live",
}
PUBLIC = {
    *PAGES,
    *REDIRECTS,
    *SHOWN.values(),
    *(f"/dialects/{name}{path}" for name, path in SHOWN.items()),
    "/.well-known/ready",
    "/dialects/weaviate/.well-known/ready",
    "/dialects/ollama",  # its front; without the prefix that is the server's own
}


def endpoints() -> list[Endpoint]:
    return list(build_table(FakeEngine(), DIALECTS, Shutdown(), Metrics("0")))


def path_of(endpoint: Endpoint) -> str:
    return re.sub(r"\{.*?\}", "some/model", endpoint.path)


@pytest.mark.parametrize("admin_key", [None, "admin"])
async def test_every_route_needs_the_key_unless_listed_as_public(admin_key: str | None) -> None:
    """For every route of every product: without the key 401, and the engine does nothing."""
    engine = FakeEngine()
    app = create_app(engine, DIALECTS, ServerConfig(api_key="secret", admin_key=admin_key), Metrics("0"))
    opened, challenges = set(), set()
    for endpoint in endpoints():
        reply = await call(app, endpoint.method, path_of(endpoint), b'{"input": "x", "inputs": "x"}')
        if reply.status == 401:
            challenges.add(reply.headers["www-authenticate"])
        else:
            opened.add((endpoint.method, endpoint.path))
    assert opened == {("GET", path) for path in PUBLIC}
    assert challenges == {"Bearer"}
    assert engine.callers == []


@pytest.mark.parametrize("path", sorted(PAGES))
async def test_public_pages_are_shown_without_a_key(path: str) -> None:
    """Probes, browsers and metrics scrapers have no key."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="secret"), Metrics("0"))
    assert (await call(app, "GET", path)).status == 200


ADMIN = [endpoint for endpoint in endpoints() if endpoint.admin]


def test_only_loading_and_unloading_are_admin_routes() -> None:
    """Each at both of its paths."""
    assert {(endpoint.method, endpoint.path) for endpoint in ADMIN} == {
        ("POST", f"{prefix}/vectord/models/{{model:path}}/{change}")
        for prefix in ("", "/dialects/vectord")
        for change in ("load", "unload")
    }


@pytest.mark.parametrize("endpoint", ADMIN, ids=lambda endpoint: endpoint.path)
@pytest.mark.parametrize(
    ("keys", "sent", "status"),
    [
        pytest.param({}, None, 404, id="open server, no admin key"),
        pytest.param({}, "guess", 404, id="open server, no admin key, a guess"),
        pytest.param({"api_key": "secret"}, None, 401, id="no admin key, no key sent"),
        pytest.param({"api_key": "secret"}, "guess", 401, id="no admin key, a guess"),
        pytest.param({"api_key": "secret"}, "secret", 404, id="no admin key, the ordinary key"),
        pytest.param({"admin_key": "admin"}, None, 401, id="admin key alone, no key sent"),
        pytest.param({"admin_key": "admin"}, "guess", 401, id="admin key alone, a guess"),
        pytest.param({"admin_key": "admin"}, "admin", 200, id="admin key alone, sent"),
        pytest.param({"api_key": "secret", "admin_key": "admin"}, None, 401, id="both, none sent"),
        pytest.param({"api_key": "secret", "admin_key": "admin"}, "", 401, id="both, an empty one sent"),
        pytest.param({"api_key": "secret", "admin_key": "admin"}, "secret", 403, id="both, the ordinary one sent"),
        pytest.param({"api_key": "secret", "admin_key": "admin"}, "admin", 200, id="both, the admin's sent"),
    ],
)
async def test_only_the_admin_key_opens_admin_routes(
    endpoint: Endpoint, keys: dict[str, str], sent: str | None, status: int
) -> None:
    """Without an admin key they do not exist; with one, other keys are refused and nothing is executed."""
    engine = FakeEngine()
    app = create_app(engine, DIALECTS, ServerConfig(**keys))
    for header in ("x-api-key", "authorization"):
        headers = {} if sent is None else {header: sent}
        assert (await call(app, "POST", path_of(endpoint), headers=headers)).status == status
    assert len(engine.callers) == (2 if status == 200 else 0)


async def test_without_an_admin_key_admin_routes_look_unserved() -> None:
    """The response is identical to that of an unserved path."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig())
    hidden = await call(app, "POST", "/vectord/models/m/load")
    absent = await call(app, "POST", "/vectord/nothing")
    assert (hidden.status, hidden.body) == (absent.status, absent.body)


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/docs/nothing", "/health/nothing", "/dialects/tei/no"])
async def test_unserved_paths_are_401_without_a_key(path: str) -> None:
    """A client without a key cannot find out which paths exist."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="secret"))
    assert (await call(app, "GET", path)).status == 401


@pytest.mark.parametrize("path", ["/health", "/", "/docs"])
async def test_only_reading_is_public(path: str) -> None:
    """Other methods on a public path need the key."""
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
        {"api-key": "s\xc3\xa9cret"},
    ],
    ids=["bearer", "lower case", "blanks", "bare", "x-api-key", "api-key"],
)
def test_a_key_is_accepted_in_every_form(headers: dict[str, str]) -> None:
    """Bearer in any case, llama-index's bare value, x-api-key or Azure's api-key; headers are latin-1, keys UTF-8."""
    check(Keys(("s\xe9cret",)), headers)


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
        {"apikey": "secret"},
    ],
    ids=repr,
)
def test_other_values_are_refused(headers: dict[str, str]) -> None:
    """No prefix, other case, other scheme or other header."""
    with pytest.raises(Unauthorized):
        check(Keys(("secret",)), headers)


def test_the_admin_key_opens_ordinary_routes() -> None:
    """Without an ordinary key the server stays open, with or without an admin key."""
    keys = Keys(("secret",), "admin")
    check(keys, {"x-api-key": "secret"})
    check(keys, {"x-api-key": "admin"})
    with pytest.raises(Unauthorized):
        check(keys, {"x-api-key": ""})
    check(Keys((), "admin"), {})


@pytest.mark.parametrize("admin_key", [None, ""])
def test_an_empty_admin_key_counts_as_unset(admin_key: str | None) -> None:
    """An empty key in a request opens nothing."""
    with pytest.raises(NoSuchRoute):
        check_admin(Keys((), admin_key), {"x-api-key": ""})


@pytest.mark.parametrize("key", [None, ""])
def test_without_configured_keys_the_server_is_open(key: str | None) -> None:
    """A key in a request has no effect."""
    check(Keys([key] if key else []), {})
    check(Keys([key] if key else []), {"authorization": "Bearer whatever"})


def test_response_time_reveals_nothing_about_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The index differs between processes, and matches are compared in constant time."""
    compared: list[tuple[bytes, bytes]] = []

    def compare_digest(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(module.hmac, "compare_digest", compare_digest)
    one, other = Keys(["secret"]), Keys(["secret"])
    assert not set(one._index) & set(other._index)
    assert one.lookup({"x-api-key": "secret"}) is not None
    assert compared == [(sha256(b"secret").digest(),) * 2]


def test_keys_are_stored_as_digests() -> None:
    """The object's attributes contain no key."""
    shown = repr(vars(Keys(("secret",), "admin-key")))
    assert "secret" not in shown and "admin-key" not in shown
