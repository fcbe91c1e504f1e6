"""Renders the chart and the manifests with Helm's engine and validates them against Kubernetes' schemas."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.config.start import load
from tests.deploy.chart import CHART, LIBRARY, PLAIN, ROOT, Refused, lint, merged, notes, plain, render

from vectord.config import Config
from vectord.config.settings import SETTINGS

helm = pytest.mark.skipif(not LIBRARY.exists(), reason="Helm's library is not here (make .venv-dev/.installed)")
GPU = yaml.safe_load((CHART / "values-gpu.yaml").read_text())
ALL: dict[str, Any] = {
    "settings": {
        "redis_url": "redis://redis:6379/0",
        "otlp_endpoint": "http://collector:4317",
        "grpc_port": 50_051,
        "prometheus_port": 9100,
    },
    "secretSettings": {"api_key": "a-key: \"with' signs"},
    "existingSecret": "more",
    "apiKeysSecret": "keys",
    "persistence": {"enabled": True, "storageClassName": "fast"},
    "autoscaling": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "networkPolicy": {"from": [{"podSelector": {}}], "redis": {"to": [{"podSelector": {}}]}},
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"a": "b"},
    "nodeSelector": {"a": "b"},
    "affinity": {"podAntiAffinity": {}},
    "runtimeClassName": "nvidia",
    "tlsSecret": "certificate",
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "ingress": {"enabled": True, "className": "nginx", "annotations": {"a": "b"}, "tls": [{"secretName": "t"}]},
    "serviceAccount": {"create": True, "annotations": {"a": "b"}},
    "extraEnv": [{"name": "SSL_CERT_DIR", "value": "/certificates"}],
    "extraVolumes": [{"name": "more", "configMap": {"name": "more"}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/certificates"}],
}


def one(values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [thing for thing in render(values) if thing["kind"] == kind]
    return found


def fields_of(config: Config) -> Iterator[Any]:
    """The sections."""
    return (getattr(config, section.name) for section in fields(config))


def pod(values: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = one(values, "Deployment")["spec"]["template"]["spec"]
    return spec


@helm
def test_helm_accepts_the_chart() -> None:
    """Helm's lint reports nothing above level 1 (no icon)."""
    answer, _ = lint(CHART)
    assert [message for message in answer["Messages"] or () if message["Severity"] > 1] == []


@helm
@pytest.mark.parametrize("values", [{}, GPU, ALL], ids=["as it is", "GPU", "all of it"])
@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_objects_fit_kubernetes(values: Mapping[str, Any], version: str) -> None:
    """Strict schemas of the oldest and the newest supported version."""
    made = [thing for thing in render(values) if thing["kind"] != "ServiceMonitor"]
    assert len(made) >= 4
    for thing in made:
        kubernetes_validate.validate(thing, version, strict=True)


@helm
def test_the_plain_manifests_match_the_chart() -> None:
    """`python -m tests.deploy.chart` regenerates them."""
    assert list(yaml.safe_load_all(PLAIN.read_text())) == plain()


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
@pytest.mark.parametrize("overlay", ["base", "gpu"])
def test_kustomize_builds_the_manifests(overlay: str) -> None:
    """The result satisfies Kubernetes' schemas."""
    command = ["kubectl", "kustomize", str(ROOT / "deploy/kubernetes" / overlay)]
    built = list(yaml.safe_load_all(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout))
    for thing in built:
        kubernetes_validate.validate(thing, "1.30", strict=True)
    (deployment,) = [thing for thing in built if thing["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == {"base": "vectord:cpu", "gpu": "vectord:gpu"}[overlay]
    assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (overlay == "gpu")


@helm
def test_settings_become_known_variables() -> None:
    """Each name in `settings` is a setting, and each variable is one of its names."""
    known = {setting.name for setting in SETTINGS} | {"hf_home"}
    for values in ({}, GPU, ALL):
        said = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
        assert {*said["settings"], *said["secretSettings"]} <= known
    names = {name for setting in SETTINGS for name in setting.env}
    (container,) = pod(ALL)["containers"]
    assert {entry["name"] for entry in container["env"]} - {"SSL_CERT_DIR"} <= names


def as_in_a_container(value: str) -> str:
    """Kubernetes replaces $(NAME), here by nothing, and $$ by $."""
    return re.sub(r"\$\$|\$\(\w+\)", lambda found: "$" if found[0] == "$$" else "", value)


@helm
def test_values_reach_vectord_unchanged(tmp_path: Path) -> None:
    """Large integers, fractions, lists, and texts that Kubernetes would change."""
    given: dict[str, Any] = {
        "payload_limit": 33_554_432,
        "model_memory_bytes": 1_099_511_627_776,
        "batch_window_ms": 0.25,
        "models": ["BAAI/bge-m3", "BAAI/bge-reranker-v2-m3"],
        "auto_truncate": False,
        "default_prompt": "$(HOME) costs $$5: ",
        "revision": None,
        "port": 9000,
    }
    (container,) = pod({"settings": given})["containers"]
    environ = {entry["name"]: as_in_a_container(entry["value"]) for entry in container["env"]}
    config = load([], environ, tmp_path).config
    read = {name: getattr(section, name) for section in fields_of(config) for name in given if hasattr(section, name)}
    assert read == given | {"models": tuple(given["models"])}
    assert "VECTORD_REVISION" not in environ


@helm
def test_a_profile_keeps_the_port_of_the_chart(tmp_path: Path) -> None:
    """Its other settings apply."""
    (container,) = pod({"settings": {"profile": "tei"}})["containers"]
    loaded = load([], {entry["name"]: entry["value"] for entry in container["env"]}, tmp_path)
    assert (loaded.profile, loaded.config.server.port) == ("tei", container["ports"][0]["containerPort"])
    assert loaded.config.engine.max_client_batch_size == 32


@helm
@pytest.mark.parametrize("tls", [False, True])
def test_ports_and_tls_reach_probes_service_and_policy(tls: bool) -> None:
    """The port of the settings, gRPC's and the metrics' own."""
    values: dict[str, Any] = {"settings": {"port": 9000, "grpc_port": 50_051, "prometheus_port": 9100}}
    values |= {"tlsSecret": "certificate"} if tls else {}
    (container,) = pod(values)["containers"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
        "http": 9000,
        "grpc": 50_051,
        "metrics": 9100,
    }
    environ = {entry["name"]: entry["value"] for entry in container["env"]}
    assert (environ["VECTORD_PORT"], len(environ)) == ("9000", len(container["env"]))
    assert environ.get("VECTORD_TLS_CERT_FILE") == ("/etc/vectord/tls/tls.crt" if tls else None)
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {(probe["port"], probe["scheme"]) for probe in probes} == {("http", "HTTPS" if tls else "HTTP")}
    service = one(values, "Service")["spec"]["ports"]
    assert [(port["name"], port["port"], port["targetPort"]) for port in service] == [
        ("http", 8000, "http"),
        ("grpc", 50_051, "grpc"),
        ("metrics", 9100, "metrics"),
    ]
    allowed = one(values, "NetworkPolicy")["spec"]["ingress"][0]["ports"]
    assert [port["port"] for port in allowed] == ["http", "grpc", "metrics"]


@helm
def test_prometheus_scrapes_the_port_of_the_metrics() -> None:
    """Over TLS if the server's port has both, and with the key that it needs."""
    enabled = {"serviceMonitor": {"enabled": True}}
    (own,) = one(enabled | {"settings": {"prometheus_port": 9100}}, "ServiceMonitor")["spec"]["endpoints"]
    (keyed,) = one(enabled | {"secretSettings": {"metrics_key": "k"}}, "ServiceMonitor")["spec"]["endpoints"]
    (shared,) = one(enabled | {"tlsSecret": "certificate"}, "ServiceMonitor")["spec"]["endpoints"]
    assert (own["port"], own.get("scheme"), own.get("authorization")) == ("metrics", None, None)
    assert keyed["authorization"]["credentials"] == {"name": "vectord", "key": "VECTORD_METRICS_KEY"}
    assert (shared["port"], shared["scheme"]) == ("http", "https")


@helm
def test_an_ingress_leads_to_the_port() -> None:
    """Each host, below the prefix of the settings."""
    values = {"ingress": {"enabled": True, "hosts": ["a.example", "b.example"]}, "settings": {"url_prefix": "/api"}}
    rules = one(values, "Ingress")["spec"]["rules"]
    assert [rule["host"] for rule in rules] == ["a.example", "b.example"]
    (path,) = rules[0]["http"]["paths"]
    assert (path["path"], path["backend"]["service"]) == ("/api", {"name": "vectord", "port": {"name": "http"}})


@helm
def test_a_service_account_gets_no_token() -> None:
    """The pod uses it; another account can be named instead."""
    created = {"serviceAccount": {"create": True}}
    account = one(created, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert pod(created)["serviceAccountName"] == account["metadata"]["name"] == "vectord"
    assert pod({"serviceAccount": {"name": "mine"}})["serviceAccountName"] == "mine"
    assert pod({})["serviceAccountName"] == "default"


@helm
def test_keda_scales_by_saturation() -> None:
    """Its query has the metric of this release's pods; the Deployment leaves the replicas to KEDA."""
    values = {"keda": {"enabled": True, "targetSaturation": 0.5}}
    spec = one(values, "ScaledObject")["spec"]
    (trigger,) = spec["triggers"]
    assert spec["scaleTargetRef"]["name"] == one(values, "Deployment")["metadata"]["name"]
    assert re.search(
        r'vectord_saturation\{namespace="\w*",pod=~"vectord-\[a-z0-9\]\+-\[a-z0-9\]\+"', trigger["metadata"]["query"]
    )
    assert (trigger["metadata"]["threshold"], trigger["metricType"]) == ("0.5", "AverageValue")
    assert "replicas" not in one(values, "Deployment")["spec"]
    assert [thing for thing in render(values) if thing["kind"] == "HorizontalPodAutoscaler"] == []


@helm
@pytest.mark.parametrize(
    "values",
    [
        {"settings": {"prot": 9000}},
        {"settings": {"profile": "te1"}},
        {"settings": {"models": {"a": "b"}}},
        {"settings": {"batch_sizes": [33_554_432]}},
        {"settings": {"port": 0}},
        {"settings": {"port": "http"}},
        {"settings": {"port": "99999"}},
        {"settings": {"batch_window_ms": ""}},
        {"settings": {"grpc_port": 70_000}},
        {"settings": {"model_memory_bytes": 1e20}},
        {"settings": {"shutdown_timeout_secs": "60s"}},
        {"settings": {"tls_enabled": "no"}},
        {"settings": {"revision": 12e4}},
        {"secretSettings": {"api_key": 12_345_678_901_234_567}},
        {"settings": None},
        {"podAnnotations": {"a": True}},
        {"service": {"annotations": {"a": 1}}},
        {"extraEnv": [{"name": "A", "value": 1}]},
        {"extraEnv": ["A=B"]},
        {"ingress": {"enabled": True, "hosts": []}},
        {"replica": 2},
        {"service": {"type": "NodePorts"}},
        {"replicas": "two"},
    ],
    ids=str,
)
def test_the_schema_refuses_a_bad_value(values: Mapping[str, Any]) -> None:
    """Before anything is installed: a misspelt name, a wrong type or range, and a text that YAML has changed."""
    with pytest.raises(Refused, match=r"values\.yaml"):
        render(values)


@helm
def test_large_numbers_of_the_chart_survive() -> None:
    """Helm would write 2e+06."""
    assert one({"replicas": 2_000_000}, "Deployment")["spec"]["replicas"] == 2_000_000
    values = {"autoscaling": {"enabled": True, "maxReplicas": 2_000_000, "targetSaturation": 0.7}}
    spec = one(values, "HorizontalPodAutoscaler")["spec"]
    assert (spec["maxReplicas"], spec["metrics"][0]["pods"]["target"]["averageValue"]) == (2_000_000, "0.7")


@helm
def test_a_text_that_looks_like_another_type_stays_a_text() -> None:
    """A Secret called 123, and a storage class called true."""
    values = {"tlsSecret": "123", "existingSecret": "123", "persistence": {"enabled": True, "storageClassName": "true"}}
    spec = pod(values)
    assert spec["containers"][0]["envFrom"] == [{"secretRef": {"name": "123"}}]
    assert {"name": "tls", "secret": {"secretName": "123"}} in spec["volumes"]
    assert one(values, "PersistentVolumeClaim")["spec"]["storageClassName"] == "true"


@helm
def test_values_that_kubernetes_would_refuse_are_left_out() -> None:
    """A pause of 0 seconds, and the default's rollingUpdate next to Recreate."""
    assert "lifecycle" not in pod({"preStopSeconds": 0})["containers"][0]
    assert one({"strategy": {"type": "Recreate"}}, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}


@helm
def test_secrets_stay_out_of_the_deployment() -> None:
    """Their values are in a Secret; the Deployment contains only references."""
    assert one(ALL, "Secret")["stringData"] == {"VECTORD_API_KEY": ALL["secretSettings"]["api_key"]}
    assert "a-key" not in yaml.safe_dump(one(ALL, "Deployment"))
    (container,) = pod(ALL)["containers"]
    assert [source["secretRef"]["name"] for source in container["envFrom"]] == ["vectord", "more"]


@helm
def test_the_pod_is_restricted() -> None:
    """It satisfies the restricted Pod Security Standard, with a read-only file system and no token."""
    spec = pod({})
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@helm
def test_the_contexts_of_security_are_values() -> None:
    """OpenShift chooses the user itself."""
    spec = pod({"podSecurityContext": {"runAsUser": None}, "securityContext": {"privileged": False}})
    assert "runAsUser" not in {name for name, value in spec["securityContext"].items() if value is not None}
    assert spec["containers"][0]["securityContext"]["privileged"] is False


@helm
@pytest.mark.parametrize(
    ("values", "name", "label"),
    [
        ({}, "vectord", "vectord"),
        ({"nameOverride": "search"}, "vectord-search", "search"),
        ({"fullnameOverride": "embedder"}, "embedder", "vectord"),
    ],
)
def test_the_names_can_be_overridden(values: Mapping[str, Any], name: str, label: str) -> None:
    """In all objects; the Service selects the pods, and not the pod of `helm test`."""
    made = render({**ALL, "serviceAccount": {"create": True}, **values})
    assert {thing["metadata"]["name"].removesuffix("-models").removesuffix("-test") for thing in made} == {name}
    (service,) = (thing for thing in made if thing["kind"] == "Service")
    (deployment,) = (thing for thing in made if thing["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == label
    assert service["spec"]["selector"].items() <= labels.items()
    (test,) = (thing for thing in made if thing["kind"] == "Pod")
    assert "labels" not in test["metadata"]
    assert f"--host={name}" in test["spec"]["containers"][0]["args"]


@helm
def test_the_notes_have_the_address_and_warn_of_an_open_server() -> None:
    assert "at http://vectord." in notes({})
    assert "there is no key" in notes({})
    assert "at https://vectord." in notes(ALL)
    assert "there is no key" not in notes(ALL)


@helm
@pytest.mark.parametrize(("timeout_s", "want"), [(None, 45), (120, 135), (60.0, 75)])
def test_the_grace_period_is_longer_than_the_drain(timeout_s: object, want: int) -> None:
    """It is the pause before SIGTERM plus shutdown_timeout_secs plus ten seconds."""
    values = {} if timeout_s is None else {"settings": {"shutdown_timeout_secs": timeout_s}}
    assert pod(values)["terminationGracePeriodSeconds"] == want


@helm
def test_a_slow_start_is_not_killed() -> None:
    """The start-up probe waits; the other probes start after it."""
    (container,) = pod({"startupPatienceSeconds": 1800})["containers"]
    start, live, ready = (container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness"))
    assert start["periodSeconds"] * start["failureThreshold"] == 1800
    assert [probe["httpGet"]["path"] for probe in (start, live, ready)] == [
        "/health/ready",
        "/health/live",
        "/health/ready",
    ]


@helm
@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, []),
        ({"redis_url": "redis://r/0"}, [53, 53, 6379]),
        ({"shared_cache": "redis://r/0"}, [53, 53, 6379]),
        ({"otlp_endpoint": "http://c:4317"}, [53, 53, 4317, 4318]),
        ({"offline": False}, [53, 53, 443]),
    ],
    ids=["nothing", "limits", "cache", "traces", "hub"],
)
def test_the_network_policy_allows_only_configured_services(settings: Mapping[str, Any], ports: list[int]) -> None:
    """Ingress to the port; no egress until a setting needs it, then also DNS."""
    policy = one({"settings": settings}, "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [{"ports": [{"protocol": "TCP", "port": "http"}]}]
    assert [port["port"] for rule in policy["egress"] for port in rule["ports"]] == ports


@helm
def test_a_redis_url_in_a_secret_allows_egress() -> None:
    """A redis_url with a password is a secret. That of an existing Secret is not known, and has a rule of its own."""
    policy = one({"secretSettings": {"redis_url": "redis://:p@r/0"}}, "NetworkPolicy")["spec"]
    redis = {"ports": [{"protocol": "TCP", "port": 6379}]}
    assert policy["egress"][1] == redis
    policy = one({"existingSecret": "redis", "networkPolicy": {"egress": [redis]}}, "NetworkPolicy")["spec"]
    assert [rule["ports"][0]["port"] for rule in policy["egress"]] == [53, 6379]


@helm
def test_replicas_follow_saturation() -> None:
    """The autoscaler controls their number, and the adapter's rule provides its metric."""
    values = {"autoscaling": {"enabled": True}}
    (metric,) = one(values, "HorizontalPodAutoscaler")["spec"]["metrics"]
    adapter = yaml.safe_load((ROOT / "deploy/kubernetes/prometheus-adapter.yaml").read_text())
    (rule,) = adapter["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"] == rule["seriesQuery"].split("{")[0]
    assert "replicas" not in one(values, "Deployment")["spec"]
    assert one({}, "Deployment")["spec"]["replicas"] == 1


@helm
def test_a_pod_requests_one_gpu() -> None:
    """An update needs no second GPU."""
    (container,) = pod(GPU)["containers"]
    assert container["image"] == "vectord:gpu"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert one(GPU, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


def test_the_chart_has_the_current_version() -> None:
    """appVersion equals vectord's version."""
    version = re.search(r'__version__ = "(.*)"', (ROOT / "src/vectord/__init__.py").read_text())
    assert version is not None
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == version[1]
