"""What of the site stands outside docs/: the pages of OUTSIDE, and links that lead there. mkdocs.yml names this file.

Links are written as they work in the repository. On the site those pages lie beside the ones of docs/, so links to and
from them are made anew, and of a link to any other file of the repository the words alone are left.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = {  # by their place in the repository: that on the site
    **{name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")},
    "examples/README.md": "examples.md",
    "deploy/README.md": "deploy.md",
}

LINK = re.compile(r"(?<!!)\[(?P<words>[^\[\]]*)\]\((?P<target>[^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages of docs/, and beside them those of OUTSIDE."""
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return with_links_of_the_site(markdown, page.file.src_uri)


def with_links_of_the_site(markdown: str, uri: str) -> str:
    """`markdown` with the links that `uri`, a page by its place on the site, has there."""
    return LINK.sub(lambda link: _mended(link, uri), markdown)


def _mended(link: re.Match[str], uri: str) -> str:
    words, target = link["words"], link["target"]
    if target.startswith("#") or "://" in target:
        return link[0]
    path, sign, anchor = target.partition("#")
    inside = _on_the_site(normpath(PurePosixPath(_in_the_repository(uri)).parent / path))
    if inside is None:
        return words
    return f"[{words}]({relpath(inside, PurePosixPath(uri).parent)}{sign}{anchor})"


def _in_the_repository(uri: str) -> str:
    """A page of the site by its place in the repository."""
    return next((path for path, outside in OUTSIDE.items() if outside == uri), f"docs/{uri}")


def _on_the_site(path: str) -> str | None:
    """A file of the repository by its place on the site, if it is one of its pages."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    is_page = path.startswith("docs/") and path.endswith(".md")
    return path.removeprefix("docs/") if is_page else None
