"""Renders the chart and the manifests with Helm's engine and validates them against Kubernetes' schemas."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tests.deploy.chart import CHART, LIBRARY, PLAIN, ROOT, Refused, lint, merged, plain, render

from vectord.config.settings import SETTINGS

helm = pytest.mark.skipif(not LIBRARY.exists(), reason="Helm's library is not here (make .venv-dev/.installed)")
GPU = yaml.safe_load((CHART / "values-gpu.yaml").read_text())
ALL: dict[str, Any] = {
    "settings": {"redis_url": "redis://redis:6379/0", "otlp_endpoint": "http://collector:4317"},
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
}


def one(values: Mapping[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [thing for thing in render(values) if thing["kind"] == kind]
    return found


def pod(values: Mapping[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = one(values, "Deployment")["spec"]["template"]["spec"]
    return spec


@helm
def test_helm_accepts_the_chart() -> None:
    """Helm's lint reports nothing above level 1 (no icon)."""
    answer, _ = lint(CHART)
    assert [message for message in answer["Messages"] or () if message["Severity"] > 1] == []


@helm
def test_a_broken_template_is_rejected(tmp_path: Any) -> None:
    """The lint fails on an error."""
    chart = shutil.copytree(CHART, tmp_path / "vectord")
    (chart / "templates/service.yaml").write_text('{{ include "nobody\'s" . }}')
    with pytest.raises(Refused):
        lint(chart)


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
    assert {entry["name"] for entry in container["env"]} <= names


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
@pytest.mark.parametrize(("timeout_s", "want"), [(None, 45), (120, 135), ("60.0", 75)])
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
    """A redis_url with a password is a secret."""
    policy = one({"secretSettings": {"redis_url": "redis://:p@r/0"}}, "NetworkPolicy")["spec"]
    assert policy["egress"][1]["ports"] == [{"protocol": "TCP", "port": 6379}]


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
