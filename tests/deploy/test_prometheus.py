"""A real Prometheus scrapes a real server and evaluates every expression in deploy/.

Rules and alerts have unit tests of their own in rules.test.yml, which promtool runs.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from tests.deploy.asked import PROMETHEUS, drawn, rules
from tests.deploy.real_prometheus import Prometheus, prometheus_at
from tests.keys import entry, keys_file
from tests.ports import free_port
from tests.real_server import running

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
KEY, METRICS_KEY = "x" * 40, "m" * 40

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="there is no Prometheus: `python -m tests.programs` fetches it",
)

# The expressions of Smart Embedder's README and panels.
SMART_EMBEDDER = {
    "throughput": "rate(embedding_requests_total[1m])",
    "p95": "histogram_quantile(0.95, rate(embedding_request_duration_seconds_bucket[5m]))",
    "errors": 'rate(embedding_requests_total{status="error"}[5m]) / rate(embedding_requests_total[5m]) * 100',
    "allocated": "gpu_memory_allocated_bytes / 1024 / 1024 / 1024",
    "reserved": "gpu_memory_reserved_bytes / 1024 / 1024 / 1024",
    "free": "gpu_memory_free_bytes / 1024 / 1024 / 1024",
    "pairs": "rate(rerank_pairs_processed_total[1m])",
    "p50": "histogram_quantile(0.50, rate(embedding_request_duration_seconds_bucket[5m]))",
    "p99": "histogram_quantile(0.99, rate(embedding_request_duration_seconds_bucket[5m]))",
    "queue": "embedding_queue_size",
    "reranks": "rate(rerank_requests_total[1m])",
    "batches": "rate(embedding_batch_size_bucket[5m])",  # the README has embedding_batch_size, which is not a series
}

RECORDED, ALERTS, DRAWN = rules("rules.yml", "record"), rules("alerts.yml", "alert"), drawn()


# --- static checks --------------------------------------------------------------------------------------------


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", PROMETHEUS / "prometheus.yml"), ("test", "rules", Path(__file__).with_name("rules.test.yml"))],
    ids=["the files", "their unit tests"],
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    """The configuration and the rules are valid, and alerts fire exactly when they should."""
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_unit_test() -> None:
    """rules.test.yml contains its name."""
    tests = yaml.safe_load(Path(__file__).with_name("rules.test.yml").read_text("utf-8"))["tests"]
    fired = {case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case.get("exp_alerts")}
    assert fired == set(ALERTS)
    expressions = " ".join(case["expr"] for test in tests for case in test.get("promql_expr_test", ()))
    untested = {name for name in RECORDED if name not in expressions} - {"instance:vectord_queue_wait_seconds:p99_5m"}
    assert not untested  # except VectordQueueWait


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_instructions(alert: str) -> None:
    """Each has a severity, a summary, and a description with the cause and the action."""
    assert ALERTS[alert]["labels"]["severity"] in ("page", "ticket")
    assert set(ALERTS[alert]["annotations"]) == {"summary", "description"}
    assert ALERTS[alert]["annotations"]["description"].count(". ") >= 1


# --- a scraped server -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The configuration of deploy/, with another address and interval, after requests of all kinds."""
    folder = tmp_path_factory.mktemp("prometheus")
    options = (
        "--api-keys-file",
        keys_file(folder, entry("search", KEY)),
        "--metrics-key",
        METRICS_KEY,
    )  # with it, metrics name the keys
    with running(folder / "server.log", MODEL, "--imitates", "smart_embedder", *options) as (url, _):
        config = configured_for(url, folder)
        with prometheus_at(free_port(), config, folder) as started:
            started.wait_for(lambda: started.ask('up{job="vectord"} == 1'))
            for times in (1, 2):  # a rate needs growth
                send_requests(url)
                last = f'vectord_requests_total{{route="", status="404"}} == {times}'
                started.wait_for(partial(started.ask, last))
            started.wait_for(lambda: started.ask("instance:vectord_requests:rate5m > 0"))
            yield started


def configured_for(url: str, folder: Path) -> Path:
    for name in ("rules.yml", "alerts.yml"):
        shutil.copy(PROMETHEUS / name, folder)
    config = (PROMETHEUS / "prometheus.yml").read_text("utf-8")
    assert config.count("localhost:8000") == 1 and config.count("_interval: 15s") == 2
    config = config.replace("localhost:8000", url.removeprefix("http://")).replace("_interval: 15s", "_interval: 1s")
    path = "    metrics_path: /metrics\n"
    assert path in config
    config = config.replace(path, f"{path}    authorization: {{credentials: {METRICS_KEY}}}\n")
    written = folder / "prometheus.yml"
    written.write_text(config)
    return written


def send_requests(url: str) -> None:
    """Embeddings, a repeated text, a ranking, an unknown model, a wrong key, and an unknown path."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        for text in ("a", "a", "That is a happy person"):
            assert client.post("/v1/embeddings", json={"model": MODEL, "input": [text]}).status_code == 200
        assert client.post("/rerank", json={"query": "a", "texts": ["b", "c"]}).status_code == 200
        assert client.post("/v1/embeddings", json={"model": "none", "input": "a"}).status_code == 404
        assert client.post("/embed", json={"inputs": "a"}, headers={"authorization": "Bearer no"}).status_code == 401
        assert client.get("/nowhere").status_code == 404


@needs_prometheus
def test_promtool_accepts_the_metrics(prometheus: Prometheus) -> None:
    """It criticizes no name."""
    (target,) = prometheus.ask('up{job="vectord"}')
    headers = {"authorization": f"Bearer {METRICS_KEY}"}
    page = httpx.get(f"http://{target['metric']['instance']}/metrics", headers=headers).text
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_prometheus
@pytest.mark.parametrize("name", SMART_EMBEDDER)
def test_smart_embedder_expressions_have_values(prometheus: Prometheus, name: str) -> None:
    """An existing dashboard for it finds its series."""
    prometheus.wait_for_numbers(SMART_EMBEDDER[name])


@needs_prometheus
def test_smart_embedder_throughput_counts_requests(prometheus: Prometheus) -> None:
    """By endpoint and status, with values above 0."""
    grown = prometheus.ask("increase(embedding_requests_total[5m]) > 0")
    assert {one["metric"]["status"] for one in grown} == {"success", "error"}


@needs_prometheus
@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_rule_records(prometheus: Prometheus, name: str) -> None:
    """It records numbers for the scraped server."""
    assert {one["metric"]["job"] for one in prometheus.wait_for_numbers(name)} == {"vectord"}


@needs_prometheus
@pytest.mark.parametrize("name", DRAWN)
def test_a_panel_has_data(prometheus: Prometheus, name: str) -> None:
    """Every expression returns numbers, except those for a shared cache and for recent starts."""
    assert "$" not in DRAWN[name]
    found = prometheus.ask(DRAWN[name])
    if name == "Starts":
        assert found == []
    elif name == "Cache hits B":
        assert {one["value"][1] for one in found} == {"NaN"}
    else:
        prometheus.wait_for_numbers(DRAWN[name])


@needs_prometheus
def test_the_rules_leave_out_probes_and_unknown_paths(prometheus: Prometheus) -> None:
    """Prometheus's scrapes and the unknown path are excluded."""
    prometheus.wait_for_numbers('vectord_requests_total{dialect="server", route="/metrics"} > 0')
    (rate,) = prometheus.wait_for_numbers("instance:vectord_requests:rate5m")
    (with_own,) = prometheus.ask("sum(rate(vectord_requests_total[5m]))")
    assert 0 < float(rate["value"][1]) < float(with_own["value"][1])


@needs_prometheus
def test_no_alert_fires_for_a_healthy_server(prometheus: Prometheus) -> None:
    """All alerts are loaded without errors, and none fires."""
    groups = httpx.get(f"{prometheus.url}/api/v1/rules").json()["data"]["groups"]
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(loaded) == set(RECORDED) | set(ALERTS)
    assert {name: rule["lastError"] for name, rule in loaded.items() if rule.get("lastError")} == {}
    assert prometheus.ask('ALERTS{alertstate="firing"}') == []
