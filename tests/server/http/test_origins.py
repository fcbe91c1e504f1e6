"""Web pages of other origins, and names that other people's DNS points to this server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import FORM_TYPE, Reply

from vectord.config import ServerConfig
from vectord.products.common.dialect import load_dialects
from vectord.products.common.profiles import profiles
from vectord.server.http.app import build_table, create_app
from vectord.server.http.origins import Origins, network_domains
from vectord.server.pipeline import Shutdown

PAGE = "https://page.test.example"
ROUTES = sorted({endpoint.path for endpoint in build_table(FakeEngine(), load_dialects(("tei",)), Shutdown(), None)})
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-vectord-lane",
}
KEYED = {"authorization": "Bearer k"}


async def ask(
    method: str = "POST",
    path: str = "/v1/embed",
    headers: dict[str, str] | None = None,
    body: bytes = b'{"input": "x"}',
    *,
    scheme: str = "http",
    **settings: Any,
) -> Reply:
    """settings: fields of ServerConfig; one without keys by default."""
    app = create_app(FakeEngine(), [EMBED, *load_dialects(("tei",))], ServerConfig(**settings))
    sent = {"host": "localhost:8000", **(headers or {})}
    return await call(app, method, path, body if method == "POST" else b"", headers=sent, scheme=scheme)


def cors_headers(reply: Reply) -> set[str]:
    return {name for name in reply.headers if name.startswith("access-control")}


# --- servers without keys -------------------------------------------------------------------------------------

LOCAL_HOSTS = [
    "localhost",
    "LOCALHOST:8000",
    "localhost.",
    "api.localhost",
    "printer.local:80",
    "127.0.0.1:1",
    "192.168.1.7",
    "0.0.0.0",
    "[::1]:8000",
    "[2001:db8::1]",
    "127.1",
    "vectord",
    "my_service",
    "vectord.default.svc",
    "vectord.default.svc.cluster.local",
    "gpu.internal",
    "nas.lan",
    "host.docker.internal",
    "nas.home.arpa",
]
FOREIGN_HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "local.evil.com",
    "xlocal.com",
    "evil.example:8000",
]


@pytest.mark.parametrize("host", [*LOCAL_HOSTS, ""])
async def test_addresses_and_local_names_are_answered(host: str) -> None:
    """Compose and Kubernetes call a service by its name, users by an address. An empty Host names no page's host."""
    assert (await ask(headers={"host": host})).status == 200


@pytest.mark.parametrize("path", ["/v1/embed", "/health", "/", "/nothing"])
@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_a_rebound_name_is_refused_without_keys(host: str, path: str) -> None:
    """On every path; the error names both ways out. A page whose own name points here reads everything otherwise."""
    reply = await ask("POST" if path == "/v1/embed" else "GET", path, {"host": host})
    assert reply.status == 403
    assert b"--cors-allow-origin" in reply.body
    assert b"--api-key" in reply.body


@pytest.mark.parametrize(
    "settings",
    [
        {"api_key": "k"},
        {"cors_allow_origin": ("http://evil.example",)},
        {"cors_allow_origin": ("https://Evil.Example:8443/",)},
        {"cors_allow_origin": ("https://*.example",)},
        {"cors_allow_origin": ("*",)},
        {"host": "evil.example"},
    ],
    ids=str,
)
async def test_a_configured_name_is_answered(settings: dict[str, Any]) -> None:
    """A listed origin also names the server itself; keys and `*` make the check pointless."""
    assert (await ask(headers={"host": "evil.example", **KEYED}, **settings)).status == 200


async def test_with_tls_every_name_is_answered() -> None:
    """The browser has compared the certificate with the name."""
    assert (await ask(headers={"host": "evil.example"}, scheme="https")).status == 200


def test_names_of_the_machines_network_are_local(tmp_path: Path) -> None:
    """The resolver's domains, and in a pod its namespace; not for a server that only this machine can reach."""
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("nameserver 1.1.1.1\nsearch prod.svc.cluster.local svc.cluster.local Corp.Example. com .\n")
    everywhere = Origins(ServerConfig(host="0.0.0.0"), resolver)
    assert everywhere.knows_host("gpu01.corp.example")
    assert everywhere.knows_host("vectord.prod")
    assert not everywhere.knows_host("evil.com")
    assert not everywhere.knows_host("corp.example.evil.com")
    assert not Origins(ServerConfig(), resolver).knows_host("gpu01.corp.example")
    assert network_domains(tmp_path / "absent") == []


@pytest.mark.parametrize("content_type", ["text/plain", "application/json", FORM_TYPE["content-type"], ""])
@pytest.mark.parametrize("origin", [PAGE, "null", "http://localhost:3000", "https://localhost", "file://"])
async def test_a_foreign_page_is_refused_without_keys(origin: str, content_type: str) -> None:
    """Browsers ask nobody before they send such a POST; they only hide its response."""
    reply = await ask(headers={"origin": origin, "content-type": content_type})
    assert reply.status == 403
    assert b"--cors-allow-origin" in reply.body


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://localhost:8000"},
        {"origin": "https://localhost:8000"},  # behind a proxy with TLS
        {"origin": "https://public.example", "sec-fetch-site": "same-origin"},  # behind a proxy that changes Host
        {"sec-fetch-site": "none"},
    ],
    ids=str,
)
async def test_the_servers_own_pages_and_programs_are_answered(headers: dict[str, str]) -> None:
    """The console's requests have the server's origin; programs send none."""
    assert (await ask(headers=headers)).status == 200


async def test_a_cross_site_request_without_an_origin_is_refused_unless_it_is_a_link() -> None:
    """A user's extension may remove the Origin; links and images have none."""
    assert (await ask(headers={"sec-fetch-site": "cross-site"})).status == 403
    assert (await ask("GET", "/health", {"sec-fetch-site": "cross-site"})).status == 200


async def test_a_null_origin_never_equals_a_missing_host() -> None:
    reply = await ask(headers={"host": "", "origin": "null"})
    assert reply.status == 403


async def test_with_keys_the_key_decides() -> None:
    """A page has no key of its own, and one that was given a key may use it."""
    assert (await ask(headers={"origin": PAGE}, api_key="k")).status == 401
    assert (await ask(headers={"origin": PAGE, **KEYED}, api_key="k")).status == 200


# --- CORS -----------------------------------------------------------------------------------------------------


async def test_by_default_there_are_no_cors_headers() -> None:
    """Browsers then block other origins."""
    preflight = await ask("OPTIONS", headers=PREFLIGHT, api_key="k")
    answer = await ask(headers={"origin": PAGE, **KEYED}, api_key="k")
    assert (preflight.status, answer.status) == (401, 200)
    assert not cors_headers(preflight) | cors_headers(answer)


async def test_a_preflight_needs_no_key() -> None:
    """Browsers send none. Every route, method and header is allowed, and a page may be outside this network."""
    sent = {**PREFLIGHT, "access-control-request-private-network": "true"}
    for path in [path for path in ROUTES if "{" not in path]:
        reply = await ask("OPTIONS", path, sent, api_key="k", cors_allow_origin=(PAGE,))
        assert reply.status == 200, path
        assert reply.headers["access-control-allow-origin"] == PAGE, path
        assert "POST" in reply.headers["access-control-allow-methods"], path
        assert "authorization" in reply.headers["access-control-allow-headers"], path
        assert "x-vectord-lane" in reply.headers["access-control-allow-headers"], path
        assert reply.headers["access-control-allow-private-network"] == "true", path
        assert "Origin" in reply.headers["vary"], path


@pytest.mark.parametrize("status", [200, 401])
async def test_an_allowed_page_may_read_responses_and_errors(status: int) -> None:
    """With their headers."""
    sent = {"origin": PAGE, **(KEYED if status == 200 else {})}
    reply = await ask(headers=sent, api_key="k", cors_allow_origin=(PAGE,))
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, PAGE)
    assert {"x-request-id", "x-vectord-tokens-kept"} <= {*reply.headers["access-control-expose-headers"].split(", ")}
    assert "Origin" in reply.headers["vary"]


@pytest.mark.parametrize("key", ["", "k"])
async def test_other_origins_are_not_allowed(key: str) -> None:
    """Unless the setting is a star."""
    for origin in ("https://other.test", f"{PAGE}.evil", "null"):
        sent = {"origin": origin, **KEYED}
        refused = await ask(headers=sent, api_key=key or None, cors_allow_origin=(PAGE,))
        assert (refused.status, cors_headers(refused) - {"access-control-expose-headers"}) == (
            200 if key else 403,
            set(),
        )
        preflight = await ask("OPTIONS", headers=PREFLIGHT | {"origin": origin}, cors_allow_origin=(PAGE,))
        assert preflight.status == 400
        allowed = await ask(headers=sent, api_key=key or None, cors_allow_origin=("*",))
        assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize(
    ("listed", "origin", "is_allowed"),
    [
        ("http://localhost:*", "http://localhost:3000", True),
        ("http://localhost:*", "http://localhost:3000.evil.example", True),  # no browser sends such a port
        ("http://localhost:*", "http://localhost.evil.example", False),
        ("https://*.example.com", "https://a.b.example.com", True),
        ("https://*.example.com", "https://example.com", False),
        ("https://*.example.com", "https://evil.example/.example.com", False),
        ("app://*", "app://obsidian.md", True),
        ("https://Example.com/", "https://example.com", True),
        ("https://a.example", "https://aXexample", False),
    ],
)
def test_a_star_stands_for_a_part_of_an_origin(listed: str, origin: str, is_allowed: bool) -> None:
    assert Origins(ServerConfig(cors_allow_origin=(listed,))).allows(origin) is is_allowed


async def test_requests_without_an_origin_are_unaffected() -> None:
    reply = await ask(headers=KEYED, api_key="k", cors_allow_origin=(PAGE,))
    assert reply.status == 200
    assert not {"access-control-allow-origin", "access-control-allow-methods"} & cors_headers(reply)


EVERY_PAGE = {"tei", "vllm", "semantic-explorer", "llama-cpp"}
LOCAL_PAGES = {"ollama"}
ORIGINS = {
    PAGE: EVERY_PAGE,
    "null": EVERY_PAGE,
    "http://localhost": EVERY_PAGE | LOCAL_PAGES,
    "http://127.0.0.1:5173": EVERY_PAGE | LOCAL_PAGES,
    "app://obsidian.md": EVERY_PAGE | LOCAL_PAGES,
    "tauri://localhost": EVERY_PAGE | LOCAL_PAGES,
    "vscode-webview://1abc": EVERY_PAGE | LOCAL_PAGES,
    "http://localhost.page.example": EVERY_PAGE,
}


@pytest.mark.parametrize("profile", profiles())
async def test_a_profile_allows_the_pages_that_its_product_allows(profile: str, tmp_path: Path) -> None:
    """Without keys: an allowed page gets its response, and any other 403."""
    listed = profiles()[profile]["values"].get("server", {}).get("cors_allow_origin", [])
    assert isinstance(listed, list)
    for origin, allowing in ORIGINS.items():
        reply = await ask(headers={"origin": origin}, cors_allow_origin=tuple(listed))
        expected = (200, True) if profile in allowing else (403, False)
        assert (reply.status, "access-control-allow-origin" in reply.headers) == expected, origin
