"""One visit to the console, and what a visitor does there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Locator, Page, expect

KEY = "console-test-key"
ADMIN_KEY = "console-admin-key"
AXE = Path(__file__).parent / "node" / "node_modules" / "axe-core" / "axe.min.js"
HOSTILE = "<img src=x onerror=\"document.title='struck'\">"
MINUS = "\u2212"  # of the page's negative numbers
PATIENCE_MS = 60_000  # with a machine that does much else

expect.set_options(timeout=PATIENCE_MS)


class Visit:
    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text))

    @classmethod
    @contextmanager
    def begun(cls, browser: Browser, url: str, **options: Any) -> Iterator[Visit]:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        yield cls(context.new_page(), url)
        context.close()

    def open(self, path: str = "/") -> None:
        self.page.goto(self.url + path)
        expect(self.page.locator("#models-table tbody tr").first).to_be_visible()


def use_tool(page: Page, name: str, model: str) -> Locator:
    """Opens a tool for a model, compared with no other; the panel it is in."""
    page.get_by_role("tab", name=name, exact=True).click()
    panel = page.get_by_role("tabpanel")
    panel.get_by_role("combobox", name="Model").select_option(model)
    if (other := panel.get_by_role("combobox", name="Compare with")).is_visible():
        other.select_option("")
    panel.get_by_role("combobox", name="Over-long texts").select_option("")
    return panel


def run(panel: Locator) -> None:
    """Runs the open tool; returns when its answer is there."""
    panel.get_by_role("button", name="Run").click()
    expect(note(panel)).to_contain_text("tokens")


def number(text: str) -> float:
    return float(text.replace(MINUS, "-"))


def note(panel: Locator) -> Locator:
    """The note next to the button."""
    return panel.locator(".run").get_by_role("status")
