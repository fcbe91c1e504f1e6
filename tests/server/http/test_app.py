"""Browser requests from pages of other origins."""

from __future__ import annotations

import pytest
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import Reply

from vectord.config import ServerConfig
from vectord.products.common.dialect import load_dialects
from vectord.server.http.app import build_table, create_app
from vectord.server.pipeline import Shutdown

PAGE = "https://page.test"
ROUTES = sorted({endpoint.path for endpoint in build_table(FakeEngine(), load_dialects(("tei",)), Shutdown(), None)})


async def ask(method: str, origins: tuple[str, ...], path: str = "/v1/embed", **headers: str) -> Reply:
    config = ServerConfig(cors_allow_origin=origins, api_key="k")
    app = create_app(FakeEngine(), [EMBED, *load_dialects(("tei",))], config)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(app, method, path, b'{"input": "x"}' if method == "POST" else b"", headers=sent)


PREFLIGHT = {
    "origin": PAGE,
    "access_control_request_method": "POST",
    "access_control_request_headers": "authorization,content-type,x-vectord-lane",
}


async def test_by_default_there_are_no_cors_headers() -> None:
    """Browsers then block other origins."""
    preflight = await ask("OPTIONS", (), **PREFLIGHT)
    answer = await ask("POST", (), origin=PAGE, authorization="Bearer k")
    assert (preflight.status, answer.status) == (401, 200)
    assert not any(name.startswith("access-control") for name in (*preflight.headers, *answer.headers))


async def test_a_preflight_needs_no_key() -> None:
    """Browsers send none. Every route and header is allowed."""
    for path in [path for path in ROUTES if "{" not in path]:
        reply = await ask("OPTIONS", (PAGE,), path, **PREFLIGHT)
        assert reply.status == 200, path
        assert reply.headers["access-control-allow-origin"] == PAGE, path
        assert "POST" in reply.headers["access-control-allow-methods"], path
        assert "authorization" in reply.headers["access-control-allow-headers"], path
        assert "x-vectord-lane" in reply.headers["access-control-allow-headers"], path


@pytest.mark.parametrize("status", [200, 401])
async def test_an_allowed_page_may_read_responses_and_errors(status: int) -> None:
    """With their headers."""
    key = {"authorization": "Bearer k"} if status == 200 else {}
    reply = await ask("POST", (PAGE,), origin=PAGE, **key)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, PAGE)
    assert "x-request-id" in reply.headers["access-control-expose-headers"]


async def test_other_origins_are_not_allowed() -> None:
    """Unless the setting is a star."""
    for origin in ("https://other.test", "https://page.test.evil", "null"):
        assert "access-control-allow-origin" not in (await ask("POST", (PAGE,), origin=origin)).headers
        assert (await ask("OPTIONS", (PAGE,), **PREFLIGHT | {"origin": origin})).status == 400
        assert (await ask("POST", ("*",), origin=origin)).headers["access-control-allow-origin"] == "*"


async def test_requests_without_an_origin_are_unaffected() -> None:
    reply = await ask("POST", (PAGE,), authorization="Bearer k")
    assert reply.status == 200
    assert not any(name.startswith("access-control") for name in reply.headers)
