"""`vectord serve` with a model on several devices: two copies on the CPU, with torch."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import numpy as np
from tests.real_server import running

from vectord import Embedder

TEXTS = [f"{word} {n}" for n in range(12) for word in ("a short text", "another one that is somewhat longer than that")]


def vectors(url: str, texts: list[str]) -> np.ndarray:
    body = httpx.post(f"{url}/v1/embeddings", json={"input": texts}, timeout=60).json()
    return np.array([one["embedding"] for one in body["data"]])


def test_two_devices_answer_as_one_and_share_the_work(tmp_path: Path) -> None:
    """Vectors are equal, tokens differ by at most a fifth, and health, model facts and metrics report both."""
    with Embedder(backend="torch", device="cpu") as one:
        want = one.embed(TEXTS)
    options = ("--backend", "torch", "--device", "cpu,cpu", "--cache-bytes", "0")
    with running(tmp_path / "log", *options) as (url, _):
        np.testing.assert_allclose(vectors(url, TEXTS), want, atol=1e-5)
        for text in TEXTS:
            vectors(url, [text])
        (model,) = httpx.get(f"{url}/vectord/models").json()["models"]
        metrics = httpx.get(f"{url}/metrics").text
    assert (model["device"], model["devices"]) == ("cpu", {"cpu/0": "ready", "cpu/1": "ready"})
    found = re.findall(r'vectord_device_tokens_total\{device="(cpu/[01])",model="[^"]+"\} (\S+)', metrics)
    tokens = {device: float(count) for device, count in found}
    assert set(tokens) == {"cpu/0", "cpu/1"}
    assert max(tokens.values()) - min(tokens.values()) < 0.2 * max(tokens.values())
    assert metrics.count("vectord_device_ready{") == 2
