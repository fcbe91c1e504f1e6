"""One real server for this folder, with the default model and tiny random ones like BGE-M3 and its reranker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.client import callers
from tests.real_server import running

API_KEY = "client-test-key"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL."""
    from tests.reference.reference_models import write_bge_m3, write_bge_reranker

    folder = tmp_path_factory.mktemp("server")
    tiny = [str(write_bge_m3(folder / "tiny-bge-m3")), str(write_bge_reranker(folder / "tiny-reranker"))]
    options = ("--dialects", "vectord", "--api-key", API_KEY, "--offline")
    with running(folder / "log", "all-MiniLM-L6-v2", *tiny, *options) as (url, _):
        yield url


@pytest.fixture(params=[callers.call, callers.call_async], ids=["threads", "asyncio"])
def call(request: pytest.FixtureRequest) -> callers.CallOf:
    return request.param
