"""Images in the playground: searched by a text, with the API's scores."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Browser, FilePayload, Locator, Page, expect
from tests.models import write_sentence_bert
from tests.pages import write_colmodernvbert
from tests.pdfs import pdf_of
from tests.real_server import running
from tests.server.pages.console.visit import AXE, Visit, note, number, run, use_tool
from tests.towers import images, media_of, write_towers

CLIP, SIGLIP, PAGES = "tiny-clip", "tiny-siglip", "tiny-pages"
QUERY = "the quick brown fox"
FILES = [
    FilePayload(name=f"it's {at}.png", mimeType="image/png", buffer=media_of(image).data)
    for at, image in enumerate(images())
]
BROKEN = FilePayload(name="broken.png", mimeType="image/png", buffer=FILES[0]["buffer"][:100])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The base URL of a server with two models of two towers, one with a vector for each patch, and one of texts."""
    folder = tmp_path_factory.mktemp("images")
    models = [str(write_towers(folder / name, family)) for name, family in ((CLIP, "CLIP"), (SIGLIP, "Siglip"))]
    models += [str(write_colmodernvbert(folder / PAGES)), str(write_sentence_bert(folder / "texts"))]
    with running(folder / "log", *models, "--offline", "--dtype", "float32") as (url, _):
        yield url


@pytest.fixture
def page(chromium: Browser, server: str) -> Iterator[Page]:
    with Visit.begun(chromium, server) as visit:
        visit.open()
        yield visit.page
        assert [words for words in visit.complaints if "status of 400" not in words] == []


def ask(server: str, **body: Any) -> Any:
    return httpx.post(f"{server}/vectord/embed", json=body).raise_for_status().json()["data"][0]


def image_item(file: FilePayload) -> dict[str, str]:
    return {"image": base64.b64encode(file["buffer"]).decode()}


def vector(server: str, model: str, one: Any) -> npt.NDArray[np.float64]:
    return np.array(ask(server, model=model, inputs=[one])["dense"])


def scores(server: str, model: str) -> npt.NDArray[np.float64]:
    return np.array([vector(server, model, image_item(file)) for file in FILES]) @ vector(server, model, QUERY)


def searched(page: Page, model: str, files: list[FilePayload]) -> Locator:
    panel = use_tool(page, "Images", model)
    panel.get_by_label("Drop images or PDFs here, or choose them").set_input_files(files)
    panel.get_by_role("textbox", name="Query").fill(QUERY)
    return panel


def items(panel: Locator) -> list[tuple[str, float]]:
    """The names and scores of the images that have one, in order."""
    found = [item.inner_text() for item in panel.locator("ol.shots li:has(b)").all()]
    return [(text.splitlines()[-1], number(text.split()[1])) for text in found]


def test_images_are_ordered_by_their_similarity_to_a_text(page: Page, server: str) -> None:
    """By the cosines of the API. The images are visible, before and after."""
    panel = searched(page, CLIP, FILES)
    run(panel)
    wanted = scores(server, CLIP)
    order = [int(at) for at in wanted.argsort()[::-1]]
    assert items(panel) == [(FILES[at]["name"], pytest.approx(wanted[at], abs=1e-3)) for at in order]
    widths = panel.locator(".shots img").evaluate_all("all => all.map(image => image.naturalWidth)")
    sizes = [image.width for image in images()]
    assert widths == [*sizes, *(sizes[at] for at in order)]


def test_dropped_images_are_added_and_another_query_sends_none_again(page: Page) -> None:
    """Only the text is embedded; removed images are gone."""
    panel = searched(page, CLIP, FILES[:2])
    transfer = page.evaluate_handle(
        """content => {
            const sent = new DataTransfer();
            sent.items.add(new File([Uint8Array.from(content)], "dropped.png", { type: "image/png" }));
            return sent;
        }""",
        list(FILES[2]["buffer"]),
    )
    panel.locator(".drop").dispatch_event("drop", {"dataTransfer": transfer})
    run(panel)
    assert {name for name, _ in items(panel)} == {FILES[0]["name"], FILES[1]["name"], "dropped.png"}
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.post_data or ""))
    panel.get_by_role("textbox", name="Query").fill("birds")
    run(panel)
    assert [json.loads(body)["inputs"] for body in sent if body] == [["birds"]]
    panel.get_by_role("button", name="Remove the files").click()
    expect(panel.locator(".drop img")).to_have_count(0)
    panel.get_by_role("button", name="Run").click()
    expect(note(panel)).to_have_text("Choose at least one file.")


def test_each_page_of_a_pdf_has_a_score_of_its_own(page: Page, server: str) -> None:
    """With its number and its picture, on which the patches are marked; a chosen file is an empty sheet."""
    pdf = FilePayload(name="report.pdf", mimeType="application/pdf", buffer=pdf_of())
    panel = searched(page, PAGES, [pdf, FILES[0]])
    run(panel)
    names = {f"report.pdf, page {number}" for number in (1, 2, 3)} | {FILES[0]["name"]}
    assert {name for name, _ in items(panel)} == names
    item = {"pdf": base64.b64encode(pdf["buffer"]).decode()}
    code = page.locator("#code").inner_text()
    assert '"pdf": "$(base64 < \'report.pdf\'' in code
    body = {"model": PAGES, "outputs": ["colbert"], "inputs": [item], "patches": True}
    last = httpx.post(f"{server}/vectord/embed", json=body).raise_for_status().json()["data"][2]
    panel.locator("ol.shots").get_by_role("button", name="report.pdf, page 3").click()
    expect(panel.get_by_role("heading", name="report.pdf, page 3")).to_be_visible()
    expect(panel.locator(".drop .sheet")).to_be_visible()
    size = panel.locator(".page img").evaluate("image => [image.naturalWidth, image.naturalHeight]")
    assert size == [100, 50]
    expect(panel.locator(".page rect")).to_have_count(sum(box is not None for box in last["patches"]))


def test_an_error_is_shown_at_its_image(page: Page) -> None:
    """The server's words; the others have their scores. If all fail, it is the error of the tool."""
    panel = searched(page, CLIP, [BROKEN, *FILES])
    run(panel)
    assert len(items(panel)) == len(FILES)
    expect(panel.locator("ol.shots li").last).to_have_text(re.compile(r"broken or truncated image.*broken\.png"))
    panel.get_by_role("button", name="Remove the files").click()
    searched(page, CLIP, [BROKEN])
    panel.get_by_role("button", name="Run").click()
    expect(note(panel)).to_contain_text("broken or truncated image")
    expect(note(panel)).to_have_class("note bad")


def test_two_models_are_compared(page: Page, server: str) -> None:
    """With the rank correlation of their orders, and the ranks of the first next to the second."""
    panel = searched(page, CLIP, FILES)
    panel.get_by_role("combobox", name="Compare with").select_option(SIGLIP)
    panel.get_by_role("button", name="Run").click()
    expect(panel.locator(".agreement")).to_contain_text("Spearman")
    first, second = panel.locator(".side").all()
    assert [name for name, _ in items(second)] == [FILES[at]["name"] for at in scores(server, SIGLIP).argsort()[::-1]]
    ranks = {name: rank for rank, (name, _) in enumerate(items(first), 1)}
    shown = second.locator("ol.shots li").all_inner_texts()
    assert [int(text.split("before: ")[1].split(")")[0]) for text in shown] == [
        ranks[name] for name, _ in items(second)
    ]


def test_the_patches_that_match_are_marked(page: Page, server: str) -> None:
    """Those of the best image, then those of the selected one: for each token of the query, and for all of them. The
    scores are the sums of the best matches."""
    panel = searched(page, PAGES, FILES)
    run(panel)
    asked = {"model": PAGES, "outputs": ["colbert"]}
    query = ask(server, **asked, inputs=[QUERY], kind="query")["colbert"]
    pages = [ask(server, **asked, inputs=[image_item(file)], patches=True) for file in FILES]
    matches = [np.array(query) @ np.array(each["colbert"]).T for each in pages]
    wanted = np.array([each.max(axis=1).sum() for each in matches])
    order = [int(at) for at in wanted.argsort()[::-1]]
    assert items(panel) == [(FILES[at]["name"], pytest.approx(wanted[at], abs=1e-3)) for at in order]
    tokens = panel.get_by_role("group", name="Tokens of the query").get_by_role("button")
    words = tokens.all_inner_texts()
    assert (words[:2], words[-2:], len(words)) == (["all tokens", "[CLS]"], ["\u2026", "[SEP]"], len(query) + 1)
    for at in (order[0], order[-1]):
        panel.locator("ol.shots").get_by_role("button", name=FILES[at]["name"]).click()
        page.mouse.move(0, 0)  # a token under the pointer would be shown instead of the focused one
        boxes = [box for box in pages[at]["patches"] if box is not None]
        rows = matches[at][:, [box is not None for box in pages[at]["patches"]]]
        for place, row in ((0, rows.mean(axis=0)), (3, rows[2]), (len(query), rows[-1])):
            tokens.nth(place).focus()
            marked = panel.locator(".page rect").evaluate_all("all => all.findIndex(one => one.matches('.best'))")
            assert row[marked] == pytest.approx(row.max(), abs=1e-3)
            shown = panel.locator(".page rect.best").evaluate("one => [one.x, one.y].map(side => side.baseVal.value)")
            assert shown == pytest.approx(boxes[marked][:2], abs=1e-5)
            opacities = panel.locator(".page rect").evaluate_all(
                "all => all.map(one => +one.getAttribute('fill-opacity'))"
            )
            shares = (row - row.min()) / (row.max() - row.min())
            np.testing.assert_allclose(np.array(opacities) / max(opacities), shares**2, atol=0.01)
    box, image = (panel.locator(f".page {part}").bounding_box() for part in ("svg", "img"))
    assert box == pytest.approx(image, abs=0.5)


def test_only_models_that_read_images_are_offered(page: Page) -> None:
    panel = use_tool(page, "Images", CLIP)
    names = panel.get_by_role("combobox", name="Model").locator("option").all_inner_texts()
    assert names == [CLIP, SIGLIP, PAGES]


@pytest.mark.parametrize("language", ["curl", "Python", "JavaScript"])
def test_the_code_reads_the_file_and_returns_its_vector(page: Page, server: str, language: str, tmp_path: Path) -> None:
    """In two calls, of the first image and of the text; the code has no content of the file."""
    searched(page, CLIP, FILES)
    page.get_by_role("combobox", name="Language").select_option(language)
    code = (
        page.locator("#code").inner_text().replace("(await response.json())", "(JSON.stringify(await response.json()))")
    )
    assert len(code) < 1500
    (tmp_path / FILES[0]["name"]).write_bytes(FILES[0]["buffer"])
    command = {
        "curl": ["bash", "-ec"],
        "Python": [sys.executable, "-c"],
        "JavaScript": ["node", "--input-type=module", "-e"],
    }
    if shutil.which(command[language][0]) is None:
        pytest.skip("there is no Node on this machine")
    done = subprocess.run([*command[language], code], cwd=tmp_path, capture_output=True, text=True, check=True)
    printed = np.array([float(word) for word in re.findall(r"-?\d\.\d+(?:e-\d+)?", done.stdout)])
    for wanted in (vector(server, CLIP, image_item(FILES[0])), vector(server, CLIP, QUERY)):
        assert np.abs(printed - wanted[:, None]).min(axis=1).max() < 1e-5


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: make test does that where there is npm")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 375)])
def test_axe_finds_nothing(chromium: Browser, server: str, scheme: str, width: int) -> None:
    """In the tool and its results, and nothing is wider than the screen."""
    size = {"width": width, "height": 844}
    with Visit.begun(chromium, server, color_scheme=scheme, viewport=size) as visit:
        visit.open()
        visit.page.evaluate(AXE.read_text("utf-8"))
        for model in (CLIP, PAGES):
            run(searched(visit.page, model, [BROKEN, *FILES]))
            found = visit.page.evaluate("axe.run('#tool').then(({violations}) => violations)")
            assert [(rule["id"], rule["nodes"]) for rule in found] == [], model
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
