"""Each tool shows the API's result, and the code next to it sends the same request."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from playwright.sync_api import Page, expect
from tests.server.pages.console.visit import HOSTILE, MINUS, Visit, note, number, run, use_tool

MINILM, BGE = "all-MiniLM-L6-v2", "tiny-bge-m3"
TEXT = "small birds, an \u00fcber-quick fox's <b>tail</b> \U0001f98a"


def ask(server: str, path: str, **body: Any) -> Any:
    return httpx.post(f"{server}/vectord/{path}", json=body).raise_for_status().json()


def test_dense_shows_every_number(page: Page, server: str) -> None:
    """Of the API's vector, and its length."""
    panel = use_tool(page, "Dense", MINILM)
    panel.get_by_role("textbox", name="Text", exact=True).fill(TEXT)
    run(panel)
    wanted = ask(server, "embed", model=MINILM, inputs=[TEXT])["data"][0]["dense"]
    shown = [float(word) for word in panel.get_by_label("All numbers").inner_text().split(", ")]
    assert np.allclose(shown, wanted, atol=1e-6)
    expect(panel).to_contain_text("length 1.0000")


def test_sparse_weights_are_shown_on_the_tokens(page: Page, server: str) -> None:
    """The text around them is complete."""
    panel = use_tool(page, "Sparse", BGE)
    panel.get_by_role("textbox", name="Text", exact=True).fill("yes, small birds sing")
    run(panel)
    vector = ask(server, "embed", model=BGE, inputs=["yes, small birds sing"], outputs=["sparse"])["data"][0]["sparse"]
    weights = dict(zip(vector["indices"], vector["values"], strict=True))
    tokens = ask(server, "tokenize", model=BGE, inputs=["yes, small birds sing"])["data"][0]["tokens"]
    wanted = [f"{weights[token['id']]:.2f}" for token in tokens if token["id"] in weights]
    assert panel.locator(".words sub").all_inner_texts() == wanted
    assert wanted
    bars = [row.locator("td").last.inner_text() for row in panel.locator(".bars tbody tr").all()]
    assert bars == [f"{weight:.3f}" for weight in sorted(weights.values(), reverse=True)]
    widths = panel.locator(".bars .bar").evaluate_all("all => all.map(bar => Number.parseInt(bar.style.width))")
    assert widths == [
        pytest.approx(100 * weight / max(weights.values()), abs=1) for weight in sorted(weights.values())[::-1]
    ]


def test_colbert_matches_agree_with_the_score(page: Page, server: str) -> None:
    """The average of the best matches is the rerank score."""
    query, passage = "small birds", "the quick brown fox and many small birds"
    panel = use_tool(page, "ColBERT", BGE)
    panel.get_by_role("textbox", name="Query").fill(query)
    panel.get_by_role("textbox", name="Document").fill(passage)
    run(panel)
    wanted = ask(server, "rerank", model=BGE, query=query, passages=[passage], method="colbert")["results"][0]["score"]
    assert number(panel.locator(".facts b").last.inner_text()) == pytest.approx(wanted, abs=1e-3)
    vectors = [
        np.array(ask(server, "embed", model=BGE, inputs=[text], outputs=["colbert"], kind=kind)["data"][0]["colbert"])
        for text, kind in ((query, "query"), (passage, "document"))
    ]
    similarities = vectors[0] @ vectors[1].T
    buttons = panel.get_by_role("group", name="Tokens of the query").get_by_role("button")
    assert buttons.count() == len(similarities)
    page.mouse.move(0, 0)  # a token under the pointer would be shown instead of the focused one
    for index in (0, len(similarities) - 1):
        buttons.nth(index).focus()
        marked = panel.locator(".words span.word").evaluate_all("all => all.findIndex(one => one.matches('.best'))")
        # Another batch may round two nearly equal ones in another order.
        assert similarities[index][marked] == pytest.approx(similarities[index].max(), abs=1e-3)


def test_rerank_lists_passages_by_score(page: Page, server: str) -> None:
    """By the model's own scores and another method, with the kind of score."""
    passages = ["rain", "joy", "a glad person"]
    panel = use_tool(page, "Rerank", MINILM)
    panel.get_by_role("textbox", name="Query").fill("happy")
    panel.get_by_role("textbox", name="Passages, one per line").fill("\n".join(passages))
    run(panel)
    wanted = ask(server, "rerank", model=MINILM, query="happy", passages=passages)
    expect(panel).to_contain_text(f"Kind of score: {wanted['score_kind']}")
    rows = [row.locator("td").all_inner_texts() for row in panel.locator("tbody tr").all()]
    assert [row[0] for row in rows] == [passages[result["index"]] for result in wanted["results"]]
    assert [number(row[1]) for row in rows] == pytest.approx([r["score"] for r in wanted["results"]], abs=1e-3)
    panel = use_tool(page, "Rerank", BGE)
    panel.get_by_role("combobox", name="Method").select_option("weighted")
    run(panel)
    expect(panel).to_contain_text("Kind of score: weighted")


def test_tokens_show_their_offsets(page: Page, server: str) -> None:
    """With their ids."""
    panel = use_tool(page, "Tokenize", MINILM)
    panel.get_by_role("textbox", name="Text", exact=True).fill(TEXT)
    run(panel)
    tokens = ask(server, "tokenize", model=MINILM, inputs=[TEXT])["data"][0]["tokens"]
    words = panel.locator(".words")
    assert words.locator("sub").all_inner_texts() == [str(token["id"]) for token in tokens if not token["special"]]
    surfaces = words.locator(".word").evaluate_all("all => all.map(one => one.firstChild.textContent)")
    data = TEXT.encode()
    assert surfaces == [data[token["start"] : token["stop"]].decode() for token in tokens if not token["special"]]


def test_similarity_shows_all_pairs(page: Page, server: str) -> None:
    """Cosines, one on the diagonal."""
    texts = ["a happy person", "a glad man", "rain"]
    panel = use_tool(page, "Similarity", MINILM)
    panel.get_by_role("textbox", name="Texts, one per line").fill("\n".join(texts))
    run(panel)
    vectors = np.array([each["dense"] for each in ask(server, "embed", model=MINILM, inputs=texts)["data"]])
    shown = [[number(cell) for cell in row.locator("td").all_inner_texts()] for row in panel.locator("tbody tr").all()]
    assert np.allclose(shown, vectors @ vectors.T, atol=0.002)


def test_a_map_shows_near_texts_near_each_other(page: Page) -> None:
    """Selecting a text lists its neighbours by cosine."""
    panel = use_tool(page, "Map", MINILM)
    texts = ["bread and butter", "a loaf of bread", "interest rates rise", "the bank raised its rates"]
    panel.get_by_role("textbox", name="Texts, one per line").fill("\n".join(texts))
    run(panel)
    places = panel.locator(".point").evaluate_all(
        "all => all.map(point => [point.cx.baseVal.value, point.cy.baseVal.value])"
    )
    bread, loaf, rise, bank = np.array(places)
    assert np.linalg.norm(bread - loaf) < np.linalg.norm(bread - bank)
    assert np.linalg.norm(rise - bank) < np.linalg.norm(rise - loaf)
    assert panel.locator(".map .name").all_text_contents() == texts
    panel.get_by_role("button", name=texts[0]).click()
    expect(panel.locator(".found tbody tr").first.locator("td").first).to_have_text(texts[1])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("lines.txt", "the first text\n\nrain falls\nfresh bread\n"),
        ("table.csv", 'id,text\n1,the first text\n2,"rain, ""heavy""\nfalls"\n3,fresh bread\n'),
        (
            "list.json",
            '{"items": [{"id": "1", "body": "the first text"}, {"body": "rain"}, {"body": "fresh bread"}]}',
        ),
        ("lines.jsonl", '"the first text"\n"rain falls"\n"fresh bread"\n'),
    ],
)
def test_a_dropped_file_is_mapped_and_searched(page: Page, name: str, content: str) -> None:
    """Its texts only."""
    panel = use_tool(page, "Map", MINILM)
    transfer = page.evaluate_handle(
        """([name, content]) => {
            const sent = new DataTransfer();
            sent.items.add(new File([content], name));
            return sent;
        }""",
        [name, content],
    )
    panel.locator(".drop").dispatch_event("drop", {"dataTransfer": transfer})
    expect(panel.locator(".drop")).to_contain_text(f"{name}: 3 texts")
    run(panel)
    expect(panel.locator(".point")).to_have_count(3)
    panel.get_by_label("Search these texts").fill("weather")
    panel.get_by_role("button", name="Search").click()
    expect(panel.locator(".found tbody tr").first.locator("td").first).to_contain_text("rain")
    panel.get_by_role("button", name="Remove the file").click()


def test_a_file_without_texts_is_refused(page: Page) -> None:
    """With the reason."""
    panel = use_tool(page, "Map", MINILM)
    panel.locator("input[type=file]").set_input_files({"name": "x.json", "mimeType": "", "buffer": b"{"})
    expect(panel.locator(".drop")).to_contain_text("x.json is not valid JSON.")


def spearman(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """Without equal values."""
    return float(np.corrcoef(one.argsort().argsort(), other.argsort().argsort())[0, 1])


def test_two_models_are_compared_by_one_search(page: Page, server: str) -> None:
    """On maps with the same colours, with the overlap of the nearest texts, the rank correlation and both times."""
    panel = use_tool(page, "Map", MINILM)
    texts = [
        "rain snow bread dough a goal",
        "a match",
        "the bank",
        "interest rates",
        "a bakery",
        "the river",
        "a flood",
        "inflation",
    ]
    panel.get_by_role("textbox", name="Texts, one per line").fill("\n".join(texts))
    panel.get_by_role("combobox", name="Compare with").select_option(BGE)
    panel.get_by_role("button", name="Run").click()
    sides = panel.locator(".side")
    expect(sides).to_have_count(2)
    assert sides.locator("h3").all_inner_texts() == [MINILM, BGE]
    assert all(re.search(r"\d+ tokens, [\d.]+ m?s", side.inner_text()) for side in sides.all())
    colours = [side.locator(".point").evaluate_all("all => all.map(one => one.classList[1])") for side in sides.all()]
    assert colours[0] == colours[1]
    expect(panel.locator(".agreement")).to_contain_text(f"means of {len(texts)} texts")
    panel.get_by_label("Search these texts").fill("weather")
    panel.get_by_role("button", name="Search").click()
    agreement = panel.locator(".search").get_by_role("status")
    expect(agreement).to_contain_text("Spearman")
    scores = []
    for model in (MINILM, BGE):
        data = ask(server, "embed", model=model, inputs=texts, kind="document")["data"]
        query = ask(server, "embed", model=model, inputs=["weather"], kind="query")["data"][0]["dense"]
        scores.append(np.array([each["dense"] for each in data]) @ query)
    nearest = [set(row.argsort()[::-1][:3]) for row in scores]
    expect(agreement).to_contain_text(f"Nearest texts in common: {len(nearest[0] & nearest[1])} of 3;")
    expect(agreement).to_contain_text(f"correlation: {spearman(*scores):.2f}".replace("-", MINUS))
    for side, row in zip(sides.all(), scores, strict=True):
        assert side.locator(".found tbody td:nth-child(2)").first.inner_text() == texts[row.argmax()]
    sides.first.get_by_role("button", name=texts[0]).click()
    for side in sides.all():
        expect(side.locator(".point.self")).to_have_attribute("aria-label", texts[0])


def test_two_rerankings_are_compared(page: Page, server: str) -> None:
    """Of the same query and passages, on one scale, with the other model's ranks."""
    panel = use_tool(page, "Rerank", HOSTILE)
    panel.get_by_role("combobox", name="Compare with").select_option(MINILM)
    panel.get_by_role("button", name="Run").click()
    expect(panel.locator(".agreement")).to_contain_text("Spearman")
    first, second = (
        [row.locator("td, th").all_inner_texts() for row in side.locator("tbody tr").all()]
        for side in panel.locator(".side").all()
    )
    ranks = {row[1]: row[0] for row in first}
    assert [row[1] for row in second] == [ranks[row[2]] for row in second]
    assert all(0 <= number(row[2]) <= 1 for row in first)


def test_rerank_selects_a_reranker(visit: Visit) -> None:
    """Also after another model has been selected in another tool; the visitor's own choice stays."""
    visit.open()
    page = visit.page
    use_tool(page, "Similarity", MINILM)
    page.get_by_role("tab", name="Rerank").click()
    choice = page.get_by_role("tabpanel").get_by_role("combobox", name="Model")
    expect(choice).to_have_value(HOSTILE)
    choice.select_option(MINILM)
    page.get_by_role("tab", name="Dense").click()
    page.get_by_role("tab", name="Rerank").click()
    expect(choice).to_have_value(MINILM)


def test_truncation_is_reported(page: Page) -> None:
    """Tokens seen and read, and the text; refused texts have a reason."""
    panel = use_tool(page, "Dense", MINILM)
    panel.get_by_role("textbox", name="Text", exact=True).fill("rain " * 400)
    panel.get_by_role("combobox", name="Over-long texts").select_option("truncate")
    run(panel)
    expect(note(panel)).to_contain_text("402 tokens, 256 used; truncated: text 1")
    panel.get_by_role("combobox", name="Over-long texts").select_option("reject")
    panel.get_by_role("button", name="Run").click()
    expect(note(panel)).to_contain_text("256")
    expect(note(panel)).to_have_class("note bad")


def code_of(page: Page, language: str) -> str:
    page.get_by_role("combobox", name="Language").select_option(language)
    return page.locator("#code").inner_text()


def lists_in(value: Any) -> Iterator[Any]:
    """All lists in a response, the outer ones first."""
    if isinstance(value, dict):
        yield from (found for item in value.values() for found in lists_in(item))
    elif isinstance(value, list):
        yield value
        yield from (found for item in value for found in lists_in(item))


def answers(page: Page) -> dict[str, list[Any]]:
    """The responses to the shown code in each API, by its label."""
    choice = page.get_by_role("combobox", name="API")
    found = {}
    for label in choice.locator("option").all_inner_texts():
        choice.select_option(label)
        calls = code_of(page, "curl").split("\n\n")
        done = [
            subprocess.run(["bash", "-c", f"{call} -s --fail-with-body"], capture_output=True, check=False)
            for call in calls
        ]
        assert all(each.returncode == 0 for each in done), (label, calls, done)
        found[label] = [json.loads(each.stdout) for each in done]
    return found


@pytest.mark.parametrize(("overlong", "text"), [("", TEXT), ("true", "rain " * 400)])
def test_the_code_of_every_api_returns_the_vector_of_the_page(page: Page, overlong: str, text: str) -> None:
    """The same numbers, also of a truncated text."""
    panel = use_tool(page, "Dense", MINILM)
    panel.get_by_role("textbox", name="Text", exact=True).fill(text)
    panel.get_by_role("combobox", name="Over-long texts").select_option(overlong)
    run(panel)
    shown = [float(word) for word in panel.get_by_label("All numbers").inner_text().split(", ")]
    found = answers(page)
    assert len(found) > 10
    for label, (response,) in found.items():
        vectors = [each for each in lists_in(response) if len(each) == len(shown)]
        assert len(vectors) == 1 and np.allclose(vectors[0], shown, atol=1e-5), label


@pytest.mark.parametrize("language", ["Python", "JavaScript"])
def test_the_code_of_each_language_returns_the_same_result(page: Page, server: str, language: str) -> None:
    """Of one call, and of two."""
    panel = use_tool(page, "Rerank", MINILM)
    panel.get_by_role("textbox", name="Query").fill(TEXT)
    printed = _printed(language, code_of(page, language))
    passages = panel.get_by_role("textbox", name="Passages, one per line").input_value().split("\n")
    wanted = ask(server, "rerank", model=MINILM, query=TEXT, passages=passages)
    scores = [float(score) for score in re.findall(r"""['"]?score['"]?: (-?[\d.e-]+)""", printed)]
    assert scores == pytest.approx([result["score"] for result in wanted["results"]], abs=1e-4)
    use_tool(page, "ColBERT", BGE)
    assert len(re.findall("""['"]?colbert['"]?: \\[""", _printed(language, code_of(page, language)))) == 2


def _printed(language: str, code: str) -> str:
    command = [sys.executable, "-c", code] if language == "Python" else ["node", "--input-type=module", "-e", code]
    if shutil.which(command[0]) is None:
        pytest.skip("there is no Node on this machine")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
