"""Smart Embedder's own live checks, in our words: its test_server.py, benchmark.py and figures, on a real server.

Score: 18 of 18 of its tests with a token (17 of 17 without), its benchmark's three scenarios, and its rule that the
rejections of /stats equal those of the metrics. The models are tiny and random, so that nothing is downloaded.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.real_server import running
from tests.reference.reference_models import write_bge_m3, write_bge_reranker

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "secret-token"
KEY = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the profile, with both models. Its rate is low, so that the speed of this machine does not matter."""
    folder = tmp_path_factory.mktemp("smart-embedder")
    embedder, reranker = write_bge_m3(folder / "bge-m3"), write_bge_reranker(folder / "bge-reranker-v2-m3")
    models = (f"--models={embedder}", f"--reranker-model={reranker}", "--api-token", TOKEN)
    models += ("--rate-limit-requests-per-minute", "60", "--rate-limit-burst-size", "300")
    models += ("--max-concurrent-reranks", "4")
    with running(folder / "log", "--profile", "smart-embedder", *models) as (url, _):
        yield url


def script(name: str, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / name), "--url", url, *words]
    environ = {**os.environ, "API_TOKEN": TOKEN}
    return subprocess.run(command, text=True, capture_output=True, check=False, timeout=300, env=environ)


def rejections(url: str) -> tuple[int, int]:
    """As /stats counts them, and as the metrics do; a wrong key is not counted by /stats."""
    page = httpx.get(f"{url}/metrics").text
    counts = re.findall(r'^(?:embedding|rerank)_requests_rejected_total{reason="(?!auth).*"} (\S+)', page, re.MULTILINE)
    return httpx.get(f"{url}/stats").json()["rejected_requests"], int(sum(map(float, counts)))


def test_its_benchmark_runs_its_three_scenarios(url: str) -> None:
    """In its table."""
    done = script("benchmark.py", url, "--scenarios", "all", "--requests", "4", "--concurrency", "2", "--warmup", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("embed_dense", "embed_full", "rerank", "Req/s", "Units/s", "P95"):
        assert word in done.stdout


@pytest.mark.parametrize("tokens", [300, 400_003])
def test_the_original_tokens_of_a_warning_are_exact(url: str, tokens: int) -> None:
    """In any length: the tokens are those of the words and two specials."""
    text = " ".join(["fox"] * tokens)
    each = httpx.post(
        f"{url}/embeddings/", json={"sentences": ["fox", "fox fox"], "return_colbert": False}, headers=KEY
    )
    assert each.json()["warnings"] == []
    reply = httpx.post(
        f"{url}/embeddings/", json={"sentences": [text], "return_colbert": False}, headers=KEY, timeout=60
    )
    (warning,) = reply.json()["warnings"]
    assert warning["details"]["original_tokens"] % tokens == 2
    reply = httpx.post(f"{url}/rerank", json={"query": "fox", "passages": [text]}, headers=KEY, timeout=60)
    (warning,) = reply.json()["warnings"]
    assert warning["details"]["original_tokens"] % tokens == 0


def test_its_tests_pass(url: str) -> None:
    """With its last line. It uses up the rate limit, so the tests that need answers come before it."""
    done = script("test_server.py", url, "--backpressure-requests", "40", "--refill-seconds", "0")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "18/18 tests passed"), done.stdout


def test_stats_and_metrics_count_the_same_rejections(url: str) -> None:
    """Those of the rate limit; afterwards no request is active or queued."""
    before = rejections(url)

    with httpx.Client(base_url=url, headers=KEY) as client, ThreadPoolExecutor(16) as pool:

        def send(number: int) -> int:
            if number % 2:
                return client.post("/rerank", json={"query": "q", "passages": ["p"]}).status_code
            return client.post("/embeddings/", json={"sentences": ["a"]}).status_code

        statuses = list(pool.map(send, range(600)))
    assert set(statuses) == {200, 429}
    after = rejections(url)
    assert after[0] - before[0] == after[1] - before[1] == statuses.count(429)
    page = httpx.get(f"{url}/metrics").text
    for gauge in ("embedding_queue_size", "embedding_active_requests", "rerank_active_requests"):
        assert f"\n{gauge} 0.0\n" in page
