"""Links in the documentation work in the repository and on the generated site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.site import LINK, OUTSIDE

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
