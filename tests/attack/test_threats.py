"""Every threat in tests/attack/README.md has a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS / "attack" / "README.md").read_text("utf-8")
ROWS = re.findall(r"^\| (?!threat)(.+) \| `([\w/]+\.py)(?:::(\w+))?` \|$", PAGE, re.MULTILINE)


def test_a_threat_names_an_existing_test() -> None:
    """Renaming or removing a test requires updating the page."""
    for threat, path, name in ROWS:
        tree = ast.parse((TESTS / path).read_text("utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions if name else any(one.startswith("test_") for one in functions), (threat, path, name)


def test_every_row_is_read() -> None:
    """The expression above matches each row except heads and rules."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| threat")]
    assert len(ROWS) == len(rows)
