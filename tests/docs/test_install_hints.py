"""Install hints work from a checkout: vectord is on no package index."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ["*.md", "docs/**/*.md", "deploy/*.md", "examples/*", "src/**/*.py"]
FILES = sorted({path for place in PLACES for path in ROOT.glob(place) if path.is_file()})
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
HINTS = [
    (path.relative_to(ROOT).as_posix(), *found)
    for path in FILES
    for found in re.findall(r"pip install (?:-e )?'?([\w.{}/]+)\[([\w,{}]+)\]", path.read_text("utf-8"))
]


def test_an_extra_is_installed_from_the_folder() -> None:
    """`pip install '.[client]'`, with an extra of pyproject.toml. Other packages with extras exist on an index."""
    for file, source, extras in HINTS:
        assert source != "vectord", file
        if source == ".":
            assert set(extras.split(",")) <= EXTRAS.keys(), file


def test_hints_are_found() -> None:
    """The expression above finds those of a page and of an example."""
    assert {"docs/gpu.md", "docs/client.md", "examples/client.py", "README.md"} <= {file for file, _, _ in HINTS}


def test_no_hint_installs_vectord_by_its_name() -> None:
    """An index has no package of that name, or another one."""
    for path in FILES:
        assert re.search(r"pip install ['\"]?vectord\b", path.read_text("utf-8")) is None, path
