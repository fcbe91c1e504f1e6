"""One model of `vectord serve` on the device, over HTTP with binary responses. A section of gpu.py."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.gpu_options import ROUNDS, Options, read_options
from bench.gpu_section import Say, attempt, speaker
from bench.gpu_shapes import QUERY_TOKENS, Shape, model_folder, shape_named
from bench.http_load import HOST, Request, run_load
from bench.server_process import Server, free_port
from vectord.config import DEFAULT_MODEL

CONNECTIONS, QUICK_CONNECTIONS = 32, 2
REQUEST_TOKENS, QUICK_TOKENS = 8192, 256  # of one request, over all its texts
MOST_TEXTS = 64
DIFFERENT = 64  # different requests, in rotation
MANY = 100_000  # more than a round can answer; time ends the round
ALONE_REQUESTS = 300
QUERIES = 16  # of one request
QUICK_REQUESTS = 8  # in a quick round, which ends after them


@contextmanager
def serving(shape: Shape, options: Options, *more: str) -> Iterator[Server]:
    """A server of one model that refuses nothing and has no cache. more: options of `vectord serve`."""
    model = model_folder(shape, options.models_folder, quick=options.quick)
    port = free_port()
    serve = [sys.executable, "-m", "vectord", "serve", "--host", HOST, "--port", str(port), "--cache-bytes", "0"]
    about = ["--model", str(model.absolute()), "--served-model-name", DEFAULT_MODEL]
    computes = ["--backend", "torch", "--device", options.device, "--max-queue-wait-s", "3600"]
    with (
        tempfile.TemporaryDirectory(prefix="vectord-bench-") as folder,
        Server([*serve, *about, *computes, *more], port, Path(folder) / "server.log") as server,
    ):
        yield server


def measure(options: Options, found: Say) -> None:
    (name,) = options.models
    shape = shape_named(name, quick=options.quick)
    with serving(shape, options) as server:
        found("served", model=name, seconds=server.wait_until_answering(options.seconds))
        with attempt(found, f"{name}, one query over HTTP"):
            alone = requests_of(shape, QUERY_TOKENS, 1)
            repeated = alone[:QUICK_REQUESTS] if options.quick else (alone * 5)[:ALONE_REQUESTS]
            measured = run_load(server.port, repeated, 1, _limit_s(options, ROUNDS * options.round_s))
            found("latency", model=name, how="over HTTP", tokens=QUERY_TOKENS,
                  p50_ms=measured.percentile_ms(50), p99_ms=measured.percentile_ms(99))  # fmt: skip
        if name == "minilm":
            with attempt(found, f"{name}, {QUERIES} queries per request over HTTP"):
                _rate(server, shape, QUERY_TOKENS, QUERIES, options, found)
        for length in shape.lengths:
            texts = min(MOST_TEXTS, max(1, (QUICK_TOKENS if options.quick else REQUEST_TOKENS) // length))
            with attempt(found, f"{name}, {length} tokens over HTTP"):
                _rate(server, shape, length, texts, options, found)


def _rate(server: Server, shape: Shape, length: int, texts: int, options: Options, found: Say) -> None:
    """Requests of `texts` texts of one length, all connections busy; the median of ROUNDS."""
    connections = QUICK_CONNECTIONS if options.quick else CONNECTIONS
    requests = requests_of(shape, length, texts)
    many = requests[:QUICK_REQUESTS] if options.quick else requests * (MANY // DIFFERENT)
    run_load(server.port, many, connections, _limit_s(options, options.round_s / 2))
    rounds = [run_load(server.port, many, connections, _limit_s(options, options.round_s)) for _ in range(ROUNDS)]
    rates = [measured.tokens_per_s for measured in rounds]
    middle = sorted(rounds, key=lambda measured: measured.tokens_per_s)[ROUNDS // 2]
    found(
        "rate",
        model=shape.name,
        how="over HTTP",
        length=length,
        texts=texts,
        connections=connections,
        tokens_per_s=statistics.median(rates),
        rounds=rates,
        requests_per_s=middle.requests_per_s,
        p50_ms=middle.percentile_ms(50),
        p99_ms=middle.percentile_ms(99),
        flop_per_token=shape.flop_per_token(length),
    )


def _limit_s(options: Options, seconds: float) -> float:
    return options.seconds if options.quick else seconds


def requests_of(shape: Shape, length: int, texts: int) -> list[Request]:
    return [_request(shape, length, texts, seed) for seed in range(DIFFERENT)]


def _request(shape: Shape, length: int, texts: int, seed: int) -> Request:
    """A request for `texts` texts of `length` tokens each, with a float32 matrix as its response."""
    inputs = [shape.text(length, seed * MOST_TEXTS + i) for i in range(texts)]
    body = json.dumps({"model": DEFAULT_MODEL, "input": inputs}).encode()
    head = (
        f"POST /v1/embeddings HTTP/1.1\r\nHost: {HOST}\r\nAccept: application/octet-stream\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return Request(head.encode() + body, texts, texts * length)


if __name__ == "__main__":
    measure(read_options(), speaker())
