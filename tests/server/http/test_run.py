"""The socket, the signals and the shutdown of a server."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess

import httpx
import pytest
from tests.server.asgi import call
from tests.server.fakes import EMBED, FakeEngine
from tests.server.live import Client, connected, get, live, post, until
from tests.server.process import process

from vectord.config import ServerConfig
from vectord.errors import ConfigError
from vectord.observability.metrics import Metrics
from vectord.server.http.app import create_app
from vectord.server.http.run import bind, serve, serve_metrics, url_of
from vectord.server.pipeline import Reload, Shutdown

HELLO = {"input": "hello"}


@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 300, "x\x00y", ""])
def test_an_invalid_host_is_a_one_line_error(host: str) -> None:
    """Addresses of other machines, and invalid names."""
    with pytest.raises(ConfigError, match="is not an address of this machine") as caught:
        bind(host, 0)
    assert "\n" not in caught.value.message


def test_an_unknown_host_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(ConfigError, match="--host 'nowhere'"):
        bind("nowhere", 0)


@pytest.mark.parametrize(
    ("host", "shown"),
    [("127.0.0.1", "http://127.0.0.1:"), ("localhost", "http://127.0.0.1:"), ("::1", "http://[::1]:")],
)
def test_names_prefer_ipv4_and_urls_quote_ipv6(host: str, shown: str) -> None:
    try:
        listener = bind(host, 0)
    except ConfigError:
        pytest.skip("no IPv6 here")
    with listener:
        assert url_of(listener).startswith(shown)
        assert int(url_of(listener).rsplit(":", 1)[1]) > 0


def test_serve_raises_before_the_lifespan_starts() -> None:
    """If the port is in use."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = ServerConfig(port=taken.getsockname()[1])
        app = create_app(FakeEngine(), [EMBED], config, lifespan=lambda: 1 / 0)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            serve(app, config)


# --- the end, in one process -------------------------------------------------------------------------------------


async def test_accepted_requests_are_answered() -> None:
    """And their connections close. The port closes at once."""
    engine = FakeEngine(held=True)
    async with live(engine) as running, connected(running) as client:
        client.send(post(HELLO))
        await engine.entered.acquire()
        running.stop()
        await engine.draining.wait()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", running.port)
        engine.gate.set()
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.closed()
        await running.stopped


async def test_new_requests_on_open_connections_are_503() -> None:
    """In the product's form, with Connection: close."""
    engine = FakeEngine(held=True)
    async with (
        live(engine) as running,
        connected(running) as busy,
        connected(running) as idle,
        connected(running) as late,
    ):
        busy.send(post(HELLO))
        for client in (idle, late):
            client.send(get("/health/live"))
            await client.reply()
        await engine.entered.acquire()
        running.stop()
        idle.send(post(HELLO))
        reply = await idle.reply()
        assert (reply.status, reply.json["dialect"], reply.headers["connection"]) == (503, "first", "close")
        assert await idle.closed()
        late.send(get("/health/ready"))
        assert (await late.reply()).json["draining"]
        engine.gate.set()
        assert (await busy.reply()).status == 200


async def test_requests_beyond_the_timeout_are_503() -> None:
    """And their work is cancelled."""
    engine = FakeEngine(held=True)
    async with live(engine, shutdown_timeout_secs=0.3) as running, connected(running) as client:
        client.send(post(HELLO))
        await engine.entered.acquire()
        running.stop()
        reply = await client.reply()
        assert (reply.status, reply.json["error"]) == (503, "ShuttingDown")
        assert await client.closed()
        await engine.cancelled.acquire()
        await running.stopped


async def test_an_idle_server_stops_at_once() -> None:
    """Idle connections do not delay it."""
    async with live(shutdown_timeout_secs=3600) as running, connected(running) as client:
        client.send(get("/health/live"))
        await client.reply()
        began_s = asyncio.get_running_loop().time()
        running.stop()
        assert await client.closed()
        await running.stopped
        assert asyncio.get_running_loop().time() - began_s < 2


# --- the end, of a process ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_process_with_exit_code_0(number: signal.Signals) -> None:
    with process() as (server, _):
        server.send_signal(number)
        assert server.wait(timeout=10) == 0


def test_a_second_signal_ends_the_process_at_once() -> None:
    with process(answer_s=60) as (server, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(post(HELLO))
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        server.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(timeout=0.5)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=5) == -signal.SIGTERM


class Tally:
    """The outcomes of the requests of all connections."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.told = 0  # the response has Connection: close
        self.halves = 0

    def count(self, status: int) -> None:
        self.statuses[status] = self.statuses.get(status, 0) + 1


@pytest.mark.parametrize("answer_s", [0.0, 0.01], ids=["most wait to be read", "most wait for the engine"])
async def test_sigterm_under_load_answers_every_accepted_request(answer_s: float) -> None:
    """50 connections send continuously; each request is answered completely or was never accepted."""
    tally = Tally()
    with process(answer_s) as (server, port):
        clients = [asyncio.create_task(_ask_until_closed(port, tally)) for _ in range(50)]
        await until(lambda: tally.statuses.get(200, 0) >= 500)
        server.send_signal(signal.SIGTERM)
        await asyncio.gather(*clients)
        assert await asyncio.to_thread(server.wait, 10) == 0
    assert tally.halves == 0
    assert set(tally.statuses) <= {200, 503}
    # Each connection ends with an answer that says so: under load none is idle long enough to be closed unasked.
    assert tally.told == 50


async def _ask_until_closed(port: int, tally: Tally) -> None:
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    try:
        while True:
            client.send(post(HELLO))
            try:
                reply = await client.reply()
            except ConnectionError:
                return
            except asyncio.IncompleteReadError as cut:  # `expected` is a number inside a body, None inside a head
                tally.halves += cut.expected is not None or bool(cut.partial)
                return
            tally.count(reply.status)
            if reply.headers.get("connection") == "close":
                tally.told += 1
                return
    finally:
        client.close()


# --- metrics and who may read them ----------------------------------------------------------------------------


async def test_metrics_may_need_a_key() -> None:
    """Without the setting a scrape needs none. The key opens nothing else, and the keys of clients do not open it."""
    secrets = {"api_key": "client", "admin_key": "admin", "metrics_key": "scrape"}
    guarded = create_app(FakeEngine(), [EMBED], ServerConfig(**secrets), Metrics("0"))
    statuses = {}
    for key in ("", "client", "admin", "scrape"):
        sent = {"authorization": f"Bearer {key}"} if key else {}
        statuses[key] = (await call(guarded, "GET", "/metrics", headers=sent)).status
    assert statuses == {"": 401, "client": 401, "admin": 200, "scrape": 200}
    scraper = {"authorization": "Bearer scrape"}
    assert (await call(guarded, "POST", "/v1/embed", b'{"input": "x"}', headers=scraper)).status == 401
    open_to_all = create_app(FakeEngine(), [EMBED], ServerConfig(api_key="client"), Metrics("0"))
    assert (await call(open_to_all, "GET", "/metrics")).status == 200


async def test_with_a_port_for_metrics_the_main_port_has_none() -> None:
    app = create_app(FakeEngine(), [EMBED], ServerConfig(prometheus_port=0), Metrics("0"))
    assert (await call(app, "GET", "/metrics")).status == 404


async def test_the_port_for_metrics_needs_the_metrics_key() -> None:
    """If one is set."""
    config = ServerConfig(prometheus_port=0, metrics_key="scrape")
    async with (
        serve_metrics(FakeEngine(), Metrics("0"), config, Shutdown(), Reload()) as port,
        httpx.AsyncClient() as client,
    ):
        url = f"http://127.0.0.1:{port}/metrics"
        assert (await client.get(url)).status_code == 401
        assert (await client.get(url, headers={"authorization": "Bearer scrape"})).status_code == 200


# --- the port for metrics --------------------------------------------------------------------------------------


async def test_the_port_serves_only_metrics() -> None:
    """Without a key; closed after the block."""
    metrics = Metrics("1.2.3")
    config = ServerConfig(prometheus_port=0, api_key="secret")
    async with (
        serve_metrics(FakeEngine(), metrics, config, Shutdown(), Reload()) as port,
        httpx.AsyncClient() as client,
    ):
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
            async with serve_metrics(FakeEngine(), Metrics("0"), config, Shutdown(), Reload()):
                pass
