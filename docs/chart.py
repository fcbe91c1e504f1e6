"""The schema of the chart's values, from values.yaml and the settings, by which Helm refuses bad names and values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from vectord.config.profiles import make_profile
from vectord.config.settings import Setting
from vectord.products.common.profiles import profiles

VALUES = Path(__file__).parents[1] / "deploy" / "helm" / "vectord" / "values.yaml"

TEXT = {"type": ["string", "null"]}
TEXTS = {"type": ["array", "string", "null"], "items": {"type": "string"}}
SWITCH = {"enum": [True, False, "true", "false", None]}
AMOUNT = {"type": ["string", "number"]}  # of a percentage, or in Kubernetes' units
PORT = {"type": "integer", "minimum": 1, "maximum": 65_535}
TEXT_VALUES = {"type": "object", "additionalProperties": {"type": "string"}}
NAMED = {
    "type": "array",
    "items": {"type": "object", "required": ["name"], "properties": {"value": {"type": "string"}}},
}
# What the default value does not show: limits, choices, and values that may have several types.
REFINED: Mapping[str, Any] = {
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "replicas": {"type": "integer", "minimum": 0},
    "startupPatienceSeconds": {"type": "integer", "minimum": 5},
    "preStopSeconds": {"type": "integer", "minimum": 0},
    "persistence.size": AMOUNT,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "service.port": PORT,
    "networkPolicy.redis.port": PORT,
    "networkPolicy.otlp.ports": {"type": "array", "items": PORT},
    "ingress.hosts": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "autoscaling.targetSaturation": AMOUNT,
    "podDisruptionBudget.maxUnavailable": AMOUNT,
    "keda.targetSaturation": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "strategy": {"type": "object", "required": ["type"]},
    "imagePullSecrets": NAMED,
    "extraEnv": NAMED,
    "extraVolumes": NAMED,
    "extraVolumeMounts": NAMED,
}
REFINED_NAMES = dict.fromkeys(("podAnnotations", "annotations", "labels", "nodeSelector"), TEXT_VALUES)
FREE = {"resources", "affinity", "podSecurityContext", "securityContext"}  # Kubernetes' own


def values_schema() -> str:
    """Each value has the type of its default, and no other name is accepted; settings are those of vectord."""
    own = yaml.safe_load(VALUES.read_text("utf-8"))
    # host is the pod's address.
    of_profiles = (make_profile(name, profiles()).settings for name in profiles())
    every = {setting.name: setting for setting in chain.from_iterable(of_profiles)}
    settings = {name: _schema_of_setting(setting) for name, setting in every.items() if name != "host"}
    settings["profile"] = {"enum": [*profiles(), None]}
    top = _schema_of(own, "")
    reference = {"$ref": "#/definitions/settings"}
    top["properties"] |= {"settings": reference, "secretSettings": reference, "global": {"type": "object"}}
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart vectord"}
    definitions = {"settings": {"type": "object", "properties": settings, "additionalProperties": False}}
    return json.dumps(head | top | {"definitions": definitions}, indent=2) + "\n"


def _schema_of_setting(setting: Setting) -> dict[str, Any]:
    """YAML reads the commit 12e4 as a number, so texts must be quoted.

    Numbers may not be: JSON Schema applies a range to numbers only.
    """
    if setting.type in (int, float):
        low, high = setting.limits or (None, None)
        low = 1 if setting.name in ("port", "grpc_port", "prometheus_port") else low  # 0 is any port
        limits = {} if low is None else {"minimum": low, "maximum": high}
        return {"type": ["integer" if setting.type is int else "number", "null"], **limits}
    return {bool: SWITCH, tuple: TEXTS, str: TEXT}[setting.type]


def _schema_of(default: object, path: str) -> dict[str, Any]:
    name = path.rpartition(".")[2]
    if refined := REFINED.get(path) or REFINED_NAMES.get(name):
        return dict(refined)
    if isinstance(default, dict) and name not in FREE:
        properties = {key: _schema_of(value, f"{path}.{key}".strip(".")) for key, value in default.items()}
        # Templates read inside these objects: Helm removes one that an operator sets to null.
        optional = FREE | REFINED_NAMES.keys()
        required = [key for key, value in default.items() if isinstance(value, dict) and key not in optional]
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {"type": kinds[type(default)]}
