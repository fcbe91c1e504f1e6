"""bench/gpu.py on the CPU, with tiny shapes and short rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from bench.child import REPOSITORY
from bench.gpu_shapes import SHAPES

LENGTHS = [16, 50]
KINDS = {  # of each section's findings, in the order of the run
    **({"attention": {"attention", "step"}} if find_spec("triton") else {}),
    "kernels": {"loaded", "kernels"},
    "ceilings": {"device", "matrix", "copy", "products"},
    "front-ends": {"served", "short texts", "library"},
    "bge-m3 in process": {"loaded", "rate", "latency"},
    "fidelity": {"served", "at once", "fidelity", "SIGTERM"},
}


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a run with every kind of section, except tests and weights."""
    folder = tmp_path_factory.mktemp("gpu")
    where = ["--out", str(folder / "gpu.json"), "--models-folder", str(folder), "--commit", "abc"]
    only = ["--only", *KINDS, "bge-m3 over HTTP", "FlagEmbedding"]
    argv = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--quick", "--seconds", "200", "--minutes", "9"]
    shown = subprocess.run([*argv, *where, *only], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    (folder / "shown.txt").write_text(shown.stdout)
    return folder


def test_every_section_finds_what_it_is_for(out: Path) -> None:
    """Rates in process and over HTTP, queries, three kinds of vectors. A missing peer is no error."""
    found = json.loads((out / "gpu.json").read_text())
    assert found["conditions"]["commit"] == "abc"
    sections: dict[str, list[dict[str, Any]]] = {
        section["name"]: section["findings"] for section in found["sections"] if not section["error"]
    }
    assert list(sections) == [*KINDS, "FlagEmbedding", "bge-m3 over HTTP"]
    assert {name: {finding["kind"] for finding in sections[name]} for name in KINDS} == KINDS
    assert not [finding for findings in sections.values() for finding in findings if finding["kind"] == "failed"]
    assert [each["model"] for each in sections["ceilings"] if each["kind"] == "products"] == list(SHAPES)
    rates = {
        (finding["how"], finding["length"])
        for findings in sections.values()
        for finding in findings
        if finding["kind"] == "rate" and "Flag" not in finding["how"] and finding["tokens_per_s"] > 0
    }
    assert rates == {
        *((how, length) for how in ("in process", "over HTTP") for length in LENGTHS),
        ("in process, three vectors", 50),
    }
    queries = [finding["how"] for findings in sections.values() for finding in findings if finding["kind"] == "latency"]
    assert queries == ["without graphs", "over HTTP"]


def test_vectors_under_load_are_those_of_the_texts_alone(out: Path) -> None:
    """On the CPU too; every request that was sent before SIGTERM is answered."""
    found = json.loads((out / "gpu.json").read_text())
    (findings,) = (section["findings"] for section in found["sections"] if section["name"] == "fidelity")
    loaded, ended = findings[-2:]
    assert (loaded["wrong"], set(loaded["statuses"])) == (0, {"200"})
    assert (ended["statuses"], ended["exit"]) == ({"200": ended["requests"]}, 0)


def test_the_table_has_a_line_for_each(out: Path) -> None:
    """Each result has a line in the printed table."""
    shown = (out / "shown.txt").read_text()
    lines = ("matrix ceiling", "bge-m3, 50 tokens, in process", "of dense", "over HTTP", "wrong of", "on the device")
    for what in lines:
        assert what in shown
    assert "failed" not in shown
