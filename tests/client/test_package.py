"""`import vectord` imports nothing; the clients are imported on first use."""

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
    """The command and the server import it first."""
    shown = run("import sys; before = set(sys.modules); import vectord; print(set(sys.modules) - before)")
    assert shown.strip() == "{'vectord'}"


def test_the_client_imports_nothing_of_the_server():
    """Nor packages that only some calls need."""
    shown = run("import sys, vectord; vectord.Client; print(*sorted(sys.modules))").split()
    assert [name for name in shown if name.startswith("vectord.") and not name.startswith("vectord.client")] == []
    assert {"httpx", "vectord.client"} <= set(shown)
    assert {"scipy", "pyarrow", "starlette", "openvino"}.isdisjoint(shown)


def test_a_missing_httpx_is_named_with_its_extra():
    """The server does not need it."""
    program = """
import sys
sys.modules["httpx"] = None
import vectord
try:
    vectord.Client
except ModuleNotFoundError as error:
    print(error.__notes__[0])
"""
    assert run(program).strip() == "vectord.Client and vectord.AsyncClient need httpx: pip install httpx"


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
