"""The whole page: loading, charts, key, keyboard, and safety."""

from __future__ import annotations

import json
import re
import subprocess
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect
from tests.checkpoints.small_hub import MODEL
from tests.server.pages.console.visit import ADMIN_KEY, AXE, HOSTILE, KEY, Visit, run, use_tool

from vectord.observability.metrics import Activity

SHOW = """state => {
    Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
TOOLS = ["Similarity", "Map", "Dense", "Sparse", "ColBERT", "Rerank", "Tokenize"]


def test_the_page_loads_only_from_this_server(visit: Visit) -> None:
    """At every address, without console messages."""
    for path in ("/", "/console", "/console/", "/dialects/openai/"):
        visit.open(path)
        expect(visit.page.locator("#state")).to_have_text("ready")
        expect(visit.page.locator("#code")).to_contain_text("curl")
    assert visit.complaints == []
    assert {urlsplit(url).netloc for url in visit.asked} == {urlsplit(visit.url).netloc}


def test_a_newcomer_gets_a_call_and_the_playground_first(visit: Visit) -> None:
    """Until there is a request: then the charts appear, and the playground stays where it is."""
    tokens = 0

    def without_traffic(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "tokens": tokens})

    visit.page.route("**/console/live", without_traffic)
    visit.open()
    page = visit.page
    sections = page.locator("main > section:visible")
    expect(sections.nth(0)).to_have_id("first")
    expect(sections.nth(1)).to_have_id("playground")
    expect(page.locator("#charts")).to_be_hidden()
    code = page.get_by_label("A first request").inner_text()
    assert "\n" not in code
    done = subprocess.run(["bash", "-c", f"{code} --silent --fail"], capture_output=True, check=True)
    assert len(json.loads(done.stdout)["data"][0]["embedding"]) == 384
    tokens = 1
    expect(page.locator("#charts")).to_be_visible()
    expect(sections.first).to_have_id("playground")
    page.unroute_all(behavior="wait")


LONG_NAME = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"


def test_charts_and_sums_show_the_load(visit: Visit) -> None:
    """A line and the present value of each figure, and a row for each model, which fits a small screen and a phone.

    Figures of a busy server with two GPUs are inserted into the responses."""
    calls = 0

    def busy(route: Route) -> None:
        nonlocal calls
        calls += 1
        figures = route.fetch().json()
        figures["devices"] = {"cuda:0": {"used_bytes": 3_000_000_000}, "cuda:1": {"used_bytes": 5_000_000_000}}
        figures["wait_s"] = 1.5
        for name, step in {"forwards": 4, "forward_fill": 1, "waits": 2, "waited_s": 0.5, "texts": 10**6}.items():
            figures[name] += calls * step
        figures["models"][LONG_NAME] = [calls * 10**7, 0, calls * 10**9, calls * 10**8, 0, *[calls * 10**7] * 9]
        route.fulfill(json=figures)

    visit.page.route("**/console/live", busy)
    visit.open()
    page = visit.page
    for title, words in {
        "Time in the queue": re.compile(r"waited 250 ms\s*until empty 1.5 s"),
        "Capacity in use": "batch 25 %",
        "Device memory": re.compile(r"cuda:0 3 GB\s*cuda:1 5 GB"),
        "Memory": "process",
        "Texts a second": re.compile(r"texts [\d.]+ [kM]"),
    }.items():
        chart = page.locator("figure", has=page.get_by_text(title, exact=True))
        expect(chart).to_contain_text(words)
        expect(chart.locator("path:not(.area)").first).to_have_attribute("d", re.compile("M"))
    table = page.locator("#by-model")
    expect(table.get_by_role("rowheader", name=LONG_NAME)).to_be_visible()
    for width in (1280, 768, 375):
        page.set_viewport_size({"width": width, "height": 800})
        assert table.evaluate("node => node.scrollWidth - node.clientWidth") == 0, width
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.unroute_all(behavior="wait")


def test_the_page_shows_the_hour_that_the_server_has_kept(visit: Visit) -> None:
    """Steps from before the page was opened, on an axis with times of day. Pointer and arrow keys describe one."""
    now_s = 1_800_000_000.0

    def with_past(route: Route) -> None:
        history = route.fetch().json()
        activity = Activity()
        for _ in range(2):
            activity.record(httpx.get(f"{visit.url}/console/live").raise_for_status().json())
        step = activity.history()["steps"][0]
        past = {**step, "seconds": 10, "requests": 50, "errors": 0, "errors_by": {"429 Overloaded": 7}}
        history["steps"] = [{**past, "ended_unix_s": now_s - age_s} for age_s in range(3590, 0, -10)]
        route.fulfill(json=history)

    def at_that_time(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "unix_s": now_s})

    visit.page.route("**/console/history", with_past)
    visit.page.route("**/console/live", at_that_time)
    visit.open()
    page = visit.page
    page.get_by_text("1 hour").click()
    chart = page.locator("figure", has_text="Requests a second")
    times = chart.locator(".axis span").all_inner_texts()
    assert len(times) >= 4
    assert all(re.fullmatch(r"\d\d:(00|15|30|45)", time) for time in times)
    expect(page.locator("#errors")).to_contain_text("Overloaded")
    expect(page.locator("#errors tbody tr td").last).to_have_text(f"{359 * 7:,}")
    slider = chart.get_by_role("slider", name="Requests a second, by time")
    slider.hover()
    expect(chart.locator(".moment")).to_contain_text(
        re.compile(r"\d\d:\d\d:\d\danswered: 5 a secondfailed: 0 a second")
    )
    page.mouse.move(0, 0)
    expect(chart.locator(".moment")).to_be_hidden()
    slider.press("Home")
    first = slider.get_attribute("aria-valuetext")
    slider.press("ArrowRight")
    expect(slider).to_have_attribute("aria-valuetext", re.compile(r"\d\d:\d\d:\d\d, answered: 5 a second"))
    assert slider.get_attribute("aria-valuetext") != first
    expect(slider).to_have_attribute("aria-valuenow", "1")
    expect(chart.locator(".moment")).to_be_visible()
    slider.press("Escape")
    expect(chart.locator(".moment")).to_be_hidden()


def test_requests_are_shown_by_model_and_with_their_outcome(visit: Visit, server: str) -> None:
    """Latency, traffic, truncation and errors of a model; the recent requests without their texts."""
    visit.open()
    page = visit.page
    httpx.post(f"{server}/v1/embeddings", json={"input": "a secret text", "model": "tiny-bge-m3"}).raise_for_status()
    httpx.post(f"{server}/vectord/embed", json={"inputs": ["secret " * 999], "model": "tiny-bge-m3", "truncate": True})
    assert httpx.post(f"{server}/v1/embeddings", json={"input": "secret", "model": "secret"}).status_code == 404
    row = page.locator("#by-model").get_by_role("row", name="tiny-bge-m3")
    expect(row.locator("td").nth(1)).to_contain_text("ms")
    expect(row.locator("td").nth(5)).to_contain_text("%")
    recent = page.locator("#requests-table")
    expect(recent.get_by_role("row", name="404 Model not found").first).to_be_visible()
    page.get_by_label("errors only").check()
    expect(recent.locator("tbody tr")).to_have_count(recent.locator(".outcome:not(.good)").count())
    assert "secret" not in page.locator("#load").inner_text() + recent.inner_text()
    page.locator("#load-model").select_option("tiny-bge-m3")
    expect(page.locator("figure.whole", has_text="Memory")).to_be_visible()


def test_only_the_admin_key_offers_to_load_models(chromium: Browser, locked: str) -> None:
    """With it a model is unloaded and loaded; the ordinary key gets no buttons."""
    with Visit.begun(chromium, locked) as visit:
        page = visit.page
        page.goto(f"{locked}/")
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        state = page.locator(".model-state").first
        expect(state).to_have_text("ready")
        expect(page.get_by_role("button", name="Unload")).to_have_count(0)
        page.get_by_role("button", name="Key").click()
        page.get_by_label("API key").fill(ADMIN_KEY)
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Unload all-MiniLM-L6-v2").click()
        expect(state).to_have_text("unloaded")
        page.get_by_role("button", name="Load all-MiniLM-L6-v2").click()
        expect(state).to_have_text("ready")


def test_only_the_admin_key_pulls_a_model(chromium: Browser, locked: str) -> None:
    """The pulled model is listed and can be loaded; a name that is no hub id is refused with the reason."""
    with Visit.begun(chromium, locked) as visit:
        page = visit.page
        page.goto(f"{locked}/")
        page.get_by_label("API key").fill(KEY)
        page.keyboard.press("Enter")
        expect(page.locator(".model-state").first).to_be_visible()
        expect(page.locator("#pull")).to_be_hidden()
        page.get_by_role("button", name="Key").click()
        page.get_by_label("API key").fill(ADMIN_KEY)
        page.keyboard.press("Enter")
        name = page.get_by_label("Pull a model from the hub")
        name.fill("two--hyphens")
        name.press("Enter")
        expect(page.locator("#models-status")).to_contain_text("neither a folder nor a hub id")
        name.fill(MODEL)
        name.press("Enter")
        expect(page.locator("#models-status")).to_contain_text(f"{MODEL}: served")
        expect(page.get_by_role("button", name=f"Load {MODEL}")).to_be_enabled()


def test_the_states_of_the_models_are_visible_on_a_phone(chromium: Browser, server: str) -> None:
    """On the first screen, with version and uptime. No part of the page is wider than the screen."""

    def with_board(route: Route) -> None:
        route.fulfill(json={**route.fetch().json(), "grafana_url": "https://grafana.test/d/vectord"})

    with Visit.begun(chromium, server, viewport={"width": 390, "height": 844}) as visit:
        visit.page.route("**/console/live", with_board)
        visit.open()
        expect(visit.page.get_by_role("link", name="Grafana")).to_be_visible()
        for state in visit.page.locator(".model-state").all():
            box = state.bounding_box()
            assert box is not None and box["x"] + box["width"] <= 390 and box["y"] < 844
        expect(visit.page.locator("#load-note")).to_contain_text(re.compile("Version .+, up .+ of memory"))
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_failed_model_is_shown_with_its_reason(visit: Visit) -> None:
    def with_failure(route: Route) -> None:
        answer = route.fetch().json()
        answer["models"][0].update(state="failed", failure="no such folder")
        route.fulfill(json=answer)

    visit.page.route("**/vectord/models", with_failure)
    visit.open()
    expect(visit.page.locator(".model-state").first).to_have_text("failed: no such folder")


def test_an_unreachable_server_is_reported_until_it_returns(visit: Visit, server: str) -> None:
    """The models and requests that the page has received stay."""
    httpx.post(f"{server}/v1/embeddings", json={"input": "a happy person"}).raise_for_status()
    visit.open()
    page = visit.page
    requests = page.locator("#requests-table tbody tr")
    expect(requests).not_to_have_count(0)
    page.route(re.compile("/console/|/vectord/"), lambda route: route.abort())
    expect(page.locator("#state")).to_have_text("unreachable")
    for note in ("#load-note", "#models-note", "#requests-note"):
        expect(page.locator(note)).to_have_text("The server does not answer.")
    expect(requests).not_to_have_count(0)
    expect(page.locator("#models-table tbody tr")).not_to_have_count(0)
    page.unroute_all()
    expect(page.locator("#state")).to_have_text("ready")
    for note, words in {"#load-note": "Version", "#models-note": "3 models", "#requests-note": "The last"}.items():
        expect(page.locator(note)).to_contain_text(words)


def test_a_server_without_metrics_shows_no_empty_charts(visit: Visit) -> None:
    """But the reason, the models and the playground."""
    reply = {"error": {"message": "This server collects no metrics."}}
    visit.page.route(
        re.compile("/console/(live|history|requests)$"), lambda route: route.fulfill(status=404, json=reply)
    )
    visit.open()
    page = visit.page
    expect(page.locator("#load-note")).to_have_text(reply["error"]["message"])
    for hidden in ("#charts", "#range", "#by-model", "#errors-only"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.locator("#state")).to_have_text("ready")
    run(use_tool(page, "Dense", "all-MiniLM-L6-v2"))


def test_polling_pauses_while_the_tab_is_hidden(visit: Visit) -> None:
    visit.page.clock.install()
    visit.open()
    visit.page.evaluate(SHOW, "hidden")
    before = len(visit.asked)
    visit.page.clock.run_for(60_000)
    assert len(visit.asked) == before
    with visit.page.expect_request("**/console/live"):
        visit.page.evaluate(SHOW, "visible")


def test_a_key_is_requested_and_kept_in_the_tab(chromium: Browser, locked: str) -> None:
    """Under a prefix, too; a wrong key is reported, and the right one is not stored."""
    with Visit.begun(chromium, locked) as visit:
        page = visit.page
        page.goto(f"{locked}/")
        field = page.get_by_label("API key")
        expect(field).to_be_focused()
        expect(page.get_by_role("heading", name="Load")).to_be_hidden()
        field.fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_text("The server does not know this key.")).to_be_visible()
        field.fill(KEY)
        page.keyboard.press("Enter")
        expect(page.locator("#models-table tbody tr")).not_to_have_count(0)
        expect(page.locator("#state")).to_have_text("ready")
        run(use_tool(page, "Dense", "all-MiniLM-L6-v2"))
        code = page.locator("#code").inner_text()
        assert f"{locked}/vectord/embed" in code
        assert "$VECTORD_API_KEY" in code
        assert KEY not in page.content()
        assert page.evaluate("JSON.stringify(localStorage)") == "{}"
        assert not any(KEY in url for url in visit.asked)


def test_markup_is_shown_as_text(visit: Visit) -> None:
    """In model names, texts, tokens and errors."""
    visit.open()
    page = visit.page
    models = page.get_by_role("region", name="Table of models")
    expect(models.get_by_role("rowheader", name=HOSTILE)).to_be_visible()
    panel = use_tool(page, "Rerank", HOSTILE)
    panel.get_by_role("textbox", name="Passages, one per line").fill(
        f"{HOSTILE}\n<script>document.title='struck'</script>"
    )
    run(panel)
    expect(panel.get_by_role("cell", name=HOSTILE)).to_be_visible()
    for tool in ("Tokenize", "Dense"):
        panel = use_tool(page, tool, "all-MiniLM-L6-v2")
        panel.get_by_role("textbox", name="Text", exact=True).fill(HOSTILE)
        run(panel)
    panel = use_tool(page, "ColBERT", "tiny-bge-m3")
    panel.get_by_role("textbox", name="Query").fill(HOSTILE)
    run(panel)
    assert page.title() == "vectord"
    assert page.locator("main img, main script").count() == 0
    assert visit.complaints == []


def test_the_page_works_by_keyboard(visit: Visit) -> None:
    """Skip link, tabs and a run, with visible focus."""
    visit.open()
    page = visit.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.get_by_role("tab", name="Similarity").focus()
    for name in [*TOOLS[1:], *TOOLS[:3]]:
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name=name)).to_be_focused()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
    style = page.get_by_role("tab", name="Dense").evaluate("node => getComputedStyle(node).outlineStyle")
    assert style == "solid"
    for _ in range(3):  # model, over-long texts, the text
        page.keyboard.press("Tab")
    expect(page.get_by_role("textbox", name="Text", exact=True)).to_be_focused()
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("384 numbers")).to_be_visible()


def test_the_theme_follows_the_system_or_the_choice(chromium: Browser, server: str) -> None:
    """The choice is kept."""
    background = "getComputedStyle(document.body).backgroundColor"
    with Visit.begun(chromium, server, color_scheme="dark") as visit:
        visit.open()
        dark = visit.page.evaluate(background)
        visit.page.get_by_label("Theme").select_option("light")
        light = visit.page.evaluate(background)
        visit.open()
        assert visit.page.evaluate(background) == light != dark


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: make test does that where there is npm")
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 375)])
def test_axe_finds_nothing(chromium: Browser, server: str, scheme: str, width: int) -> None:
    """On the whole page with every tool's result; and nothing is wider than the screen."""
    size = {"width": width, "height": 844}
    with Visit.begun(chromium, server, color_scheme=scheme, viewport=size) as visit:
        visit.open()
        page = visit.page
        page.evaluate(AXE.read_text("utf-8"))
        for tool in TOOLS:
            panel = use_tool(page, tool, "tiny-bge-m3")
            run(panel)
            for closed in panel.locator("summary").all():
                closed.click()
            part = "document" if tool == TOOLS[0] else "'#tool'"
            found = page.evaluate(f"axe.run({part}).then(({{violations}}) => violations)")
            assert [(rule["id"], rule["nodes"]) for rule in found] == [], tool
            assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed: make test does that where there is npm")
def test_axe_finds_nothing_while_a_key_is_required(chromium: Browser, locked: str) -> None:
    """On the page with the form for the key."""
    with Visit.begun(chromium, locked) as visit:
        visit.page.goto(f"{locked}/")
        expect(visit.page.get_by_label("API key")).to_be_focused()
        visit.page.evaluate(AXE.read_text("utf-8"))
        assert visit.page.evaluate("axe.run().then(({violations}) => violations)") == []
