"""Every test and every file named in SECURITY.md exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)))
ROWS = [line for line in PAGE.split("## Threats")[1].splitlines() if line.startswith("| ") and "**" not in line]


def test_a_named_test_exists() -> None:
    """Renaming a test requires updating the page."""
    for path, name in TESTS:
        tree = ast.parse((ROOT / path).read_text("utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in functions, f"{path} has no {name}"
        assert any(function.startswith("test_") for function in functions), path


def test_a_named_file_exists() -> None:
    """Paths are relative to src/vectord or to the root."""
    for path in sorted(set(re.findall(r"`((?:\w+/)+\w+\.py|errors\.py)`", PAGE))):
        assert (ROOT / "src" / "vectord" / path).is_file() or (ROOT / path).is_file(), path


def test_every_threat_names_a_test() -> None:
    """A threat without a test fails."""
    for row in ROWS[1:]:
        assert "`tests/" in row.split("|")[3], row
