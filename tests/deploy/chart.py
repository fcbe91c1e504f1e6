"""Renders the chart with Helm's engine, a shared library from a wheel, without a cluster or network.

`render(values)` gives the objects. The library can lint and not render, so each template is put where `tpl` finds it
and told by `fail`, whose text lint logs. `python -m tests.deploy.chart` writes deploy/kubernetes/base/vectord.yaml.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/vectord"
PLAIN = ROOT / "deploy/kubernetes/base/vectord.yaml"
LIBRARY = ROOT / ".venv-tools/helm/helm_sdkpy/_lib/linux-amd64/libhelm_sdkpy.so"
# Runs in a separate process, because a Go runtime cannot be unloaded.
LINT = """
import ctypes, sys
helm = ctypes.CDLL(sys.argv[1])
helm.helm_sdkpy_last_error.restype = ctypes.c_char_p
helm.helm_sdkpy_lint.argtypes = [ctypes.c_ulonglong, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)]
handle, answer = ctypes.c_ulonglong(), ctypes.c_char_p()
helm.helm_sdkpy_config_create(b"default", b"", b"", b"{}", ctypes.byref(handle))
if helm.helm_sdkpy_lint(handle, sys.argv[2].encode(), ctypes.byref(answer)):
    sys.exit(helm.helm_sdkpy_last_error().decode())
print(answer.value.decode())
"""


class Refused(Exception):
    """Helm rejects the chart; contains Helm's message."""


def lint(chart: Path) -> tuple[dict[str, Any], str]:
    """Helm's output and its log. Raises Refused."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, str(LIBRARY), str(chart)], capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        raise Refused(done.stderr)
    answer = json.loads(done.stdout)
    if answer["Errors"]:
        raise Refused(done.stdout + done.stderr)
    return answer, done.stderr


def render(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The objects of a release named vectord, with these values merged over the chart's defaults."""
    return [made for text in _rendered(values) if "apiVersion:" in text for made in yaml.safe_load_all(text) if made]


def notes(values: Mapping[str, Any]) -> str:
    """What Helm prints after the installation."""
    (text,) = (text for text in _rendered(values) if "apiVersion:" not in text and "vectord runs" in text)
    return text


def _rendered(values: Mapping[str, Any]) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(shutil.copytree(CHART, Path(folder) / "vectord"))
        own = yaml.safe_load((chart / "values.yaml").read_text())
        (chart / "values.yaml").write_text(yaml.safe_dump(merged(own, values)))
        (chart / "told").mkdir()
        helpers = chart / "templates/_helpers.tpl"
        helpers.write_text(helpers.read_text().replace(".Release.Name", '"vectord"'))
        templates = chart / "templates"
        for template in sorted([*templates.rglob("*.yaml"), templates / "NOTES.txt"]):
            (chart / "told" / template.name).write_text(template.read_text())
            template.write_text(f'{{{{ fail (tpl (.Files.Get "told/{template.name}") .) }}}}')
        _, log = lint(chart)
    return list(_told(log))


def _told(log: str) -> Iterator[str]:
    for quoted in re.findall(r'funcMap fail message=("(?:[^"\\]|\\.)*")', log):
        yield json.loads(quoted)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges values as Helm does: mappings by key, other values by replacement."""
    return {**under} | {
        key: merged(under[key], value) if isinstance(value, Mapping) and isinstance(under.get(key), Mapping) else value
        for key, value in over.items()
    }


def plain() -> list[dict[str, Any]]:
    """The objects for kubectl: without Helm's labels and its test."""
    made = render(yaml.safe_load((ROOT / "deploy/kubernetes/base/values.yaml").read_text()))
    objects = [thing for thing in made if "helm.sh/hook" not in thing["metadata"].get("annotations", {})]
    for thing in objects:
        for metadata in (thing["metadata"], thing["spec"].get("template", {}).get("metadata", {})):
            for label in ("helm.sh/chart", "app.kubernetes.io/managed-by"):
                metadata.get("labels", {}).pop(label, None)
    return objects


if __name__ == "__main__":
    head = (
        "# Written by `python -m tests.deploy.chart` from deploy/helm/vectord and deploy/kubernetes/base/values.yaml.\n"
    )
    PLAIN.write_text(head + yaml.safe_dump_all(plain(), sort_keys=False, width=120))
