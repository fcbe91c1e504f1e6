"""`import vectord` imports nothing; the clients are imported on first use."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import vectord

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "src" / "vectord" / "client"


def run(program: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_vectord_imports_nothing():
    """The command and the server import it first."""
    shown = run("import sys; before = set(sys.modules); import vectord; print(set(sys.modules) - before)")
    assert shown.strip() == "{'vectord'}"


def imported(file: Path) -> Iterator[str]:
    """The top-level packages that the file imports; its own modules as "."."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level or (node.module or "").partition(".")[0]


def test_the_client_imports_only_what_its_distribution_needs():
    """Its own modules relatively, the standard library, and its dependencies, in versions that the server permits."""
    needed = {name for file in CLIENT.glob("*.py") for name in imported(file)} - sys.stdlib_module_names
    alone = tomllib.loads((CLIENT / "pyproject.toml").read_text("utf-8"))["project"]
    server = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = alone["optional-dependencies"]["sparse"]
    declared = {re.split(r"[<>=]", text)[0] for text in (*alone["dependencies"], *extras)}
    assert needed == {".", *declared}
    assert {*alone["dependencies"]} <= {*server["dependencies"]}
    assert extras == server["optional-dependencies"]["client"]


def test_the_client_works_under_the_name_of_its_distribution(tmp_path: Path):
    """`vectord_client` imports neither vectord nor packages that only some calls need."""
    (tmp_path / "vectord_client").symlink_to(CLIENT)
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import vectord_client; print(*sys.modules)"
    shown = set(run(program).split())
    assert {"httpx", "vectord_client.transport"} <= shown
    assert {"vectord", "scipy", "pyarrow", "starlette", "openvino"}.isdisjoint(shown)


def test_a_missing_scipy_fails_before_the_first_request():
    """Only for sparse vectors."""
    program = """
import sys
sys.modules["scipy"] = sys.modules["scipy.sparse"] = None
import vectord
try:
    vectord.Client("http://127.0.0.1:9").embed_all(["a"], outputs=["sparse"])
except ModuleNotFoundError as error:
    print(error.name)
"""
    assert run(program).strip() == "scipy.sparse"


def test_unknown_names_are_an_attribute_error():
    """As in any module."""
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        vectord.Server  # noqa: B018
