"""The OpenAPI document matches the served routes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import schemathesis
from tests.server.asgi import call
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.errors import MalformedHead, MethodNotAllowed, StartError, VectordError
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import EXAMPLE_MODEL, load_dialects
from vectord.products.common.vectors import OCTETS
from vectord.server.http.app import build_table, create_app
from vectord.server.pages import openapi as described
from vectord.server.pages.openapi import early_errors, late_errors, openapi
from vectord.server.pipeline import Shutdown

DIALECTS = load_dialects(ServerConfig().dialects)
TABLE = build_table(FakeEngine(), DIALECTS, Shutdown(), Metrics("0"))
DESCRIBED: dict[str, Any] = openapi(TABLE, "1.2.3")


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method, operation) for path, each in DESCRIBED["paths"].items() for method, operation in each.items()
    ]


def post(path: str) -> dict[str, Any]:
    found: dict[str, Any] = DESCRIBED["paths"][path]["post"]
    return found


def examples_of(path: str, status: str, content_type: str = "application/json") -> dict[str, Any]:
    """The examples of `status` at `path`, by product."""
    examples = post(path)["responses"][status]["content"][content_type]["examples"]
    return {title: example["value"] for title, example in examples.items()}


def subclasses(kind: type[VectordError]) -> set[type[VectordError]]:
    return {kind}.union(*(subclasses(child) for child in kind.__subclasses__()))


def test_the_document_is_valid() -> None:
    """By the schema of OpenAPI 3.1."""
    schemathesis.openapi.from_dict(DESCRIBED).validate()


async def test_the_document_is_built_once_and_not_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes 0.15 s, in which no probe would be answered."""
    threads = []

    def build(table: object, version: str, *, brief: bool = False) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return {}

    monkeypatch.setattr(described, "openapi", build)
    app = create_app(FakeEngine(), DIALECTS, ServerConfig())
    replies = await asyncio.gather(*(call(app, "GET", "/openapi.json") for _ in range(5)))
    assert [reply.status for reply in replies] == [200] * 5
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


def test_every_route_is_described() -> None:
    """And nothing else, except the files of pages."""
    served = {(endpoint.path.replace(":path}", "}"), endpoint.method.lower()) for endpoint in TABLE}
    parts = {(path, method) for path, method in served if path.startswith(("/docs/", "/console/"))}
    assert {(path, method) for path, method, _ in operations()} == served - parts


@pytest.mark.parametrize("path", ["/openapi.json", "/api-doc/openapi.json", "/api/openapi.json"])
async def test_the_document_needs_no_key(path: str) -> None:
    """At all its paths."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="k"))
    reply = await call(app, "GET", path)
    assert (reply.status, reply.json["openapi"]) == (200, "3.1.0")


# --- what a path takes and gives ------------------------------------------------------------------------------


def test_a_shared_path_has_the_bodies_of_all_products() -> None:
    """With one example each."""
    shared = [endpoint for endpoint in TABLE if len(endpoint.choices) > 1]
    assert shared
    for endpoint in shared:
        content = post(endpoint.path)["requestBody"]["content"]["application/json"]
        assert len(content["schema"]["anyOf"]) == len({choice.route.body for choice in endpoint.choices})
        shown = [example["value"] for example in content["examples"].values()]
        assert shown == [choice.route.example for choice in endpoint.choices]


def test_binary_forms_are_described() -> None:
    """If the example's vectors can be one matrix, with their headers."""
    assert set(post("/embed")["responses"]["200"]["content"]) == {"application/json", OCTETS}
    assert set(post("/embed_sparse")["responses"]["200"]["content"]) == {"application/json"}
    assert set(post("/vectord/documents")["responses"]["200"]["content"]) == {"application/json", OCTETS}
    assert set(post("/score")["responses"]["200"]["content"]) == {"application/json"}
    assert "x-vectord-shape" in post("/embed")["responses"]["200"]["headers"]
    assert "x-vectord-shape" not in post("/score")["responses"]["200"]["headers"]


def test_a_response_without_a_body_is_described() -> None:
    """Weaviate's probes return 204."""
    responses = DESCRIBED["paths"]["/.well-known/ready"]["get"]["responses"]
    assert "content" not in responses["2XX"]
    assert "200" not in responses


def test_the_headers_are_described() -> None:
    """Those of lengths, and those that clients may send or compare."""
    operation = post("/v1/embeddings")
    headers = set(operation["responses"]["200"]["headers"])
    assert {"x-request-id", "x-vectord-tokens-seen", "x-vectord-tokens-kept", "x-vectord-truncated"} <= headers
    assert {"x-vectord-fingerprint", "x-vectord-score-kind"} <= headers
    sent = {parameter["$ref"].rsplit("/", 1)[1] for parameter in operation["parameters"]}
    assert sent == {"x-request-id", "x-vectord-lane", "x-vectord-expect-fingerprint"}


# --- who may ask ----------------------------------------------------------------------------------------------


def test_admin_routes_require_security() -> None:
    """Without the empty alternative."""
    operation = post("/vectord/models/{model}/load")
    assert operation["security"] == [{"bearer": []}, {"x-api-key": []}]
    assert "403" in operation["responses"]
    assert "403" not in post("/vectord/embed")["responses"]


def test_public_routes_need_no_key() -> None:
    """And have no 401."""
    operation = DESCRIBED["paths"]["/api/version"]["get"]
    assert operation["security"] == []
    assert "401" not in operation["responses"]
    assert "401" in DESCRIBED["paths"]["/info"]["get"]["responses"]


# --- errors ---------------------------------------------------------------------------------------------------


def test_every_class_of_error_is_described() -> None:
    """Except errors at start, and wrong methods and heads, which belong to no operation."""
    described = {
        type(error)
        for endpoint in TABLE
        for choice in endpoint.choices
        for error in (*early_errors(endpoint), *late_errors(endpoint, choice))
    }
    assert described == subclasses(VectordError) - subclasses(StartError) - {MalformedHead, MethodNotAllowed}


def test_errors_have_the_form_of_their_product() -> None:
    """With Retry-After where it is sent."""
    assert examples_of("/v1/embeddings", "429")["OpenAI"]["error"]["type"] == "rate_limit_error"
    assert "retry-after" in post("/v1/embeddings")["responses"]["429"]["headers"]
    assert examples_of("/embed_all", "429")["text-embeddings-inference"]["error_type"] == "Overloaded"
    assert "content" not in post("/embed_all")["responses"]["401"]


def test_a_shared_path_has_the_errors_of_all_products() -> None:
    """Errors before the body is read are the owner's only."""
    assert set(examples_of("/rerank", "503")) >= {"Smart Embedder", "text-embeddings-inference"}
    assert set(examples_of("/rerank", "429")) >= {"text-embeddings-inference", "Jina", "infinity"}
    assert set(examples_of("/v1/embeddings", "413")) == {"OpenAI"}
    assert set(examples_of("/v1/embeddings", "406")) >= {"OpenAI", "Jina", "Voyage", "llama.cpp"}


# --- the shorter document of /docs ----------------------------------------------------------------------------

BRIEF: dict[str, Any] = openapi(TABLE, "1.2.3", brief=True)


def test_docs_lists_vectord_openai_and_tei_first() -> None:
    """These are open and the other products collapsed."""
    assert [tag["name"] for tag in BRIEF["tags"] if tag.get("x-open")] == [
        "vectord",
        "OpenAI",
        "text-embeddings-inference",
    ]
    assert [tag["name"] for tag in BRIEF["tags"][:3]] == ["vectord", "OpenAI", "text-embeddings-inference"]
    assert BRIEF["tags"][-1]["name"] == "server"


def test_docs_hides_aliases_and_the_products_own_prefixes() -> None:
    """One path an operation. A product's own prefix stays where a page of the server has the short path."""
    assert {"/v1/embeddings", "/vectord/embed", "/embed", "/v1/models/{model}"} <= BRIEF["paths"].keys()
    for alias in ("/models/{model}", "/v1/v2/embed", "/swagger-ui", "/api-doc/openapi.json"):
        assert alias in DESCRIBED["paths"] and alias not in BRIEF["paths"]
    assert [path for path in BRIEF["paths"] if path.startswith("/dialects/")] == ["/dialects/ollama"]
    assert len(BRIEF["paths"]) < len(DESCRIBED["paths"]) / 2


def test_docs_lists_a_shared_path_under_each_of_its_products() -> None:
    """The example of a product that comes first in /docs is the one that is shown."""
    operation = BRIEF["paths"]["/rerank"]["post"]
    assert {"text-embeddings-inference", "Smart Embedder", "infinity"} <= set(operation["tags"])
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    assert next(iter(examples)) == "text-embeddings-inference"
    assert " / " not in operation["summary"]
    schemathesis.openapi.from_dict(BRIEF).validate()


@pytest.mark.parametrize(("key", "model"), [(None, EXAMPLE_MODEL), ("k", "fake-model")])
async def test_the_examples_of_docs_name_a_model_that_the_key_may_use(key: str | None, model: str) -> None:
    """So that they run. Without a key, no model of a server with keys is named."""
    app = create_app(FakeEngine(), DIALECTS, ServerConfig(api_key="k"))
    reply = await call(app, "GET", "/docs/openapi.json", headers={"x-api-key": key} if key else {})
    operation = reply.json["paths"]["/v1/embeddings"]["post"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    assert examples["OpenAI"]["value"]["model"] == model
