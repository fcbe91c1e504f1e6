"""Adds pages outside docs/ to the site, README.md as its first, and adapts their links. mkdocs.yml names this file.

Links in the sources work in the repository. The site places all pages in one folder, so links between docs/ and the
other pages are rewritten. A link to any other file of the repository becomes plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the tests of the links run without mkdocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {  # path in the repository -> path on the site
    "README.md": "index.md",
    **{name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")},
    "examples/README.md": "examples.md",
    "deploy/README.md": "deploy.md",
}

LINK = re.compile(r"(?P<image>!?)\[(?P<words>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of OUTSIDE to those of docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_links_of_the_site(markdown, page.file.src_uri)


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
    is_there = path.startswith("docs/") and path.endswith((".md", ".png", ".svg"))
    return path.removeprefix("docs/") if is_there else None
