"""The description matches what is served."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.server.asgi import call
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.dialects.folder import load_dialects
from vectord.server.app import build_table, create_app
from vectord.server.openapi import openapi
from vectord.server.shutdown import Shutdown
from vectord.telemetry.metrics import Metrics

DIALECTS = load_dialects(("openai", "tei", "vectord"))
TABLE = build_table(FakeEngine(), DIALECTS, Shutdown(), Metrics("0"))
DESCRIBED: dict[str, Any] = openapi(TABLE, "1.2.3")


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation) for path, each in DESCRIBED["paths"].items() for method, operation in each.items()
    ]


def test_every_route_is_described() -> None:
    """What the table serves and what the description lists are the same, the parts of /docs aside."""
    served = {(endpoint.path.replace(":path}", "}"), endpoint.method.lower()) for endpoint in TABLE}
    parts = {(path, method) for path, method in served if path.startswith("/docs/")}
    assert {(path, method) for path, method, _ in operations()} == served - parts


@pytest.mark.parametrize("path", ["/openapi.json", "/api-doc/openapi.json"])
async def test_it_is_served_without_a_key(path: str) -> None:
    """At FastAPI's usual place and at TEI's."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="k"))
    reply = await call(app, "GET", path)
    assert (reply.status, reply.json["openapi"]) == (200, "3.1.0")


def test_every_reference_leads_somewhere() -> None:
    """No schema is named that is not there."""
    references = re.findall(r"'#/components/schemas/([^']+)'", repr(DESCRIBED))
    assert references
    assert set(references) <= set(DESCRIBED["components"]["schemas"])


def test_every_placeholder_is_a_parameter() -> None:
    """A path's {name} is described, as OpenAPI demands."""
    for path, _, operation in operations():
        named = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "path"}
        assert named == set(re.findall(r"\{(\w+)\}", path))


def test_errors_are_shown_as_the_dialect_renders_them() -> None:
    """OpenAI's error object on its path, TEI's flat pair on its own, with Retry-After where it is sent."""
    overloaded = DESCRIBED["paths"]["/v1/embeddings"]["post"]["responses"]["429"]
    assert overloaded["content"]["application/json"]["example"]["error"]["type"] == "rate_limit_error"
    assert "retry-after" in overloaded["headers"]
    refused = DESCRIBED["paths"]["/embed"]["post"]["responses"]["429"]
    assert refused["content"]["application/json"]["example"]["error_type"] == "Overloaded"
    assert "content" not in DESCRIBED["paths"]["/embed"]["post"]["responses"]["401"]


def test_a_path_that_two_dialects_share_takes_either_body() -> None:
    """The schema of the request is any of theirs."""
    shared = [each for each in TABLE if len(each.choices) > 1]
    for endpoint in shared:
        body = DESCRIBED["paths"][endpoint.path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert len(body["anyOf"]) == len(endpoint.choices)


def test_the_headers_are_described() -> None:
    """Those of the length contract and those a client may send or compare are part of what it may rely on."""
    operation = DESCRIBED["paths"]["/v1/embeddings"]["post"]
    headers = set(operation["responses"]["200"]["headers"])
    assert {"x-request-id", "x-vectord-tokens-seen", "x-vectord-tokens-kept", "x-vectord-truncated"} <= headers
    assert {"x-vectord-fingerprint", "x-vectord-score-kind"} <= headers
    sent = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "header"}
    assert sent == {"x-request-id", "x-vectord-lane", "x-vectord-expect-fingerprint"}


def test_the_operators_routes_are_described_as_such() -> None:
    """No security requirement of theirs can be left out, and the ordinary key is refused."""
    operation = DESCRIBED["paths"]["/vectord/models/{model}/load"]["post"]
    assert operation["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "403" in operation["responses"]
    assert "403" not in DESCRIBED["paths"]["/vectord/embed"]["post"]["responses"]
