"""SECURITY.md names a test for every threat, and a file for every measure: all of them are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
ROWS = [line for line in PAGE.split("## Threats")[1].splitlines() if line.startswith("| ") and "**" not in line]


@pytest.mark.parametrize(("path", "name"), TESTS)
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    """Whoever renames a test renames it on the page."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert not name or name in functions, f"{path} has no {name}"
    assert any(function.startswith("test_") for function in functions)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:\w+/)+\w+\.py|errors\.py)`", PAGE))))
def test_a_measure_that_is_named_exists(path: str) -> None:
    """Files are named from src/vectord, or from the root."""
    assert (ROOT / "src" / "vectord" / path).is_file() or (ROOT / path).is_file()


@pytest.mark.parametrize("row", ROWS[1:], ids=lambda row: row.split("|")[1].strip()[:60])
def test_every_threat_names_a_test(row: str) -> None:
    """A threat without one is a hope."""
    assert "`tests/" in row.split("|")[3]
