"""/docs in a browser: what it shows first, its theme, and its examples."""

from __future__ import annotations

from typing import Literal

import httpx
from playwright.sync_api import expect
from tests.server.pages.console.visit import AXE, Visit

# Resolves when the colours of the buttons have changed.
STILL = """async () => {
    while (document.getAnimations().length)
        await Promise.allSettled(document.getAnimations().map(each => each.finished));
}"""
OPEN = ("vectord", "OpenAI", "text-embeddings-inference")


def test_three_products_are_open_and_an_example_runs(visit: Visit, server: str) -> None:
    """In the theme of the system, from this server only. The contrast of its text is at least 4.5; a phone shows the
    whole width."""
    page = visit.page
    page.goto(f"{server}/docs")
    sections = page.locator(".opblock-tag-section")
    expect(sections.first).to_contain_text("vectord")
    expect(page.locator(".opblock-tag-section.is-open")).to_have_count(len(OPEN))
    assert page.locator(".opblock-tag-section.is-open h3").all_inner_texts() == list(OPEN)
    page.locator("#operations-OpenAI-post_v1_embeddings button").first.click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    if AXE.is_file():
        page.evaluate(AXE.read_text("utf-8"))
    themes: dict[Literal["light", "dark"], str] = {"light": "light", "dark": "dark-mode"}
    for scheme, theme in themes.items():
        page.emulate_media(color_scheme=scheme)
        expect(page.locator("html")).to_have_class(theme)
        page.evaluate(STILL)
        if AXE.is_file():
            part = "'#operations-OpenAI-post_v1_embeddings'"
            found = page.evaluate(f"axe.run({part}, {{runOnly: ['color-contrast']}}).then(found => found.violations)")
            assert [node["target"] for rule in found for node in rule["nodes"]] == [], scheme
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert visit.complaints == []
    assert {httpx.URL(url).host for url in visit.asked if not url.startswith("data:")} == {"127.0.0.1"}
