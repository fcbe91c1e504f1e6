"""Every threat in tests/attack/README.md has a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LINES = (TESTS / "attack" / "README.md").read_text("utf-8").splitlines()
THREATS = [line for line in LINES if line.startswith("- ")]


def test_a_threat_names_an_existing_test() -> None:
    """Renaming or removing a test requires updating the page."""
    sources = "".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    existing = set(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE))
    for threat in THREATS:
        named = re.search(r"`(test_\w+)`$", threat)
        assert named is not None, threat
        assert named[1] in existing, threat
