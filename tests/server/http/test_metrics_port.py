"""/metrics on a separate port."""

from __future__ import annotations

import socket

import httpx
import pytest
from tests.server.fakes import FakeEngine

from vectord.config import ServerConfig
from vectord.errors import ConfigError
from vectord.observability.metrics import Metrics
from vectord.server.http.metrics_port import serve_metrics
from vectord.server.pipeline import Shutdown


async def test_the_port_serves_only_metrics() -> None:
    """Without a key; closed after the block."""
    metrics = Metrics("1.2.3")
    config = ServerConfig(prometheus_port=0, api_key="secret")
    async with serve_metrics(FakeEngine(), metrics, config, Shutdown()) as port, httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{port}"
        page = await client.get(f"{url}/metrics")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert "vectord_build_info{" in page.text
        open_metrics = await client.get(f"{url}/metrics", headers={"accept": "application/openmetrics-text"})
        assert open_metrics.text.endswith("# EOF\n")
        for method, path in (("GET", "/"), ("GET", "/health"), ("POST", "/v1/embeddings"), ("POST", "/metrics")):
            assert (await client.request(method, f"{url}{path}")).status_code in (404, 405), path
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_port_in_use_names_its_option() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServerConfig(prometheus_port=taken.getsockname()[1])
        with pytest.raises(ConfigError, match=r"in use; .* set another with --prometheus-port"):
            async with serve_metrics(FakeEngine(), Metrics("0"), config, Shutdown()):
                pass
