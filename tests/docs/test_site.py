"""The generated site contains every page and loads nothing from other hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.site import OUTSIDE
from docs.site import main as write_sources
from playwright.sync_api import Page, expect, sync_playwright

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


def test_generator_scripts_are_not_on_the_site(site: Path) -> None:
    """The site contains only pages and theme files."""
    assert [*site.rglob("*.py"), *site.rglob("*.toml"), *site.rglob("*.md")] == []


# --- in a browser, as files -----------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium")
CLIPPED = "[...document.querySelectorAll('pre > code')].filter(code => code.scrollWidth > code.clientWidth + 1).length"


@pytest.fixture(scope="module")
def browser_page() -> Iterator[Page]:
    """1280 pixels wide. It may open files only."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: `python -m tests.programs` fetches it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.route(re.compile("^https?:"), lambda route: route.abort())
        yield page
        browser.close()


def test_the_search_works_in_a_page_opened_as_a_file(site: Path, browser_page: Page) -> None:
    """Without a server and without a network."""
    browser_page.goto((site / "index.html").as_uri())
    browser_page.get_by_role("button", name="Search").click()
    browser_page.locator("input:focus").fill("saturation")
    place = browser_page.get_by_role("dialog", name="Search").get_by_role("listitem").filter(has_text="Operations")
    expect(place.first).to_be_visible(timeout=30_000)


def test_a_copy_button_copies_the_commands_only(site: Path, browser_page: Page) -> None:
    """Without prompts and output, and with all lines of a command."""
    browser_page.goto((site / "api.html").as_uri())
    command = "curl localhost:8000/vectord/similarity"
    browser_page.locator(".language-console", has_text=command).get_by_role("button").click()
    browser_page.get_by_role("button", name="Search").click()
    search = browser_page.locator("input:focus")
    search.press("Control+V")
    pasted = search.input_value()
    assert pasted.startswith(f"{command} -d '{{")
    assert pasted.endswith("""["That is a happy dog", "Today is a sunny day"]}'""")


def test_no_code_is_clipped_at_1280_pixels(site: Path, browser_page: Page) -> None:
    """On any page; long lines wrap."""
    clipped = {}
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html":  # for servers: its addresses are absolute
            browser_page.goto(page.as_uri())
            clipped[page.name] = browser_page.evaluate(CLIPPED)
    assert len(clipped) > 30
    assert [name for name, count in clipped.items() if count] == []
