"""The real server with failing parts: files, disk, clock, a hanging forward pass, and the whole process.

The hanging model is a custom class (docs/own-models.md) in a module that the test writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.opening import minilm_folder
from tests.real_server import running, wait_for
from tests.server.live import Reply, ask, live, post, until

from vectord import compose
from vectord.config import DEFAULT_MODEL, Config, DeviceConfig, EngineConfig
from vectord.products.common.dialect import load_dialects

HANGING = """
import threading
import numpy as np

class Hanging:
    def __init__(self, folder, device):
        self._calls = 0

    def embed(self, texts):
        if any(len(ids) > 40 for ids in texts):
            threading.Event().wait()
        return np.ones((len(texts), 384), np.float32)
"""
HANGS = "word " * 50


def embed(url: str, text: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/embeddings", json={"input": text, **fields}, timeout=60)


# --- files and disk ---------------------------------------------------------------------------------------------


def test_a_removed_model_folder_changes_nothing_after_loading(tmp_path: Path) -> None:
    """All required data is in memory or in open files."""
    folder = minilm_folder(tmp_path / "mine")
    with running(tmp_path / "log", str(folder), "--cache-bytes", "0") as (url, _):
        before = embed(url, "hello").json()["data"]
        shutil.rmtree(folder)
        assert embed(url, "hello").json()["data"] == before
        assert embed(url, "a longer text that is not in the cache " * 20).status_code == 200
        assert httpx.get(f"{url}/health/ready").status_code == 200


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a full disk of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("only root can mount a disk that is full")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> None:
    with pytest.raises(OSError, match="No space"), (disk / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))


def test_a_full_disk_changes_no_answer(full_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log and temporary files cannot be written."""
    monkeypatch.setenv("TMPDIR", str(full_disk))
    with running(full_disk / "log") as (url, _):
        before = embed(url, "hello").json()["data"]
        fill(full_disk)
        for number in range(50):
            assert embed(url, f"text {number}").status_code == 200
        assert embed(url, "").status_code == 200  # may be rejected, which is an answer too
        assert embed(url, "hello").json()["data"] == before
        assert httpx.get(f"{url}/metrics").status_code == 200
        assert httpx.get(f"{url}/health/ready").status_code == 200


# --- clocks -----------------------------------------------------------------------------------------------------


# Permitted uses of the wall clock: dates that are shown, and the age of stored files and batches. Everything else uses
# time.monotonic, time.perf_counter or the event loop's clock.
@pytest.mark.parametrize("jump_s", [-10 * 365 * 86_400, 10 * 365 * 86_400], ids=["back", "ahead"])
async def test_a_clock_that_jumps_changes_no_answer(jump_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump of ten years during a request changes no deadline, cache entry, idle time or rate limit."""
    settings = EngineConfig(batch_window_ms=100.0, forward_timeout_s=60.0, request_timeout_s=60.0, model_idle_s=60.0)
    engine = compose.build(Config(device=DeviceConfig(backend="fake"), engine=settings)).engine
    await engine.start()
    await engine.loaded.wait()
    openai = load_dialects(("openai",))
    async with live(engine, openai, rate_limit_requests_per_minute=1, rate_limit_burst_size=3) as server:

        async def answer(text: str) -> Reply:
            return await ask(server, post({"input": text}, "/v1/embeddings", {"x-vectord-timeout-ms": "60000"}))

        before = await answer("hello")
        waiting = asyncio.create_task(answer("waiting"))
        await until(lambda: sum(engine.gauges().queued_tokens.values()) > 0)
        real_s = time.time
        monkeypatch.setattr(time, "time", lambda: real_s() + jump_s)
        monkeypatch.setattr(time, "time_ns", lambda: int((real_s() + jump_s) * 1e9))
        assert (await waiting).status == 200
        assert (await answer("hello")).json["data"] == before.json["data"]
        assert (await answer("hello")).status == 429
        assert engine.gauges().cached_texts == 2
        assert set(engine.readiness().values()) == {"ready"}
    await engine.close()


# --- a forward that hangs ---------------------------------------------------------------------------------------


@contextmanager
def hanging(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str, others: Sequence[str] = (DEFAULT_MODEL,)
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`others`, and the model `hanging`, which never returns for texts of more than 40 tokens."""
    (folder / "slow_class.py").write_text(HANGING)
    model = minilm_folder(folder / "model")
    catalogue = {"models": [{"name": "hanging", "hf_repo_id": str(model), "handler": "slow_class.Hanging"}]}
    (folder / "catalogue.yaml").write_text(json.dumps(catalogue))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    catalogue_option = ("--model-catalogue", str(folder / "catalogue.yaml"))
    with running(folder / "log", *others, "hanging", *catalogue_option, *options) as (url, process):
        yield url, process


def test_a_hanging_forward_pass_is_answered_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The response is 504. The model stays stalled, because a custom class is called by one thread at a time and
    that thread never returns. The other model continues, so the server stays ready."""
    with hanging(tmp_path, monkeypatch, "--forward-timeout-s", "1") as (url, _):
        assert embed(url, "short", model="hanging").status_code == 200
        hung = embed(url, HANGS, model="hanging")
        assert hung.status_code == 504
        assert "did not answer within 1 s" in hung.json()["error"]["message"]
        ready = httpx.get(f"{url}/health/ready")
        assert (ready.status_code, ready.json()["models"]["hanging"]) == (200, "stalled")
        assert embed(url, "still here", model=DEFAULT_MODEL).status_code == 200


def test_a_server_whose_only_model_hangs_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readiness fails, so that an orchestrator starts another server; liveness succeeds."""
    with hanging(tmp_path, monkeypatch, "--forward-timeout-s", "1", others=()) as (url, _):
        assert embed(url, HANGS, model="hanging").status_code == 504
        assert httpx.get(f"{url}/health/ready").status_code == 503
        assert httpx.get(f"{url}/health/live").status_code == 200


async def test_sigterm_during_a_hanging_forward_exits_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hanging request receives 503 after the drain time, and the process exits normally (real_server)."""
    with hanging(tmp_path, monkeypatch, "--shutdown-timeout-secs", "1") as (url, process):
        async with httpx.AsyncClient(timeout=60) as client:
            asking = asyncio.create_task(client.post(f"{url}/v1/embeddings", json={"input": HANGS, "model": "hanging"}))
            while "vectord_requests_under_way 1.0" not in (await client.get(f"{url}/metrics")).text:
                await asyncio.sleep(0.02)
            process.terminate()
            assert (await asking).status_code == 503
        assert await asyncio.to_thread(process.wait, 10) == 0


# --- the whole process ------------------------------------------------------------------------------------------


async def test_a_killed_server_frees_its_port(tmp_path: Path) -> None:
    """After kill -9 under load, every connection is closed, and a new server uses the port immediately."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    answered, ends = 0, 0

    async def ask_on(client: httpx.AsyncClient, number: int) -> None:
        nonlocal answered, ends
        try:
            while True:
                answer = await client.post("/v1/embeddings", json={"input": f"text {number} {answered}"})
                assert answer.status_code == 200
                answered += 1
        except httpx.TransportError:
            ends += 1

    with serving(tmp_path / "first", port) as process:
        await asyncio.to_thread(wait_for, lambda: is_ready(url), process)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            clients = [asyncio.create_task(ask_on(client, number)) for number in range(20)]
            async with asyncio.timeout(60):
                while answered < 50 and not any(one.done() for one in clients):
                    await asyncio.sleep(0.01)
                process.kill()
                await asyncio.gather(*clients)
    assert ends == 20
    with serving(tmp_path / "second", port) as process:
        await asyncio.to_thread(wait_for, lambda: is_ready(url), process)
        assert embed(url, "hello").status_code == 200


@contextmanager
def serving(log: Path, port: str) -> Iterator[subprocess.Popen[bytes]]:
    """A server for tests that kill it."""
    command = [sys.executable, "-m", "vectord", "serve", "--port", port, "--cache-bytes", "0"]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            yield process
        finally:
            process.kill()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False
