"""Makes docs/console.png: python -m docs.picture URL [KEY], of a server that has been under load for some minutes.

The playground is left out. KEY: the admin key, whose holder may load and pull models.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import expect, sync_playwright

SIZE = {"width": 1200, "height": 1000}


def main(url: str, key: str = "") -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-lcd-text"]
        )
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(url)
        if key:
            page.get_by_label("API key").fill(key)
            page.keyboard.press("Enter")
            expect(page.locator("#pull")).to_be_visible()
        page.get_by_text("15 minutes").click()
        page.wait_for_timeout(5000)  # for the figures of a few seconds
        bottom = page.locator("#requests").bounding_box()
        assert bottom is not None
        clip = {"x": 0, "y": 0, "width": SIZE["width"], "height": bottom["y"]}
        page.screenshot(path=Path(__file__).with_name("console.png"), clip=clip, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
