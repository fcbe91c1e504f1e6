"""deploy/: a real Prometheus scrapes a real server, and every expression that is there gives what it is drawn for.

Rules and alerts have unit tests of their own in rules.test.yml, which promtool runs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
import yaml
from tests.deploy.asked import PROMETHEUS, ROOT, drawn, rules
from tests.deploy.real_prometheus import Prometheus, program, prometheus_at
from tests.real_postgres import free_port
from tests.real_server import running

OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
KEY = "x" * 40

needs_prometheus = pytest.mark.skipif(
    program("prometheus") is None or program("promtool") is None,
    reason="there is no Prometheus: `make test` fetches Debian's, where there is apt-get",
)

# Smart Embedder's README, as it has them, and what its panels draw.
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
    "batches": "rate(embedding_batch_size_bucket[5m])",  # it says embedding_batch_size, which has no series of its own
}

RECORDED, ALERTS, DRAWN = rules("rules.yml", "record"), rules("alerts.yml", "alert"), drawn()


# --- what can be read without a server ------------------------------------------------------------------------


@needs_prometheus
@pytest.mark.parametrize(
    "arguments",
    [("check", "config", PROMETHEUS / "prometheus.yml"), ("test", "rules", Path(__file__).with_name("rules.test.yml"))],
    ids=["the files", "their unit tests"],
)
def test_promtool_has_nothing_to_say(arguments: tuple[str, ...]) -> None:
    """The configuration and both rule files are right, and alerts fire when they should and only then."""
    command = program("promtool")
    assert command is not None
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_unit_test() -> None:
    """By its name in rules.test.yml."""
    tests = yaml.safe_load(Path(__file__).with_name("rules.test.yml").read_text("utf-8"))["tests"]
    fired = {case["alertname"] for test in tests for case in test.get("alert_rule_test", ()) if case.get("exp_alerts")}
    assert fired == set(ALERTS)
    expressions = " ".join(case["expr"] for test in tests for case in test.get("promql_expr_test", ()))
    untested = {name for name in RECORDED if name not in expressions} - {"instance:vectord_queue_wait_seconds:p99_5m"}
    assert not untested  # that one: VectordQueueWait


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_to_do(alert: str) -> None:
    """Each has a severity and a summary, and a row in docs/operations.md under its name."""
    assert ALERTS[alert]["labels"]["severity"] in ("page", "ticket")
    assert set(ALERTS[alert]["annotations"]) == {"summary", "description"}
    assert re.search(rf"^\| `{alert}` \|.+\|.+\|$", OPERATIONS, re.MULTILINE)


def test_operations_names_no_alert_that_is_not_there() -> None:
    """Nor one that was renamed."""
    assert set(re.findall(r"^\| `(Vectord\w+)` \|", OPERATIONS, re.MULTILINE)) == set(ALERTS)


# --- a server under a Prometheus's eyes -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """The configuration of deploy/, but for the address and the pace, once it has seen requests of all kinds."""
    folder = tmp_path_factory.mktemp("prometheus")
    keys = folder / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "search"\nsha256 = "{sha256(KEY.encode()).hexdigest()}"\n')
    with running(folder / "server.log", MODEL, "--api-keys-file", str(keys)) as (url, _):
        config = configured_for(url, folder)
        with prometheus_at(free_port(), config, folder) as started:
            started.wait_for(lambda: started.ask('up{job="vectord"} == 1'))
            for times in (1, 2):  # a rate is of what grew
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
    written = folder / "prometheus.yml"
    written.write_text(config)
    return written


def send_requests(url: str) -> None:
    """Vectors, twice the same ones, an order, a model that is not there, a wrong key, and a path that nobody serves."""
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=60) as client:
        for text in ("a", "a", "That is a happy person"):
            assert client.post("/v1/embeddings", json={"model": MODEL, "input": [text]}).status_code == 200
        assert client.post("/rerank", json={"query": "a", "texts": ["b", "c"]}).status_code == 200
        assert client.post("/v1/embeddings", json={"model": "none", "input": "a"}).status_code == 404
        assert client.post("/embed", json={"inputs": "a"}, headers={"authorization": "Bearer no"}).status_code == 401
        assert client.get("/nowhere").status_code == 404


@needs_prometheus
def test_the_page_is_right_by_prometheuss_own_checker(prometheus: Prometheus) -> None:
    """What it would have otherwise are names, and only those that other products chose: TEI's and one gauge's."""
    command = program("promtool")
    assert command is not None
    (target,) = prometheus.ask('up{job="vectord"}')
    page = httpx.get(f"http://{target['metric']['instance']}/metrics").text
    done = subprocess.run(
        [command, "check", "metrics"], input=page, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 3, done.stderr  # readable, and something would be named otherwise
    named = {line.split()[0] for line in (done.stdout + done.stderr).splitlines()}
    assert {name for name in named if not name.startswith("te_")} == {"models_loaded_total"}


@needs_prometheus
@pytest.mark.parametrize("name", SMART_EMBEDDER)
def test_smart_embedders_own_expressions_give_values(prometheus: Prometheus, name: str) -> None:
    """A dashboard that was built for it finds its series here, as they were."""
    prometheus.wait_for_numbers(SMART_EMBEDDER[name])


@needs_prometheus
def test_smart_embedders_throughput_is_of_what_was_asked(prometheus: Prometheus) -> None:
    """By endpoint, model and status, above 0 for both ends that its requests had."""
    grown = prometheus.ask("increase(embedding_requests_total[5m]) > 0")
    assert {one["metric"]["status"] for one in grown} == {"success", "error"}


@needs_prometheus
@pytest.mark.parametrize("name", RECORDED)
def test_a_recording_rule_records(prometheus: Prometheus, name: str) -> None:
    """Under its name, with numbers, of the server that is scraped."""
    assert {one["metric"]["job"] for one in prometheus.wait_for_numbers(name)} == {"vectord"}


@needs_prometheus
@pytest.mark.parametrize("name", DRAWN)
def test_a_panel_has_something_to_draw(prometheus: Prometheus, name: str) -> None:
    """Every expression gives numbers; without a shared cache there is no share of it, and nothing has just started."""
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
    """Prometheus's own scrapes are requests, too; /nowhere was asked for twice."""
    prometheus.wait_for_numbers('vectord_requests_total{dialect="server", route="/metrics"} > 0')
    (rate,) = prometheus.wait_for_numbers("instance:vectord_requests:rate5m")
    (with_own,) = prometheus.ask("sum(rate(vectord_requests_total[5m]))")
    assert 0 < float(rate["value"][1]) < float(with_own["value"][1])


@needs_prometheus
def test_no_alert_goes_off_for_a_healthy_server(prometheus: Prometheus) -> None:
    """All are loaded, none of them in error, and nothing fires."""
    groups = httpx.get(f"{prometheus.url}/api/v1/rules").json()["data"]["groups"]
    loaded = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert set(loaded) == set(RECORDED) | set(ALERTS)
    assert {name: rule["lastError"] for name, rule in loaded.items() if rule.get("lastError")} == {}
    assert prometheus.ask('ALERTS{alertstate="firing"}') == []
