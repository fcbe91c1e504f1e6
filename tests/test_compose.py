"""compose.py and asgi.py: the engine and app of a configuration, `vectord serve`, and other ASGI servers."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from tests.keys import entry, keys_file
from tests.opening import minilm_folder
from tests.ports import free_port
from tests.server.asgi import call

from vectord import __version__, compose
from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, EngineConfig, ModelConfig, ServerConfig
from vectord.errors import ConfigError
from vectord.observability.logs import FACTS
from vectord.schema import Caller, ListModels, ModelList

FAKE = DeviceConfig(backend="fake")
DEADLINE_S = 30.0


# --- build ----------------------------------------------------------------------------------------------------


async def listed(config: Config, name: str | None = None) -> ModelList:
    engine = compose.build(config).engine
    answer = await engine.answer(ListModels(model=name), Caller())
    assert isinstance(answer, ModelList)
    return answer


async def test_models_are_listed_by_name_and_alias() -> None:
    """Also before the engine is started."""
    models = (await listed(Config(device=FAKE))).models
    assert [(model.name, model.state) for model in models] == [(DEFAULT_MODEL, "unloaded")]
    assert (await listed(Config(device=FAKE), "all-MiniLM-L6-v2")).models[0].name == DEFAULT_MODEL


@pytest.mark.parametrize("settings", [{}, {"metrics_key": "scrape"}], ids=["open", "private"])
async def test_metrics_name_keys_only_if_they_are_private(tmp_path: Path, settings: dict[str, str]) -> None:
    """Anyone may read open ones."""
    server = ServerConfig(api_keys_file=keys_file(tmp_path, entry("search-team")), **settings)
    app = compose.build(Config(device=FAKE, server=server)).app
    reply = await call(app, "GET", "/metrics", headers={"authorization": "Bearer scrape"})
    assert reply.status == 200
    assert (b"search-team" in reply.body) is bool(settings)


async def test_the_engine_has_the_configured_limits() -> None:
    """/info shows them."""
    engine = EngineConfig(
        max_client_batch_size=7, max_concurrent_requests=9, tokenization_workers=3, auto_truncate=True
    )
    limits = (await listed(Config(device=DeviceConfig(backend="fake", max_batch_requests=5), engine=engine))).limits
    assert (limits.max_inputs_per_request, limits.max_concurrent_requests) == (7, 9)
    assert (limits.tokenization_workers, limits.max_batch_texts, limits.truncates) == (3, 5, True)


async def test_tokenization_uses_as_many_threads_as_the_device() -> None:
    """`num_threads` is the default of `tokenization_workers`."""
    limits = (await listed(Config(device=DeviceConfig(backend="fake", num_threads=1)))).limits
    assert limits.tokenization_workers == 1


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("127.0.0.1", {}, False),
        ("::1", {}, False),
        ("localhost", {}, False),
        ("0.0.0.0", {"api_key": "key"}, False),
        ("0.0.0.0", {"api_keys_file": "keys.toml"}, False),
        ("0.0.0.0", {}, True),
        ("192.168.1.5", {}, True),
        ("myhost.lan", {}, True),
    ],
)
def test_an_open_server_logs_a_warning(
    host: str, keys: dict[str, str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """If it listens beyond this machine and requires no key."""
    compose.warn_if_open(ServerConfig(host=host, **keys))  # type: ignore[arg-type]
    assert ("ANYONE" in caplog.text) is warned


def test_a_missing_keys_file_stops_the_start_before_models_are_resolved(tmp_path: Path) -> None:
    """No model is downloaded for a server that cannot start."""
    config = Config(
        model=ModelConfig(models=("nobody/has-this",)), server=ServerConfig(api_keys_file=str(tmp_path / "absent"))
    )
    with pytest.raises(ConfigError, match="--api-keys-file"):
        compose.build(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(server=ServerConfig(redis_url="redis://host")), r"redis_url: redis is not installed; run .*\[redis\]"),
        (Config(engine=EngineConfig(shared_cache="redis://host")), r"shared_cache: redis is not .*\[redis\]"),
        (Config(server=ServerConfig(grpc_port=0)), r"grpc_port: grpc is not installed; run .*\[grpc\]"),
    ],
    ids=["limits", "cache", "grpc"],
)
def test_a_setting_without_its_library_stops_the_start(
    config: Config, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command that installs the extra."""
    monkeypatch.setattr(compose, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=message):
        compose.build(config)


@pytest.mark.parametrize("url", ["redis://:part#word@host", "redis://host:70000", "redis://host?db=x"])
def test_an_invalid_url_of_redis_stops_the_start(url: str) -> None:
    """The error does not quote it, because it may have a password."""
    with pytest.raises(ConfigError, match=r"^redis_url: expected a URL such as redis://host:6379/0$"):
        compose.build(Config(device=FAKE, server=ServerConfig(redis_url=url)))


def test_a_server_imitates_only_an_api_that_it_serves() -> None:
    """Else its /health and its log would disagree."""
    with pytest.raises(ConfigError, match=r"imitates: tei is not one of the --dialects"):
        compose.build(Config(device=FAKE, server=ServerConfig(dialects=("openai",), imitates="tei")))


# --- processes ------------------------------------------------------------------------------------------------


@contextmanager
def process(command: Sequence[str], cwd: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A server as a child process. stdout has the lines of both output streams."""
    whole = {name: text for name, text in os.environ.items() if not name.startswith("VECTORD_")} | environ
    with subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=whole,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as running:
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)  # workers of granian and gunicorn may outlive the main process


@contextmanager
def ready(url: str, running: subprocess.Popen[str]) -> Iterator[httpx.Client]:
    """A client of the server, once it is ready. Polls: other servers say nothing when they are."""
    with httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_ready(client):
            assert time.monotonic() < deadline_s, "it does not become ready"
            if running.poll() is not None:
                assert running.stdout
                raise AssertionError(running.stdout.read())
            time.sleep(0.02)  # leaves the processor to the server
        yield client


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/health/ready").status_code == 200
    except httpx.TransportError:
        return False


def embed(client: httpx.Client, **headers: str) -> httpx.Response:
    return client.post("/v1/embeddings", json={"input": "hello", "model": DEFAULT_MODEL}, headers=headers)


SERVERS = {
    "uvicorn": ["uvicorn", "vectord.asgi:app", "--http", "h11", "--port", "{port}"],
    "uvicorn without lifespan": [
        "uvicorn",
        "vectord.asgi:app",
        "--http",
        "h11",
        "--port",
        "{port}",
        "--lifespan",
        "off",
    ],
    "granian": ["granian", "vectord.asgi:app", "--interface", "asgi", "--port", "{port}"],
    "gunicorn": ["gunicorn", "vectord.asgi:app", "-k", "uvicorn.workers.UvicornWorker", "-b", "127.0.0.1:{port}"],
}


@pytest.mark.parametrize("server", SERVERS)
def test_other_servers_serve_the_same_app(server: str, tmp_path: Path) -> None:
    """The environment and the env file configure it: the model answers, and requests need a key."""
    (tmp_path / ".env").write_text("VECTORD_API_KEY=letmein\n")
    port = free_port()
    command = [word.format(port=port) for word in SERVERS[server]]
    environ = {"VECTORD_BACKEND": "fake", "VECTORD_ENV_FILE": ".env"}
    with process(command, tmp_path, **environ) as running, ready(f"http://127.0.0.1:{port}", running) as client:
        assert embed(client).status_code == 401
        answer = embed(client, authorization="Bearer letmein")
        assert (answer.status_code, answer.json()["data"][0]["object"]) == (200, "embedding")
        running.terminate()
        running.wait(DEADLINE_S)


@pytest.mark.parametrize("parser", ["h11", "httptools"])
def test_the_body_of_an_offered_upgrade_is_no_request(parser: str, tmp_path: Path) -> None:
    """Under both parsers of uvicorn: one response comes, and then the connection ends."""
    port = free_port()
    command = ["uvicorn", "vectord.asgi:app", "--http", parser, "--port", str(port)]
    smuggled = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(smuggled)
    with (
        process(command, tmp_path, VECTORD_BACKEND="fake") as running,
        ready(f"http://127.0.0.1:{port}", running),
        socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client,
    ):
        client.sendall(head)
        received = client.recv(65_536) if parser == "httptools" else b""  # h11 waits for the body
        client.sendall(smuggled)
        received += b"".join(iter(lambda: received_of(client), b""))
    assert received.count(b"HTTP/1.1 ") == 1
    assert received.startswith(b"HTTP/1.1 400 ")


def received_of(client: socket.socket) -> bytes:
    """The next bytes; none at the end. uvicorn may reset a connection whose body it has not read."""
    try:
        return client.recv(65_536)
    except ConnectionResetError:
        return b""


def test_a_bad_setting_under_another_server_is_one_line(tmp_path: Path) -> None:
    """uvicorn prints vectord's error without a traceback, and exits."""
    with process(
        ["uvicorn", "vectord.asgi:app", "--port", str(free_port())], tmp_path, VECTORD_BACKEND="nonsense"
    ) as running:
        output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode != 0
    assert "vectord: unknown backend 'nonsense'" in output
    assert "Traceback" not in output


def test_importing_the_asgi_module_does_nothing() -> None:
    """It reads no file and imports no large module."""
    script = "import sys, vectord.asgi; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"VECTORD_PORT": "x"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert {"vectord.compose", "starlette", "numpy", "openvino"}.isdisjoint(ended.stdout.split())


def test_the_settings_in_force_have_simple_inference_servers_names(caplog: pytest.LogCaptureFixture) -> None:
    """If the server imitates it: `runtime_config` and `warmup_ok` are its events."""
    limits = {"max_running_requests": 4, "max_concurrent_requests": 64, "max_client_batch_size": 32}
    engine = EngineConfig(**limits, queue_timeout_s=2.0)
    for imitates in ("simple_inference_server", None):
        with caplog.at_level(logging.INFO):
            compose._log_settings(Config(engine=engine, server=ServerConfig(imitates=imitates)))
            FACTS.info("warmup")
    assert [record.message for record in caplog.records] == ["runtime_config", "warmup_ok", "settings", "warmup"]
    first, second = (caplog.records[place].fields for place in (0, 2))  # type: ignore[attr-defined]
    assert [first[name] for name in ("max_concurrent", "max_queue_size", "queue_timeout_sec")] == [4, 64, 2.0]
    assert first["enable_batching"] is True
    assert (first["max_batch_size"], first["batch_max_size"]) == (32, 32)  # the second is the first unless it is set
    assert "max_concurrent" not in second


def test_the_start_logs_the_lines_that_scripts_of_other_servers_wait_for(tmp_path: Path) -> None:
    """The settings and the warm-up of each model, and the last line of text-embeddings-inference."""
    command = ["vectord", "serve", "--profile", "tei", "--host", "127.0.0.1", "--port", "0", "--backend", "fake"]
    with process([*command, DEFAULT_MODEL], tmp_path) as running:
        assert running.stdout
        lines = []
        for line in running.stdout:
            lines.append(line)
            if line.endswith(" Ready\n"):
                break
        running.terminate()
    text = "".join(lines)
    assert f"settings models={DEFAULT_MODEL} device=auto" in text
    assert f"warmup model={DEFAULT_MODEL}" in text
    assert f"vectord {__version__} serves {DEFAULT_MODEL} at http://127.0.0.1:" in lines[-2]
    assert "Server ready to accept requests" not in text


def test_a_quiet_server_still_says_where_it_is(tmp_path: Path) -> None:
    """--log-level warning leaves out requests, but not the start. The last line alone has the reasons of failures."""
    broken = minilm_folder(tmp_path / "broken")
    (broken / "tokenizer.json").write_text("{}")
    command = ["vectord", "serve", DEFAULT_MODEL, str(broken), "./missing", "--port", "0", "--log-level", "warning"]
    with process(command, tmp_path) as running:
        assert running.stdout
        lines = [running.stdout.readline()]
        while lines[-1] and " serves " not in lines[-1]:
            lines.append(running.stdout.readline())
        running.terminate()
    assert any("listening url=http://" in line for line in lines)
    assert f"serves {DEFAULT_MODEL} at http://" in lines[-1]
    assert re.search(r"; 1 of 3 models ready; broken failed: .*tokenizer", lines[-1])
    assert "; missing failed: model ./missing is not a folder" in lines[-1]
    assert "".join(lines).count("is not a folder") == 1


@pytest.mark.parametrize("option", ["--grpc-port", "--prometheus-port"])
def test_a_further_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path, option: str) -> None:
    """Before a model is read. The line names the option to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["vectord", "serve", "--port", "0", option, port, "--backend", "fake"]
        with process(command, tmp_path) as running:
            output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 2
    assert (
        f"Port {port} on 127.0.0.1 is in use; stop the program that listens there or set another with {option}."
        in output
    )
    assert "Traceback" not in output


def test_metrics_need_another_port_than_the_server(tmp_path: Path) -> None:
    """The same port for both is one line and exit code 2."""
    with process(["vectord", "serve", "--port", "8765", "--prometheus-port", "8765"], tmp_path) as running:
        output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 2
    assert "--prometheus-port 8765 is already the port of another service of this server." in output
    assert "Traceback" not in output


def test_the_server_exits_with_1_if_no_model_loads(tmp_path: Path) -> None:
    """The port opens, since all files exist. Then the load finds truncated weights."""
    folder = minilm_folder(tmp_path / "cut")
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    with process(["vectord", "serve", str(folder), "--port", "0", "--backend", "openvino"], tmp_path) as running:
        output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 1
    assert re.search(r"no model could be loaded: stopping; cut failed: .*model\.safetensors", output)
    assert "Traceback" not in output


async def test_a_stop_while_models_load_logs_the_failures_so_far(caplog: pytest.LogCaptureFixture) -> None:
    """The line after the last model, which has them otherwise, is not reached."""
    broken = SimpleNamespace(
        loaded=asyncio.Event(), readiness=lambda: {"a": "failed", "b": "loading"}, failure=lambda name: "no weights"
    )
    task = asyncio.create_task(compose._stop_if_start_failed(broken, SimpleNamespace(), Config()))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caplog.messages == ["a failed: no weights"]


def test_a_model_that_fails_to_load_does_not_stop_the_others(tmp_path: Path) -> None:
    """The server stays ready, and /health/ready reports the failed model."""
    folder = minilm_folder(tmp_path / "cut")
    os.truncate(folder / "model.safetensors", 1_000_000)
    command = ["vectord", "serve", DEFAULT_MODEL, str(folder), "--port", "0", "--backend", "openvino"]
    with process(command, tmp_path) as running, httpx.Client(base_url=address(running), timeout=DEADLINE_S) as client:
        assert running.stdout
        for line in running.stdout:
            if "; 1 of 2 models ready; cut failed: " in line:
                break
        assert embed(client).status_code == 200
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["models"]) == (200, {DEFAULT_MODEL: "ready", "cut": "failed"})


def test_a_model_that_fails_to_load_stops_the_start_if_all_are_required(tmp_path: Path) -> None:
    """Simple Inference Server's promise. /health is never 200 before the exit: here the first model is ready long
    before the second fails."""
    folder = minilm_folder(tmp_path / "cut")
    os.truncate(folder / "model.safetensors", 1_000_000)
    profile = ["--profile", "simple-inference-server", "--host", "127.0.0.1", "--backend", "openvino"]
    command = ["vectord", "serve", DEFAULT_MODEL, str(folder), "--port", "0", "--log-format", "text", *profile]
    with process(command, tmp_path) as running:
        url = address(running)
        statuses = set()
        deadline_s = time.monotonic() + DEADLINE_S
        with httpx.Client(base_url=url, timeout=DEADLINE_S) as client, suppress(httpx.TransportError):
            while time.monotonic() < deadline_s:
                statuses.add(client.get("/health").status_code)
                time.sleep(0.01)  # leaves the processor to the server
        output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 1
    assert "not every model could be loaded: stopping; cut failed: " in output
    assert 200 not in statuses


def address(running: subprocess.Popen[str]) -> str:
    assert running.stdout
    seen = []
    for line in running.stdout:
        seen.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError("".join(seen))


def test_sigterm_while_a_model_loads_exits_with_0(tmp_path: Path) -> None:
    """The loading thread is in native code then, and must not crash the process."""
    with process(["vectord", "serve", "--port", "0", "--backend", "openvino"], tmp_path) as running:
        address(running)
        running.terminate()
        assert running.wait(DEADLINE_S) == 0
