"""Who learns which models a server has: an attack over a socket, by the tenant of one model and by a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
from tests.keys import entry, keys_file
from tests.real_server import running

from vectord.checkpoints.hub import resolve
from vectord.config import DEFAULT_MODEL

KEYS = {"ann": "key-of-ann", "ben": "key-of-ben"}
MODELS = {"ann": "model-of-ann", "ben": "model-of-ben"}
FORMS = ({}, {"accept": "text/html"}, {"accept": "application/openmetrics-text"})


@dataclass(frozen=True)
class Crawl:
    client: httpx.Client
    paths: list[str]

    def pages(self, key: str | None) -> Iterator[tuple[str, str]]:
        """Each page in each form, with this key: its address, and everything that the response contains."""
        sent = {} if key is None else {"authorization": f"Bearer {key}"}
        for path in self.paths:
            for form in FORMS:
                reply = self.client.get(path, headers={**sent, **form})
                yield f"{path} {form}", f"{reply.status_code} {dict(reply.headers)} {reply.text}"


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawl]:
    """Every documented address of a server with two models of two tenants, after a request to each."""
    folder = tmp_path_factory.mktemp("server")
    file = keys_file(folder, *(entry(name, key, models=f'["{MODELS[name]}"]') for name, key in KEYS.items()))
    for model in MODELS.values():
        (folder / model).symlink_to(resolve(DEFAULT_MODEL, offline=True).folder)
    models = [str(folder / model) for model in MODELS.values()]
    options = (*models, "--served-model-name", ",".join(MODELS.values()), "--api-keys-file", file)
    with running(folder / "log", *options) as (url, _), httpx.Client(base_url=url, timeout=30) as client:
        for name, key in KEYS.items():
            body = {"model": MODELS[name], "input": "Where is the river?"}
            reply = client.post("/v1/embeddings", json=body, headers={"authorization": f"Bearer {key}"})
            assert reply.status_code == 200
        documented = client.get("/openapi.json").json()["paths"]
        templates = [path for path, methods in documented.items() if "get" in methods]
        assert len(templates) > 50
        paths = [path.replace("{model}", model) for path in templates for model in MODELS.values()]
        console = [f"/console/{part}" for part in ("calls", "live", "history", "requests")]
        yield Crawl(client, sorted({*paths, *console, "/docs/openapi.json"}))


def test_a_tenant_sees_no_model_of_another(crawl: Crawl) -> None:
    """On no page, in no header and no error, whatever the status."""
    pages = dict(crawl.pages(KEYS["ann"]))
    assert [address for address, page in pages.items() if MODELS["ben"] in page] == []
    own = [address for address, page in pages.items() if MODELS["ann"] in page]
    assert any(address.startswith("/v1/models ") for address in own)
    assert any(address.startswith("/health ") for address in own)


@pytest.mark.parametrize("key", [None, "key-of-nobody"])
def test_a_stranger_sees_no_model(crawl: Crawl, key: str | None) -> None:
    """Without a valid key, no page names a model. /health/ready still shows that the server is ready."""
    pages = dict(crawl.pages(key))
    assert [address for address, page in pages.items() if any(name in page for name in MODELS.values())] == []
    assert crawl.client.get("/health/ready").json()["embedding"] is True


def test_models_have_numbers_in_open_metrics(crawl: Crawl) -> None:
    """Numbers distinguish the series of two models."""
    page = crawl.client.get("/metrics").text
    for number in ("1", "2"):
        assert f'vectord_model_ready{{model="{number}"}} 1.0' in page
        assert f'vectord_tokens_total{{model="{number}"}} 7.0' in page
