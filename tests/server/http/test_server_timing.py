"""The Server-Timing header."""

from __future__ import annotations

import re

from tests.engine.fakes import M3, serving_one
from tests.server.fakes import FakeEngine
from tests.server.live import ask, get, live, post

from vectord.observability.exchange import Steps
from vectord.products.common.dialect import load_dialects
from vectord.schema import Timings
from vectord.server.http.result_headers import server_timing

DURATION = re.compile(r"(\w+);dur=(\d+\.\d{3})")


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
