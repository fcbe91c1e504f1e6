"""Which routes need a key; the client of a request: its id, its address behind proxies, its deadline."""

from __future__ import annotations

import re
import time
from importlib.resources import files

import pytest
from tests.dialects import all_dialects
from tests.refusals import refuses
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import ask, live, post

from vectord.config import ServerConfig
from vectord.errors import ConfigError, InvalidField
from vectord.observability.metrics import Metrics
from vectord.server.admission.gate import (
    ENVOY_TIMEOUT_MS,
    MAX_HOPS,
    TIMEOUT_MS,
    Gate,
    TrustedProxies,
    caller_of,
    request_id,
)
from vectord.server.http.app import build_table, create_app
from vectord.server.http.routing import Endpoint
from vectord.server.pipeline import Shutdown

DIALECTS = all_dialects()
PAGES = {
    "/",
    "/health",
    "/health/live",
    "/health/ready",
    "/healthz",
    "/livez",
    "/readyz",
    "/ping",
    "/metrics",
    "/docs",
    "/redoc",
    "/swagger-ui",
    "/docs/start.js",
    "/docs/swagger-ui-bundle.js",
    "/docs/swagger-ui.css",
    "/docs/redoc.standalone.js",
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
    "weaviate": "/.well-known/live",
}
PUBLIC = {
    *PAGES,
    *REDIRECTS,
    *SHOWN.values(),
    *(f"/dialects/{name}{path}" for name, path in SHOWN.items()),
    "/docs/openapi.json",
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


async def test_public_pages_are_shown_without_a_key() -> None:
    """Probes, browsers and metrics scrapers have no key."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="secret"), Metrics("0"))
    for path in sorted(PAGES):
        assert (await call(app, "GET", path)).status == 200, path


ADMIN = [endpoint for endpoint in endpoints() if endpoint.admin]


def test_only_loading_unloading_pulling_and_removing_are_admin_routes() -> None:
    """Each at both of its paths."""
    changes = [("POST", "/load"), ("POST", "/unload"), ("POST", "/pull"), ("DELETE", "")]
    assert {(endpoint.method, endpoint.path) for endpoint in ADMIN} == {
        (method, f"{prefix}/vectord/models/{{model:path}}{change}")
        for prefix in ("", "/dialects/vectord")
        for method, change in changes
    }


@pytest.mark.parametrize(
    ("keys", "sent", "status"),
    [
        pytest.param({}, "guess", 404, id="open server, no admin key, a guess"),
        pytest.param({"api_key": "secret"}, "guess", 401, id="no admin key, a guess"),
        pytest.param({"api_key": "secret"}, "secret", 404, id="no admin key, the ordinary key"),
        pytest.param({"admin_key": "admin"}, "guess", 401, id="admin key alone, a guess"),
        pytest.param({"admin_key": "admin"}, "admin", 200, id="admin key alone, sent"),
        pytest.param({"api_key": "secret", "admin_key": "admin"}, None, 401, id="both, none sent"),
        pytest.param({"api_key": "secret", "admin_key": "admin"}, "secret", 403, id="both, the ordinary one sent"),
        pytest.param({"api_key": "secret", "admin_key": "admin"}, "admin", 200, id="both, the admin's sent"),
    ],
)
async def test_only_the_admin_key_opens_admin_routes(keys: dict[str, str], sent: str | None, status: int) -> None:
    """Without an admin key they do not exist; with one, other keys are refused and nothing is executed."""
    for endpoint in ADMIN:
        engine = FakeEngine()
        app = create_app(engine, DIALECTS, ServerConfig(**keys))
        for header in ("x-api-key", "authorization"):
            headers = {} if sent is None else {header: sent}
            assert (await call(app, endpoint.method, path_of(endpoint), headers=headers)).status == status, endpoint
        assert len(engine.callers) == (2 if status == 200 else 0), endpoint


async def test_without_an_admin_key_admin_routes_look_unserved() -> None:
    """The response is identical to that of an unserved path."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig())
    hidden = await call(app, "POST", "/vectord/models/m/load")
    absent = await call(app, "POST", "/vectord/nothing")
    assert (hidden.status, hidden.body) == (absent.status, absent.body)


async def test_only_reading_pages_is_public() -> None:
    """Other methods on a public path need the key. A client without one cannot find out which paths exist."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="secret"))
    for path in ("/health", "/", "/docs"):
        assert (await call(app, "POST", path, b"{}")).status == 401
    for path in ("/nothing", "/docs/nothing", "/dialects/tei/no"):
        assert (await call(app, "GET", path)).status == 401


# --- the client ------------------------------------------------------------------------------------------------


TRUSTED = ("10.0.0.0/8", "192.168.1.1", "fd00::/8")


def test_a_clients_own_id_is_kept() -> None:
    """1 to 128 letters, digits and the marks of common ids; other text could break a log line or a header."""
    for given in ("a", "req-1/2:3", "~" * 128):
        assert request_id({"x-request-id": given}) == given
    for given in ("", "a b", "x" * 129, "\xe9", "a\n", 'x"status=200'):
        assert re.fullmatch("[0-9a-f]{32}", request_id({"x-request-id": given}))


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        pytest.param("203.0.113.9", ["1.2.3.4"], "203.0.113.9", id="a stranger's word"),
        pytest.param("10.0.0.1", ["1.2.3.4"], "1.2.3.4", id="one proxy"),
        pytest.param("10.0.0.1", ["6.6.6.6, 1.2.3.4, 10.0.0.2"], "1.2.3.4", id="two proxies, and a client that lies"),
        pytest.param("10.0.0.1", ["6.6.6.6", "1.2.3.4,10.0.0.2"], "1.2.3.4", id="lines and lists"),
        pytest.param("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3", id="trusted all the way"),
        pytest.param("10.0.0.1", [], "10.0.0.1", id="no header"),
        pytest.param("10.0.0.1", ["1.2.3.4, unknown, 10.0.0.2"], "10.0.0.2", id="no address in between"),
        pytest.param("10.0.0.1", ["1.2.3.4:5678"], "1.2.3.4", id="with a port"),
        pytest.param("10.0.0.1", ["[2001:db8::1]:5678"], "2001:db8::1", id="IPv6 with a port"),
        pytest.param("fd00::1", ["2001:DB8:0::1"], "2001:db8::1", id="IPv6, written at length"),
        pytest.param("::ffff:10.0.0.1", ["::ffff:1.2.3.4"], "1.2.3.4", id="IPv4 as IPv6 writes it"),
        pytest.param("", ["1.2.3.4"], "", id="a Unix socket"),
    ],
)
def test_the_client_is_the_last_untrusted_address(peer: str, forwarded: list[str], client: str) -> None:
    """Any client can forge the addresses before it."""
    assert TrustedProxies(TRUSTED).client_of(peer, forwarded) == client


def test_without_trusted_proxies_the_header_is_ignored() -> None:
    """Also from this machine."""
    assert TrustedProxies(()).client_of("127.0.0.1", ["1.2.3.4"]) == "127.0.0.1"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:0:0:1", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("192.0.2.1", "192.0.2.1"),
        ("a socket", "a socket"),
    ],
)
def test_addresses_that_one_client_can_choose_are_one_client(peer: str, address: str) -> None:
    """In rates and shares: otherwise a /64 of IPv6 would be as many clients as it likes."""
    assert Gate(ServerConfig()).address(peer, []) == address


def test_the_number_of_hops_is_bounded() -> None:
    """A header of 60,000 proxies costs no more than one of 32."""
    hops = ["10.0.0.2"] * 60_000
    assert TrustedProxies(TRUSTED).client_of("10.0.0.1", ["1.2.3.4", *hops]) == "10.0.0.2"
    assert TrustedProxies(TRUSTED).client_of("10.0.0.1", ["1.2.3.4", *hops[: MAX_HOPS - 1]]) == "1.2.3.4"


@pytest.mark.parametrize("trusted", ["nginx", "10.0.0.1/8", "10.0.0.0/99", "*"])
def test_an_invalid_proxy_is_a_one_line_error(trusted: str) -> None:
    """At start, with the option's name."""
    with pytest.raises(ConfigError, match="--trusted-proxies") as caught:
        create_app(FakeEngine(), [EMBED], ServerConfig(trusted_proxies=(trusted,)))
    assert "\n" not in caught.value.message


async def test_the_engine_receives_the_clients_address() -> None:
    """Also if the header is repeated."""
    engine = FakeEngine()
    async with live(engine, trusted_proxies=("127.0.0.0/8",)) as running:
        request = post({"input": "x"}, headers={"x-forwarded-for": "6.6.6.6, 1.2.3.4\r\nx-forwarded-for: 127.0.0.2"})
        assert (await ask(running, request)).status == 200
    assert [caller.client for caller in engine.callers] == ["1.2.3.4"]


@pytest.mark.parametrize("headers", [{ENVOY_TIMEOUT_MS: "1500"}, {TIMEOUT_MS: "1500", ENVOY_TIMEOUT_MS: "15000"}])
def test_a_timeout_is_a_deadline(headers: dict[str, str]) -> None:
    """Our header, or else Envoy's, counted from the arrival of the request."""
    before_s = time.monotonic()
    assert caller_of({}, "10.0.0.1").deadline_s is None
    deadline_s = caller_of(headers, "10.0.0.1").deadline_s
    assert deadline_s is not None
    assert before_s + 1.5 <= deadline_s <= time.monotonic() + 1.5


@pytest.mark.parametrize("text", ["", "1.5", "9" * 10, "\u0663"])
def test_an_invalid_timeout_is_refused_by_name(text: str) -> None:
    """The error does not contain the value."""
    with refuses(InvalidField, field=TIMEOUT_MS):
        caller_of({TIMEOUT_MS: text}, "")
