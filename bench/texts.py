"""CPU time of a further text in a request, with a backend that computes nothing and without the cache.

In process it is compared with `tokenizers` on the same texts in the same run; over HTTP, the time of each process of a
server with two front-ends. The best round counts.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence

import numpy as np
import psutil  # type: ignore[import-untyped]
from tokenizers import Tokenizer

from bench.corpus import Corpus
from bench.http_load import embedding_requests, run_load
from bench.report import Row
from bench.server_process import Server
from bench.subject import Subject
from vectord import compose
from vectord.compute.backends.base import TokenBatch
from vectord.compute.backends.fake import FakeBackend
from vectord.compute.ops.base import PackedTexts
from vectord.config import Config, DeviceConfig, EngineConfig
from vectord.engine.engine import Engine
from vectord.schema import Caller, EmbedRequest

WORDS = 14  # of a text
TEXTS = 64  # of a request
CONNECTIONS = 8
FRONT_ENDS = 2
WARM_ROUNDS = 1
DIMENSIONS = 384  # of the default model
FORWARDS = 50
ROUND_S = 4.0
ENGINE = "vectord.cluster.processes.engine"


def measure(subject: Subject, rounds: int) -> Mapping[str, Sequence[float]]:
    """By name, the figure of each round: microseconds of CPU a text, and texts per second."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = Tokenizer.from_file(str(subject.tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = [" ".join(text.split()[:WORDS]) for text in subject.corpus.texts if len(text.split()) >= WORDS]
    corpus = Corpus(texts, [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)])
    found: dict[str, list[float]] = {}
    asyncio.run(_in_process(tokenizer, corpus, rounds, found))
    with subject.start_server("--front-ends", str(FRONT_ENDS)) as server:
        server.wait_until_answering()
        for number in range(WARM_ROUNDS + rounds):
            _over_http(server, corpus, found if number >= WARM_ROUNDS else {})
    return found


async def _in_process(tokenizer: Tokenizer, corpus: Corpus, rounds: int, found: dict[str, list[float]]) -> None:
    config = Config(device=DeviceConfig(backend="fake"), engine=EngineConfig(cache_bytes=0))
    requests = [corpus.texts[start : start + TEXTS] for start in range(0, len(corpus.texts) - TEXTS + 1, TEXTS)]
    async with compose.running_engine(config) as engine:
        for number in range(WARM_ROUNDS + rounds):
            alone = await _cpu_s(engine, [request[:1] for request in requests])
            together = await _cpu_s(engine, requests)
            begun_s = time.process_time()
            for request in requests:
                tokenizer.encode_batch_fast(request)
            reference = (time.process_time() - begun_s) / (len(requests) * TEXTS)
            forward = _forward_s(corpus) / TEXTS
            if number >= WARM_ROUNDS:
                found.setdefault("the fake backend, a part of the engine's process, us a text", []).append(
                    forward * 1e6
                )
                further = (together - alone) / (len(requests) * (TEXTS - 1))
                found.setdefault("a further text in process, us", []).append(further * 1e6)
                found.setdefault("encode_batch_fast, us", []).append(reference * 1e6)


def _forward_s(corpus: Corpus) -> float:
    """The CPU time of the fake backend for one request: what a device would compute."""
    texts = PackedTexts.of([np.array(ids, np.int32) for ids in corpus.ids[:TEXTS]])
    backend, batch = FakeBackend({"dense": DIMENSIONS}), TokenBatch(texts=texts, outputs=frozenset({"dense"}))
    begun_s = time.process_time()
    for _ in range(FORWARDS):
        backend.forward(batch, 0)
    return (time.process_time() - begun_s) / FORWARDS


async def _cpu_s(engine: Engine, requests: Sequence[Sequence[str]]) -> float:
    begun_s = time.process_time()
    for start in range(0, len(requests), CONNECTIONS):
        some = requests[start : start + CONNECTIONS]
        await asyncio.gather(*(engine.answer(EmbedRequest(inputs=texts), Caller(client="bench")) for texts in some))
    return time.process_time() - begun_s


def _over_http(server: Server, corpus: Corpus, found: dict[str, list[float]]) -> None:
    before = _processes_s(server)
    load = run_load(server.port, embedding_requests(corpus, TEXTS) * 1000, CONNECTIONS, ROUND_S)
    after = _processes_s(server)
    for name in after:
        found.setdefault(f"{name}, us a text", []).append((after[name] - before[name]) / load.texts * 1e6)
    found.setdefault("texts/s over HTTP", []).append(load.texts / load.elapsed_s)


def _processes_s(server: Server) -> dict[str, float]:
    """The CPU time of the engine's process and of the others together."""
    times = {"the engine's process": 0.0, "the other processes": 0.0}
    main = psutil.Process(server.process.pid)
    for process in (main, *main.children(recursive=True)):
        used = process.cpu_times()
        times["the engine's process" if ENGINE in process.cmdline() else "the other processes"] += (
            used.user + used.system
        )
    return times


def rows(found: Mapping[str, Sequence[float]]) -> Sequence[Row]:
    best = {what: (max if what.startswith("texts/s") else min)(figures) for what, figures in found.items()}
    ratio = best["a further text in process, us"] / best["encode_batch_fast, us"]
    return [
        Row(what="a further text in process, times encode_batch_fast", value=f"{ratio:.2f}"),
        *(Row(what=what, value=f"{figure:,.1f}") for what, figure in best.items()),
    ]
