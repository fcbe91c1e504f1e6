"""`python -m bench.ray_serve`, for `make bench-ray`: two replicas of Ray Serve compared with one plain server.

Both run on the same CPUs all the time, and their rounds alternate, so that each has the other's idle processes. Figures
are the best of the rounds. This benchmark is separate, since Ray has its own environment.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from bench.child import REPOSITORY
from bench.http_load import embedding_requests, run_load
from bench.machine import conditions
from bench.server_process import Server, free_port
from bench.subject import Subject, make_subject

TEXTS_PER_REQUEST = 16
CONNECTIONS = 8
START_S = 400.0
LEAST_SHARE = 0.9


def main() -> None:
    options = _options()
    about = conditions()
    with tempfile.TemporaryDirectory(prefix="vectord-bench-") as folder:
        subject = make_subject(REPOSITORY / ".venv/bin/vectord", "openvino", "auto", Path(folder))
        rates = measure(subject, options.rounds, options.texts, options.replicas)
    plain, ray = (max(found) for found in rates.values())
    share = round(ray / plain, 3)
    found = {"tokens_per_s": rates, "ray_of_plain": share, "target": LEAST_SHARE, "met": share >= LEAST_SHARE}
    print(json.dumps({**about, **found}, indent=2))


def measure(subject: Subject, rounds: int, texts: int, replicas: int) -> dict[str, list[float]]:
    """Tokens per second of each round."""
    requests = embedding_requests(subject.corpus.first(texts), TEXTS_PER_REQUEST)
    rates: dict[str, list[float]] = {"plain": [], "ray": []}
    with _start_ray(subject, replicas) as ray:
        ray.wait_until_answering(START_S)
        with subject.start_server() as plain:
            plain.wait_until_answering()
            for _ in range(rounds + 1):
                for name, server in (("plain", plain), ("ray", ray)):
                    rates[name].append(run_load(server.port, requests, CONNECTIONS).tokens_per_s)
    return {name: found[1:] for name, found in rates.items()}  # the first one compiles


def _start_ray(subject: Subject, replicas: int) -> Server:
    """Behind HAProxy on this node, as docs/scaling.md recommends."""
    os.environ |= {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    port = free_port()
    application = {
        "name": "vectord",
        "route_prefix": "/",
        "import_path": "vectord.cluster.ray:app",
        "args": {"cache_bytes": "0"},
        "deployments": [{"name": "vectord", "num_replicas": replicas, "ray_actor_options": {"num_cpus": 1}}],
    }
    config = subject.folder / "serve.yaml"  # JSON is YAML
    http = {"host": "127.0.0.1", "port": port}
    config.write_text(json.dumps({"proxy_location": "HeadOnly", "http_options": http, "applications": [application]}))
    return Server([str(REPOSITORY / ".venv-ray/bin/serve"), "run", str(config)], port, subject.folder / "ray.log")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.ray_serve")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--texts", type=int, default=1024)
    parser.add_argument("--replicas", type=int, default=2, help="of one processor each")
    return parser.parse_args()


if __name__ == "__main__":
    main()
