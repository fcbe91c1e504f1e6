"""An application on several nodes: it serves every API, and loses no response when a node dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from tests.cluster.ray.conftest import cluster
from tests.ports import free_port

from vectord import Client

# As docs/scaling.md recommends for clusters that lose nodes.
ENVIRON = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
    "RAY_SERVE_HAPROXY_RETRIES": "3",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
}
PATIENCE_S = 240.0
TEXTS_A_CALL = 16


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, Any, list[Any]]]:
    """The URL of two replicas on two nodes, and the cluster."""
    port = free_port()
    with cluster(2, ENVIRON) as (made, nodes):
        from ray import serve

        from vectord.cluster.ray import application

        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        built = application({"backend": "fake", "cache_bytes": "0"}, num_replicas=2)
        serve.run(built, name="vectord", route_prefix="/")
        yield f"http://127.0.0.1:{port}", made, nodes
        serve.shutdown()


def test_a_configuration_file_can_name_the_application() -> None:
    """Ray calls it with the file's `args`, and refuses functions with further parameters."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build

    from vectord.cluster.ray import app

    assert build(app, {"models": "sentence-transformers/all-MiniLM-L6-v2", "backend": "fake"})


def test_every_api_answers(served: tuple[str, Any, list[Any]]) -> None:
    """As in one process: a text has the same vector in every API, and each API has its own errors."""
    url, _, _ = served
    openai = httpx.post(f"{url}/v1/embeddings", json={"input": "hello"}).json()["data"][0]["embedding"]
    tei = httpx.post(f"{url}/embed", json={"inputs": "hello"}).json()[0]
    ollama = httpx.post(f"{url}/api/embed", json={"model": "m", "input": "hello"}).json()
    np.testing.assert_allclose(openai, tei, rtol=1e-5)
    assert "embeddings" in ollama or "error" in ollama
    refused = httpx.post(f"{url}/v1/embeddings", json={"input": 5})
    assert refused.status_code in {400, 422}
    assert "message" in refused.json()["error"]


def test_no_response_is_lost_when_a_node_dies(served: tuple[str, Any, list[Any]]) -> None:
    """Every call under load returns the right vectors while one of two nodes is killed."""
    url, made, nodes = served
    with Client(url, max_retries=12, timeout_s=60) as client:
        texts = [f"text {i}" for i in range(TEXTS_A_CALL)]
        expected = client.embed(texts)
    load = Load(url, texts, expected)
    load.wait_for(20)
    made.remove_node(nodes.pop(), allow_graceful=False)
    load.wait_for(load.answered + 200)
    load.end()
    assert load.failed == []


class Load:
    """Threads that repeat a call and check each result."""

    def __init__(self, url: str, texts: list[str], expected: np.ndarray) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._url, self._texts, self._expected = url, texts, expected
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, answers: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.answered < answers and not self.failed:
            assert time.monotonic() < deadline_s, f"{self.answered} answers in {PATIENCE_S} s"
            time.sleep(0.01)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _ask(self) -> None:
        with Client(self._url, max_retries=12, timeout_s=60) as client:
            while not self._over.is_set():
                try:
                    np.testing.assert_allclose(client.embed(self._texts), self._expected, rtol=1e-5)
                except Exception as problem:
                    self.failed.append(repr(problem))
                    return
                with self._lock:
                    self.answered += 1
