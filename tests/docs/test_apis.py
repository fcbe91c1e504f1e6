"""Compares docs/apis.md and docs/apis/ with the code, and sends every example to a complete server."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest
from docs.apis import CLIENTS, OWN, apis, product
from tests.dialects import all_dialects
from tests.docs.examples import config_of, replies_of
from tests.products.results import fits
from tests.reference.reference_models import write_bge_m3, write_bge_reranker
from tests.server.fakes import FakeEngine
from tests.server.live import Reply

from vectord.config import DEFAULT_MODEL
from vectord.products import ORDER
from vectord.products.common.dialect import Dialect, Route, load_dialects
from vectord.server.http.app import build_table
from vectord.server.http.routing import Endpoint
from vectord.server.pipeline import Shutdown

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "apis.md").read_text("utf-8")
PAGES = {path.stem: path.read_text("utf-8") for path in (ROOT / "docs" / "apis").glob("*.md")}
TABLE = build_table(FakeEngine(), load_dialects(ORDER), Shutdown(), None)
ADMIN = {"x-api-key": "operator"}

# Examples with a status other than 200.
STATUSES = {"/.well-known/live": 204, "/.well-known/ready": 204, "/embeddings_image": 422, "/embeddings_audio": 400}

# Examples that another product answers by default, in another format.
OTHERWISE = {
    ("embedding_server", "/embed"): "TEI's bare array",
    ("jina", "/v1/rerank"): "another word under `object`",
    ("llamacpp", "/v1/rerank"): "another word under `object`",
    ("semantic_explorer", "/rerank"): "Cohere's `meta` is missing",
    ("simple_inference_server", "/v1/embeddings"): "without `completion_tokens`",
    ("simple_inference_server", "/v1/rerank"): "`document` is an object, not a string",
    ("vllm", "/v1/models"): "without vLLM's `root`, `parent` and `permission`",
}


@dataclass(frozen=True, slots=True)
class Example:
    dialect: Dialect
    route: Route

    @property
    def path(self) -> str:
        return re.sub(r"\{\w+(:path)?\}", DEFAULT_MODEL, self.route.path)

    @property
    def body(self) -> bytes | None:
        return None if self.route.body is None else json.dumps(self.route.example).encode()

    @property
    def endpoint(self) -> Endpoint:
        return TABLE.find(self.route.method, self.path).endpoint

    def __str__(self) -> str:
        by = f" by {min(keys)}" if (keys := self.route.one_of | self.route.required) else ""
        return f"{self.dialect.name} {self.route.method} {self.route.path}{by}"


EXAMPLES = [Example(dialect, route) for dialect in load_dialects(ORDER) for route in dialect.routes]


def _differs(example: Example) -> bool:
    return (example.dialect.name, example.route.path) in OTHERWISE


@pytest.fixture(scope="module")
def replies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reply]:
    """The response to each example. Tiny random models serve what the default model cannot."""
    folder = tmp_path_factory.mktemp("apis")
    tiny = [write_bge_m3(folder / "tiny-bge-m3"), write_bge_reranker(folder / "tiny-reranker")]
    requests = [(one.route.method, one.path, ADMIN, one.body) for one in EXAMPLES]
    return dict(zip(map(str, EXAMPLES), replies_of(config_of(*tiny), requests), strict=True))


@pytest.mark.parametrize("product_name", ORDER)
def test_an_example_has_the_response_of_the_page(product_name: str, replies: dict[str, Reply]) -> None:
    """On the shared path; tests/products has those under the product's own prefix."""
    for example in (one for one in EXAMPLES if one.dialect.name == product_name):
        reply = replies[str(example)]
        # The example removes a model that the settings name.
        expected = 403 if example.route.method == "DELETE" else STATUSES.get(example.route.path, 200)
        assert reply.status == expected, (example, reply.body)
        if reply.status == 200 and not _differs(example):
            assert fits(reply.body, example.route.answers), example


@pytest.mark.parametrize("example", [example for example in EXAMPLES if _differs(example)], ids=str)
def test_other_response_formats_are_listed(example: Example, replies: dict[str, Reply]) -> None:
    """An example with another format belongs to the product in the table, and every listed example differs."""
    chosen = example.endpoint.choose(example.body or b"").route
    assert chosen is not example.route
    assert fits(replies[str(example)].body, chosen.answers)
    assert not fits(replies[str(example)].body, example.route.answers)


# --- the pages ------------------------------------------------------------------------------------------------


def test_the_page_is_current() -> None:
    """It is up to date: `make format` changes nothing."""
    assert apis() == PAGE
    assert {name: product(name) for name in PAGES} == PAGES


def test_every_product_has_a_page() -> None:
    """All products are served by default. docs/api.md describes vectord's own API."""
    assert set(PAGES) == set(ORDER) - {OWN} == {one.name for one in all_dialects()} - {OWN}
    assert set(re.findall(r"\]\(apis/(\w+)\.md\)", PAGE)) == set(PAGES)


# --- clients --------------------------------------------------------------------------------------------------

TRIED = tomllib.loads(CLIENTS.read_text("utf-8"))["client"]


def test_a_listed_client_has_a_test_and_known_routes() -> None:
    """The named test exists, and so do the routes."""
    for client in TRIED:
        assert (ROOT / client["test"]).is_file(), client
        assert client["how"] in ("package", "replayed"), client
        assert client["version"] or client["how"] == "replayed", client
        served = {re.sub(r"\{.*", "", endpoint.path) for endpoint in TABLE}
        assert [path for path in client["routes"] if re.sub(r"\{.*", "", path) not in served] == [], client
