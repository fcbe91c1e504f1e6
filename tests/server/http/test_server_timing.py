"""Where an answer's time went, as its header says."""

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


def test_it_says_milliseconds() -> None:
    """The dialect's two, and the engine's three as they were for the request as a whole, not for one of its texts."""
    timings = Timings(tokenize_s=9, queue_s=9, inference_s=9, tokenizing_s=0.0015, waiting_s=0.002, computing_s=0.25)
    assert server_timing(Steps(10.0, 10.001, 10.3, 10.3005), timings) == (
        "parse;dur=1.000, tokenize;dur=1.500, queue;dur=2.000, inference;dur=250.000, render;dur=0.500"
    )


async def test_an_answer_says_where_its_time_went() -> None:
    """On a real socket, from a real engine: every step took some time, and all together no more than the request."""
    async with serving_one(M3) as (engine, _), live(engine, load_dialects(("openai",))) as running:
        reply = await ask(running, post({"model": "m0", "input": ["ab", "cde"]}, "/v1/embeddings"))
        models = await ask(running, get("/v1/models"))
    shown = {name: float(milliseconds) for name, milliseconds in DURATION.findall(reply.headers["server-timing"])}
    assert list(shown) == ["parse", "tokenize", "queue", "inference", "render"]
    assert min(shown["parse"], shown["tokenize"], shown["inference"]) > 0
    assert [name for name, _ in DURATION.findall(models.headers["server-timing"])] == ["parse", "render"]


async def test_errors_and_pages_say_nothing() -> None:
    """There were no steps."""
    async with live(FakeEngine()) as running:
        for request in (post(b"{"), get("/health")):
            assert "server-timing" not in (await ask(running, request)).headers
