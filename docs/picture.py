"""Makes docs/console.png: python -m docs.picture URL [KEY], of a server that has been under load for some minutes.

The playground is left out. KEY: the admin key, whose holder may load and pull models.

python -m docs.picture URL MODEL QUERY IMAGE ... makes docs/images.png, of the playground's tool for images.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright

FOLDER = Path(__file__).parent
SIZE = {"width": 1200, "height": 1000}


def main(url: str, *options: str) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-lcd-text"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(url)
        show_load(page, *options) if len(options) < 2 else show_images(page, *options)
        browser.close()


def show_load(page: Page, key: str = "") -> None:
    if key:
        page.get_by_label("API key").fill(key)
        page.keyboard.press("Enter")
        expect(page.locator("#pull")).to_be_visible()
    page.get_by_text("15 minutes").click()
    page.wait_for_timeout(5000)  # for the figures of a few seconds
    bottom = page.locator("#requests").bounding_box()
    assert bottom is not None
    clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": bottom["y"]}
    page.screenshot(path=FOLDER / "console.png", clip=clip, full_page=True)


def show_images(page: Page, model: str, query: str, *images: str) -> None:
    page.get_by_role("tab", name="Images", exact=True).click()
    tool = page.get_by_role("tabpanel")
    tool.get_by_role("combobox", name="Model").select_option(model)
    tool.get_by_role("textbox", name="Query").fill(query)
    tool.locator("input[type=file]").set_input_files(images)
    tool.get_by_role("button", name="Run").click()
    expect(tool.get_by_role("list", name="Images by score")).to_be_visible()
    page.set_viewport_size({**SIZE, "height": 2000})  # no part is covered by the header
    page.locator("#playground").screenshot(path=FOLDER / "images.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
