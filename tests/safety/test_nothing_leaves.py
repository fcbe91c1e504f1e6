"""A server without a reason to download anything sends no packet and resolves no name.

It runs in a network namespace with loopback and without routes: the kernel counts all packets without a route, also
those of Rust and C++ libraries. In addition, Python's audit hook names the code that sent them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.reference.reference_models import write_bge_m3, write_bge_reranker

from vectord.config import DEFAULT_MODEL

ROOT = Path(__file__).parents[2]
WALL = Path(__file__).parent / "wall"

# Runs inside the namespace: starts a server, uses everything that could contact a vendor, and stops it.
SERVES = """
import httpx, sys
from pathlib import Path
from tests.real_server import running
folder, *models = sys.argv[1:]
TEXTS = ["a bird sings", "a fish swims"]
# A proxy in the environment applies to external traffic only; there is none here.
with running(Path(folder) / "log", *models, "--admin-key", "operator") as (url, process), \\
        httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
    def ask(path, body=None, **options):
        answer = client.get(path, **options) if body is None else client.post(path, json=body, **options)
        assert answer.status_code == 200, (path, answer.text)
        return answer.text
    first = client.get("/v1/models").json()["data"][0]["id"]
    ask("/v1/embeddings", {"model": first, "input": TEXTS})
    ask("/embed", {"inputs": TEXTS, "truncate": True})
    if len(models) > 1:
        ask("/vectord/embed", {"model": "m3", "inputs": TEXTS, "outputs": ["dense", "sparse", "colbert"]})
        ask("/vectord/rerank", {"query": "birds", "passages": TEXTS})
    for page in ("/docs", "/docs/swagger-ui.css", "/docs/start.js", "/openapi.json", "/metrics", "/health/ready"):
        ask(page)
    # An image, a document and a URL in requests are rejected and never fetched.
    for path, body in (
        ("/embeddings_image", {"input": ["http://198.51.100.7/a.png"]}),
        ("/v1/embeddings", {"model": "http://198.51.100.7/model", "input": "a"}),
        ("/v1/embeddings", {"model": "../../etc/passwd", "input": "a"}),
        ("/v1/embeddings", {"model": "someone/else", "input": "a"}),
    ):
        assert client.post(path, json=body).status_code in (400, 404, 422), path
"""
CALLS_HOME = """
import socket
try:
    socket.create_connection(("198.51.100.7", 443), 1)
except OSError:
    pass
try:
    socket.getaddrinfo("telemetry.example.org", 443)
except OSError:
    pass
"""


def has_namespaces() -> bool:
    try:
        return subprocess.run(_walled("true"), check=False, capture_output=True, timeout=30).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _walled(*command: str) -> list[str]:
    """Runs as root of a separate user namespace unless already root."""
    return ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--", *command]


def run_walled(code: str, arguments: Sequence[str], log: Path) -> tuple[int, str]:
    """(blocked packets, external addresses that Python saw) of `code` in a namespace with only loopback."""
    inside = (
        "ip link set lo up && "
        f'{sys.executable} -c "$CODE" "$@" && awk \'/^Ip:/ {{ out = $12 + $13 }} END {{ print out }}\' /proc/net/snmp'
    )
    environment = {**os.environ, "CODE": code, "PYTHONPATH": f"{WALL}:{ROOT / 'src'}:{ROOT}", "WALL_LOG": str(log)}
    # A user's environment, without variables that disable telemetry.
    for name in ("DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        environment.pop(name, None)
    log.touch()
    ran = subprocess.run(
        _walled("sh", "-c", inside, "sh", *arguments),
        check=False,
        env=environment,
        cwd=log.parent,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return int(ran.stdout.split()[-1]), log.read_text()


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="no network namespaces here")


@needs_namespaces
def test_the_namespace_detects_external_traffic(tmp_path: Path) -> None:
    """Proves that the other tests can fail."""
    packets, seen = run_walled(CALLS_HOME, [], tmp_path / "seen")
    assert packets > 0
    assert "198.51.100.7" in seen
    assert "telemetry.example.org" in seen


@needs_namespaces
def test_the_default_server_contacts_no_host(tmp_path: Path) -> None:
    """Serving, embedding, pages, and URLs in requests cause no packet and no name lookup."""
    assert run_walled(SERVES, [str(tmp_path), DEFAULT_MODEL], tmp_path / "seen") == (0, "")


@needs_namespaces
def test_every_kind_of_model_contacts_no_host(tmp_path: Path) -> None:
    """Local folders with three kinds of embeddings and a reranker."""
    models = [str(write_bge_m3(tmp_path / "m3")), str(write_bge_reranker(tmp_path / "reranker"))]
    assert run_walled(SERVES, [str(tmp_path), *models], tmp_path / "seen") == (0, "")


@needs_namespaces
@pytest.mark.parametrize("backend", ["torch", "transformers"])
def test_other_backends_contact_no_host(backend: str, tmp_path: Path) -> None:
    """Both are checked because transformers queries the hub for unknown names."""
    code = SERVES.replace('"--admin-key", "operator"', f'"--backend", "{backend}"')
    assert run_walled(code, [str(tmp_path), DEFAULT_MODEL], tmp_path / "seen") == (0, "")
