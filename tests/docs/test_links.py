"""Links in the documentation work in the repository and on the generated site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.site import LINK, OUTSIDE, with_links_of_the_site

ROOT = Path(__file__).parents[2]
PAGES = (*(ROOT / name for name in OUTSIDE), *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def links(page: Path) -> Iterator[str]:
    for link in LINK.finditer(FENCE.sub("", page.read_text("utf-8"))):
        if "://" not in link["target"]:
            yield link["target"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as the repository host builds them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", LINK.sub(r"\g<words>", heading).lower()).replace(" ", "-") for heading in headings}


def test_a_link_names_an_existing_file_and_heading() -> None:
    """Relative links resolve from the location of the page."""
    for page in PAGES:
        broken = []
        for target in links(page):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append(target)
        assert broken == [], page


@pytest.mark.parametrize(
    ("uri", "written", "made"),
    [
        ("tuning.md", "[safe](../SECURITY.md)", "[safe](SECURITY.md)"),
        ("migrating/tei.md", "[safe](../../SECURITY.md#report-a-hole)", "[safe](../SECURITY.md#report-a-hole)"),
        ("migrating/tei.md", "[all](../apis.md)", "[all](../apis.md)"),
        ("SECURITY.md", "[watch](docs/operations.md#probes)", "[watch](operations.md#probes)"),
        ("tuning.md", "[run](../examples/README.md)", "[run](examples.md)"),
        ("examples.md", "[ask](../docs/api.md), [it](client.py)", "[ask](api.md), it"),
        ("CHANGELOG.md", "[how](ARCHITECTURE.md)", "[how](ARCHITECTURE.md)"),
        ("index.md", "![load](docs/console.png), [ask](docs/api.md)", "![load](console.png), [ask](api.md)"),
        ("apis.md", "[test_x.py](../tests/test_x.py)", "test_x.py"),
        ("apis.md", "[below](#below), [there](https://example.com)", "[below](#below), [there](https://example.com)"),
    ],
)
def test_a_link_is_rewritten_for_the_site(uri: str, written: str, made: str) -> None:
    """A link to a file that is not a page becomes plain text."""
    assert with_links_of_the_site(written, uri) == made
