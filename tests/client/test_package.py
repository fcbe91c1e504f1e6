"""`import vectord` costs nothing, and the clients are there when they are asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

import vectord


def run(program: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_vectord_imports_nothing():
    """The command and the server import it first of all."""
    shown = run("import sys; before = set(sys.modules); import vectord; print(set(sys.modules) - before)")
    assert shown.strip() == "{'vectord'}"


def test_the_client_imports_nothing_of_the_server():
    """Nor what only some of its calls need."""
    shown = run("import sys, vectord; vectord.Client; print(*sorted(sys.modules))").split()
    assert [name for name in shown if name.startswith("vectord.") and not name.startswith("vectord.client")] == []
    assert {"httpx", "vectord.client"} <= set(shown)
    assert {"scipy", "pyarrow", "starlette", "openvino"}.isdisjoint(shown)


def test_without_httpx_it_says_what_to_install():
    """The server's own install does not have it."""
    program = """
import sys
sys.modules["httpx"] = None
import vectord
try:
    vectord.Client
except ModuleNotFoundError as error:
    print(error.__notes__[0])
"""
    assert run(program).strip() == "vectord.Client and vectord.AsyncClient need: pip install 'vectord[client]'"


def test_without_scipy_sparse_vectors_are_refused_before_they_are_computed():
    """All else works."""
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


def test_other_names_are_not_there():
    """As of any module."""
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        vectord.Server  # noqa: B018
