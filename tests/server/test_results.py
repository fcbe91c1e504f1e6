"""The headers and the size of a result."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.engine.fakes import M3, serving_one
from tests.products.results import classify_result, embed_result, model_list, rerank_result, usage
from tests.server.fakes import FINGERPRINT, MODEL, FakeEngine
from tests.server.live import ask, get, live, post

from vectord.observability.exchange import Steps
from vectord.products.common.dialect import load_dialects
from vectord.schema import (
    ChunkedDocument,
    DecodeResult,
    DocumentsResult,
    EmbedResult,
    MultiResult,
    Result,
    SimilarityResult,
    TextLength,
    TextLengths,
    Timings,
    Token,
    TokenizeResult,
    Usage,
)
from vectord.server.results import (
    MAX_INDICES,
    NUMBERS_PER_TOKEN,
    count_numbers,
    length_headers,
    result_headers,
    server_timing,
)

LENGTHS = {"x-vectord-tokens-seen", "x-vectord-tokens-kept", "x-vectord-truncated"}
SIMILARITY = SimilarityResult(model="m", fingerprint="f00d", scores=np.zeros(1, np.float32), usage=usage([(3, 3)]))
DOCUMENTS = DocumentsResult(model="m", fingerprint="f00d", documents=[], usage=usage([(3, 3)]))
DURATION = re.compile(r"(\w+);dur=(\d+\.\d{3})")
USED = Usage(lengths=TextLengths([1]), characters=1)


def lengths_of(*lengths: tuple[int, int]) -> TextLengths:
    return TextLengths.of([TextLength(seen, kept) for seen, kept in lengths])


@pytest.mark.parametrize(
    ("result", "further"),
    [
        pytest.param(embed_result(used=usage([(3, 3)])), {"x-vectord-fingerprint": "f00d"}, id="embed"),
        pytest.param(DOCUMENTS, {"x-vectord-fingerprint": "f00d"}, id="documents"),
        pytest.param(
            rerank_result(0.5), {"x-vectord-fingerprint": "f00d", "x-vectord-score-kind": "logit"}, id="rerank"
        ),
        pytest.param(
            classify_result([0.1, 0.2, 0.7]),
            {"x-vectord-fingerprint": "f00d", "x-vectord-score-kind": "probability"},
            id="classify",
        ),
        pytest.param(SIMILARITY, {"x-vectord-fingerprint": "f00d"}, id="similarity"),
    ],
)
def test_lengths_space_and_kind_of_score(result: Result, further: dict[str, str]) -> None:
    """Lengths for all results of texts, the space for vectors, the kind for scores."""
    headers = result_headers(result)
    assert {name: value for name, value in headers.items() if name not in LENGTHS} == further
    assert set(headers) >= LENGTHS


@pytest.mark.parametrize("result", [model_list(), DecodeResult(model="m", texts=[])], ids=["models", "decode"])
def test_results_without_texts_have_no_headers(result: Result) -> None:
    assert result_headers(result) == {}


def test_every_model_of_a_composite_counts() -> None:
    """`usage` has the lengths of the first model only. An input that two models truncated counts once."""
    lengths = {"a": lengths_of((5, 5), (9, 4), (9, 4)), "b": lengths_of((6, 2), (8, 4), (7, 7))}
    result = EmbedResult(model="both", fingerprint="f", usage=usage([(5, 5), (9, 4), (9, 4)]), lengths=lengths)
    headers = result_headers(result)
    assert (headers["x-vectord-tokens-seen"], headers["x-vectord-tokens-kept"]) == ("44", "26")
    assert (headers["x-vectord-truncated"], headers["x-vectord-truncated-inputs"]) == ("3", "0,1,2")


def test_a_truncated_query_is_reported() -> None:
    """TEI's bare array has no room for it."""
    assert result_headers(rerank_result(0.5, query=TextLength(9, 4)))["x-vectord-query-truncated"] == "true"


def test_lengths_are_summed_and_truncated_inputs_listed() -> None:
    lengths = [TextLength(5, 5), TextLength(9, 4), TextLength(3, 3, characters_cut=7)]
    assert length_headers(TextLengths.of(lengths)) == {
        "x-vectord-tokens-seen": "17",
        "x-vectord-tokens-kept": "12",
        "x-vectord-truncated": "2",
        "x-vectord-truncated-inputs": "1,2",
    }


def test_ids_that_are_foreign_to_any_model_are_listed() -> None:
    headers = length_headers(TextLengths([5, 5]), TextLengths.of([TextLength(5, 5), TextLength(5, 5, foreign=True)]))
    assert headers["x-vectord-foreign-ids"] == "1"
    assert headers["x-vectord-truncated"] == "0"
    assert "x-vectord-truncated-inputs" not in headers


def test_the_list_of_truncated_inputs_is_bounded() -> None:
    """The count is complete."""
    headers = length_headers(lengths_of(*[(2, 1)] * 2048))
    assert headers["x-vectord-truncated"] == "2048"
    assert headers["x-vectord-truncated-inputs"].count(",") == MAX_INDICES - 1


def test_steps_are_in_milliseconds() -> None:
    """Two of the product, and three of the engine for the whole request."""
    timings = Timings(tokenizing_s=0.0015, queued_s=10.0, first_s=10.002, last_s=10.252)
    assert server_timing(Steps(10.0, 10.001, 10.3, 10.3005), timings) == (
        "parse;dur=1.000, tokenize;dur=1.500, queue;dur=2.000, inference;dur=250.000, render;dur=0.500"
    )


async def test_a_response_reports_the_time_of_each_step() -> None:
    """From a real engine on a real socket; the sum is at most the request's time."""
    async with serving_one(M3) as (engine, _), live(engine, load_dialects(("openai",))) as running:
        reply = await ask(running, post({"model": "m0", "input": ["ab", "cde"]}, "/v1/embeddings"))
        models = await ask(running, get("/v1/models"))
    shown = {name: float(milliseconds) for name, milliseconds in DURATION.findall(reply.headers["server-timing"])}
    assert list(shown) == ["parse", "tokenize", "queue", "inference", "render"]
    assert min(shown["parse"], shown["tokenize"], shown["inference"]) > 0
    assert [name for name, _ in DURATION.findall(models.headers["server-timing"])] == ["parse", "render"]


async def test_errors_and_pages_have_no_timing() -> None:
    async with live(FakeEngine()) as running:
        for request in (post(b"{"), get("/health")):
            assert "server-timing" not in (await ask(running, request)).headers


def test_all_vectors_of_a_result_are_counted() -> None:
    """In every field."""
    rows = np.ones((3, 4), np.float32)
    every = EmbedResult(
        model=MODEL,
        fingerprint=FINGERPRINT,
        usage=USED,
        dense={"float": rows, "int8": rows},
        tokens=[rows],
        colbert=[rows],
    )
    document = ChunkedDocument(chunks=[], vectors={"float": rows})
    documents = DocumentsResult(model=MODEL, fingerprint=FINGERPRINT, documents=[document, document], usage=USED)
    assert count_numbers(every) == 48
    assert count_numbers(documents) == 24
    assert count_numbers(MultiResult(results=[every, every], usage=USED)) == 96
    assert count_numbers(DecodeResult(model=MODEL, texts=["a"])) == 0


def test_tokens_and_texts_count_as_numbers() -> None:
    """Their responses reach megabytes, so they are rendered in a thread and bounded while clients do not read them."""
    token = Token(id=1, text="a", special=False, start=0, stop=1)
    tokens = TokenizeResult(model=MODEL, tokens=[[token] * 3, [], [token]], usage=USED)
    assert count_numbers(tokens) == 4 * NUMBERS_PER_TOKEN
    assert count_numbers(DecodeResult(model=MODEL, texts=["a" * 100, "b" * 60])) == 10
