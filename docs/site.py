"""Writes the sources of the site into a folder, where zensical builds it: `make site`.

The site has the pages of docs/ and of OUTSIDE, README.md as its first. Links in the sources work in the repository.
The site places all pages in one folder, so links between docs/ and the other pages are rewritten. A link to any other
file of the repository becomes plain text.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {  # path in the repository -> path on the site
    "README.md": "index.md",
    **{name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")},
    "examples/README.md": "examples.md",
    "deploy/README.md": "deploy.md",
}

LINK = re.compile(r"(?P<image>!?)\[(?P<words>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


def main(folder: Path) -> None:
    """Write mkdocs.yml and docs/ in `folder`; an earlier docs/ there is removed."""
    pages = folder / "docs"
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages, ignore=shutil.ignore_patterns("*.py", "*.toml", "*.json", "__pycache__"))
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for path, uri in OUTSIDE.items():
        shutil.copy(ROOT / path, pages / uri)
    for page in pages.rglob("*.md"):
        markdown = with_links_of_the_site(page.read_text("utf-8"), page.relative_to(pages).as_posix())
        page.write_text(markdown, "utf-8")


def with_links_of_the_site(markdown: str, uri: str) -> str:
    """Rewrites the links of a page. uri: the path of the page on the site."""
    return LINK.sub(lambda link: _mended(link, uri), markdown)


def _mended(link: re.Match[str], uri: str) -> str:
    words, target = link["words"], link["target"]
    if target.startswith("#") or "://" in target:
        return link[0]
    path, sign, anchor = target.partition("#")
    inside = _on_the_site(normpath(PurePosixPath(_in_the_repository(uri)).parent / path))
    if inside is None:
        return words
    return f"{link['image']}[{words}]({relpath(inside, PurePosixPath(uri).parent)}{sign}{anchor})"


def _in_the_repository(uri: str) -> str:
    """The path in the repository of a page of the site."""
    return next((path for path, outside in OUTSIDE.items() if outside == uri), f"docs/{uri}")


def _on_the_site(path: str) -> str | None:
    """The path on the site of a file in the repository, or None if the site does not contain it."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    is_there = path.startswith("docs/") and path.endswith((".md", ".png", ".svg", ".csv"))
    return path.removeprefix("docs/") if is_there else None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
