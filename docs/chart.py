"""The schema of the chart's values, from values.yaml and the settings, by which Helm refuses misspelt names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from vectord.config.settings import SETTINGS

VALUES = Path(__file__).parents[1] / "deploy" / "helm" / "vectord" / "values.yaml"

SCALAR = {"type": ["string", "number", "boolean", "null"]}
AMOUNT = {"type": ["string", "integer"]}  # of a percentage, or in Kubernetes' units
PORT = {"type": "integer", "minimum": 1, "maximum": 65_535}
# What the default value does not show: limits, choices, and values that may have several types.
REFINED: Mapping[str, Any] = {
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "replicas": {"type": "integer", "minimum": 0},
    "startupPatienceSeconds": {"type": "integer", "minimum": 5},
    "preStopSeconds": {"type": "integer", "minimum": 0},
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.port": PORT,
    "networkPolicy.redis.port": PORT,
    "ingress.hosts": {"type": "array", "items": {"type": "string"}},
    "podDisruptionBudget.maxUnavailable": AMOUNT,
    "keda.targetSaturation": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
}
FREE = {
    "resources",
    "strategy",
    "podAnnotations",
    "nodeSelector",
    "affinity",
    "annotations",
    "labels",
}  # Kubernetes' own


def values_schema() -> str:
    """Each value has the type of its default, and no other name is accepted; settings have the names of vectord's."""
    own = yaml.safe_load(VALUES.read_text("utf-8"))
    names = sorted(setting.name for setting in SETTINGS if setting.name != "host")  # the pod's address
    items = {"anyOf": [SCALAR, {"type": "array", "items": SCALAR}]}
    settings = {"type": "object", "propertyNames": {"enum": names}, "additionalProperties": items}
    top = _schema_of(own, "")
    top["properties"] |= {"settings": settings, "secretSettings": settings, "global": {"type": "object"}}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart vectord"}
    return json.dumps(head | top, indent=2) + "\n"


def _schema_of(default: object, path: str) -> dict[str, Any]:
    if path in REFINED:
        return dict(REFINED[path])
    if isinstance(default, dict) and path.rpartition(".")[2] not in FREE:
        properties = {key: _schema_of(value, f"{path}.{key}".strip(".")) for key, value in default.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {"type": kinds[type(default)]}
