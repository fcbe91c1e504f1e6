"""The generated site contains every page and loads nothing from other hosts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from docs.site import OUTSIDE
from docs.site import main as write_sources

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//|<link\b[^>]*\bhref=\"?(?:https?:)?//"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_sources(folder)
    command = [ROOT / ".venv-docs/bin/zensical", "build", "--strict", "--config-file", folder / "mkdocs.yml"]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder / "site"


def test_every_page_is_on_the_site(site: Path) -> None:
    """The site has the pages of docs/ and of the repository's root."""
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [
        page for page in (*pages, *map(Path, OUTSIDE.values())) if not (site / page).with_suffix(".html").is_file()
    ] == []


def test_a_page_needs_no_network(site: Path) -> None:
    """Pages and styles load no script, style, font or image from another host."""
    pages = [path for path in site.rglob("*.html") if FETCHED.search(path.read_text("utf-8"))]
    styles = [
        path
        for path in site.rglob("*.css")
        if re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", path.read_text("utf-8"))
    ]
    assert pages + styles == []
