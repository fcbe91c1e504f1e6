"""CPU time of each API: from a body's bytes to a response's bytes, without the engine.

For each API, one text in and 384 floats out, on its embedding route; then the same vectors as JSON, base64 and bytes;
then the ColBERT vectors of a text of 8,192 tokens; then /metrics after requests on every route. No server and no model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import orjson

from bench.report import Row, at_least
from vectord.config import ServerConfig
from vectord.engine.events import RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.metrics import Metrics
from vectord.products.common.dialect import Call, Dialect, Incoming, Route, load_dialects
from vectord.products.common.errors import render_any
from vectord.products.common.vectors import render_octets
from vectord.schema import Caller, EmbedResult, Float32, Gauges, ModelInfo, TextLengths, Timings, Usage
from vectord.server.http.routing import Table

DIMENSIONS = 384
COLBERT_SHAPE = (8192, 1024)
MOST_US = 60.0
CHEAPER = 3.0
COLBERT_JSON_S, COLBERT_BYTES_S = 1.5, 0.1
METRICS_S = 0.005
METRICS_MODELS, METRICS_KEYS = 16, 32
METRICS_STATUSES = (200, 400, 429)  # on every route

TEXT = "what is the boiling point of water at high altitude"
# For APIs whose example does not request one vector of one text.
BODIES: Mapping[str, Mapping[str, Any]] = {
    "cohere": {"model": "m", "texts": [TEXT], "input_type": "search_query", "embedding_types": ["float"]},
    "embedding_server": {"inputs": TEXT},
    "llamacpp": {"content": TEXT},
    "ollama": {"model": "m", "input": TEXT},
    "smart_embedder": {"sentences": [TEXT], "return_sparse": False, "return_colbert": False},
    "tei": {"inputs": TEXT},
    "vectord": {"inputs": TEXT},
    "weaviate": {"text": TEXT},
}
PATHS: Mapping[str, str] = {
    "cohere": "/v2/embed",
    "embedding_server": "/api/v1/embed",
    "llamacpp": "/embedding",
    "ollama": "/api/embed",
    "semantic_explorer": "/embed",
    "smart_embedder": "/embeddings",
    "tei": "/embed",
    "vectord": "/vectord/embed",
    "weaviate": "/vectors",
}
MODEL = ModelInfo(
    name="m",
    model_id="m",
    revision=None,
    fingerprint="f00d",
    architecture="bert",
    outputs=frozenset({"dense", "sparse", "colbert", "tokens"}),
    reranks=False,
    labels=(),
    pooling="mean",
    dimensions=DIMENSIONS,
    full_dimensions=DIMENSIONS,
    matryoshka=None,
    max_input_tokens=8192,
    dtype="bfloat16",
    device="cpu",
    backend="openvino",
    state="ready",
    pinned=False,
    created_unix_s=0,
)
IDLE = Gauges(
    queued_texts=2,
    queued_tokens={},
    active={"embed": 1},
    wait_s=0,
    max_wait_s=1,
    queued_embeds=0,
    under_way=0,
    places=1,
    cached_texts=0,
    cache_bytes=0,
    cache_limit_bytes=0,
    memory_bytes={},
    devices={},
)


@dataclass(frozen=True, slots=True)
class Cost:
    """cpu_s: CPU seconds of a call, in the best round."""

    what: str
    cpu_s: float


def measure(rounds: int) -> dict[str, list[Cost]]:
    return {
        "dialects": [_dialect(dialect, rounds) for dialect in load_dialects(ServerConfig().dialects)],
        "forms": [Cost(name, _cpu_s(call, 2000, rounds)) for name, call in _forms()],
        "colbert": [Cost(name, _cpu_s(call, 1, rounds)) for name, call in _colbert_forms()],
        "metrics": [_metrics(accept, rounds) for accept in ("text/plain", "application/openmetrics-text")],
    }


def rows(found: Mapping[str, Sequence[Cost]]) -> list[Row]:
    dialects = [
        Row(
            what=f"{cost.what}: one text, {DIMENSIONS} floats",
            value=f"{cost.cpu_s * 1e6:.0f} us",
            target=f"under {MOST_US:g} us",
            met=cost.cpu_s * 1e6 < MOST_US,
        )
        for cost in found["dialects"]
    ]
    json_s = found["forms"][0].cpu_s
    forms = [Row(what=found["forms"][0].what, value=f"{json_s * 1e6:.1f} us")]
    forms += [
        Row(
            what=cost.what,
            value=f"{cost.cpu_s * 1e6:.1f} us, {json_s / cost.cpu_s:.1f} x",
            **at_least(json_s / cost.cpu_s, CHEAPER, " x"),
        )
        for cost in found["forms"][1:]
    ]
    most = (COLBERT_JSON_S, COLBERT_JSON_S, COLBERT_BYTES_S)
    colbert = [
        Row(what=cost.what, value=f"{cost.cpu_s:.3f} s", target=f"under {limit:g} s", met=cost.cpu_s < limit)
        for cost, limit in zip(found["colbert"], most, strict=True)
    ]
    metrics = [
        Row(
            what=cost.what,
            value=f"{cost.cpu_s * 1e3:.1f} ms",
            target=f"under {METRICS_S * 1e3:g} ms",
            met=cost.cpu_s < METRICS_S,
        )
        for cost in found["metrics"]
    ]
    return [*dialects, *forms, *colbert, *metrics]


def _dialect(dialect: Dialect, rounds: int) -> Cost:
    route = _embedding_route(dialect)
    body = orjson.dumps(BODIES.get(dialect.name, {"input": TEXT, "model": "m"}))
    incoming = Incoming(body=body, models=(MODEL,))
    result = embedded(np.random.default_rng(0).standard_normal((1, DIMENSIONS), np.float32))
    return Cost(f"{dialect.name} {route.path}", _cpu_s(lambda: route.parse(incoming).render(result), 2000, rounds))


def _embedding_route(dialect: Dialect) -> Route:
    path = PATHS.get(dialect.name, "/v1/embeddings")
    return next(route for route in dialect.routes if (route.method, route.path) == ("POST", path))


def embedded(vectors: Float32) -> EmbedResult:
    usage = Usage(lengths=TextLengths([12] * len(vectors)), characters=50, timings=Timings(ended_s=0.002))
    return EmbedResult(
        model="m",
        fingerprint="f00d",
        dense={"float": vectors},
        usage=usage,
        sources={"dense": "m"},
        lengths={"m": usage.lengths},
        limits={"m": 8192},
    )


# --- forms of the same vectors --------------------------------------------------------------------------------


def _forms() -> Iterator[tuple[str, Callable[[], object]]]:
    """32 vectors of 384 floats on OpenAI's route, in each number format."""
    (openai,) = load_dialects(["openai"])
    vectors = np.random.default_rng(0).standard_normal((32, DIMENSIONS), np.float32)
    result = embedded(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    for name, call in (("JSON numbers", _call(openai)), ("base64", _call(openai, encoding_format="base64"))):
        yield f"rendering 32 x {DIMENSIONS} floats as {name}", partial(call.render, result)
    yield f"rendering 32 x {DIMENSIONS} floats as bytes", lambda: render_octets("float32", result)


def _call(dialect: Dialect, **options: str) -> Call:
    return _embedding_route(dialect).parse(Incoming(body=orjson.dumps({"input": [TEXT] * 32, **options})))


def _colbert_forms() -> Iterator[tuple[str, Callable[[], object]]]:
    """One text of 8,192 tokens: 32 MiB of float32."""
    (own,) = load_dialects(["vectord"])
    rows = np.random.default_rng(0).standard_normal(COLBERT_SHAPE, np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    usage = embedded(np.zeros((1, 1), np.float32)).usage
    result = EmbedResult(model="m", fingerprint="f00d", usage=usage, colbert=[rows])
    route = _embedding_route(own)
    for name, options in (("JSON", {}), ("base64", {"encoding": "base64"})):
        body = orjson.dumps({"inputs": TEXT, "outputs": ["colbert"], **options})
        yield f"ColBERT of 8,192 tokens as {name}", partial(route.parse(Incoming(body=body)).render, result)
    yield "ColBERT of 8,192 tokens as bytes", lambda: render_octets("float32", result)


# --- the page for Prometheus ----------------------------------------------------------------------------------


def _metrics(accept: str, rounds: int) -> Cost:
    """Between two pages, every histogram of a route changes."""
    metrics = Metrics("0")
    dialects = load_dialects(ServerConfig().dialects)
    routes = [(each.dialect.name, one.path) for one in Table(dialects, [], render_any) for each in one.choices]
    models = [replace(MODEL, name=f"organization/model-{number}", reranks=True) for number in range(METRICS_MODELS)]
    keys = [f"key-{number}" for number in range(METRICS_KEYS)]
    metrics.watch(lambda: IDLE, lambda: models)
    metrics.watch_keys(lambda: keys)
    for number, (dialect, route) in enumerate(routes):
        key, model = keys[number % len(keys)], models[number % len(models)].name
        for status in METRICS_STATUSES:
            metrics.observe(_exchange(dialect, route, status, key))
        caller, timings = Caller(client=key, named=True, route=route), Timings(ended_s=0.1)
        metrics.observe(RequestEnded(caller=caller, operation="embed", model=model, texts=1, timings=timings))

    async def page() -> bytes:
        return (await metrics.exposition(accept))[0]

    async def seconds() -> float:
        for dialect, route in routes:
            metrics.observe(_exchange(dialect, route, 200, keys[0]))
        began_s = time.process_time()
        await page()
        return time.process_time() - began_s

    with asyncio.Runner() as runner:
        lines = runner.run(page()).count(b"\n")
        cpu_s = min(runner.run(seconds()) for _ in range(10 * max(rounds, 3)))
    return Cost(f"/metrics after requests on all {len(routes)} routes, {lines:,} lines as {accept}", cpu_s)


def _exchange(dialect: str, route: str, status: int, key: str) -> Exchange:
    return Exchange(
        method="POST",
        dialect=dialect,
        route=route,
        status=status,
        request_id="0",
        began_s=0.0,
        ended_s=0.01,
        key=key,
    )


def _cpu_s(call: Callable[[], object], times: int, rounds: int) -> float:
    call()
    return min(_round(call, times) for _ in range(max(rounds, 3)))


def _round(call: Callable[[], object], times: int) -> float:
    began_s = time.process_time()
    for _ in range(times):
        call()
    return (time.process_time() - began_s) / times
