"""Collects the Prometheus expressions in the files under deploy/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "vectord.json").read_text("utf-8"))


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def drawn() -> dict[str, str]:
    """Each dashboard expression by panel and letter, with Grafana's variables replaced."""
    asked = {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels() for target in panel["targets"]}
    asked |= {entry["name"]: entry["expr"] for entry in DASHBOARD["annotations"]["list"]}
    meant = {"$job": "vectord", "$instance": ".*", "$__rate_interval": "5m"}
    for variable, value in meant.items():
        asked = {name: expression.replace(variable, value) for name, expression in asked.items()}
    return asked


def rules(file: str, kind: str) -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / file).read_text("utf-8"))["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"]}
