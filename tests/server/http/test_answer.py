"""The form, the headers, the rendering and the compression of a response."""

from __future__ import annotations

import asyncio
import gzip
import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import zstandard
from tests.engine.fakes import M3, serving_one
from tests.products.results import classify_result, embed_result, model_list, rerank_result, usage
from tests.server.fakes import FINGERPRINT, MODEL, FakeEngine
from tests.server.live import ask, get, live, post

from vectord.errors import NotAcceptable, Overloaded
from vectord.observability.exchange import Steps
from vectord.products.common.dialect import Call, Rendered, load_dialects
from vectord.products.common.vectors import dump_json
from vectord.schema import (
    ChunkedDocument,
    ChunkOptions,
    DecodeResult,
    DocumentsRequest,
    DocumentsResult,
    EmbedRequest,
    EmbedResult,
    MultiResult,
    RerankRequest,
    Result,
    SimilarityResult,
    TextLength,
    Timings,
    Usage,
)
from vectord.server.http.answer import (
    COMPRESS_ON_LOOP_BYTES,
    MAX_INDICES,
    RENDER_ON_LOOP_NUMBERS,
    SMALL_NUMBERS,
    Coding,
    Responder,
    coding_for,
    compressed,
    count_numbers,
    length_headers,
    negotiated,
    result_headers,
    server_timing,
)
from vectord.server.http.hardening.write_backpressure import WriteBackpressure
from vectord.server.pipeline import Shutdown

ARROW = "application/vnd.apache.arrow.stream"
OCTETS = "application/octet-stream"
LENGTHS = {"x-vectord-tokens-seen", "x-vectord-tokens-kept", "x-vectord-truncated"}
SIMILARITY = SimilarityResult(model="m", fingerprint="f00d", scores=np.zeros(1, np.float32), usage=usage([(3, 3)]))
DOCUMENTS = DocumentsResult(model="m", fingerprint="f00d", documents=[], usage=usage([(3, 3)]))
DURATION = re.compile(r"(\w+);dur=(\d+\.\d{3})")
USED = Usage(lengths=[TextLength(1, 1)], characters=1)


# --- the form --------------------------------------------------------------------------------------------------


def own(result: Result) -> Rendered:
    return Rendered(body=b"{}")


def asked(accept: str | None, **facts: Any) -> Call:
    call = Call(EmbedRequest(inputs=["a", "b"], **facts), own)
    return negotiated(call, {} if accept is None else {"accept": accept})


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        "*/*",
        "application/json",
        "application/json, application/octet-stream",
        "application/octet-stream;q=0.5, application/json",
        "application/octet-stream;q=0",
        "text/html, */*;q=0.1",
        "," * 2000,
    ],
)
def test_json_is_the_default(accept: str | None) -> None:
    """Unless bytes have the highest quality."""
    assert asked(accept).render is own


@pytest.mark.parametrize(
    ("accept", "dtype", "precision"),
    [
        ("application/octet-stream", "float32", "float"),
        ("Application/Octet-Stream, */*;q=0.8", "float32", "float"),
        ('application/octet-stream; dtype="float16"', "float16", "float"),
        ("application/octet-stream;dtype=int8;q=1", "int8", "int8"),
        ("application/json;q=0.1, application/octet-stream;dtype=ubinary;q=0.9", "ubinary", "ubinary"),
    ],
)
def test_bytes_are_sent_if_named(accept: str, dtype: str, precision: str) -> None:
    """In the requested type."""
    call = asked(accept)
    assert isinstance(call.request, EmbedRequest)
    assert call.request.precisions == (precision,)
    dense = {precision: np.zeros((2, 3), np.float32 if precision == "float" else np.uint8)}
    rendered = call.render(replace(embed_result(), dense=dense))
    assert rendered.headers["x-vectord-dtype"] == dtype


@pytest.mark.parametrize(
    ("accept", "facts"),
    [
        pytest.param("application/octet-stream;dtype=float64", {}, id="an unknown type"),
        pytest.param("application/octet-stream", {"outputs": frozenset({"dense", "sparse"})}, id="two kinds"),
        pytest.param("application/octet-stream", {"outputs": frozenset({"sparse"})}, id="sparse"),
        pytest.param("application/octet-stream", {"partial": True}, id="errors of single inputs"),
        pytest.param("application/octet-stream;dtype=int8", {"outputs": frozenset({"colbert"})}, id="int8 of tokens"),
    ],
)
def test_results_of_several_matrices_are_refused(accept: str, facts: dict[str, Any]) -> None:
    """Before anything is computed."""
    with pytest.raises(NotAcceptable):
        asked(accept, **facts)


def test_only_vectors_are_sent_as_bytes() -> None:
    """A ranking is always JSON."""
    call = Call(RerankRequest(query="q", passages=["a"]), own)
    assert negotiated(call, {"accept": "application/octet-stream"}) is call


def test_documents_are_one_matrix_and_never_arrow() -> None:
    """One row per chunk."""
    call = Call(DocumentsRequest(documents=["a"], chunks=ChunkOptions(max_tokens=8)), own)
    assert negotiated(call, {"accept": "application/octet-stream"}).render is not own
    with pytest.raises(NotAcceptable):
        negotiated(call, {"accept": ARROW})
    bytes_ = negotiated(call, {"accept": "application/octet-stream;dtype=int8"})
    assert bytes_.request.precisions == ("int8",)
    with pytest.raises(NotAcceptable):
        negotiated(replace(call, request=replace(call.request, mean=True)), {"accept": "application/octet-stream"})


def test_bytes_have_the_type_of_the_body() -> None:
    """Unless the header names one; other types are refused."""
    call = Call(EmbedRequest(inputs=["a"], precisions=("int8",)), own)
    assert negotiated(call, {"accept": OCTETS}).request.precisions == ("int8",)
    assert negotiated(call, {"accept": f"{OCTETS};dtype=float16"}).request.precisions == ("float",)
    for precisions in (("float", "int8"), ("uint8",), ("binary",)):
        other = replace(call, request=EmbedRequest(inputs=["a"], precisions=precisions))
        with pytest.raises(NotAcceptable, match="dtype="):
            negotiated(other, {"accept": OCTETS})
        assert negotiated(other, {"accept": f"{OCTETS};dtype=ubinary"}).request.precisions == ("ubinary",)


@pytest.mark.parametrize("accept", [OCTETS, ARROW])
def test_vectors_scaled_by_a_renderer_are_never_bytes(accept: str) -> None:
    """They would differ from its JSON."""
    with pytest.raises(NotAcceptable, match="JSON only"):
        negotiated(Call(EmbedRequest(inputs=["a"]), own, binary=False), {"accept": accept})


def test_without_pyarrow_arrow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command to install it."""
    assert asked(ARROW).render is not own
    monkeypatch.setattr("vectord.products.common.vectors.find_spec", lambda name: None)
    with pytest.raises(NotAcceptable, match=r"vectord\[arrow\]"):
        asked(ARROW)


# --- headers ---------------------------------------------------------------------------------------------------


def lengths_of(*lengths: tuple[int, int]) -> Sequence[TextLength]:
    return [TextLength(seen, kept) for seen, kept in lengths]


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
    """`usage` has the lengths of the first model only."""
    lengths = {"a": lengths_of((4, 4), (9, 4)), "b": lengths_of((6, 2), (7, 7))}
    result = EmbedResult(model="both", fingerprint="f", usage=usage([(4, 4), (9, 4)]), lengths=lengths)
    headers = result_headers(result)
    assert (headers["x-vectord-tokens-seen"], headers["x-vectord-tokens-kept"]) == ("26", "17")
    assert headers["x-vectord-truncated-inputs"] == "0,1"


def test_a_truncated_query_is_reported() -> None:
    """TEI's bare array has no room for it."""
    assert result_headers(rerank_result(0.5, query=TextLength(9, 4)))["x-vectord-query-truncated"] == "true"


def test_lengths_are_summed_and_truncated_inputs_listed() -> None:
    lengths = [TextLength(5, 5), TextLength(9, 4), TextLength(3, 3, characters_cut=7)]
    assert length_headers(lengths) == {
        "x-vectord-tokens-seen": "17",
        "x-vectord-tokens-kept": "12",
        "x-vectord-truncated": "2",
        "x-vectord-truncated-inputs": "1,2",
    }


def test_tokens_are_summed_over_models() -> None:
    """An input that two models truncated counts once."""
    one = [TextLength(5, 5), TextLength(9, 4), TextLength(9, 4)]
    other = [TextLength(6, 2), TextLength(8, 4), TextLength(7, 7)]
    assert length_headers(one, other) == {
        "x-vectord-tokens-seen": "44",
        "x-vectord-tokens-kept": "26",
        "x-vectord-truncated": "3",
        "x-vectord-truncated-inputs": "0,1,2",
    }


def test_without_truncation_there_is_no_list() -> None:
    headers = length_headers([TextLength(5, 5)])
    assert headers["x-vectord-truncated"] == "0"
    assert "x-vectord-truncated-inputs" not in headers


def test_the_list_of_truncated_inputs_is_bounded() -> None:
    """The count is complete."""
    headers = length_headers([TextLength(2, 1)] * 2048)
    assert headers["x-vectord-truncated"] == "2048"
    assert headers["x-vectord-truncated-inputs"].count(",") == MAX_INDICES - 1


def test_steps_are_in_milliseconds() -> None:
    """Two of the product, and three of the engine for the whole request."""
    timings = Timings(tokenize_s=9, queue_s=9, inference_s=9, tokenizing_s=0.0015, waiting_s=0.002, computing_s=0.25)
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


# --- rendering -------------------------------------------------------------------------------------------------


def responder(backpressure: WriteBackpressure | None = None) -> Responder:
    return Responder(0, 0, Shutdown(), backpressure or WriteBackpressure(0))


def embedded(numbers: int) -> EmbedResult:
    rows = np.ones((numbers, 1), np.float32)
    return EmbedResult(model=MODEL, fingerprint=FINGERPRINT, usage=USED, dense={"float": rows})


@pytest.mark.parametrize(
    ("numbers", "on_loop"),
    [(1, True), (RENDER_ON_LOOP_NUMBERS, True), (RENDER_ON_LOOP_NUMBERS + 1, False)],
    ids=["one", "most", "more"],
)
async def test_large_responses_are_rendered_in_a_thread(numbers: int, on_loop: bool) -> None:
    """Others are not: a thread costs more than a usual response."""
    seen: list[threading.Thread] = []

    def render(result: Result) -> Rendered:
        seen.append(threading.current_thread())
        return Rendered(body=b"made")

    made = await responder().render(Call(EmbedRequest(inputs=["a"]), render), embedded(numbers))
    assert made.body == b"made"
    assert (seen == [threading.current_thread()]) is on_loop


async def test_the_loop_runs_while_a_large_response_is_rendered() -> None:
    """The thread releases the interpreter between rows."""
    rows = np.random.default_rng(0).standard_normal((20_000, 384), np.float32)
    result = EmbedResult(model=MODEL, fingerprint=FINGERPRINT, usage=USED, dense={"float": rows})
    call = Call(EmbedRequest(inputs=["a"]), lambda result: Rendered(body=dump_json(rows)))
    making = asyncio.create_task(responder().render(call, result))
    turns = 0
    while not making.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await making).body == dump_json(rows)
    assert turns > 10  # 2 or 3 where it is dumped at once; at least one in 5 ms, some 40, where it is not


async def test_a_large_response_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is rendered. A small one is not."""
    monkeypatch.setattr("vectord.server.http.hardening.write_backpressure.WAIT_S", 0.0)
    backpressure = WriteBackpressure(0)
    backpressure.room_bytes = 0
    made: list[Result] = []

    def render(result: Result) -> Rendered:
        made.append(result)
        return Rendered(body=b"")

    call = Call(EmbedRequest(inputs=["a"]), render)
    await responder(backpressure).render(call, embedded(SMALL_NUMBERS))
    with pytest.raises(Overloaded, match="large responses"):
        await responder(backpressure).render(call, embedded(SMALL_NUMBERS + 1))
    assert len(made) == 1


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


# --- compression -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (None, None),
        ("", None),
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0, gzip", "gzip"),
        ("deflate, GZIP;q=0.5", "gzip"),
        ("*", "gzip"),
        ("gzip;q=0", None),
        ("gzip; q=0.000", None),
        ("*;q=0", None),
        ("gzip;q=0, *", None),
        ("*;q=0, gzip", "gzip"),
        ("identity", None),
        ("xgzip", None),
        ("gzip;q=zero", "gzip"),
        ("gzip;q=0.01", "gzip"),
        ("gzip," * 1000, None),
    ],
)
def test_the_coding_follows_accept_encoding(header: str | None, coding: str | None) -> None:
    """By name, gzip also by *, and not at quality zero; a very long header is ignored."""
    assert coding_for(header) == coding


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@pytest.mark.parametrize("size", [1, COMPRESS_ON_LOOP_BYTES, COMPRESS_ON_LOOP_BYTES + 1])
async def test_compression_is_lossless(size: int, coding: str) -> None:
    """On the loop or in a thread."""
    body = (bytes(range(256)) * (size // 256 + 1))[:size]
    sent = await compressed(body, cast("Coding", coding))
    assert (gzip.decompress(sent) if coding == "gzip" else zstandard.decompress(sent)) == body
