"""Install hints work from a checkout: vectord is on no package index."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ["*.md", "docs/**/*.md", "deploy/*.md", "examples/*", "src/**/*.py"]
FILES = sorted({path for place in PLACES for path in ROOT.glob(place) if path.is_file()})


def test_no_hint_installs_vectord_by_its_name() -> None:
    """An index has no package of that name, or another one."""
    for path in FILES:
        assert re.search(r"pip install ['\"]?vectord\b", path.read_text("utf-8")) is None, path
