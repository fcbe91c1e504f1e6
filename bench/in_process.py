"""The backend without HTTP, tokenization or queue, as the bound for the server's figures. A child process.

Uses the choices of compose for the same options, and as many threads as the backend has streams.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import answer
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import Backend, BackendOptions, PackedTexts, TokenBatch
from vectord.config import DEFAULT_MODEL

LATENCY_RUNS = 300

DENSE: tuple[Output, ...] = ("dense",)


class InProcess:
    """Runs one round for each question. The constructor runs the first forwards, which compile and warm up."""

    def __init__(self, backend: str, dtype: str, ids: Sequence[Sequence[int]], streams: int | None = None) -> None:
        self.ids = ids
        load = import_module(f"vectord.compute.backends.{backend}").load
        spec = read_spec(resolve(DEFAULT_MODEL, offline=True))
        self.backend: Backend = load(spec, BackendOptions(dtype=dtype, streams=streams))
        self.throughput(len(ids) // 4)
        self.latency(range(4))

    def __call__(self, measure: str, **arguments: Any) -> Any:
        assert measure in {"facts", "throughput", "latency"}
        return getattr(self, measure)(**arguments)

    def facts(self) -> dict[str, Any]:
        facts = self.backend.facts
        return {"backend": facts.name, "dtype": facts.dtype, "streams": facts.streams}

    def throughput(self, texts: int, outstanding: int | None = None) -> dict[str, Any]:
        """The first `texts` texts in full batches, in order, on all streams.

        outstanding: the most texts in progress at once, divided evenly among the streams; at least one on each.
        """
        facts = self.backend.facts
        most = None if outstanding is None else max(1, outstanding // facts.streams)
        waiting: queue.SimpleQueue[TokenBatch] = queue.SimpleQueue()
        for batch in arrival_batches(self.ids[:texts], facts.max_batch_tokens, most):
            waiting.put(batch)
        threads = [threading.Thread(target=self._empty, args=(waiting, stream)) for stream in range(facts.streams)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"tokens": sum(map(len, self.ids[:texts])), "elapsed_s": time.perf_counter() - start}

    def latency(self, positions: Sequence[int], rest_ms: float = 0.0) -> dict[str, Any]:
        """The texts at `positions`, one at a time on an idle device, LATENCY_RUNS forwards in all.

        rest_ms: the pause before each forward, in which the library's threads fall asleep.
        """
        batches = [pack([self.ids[position]], alone=True) for position in positions]
        latencies_ms = []
        for run in range(LATENCY_RUNS):
            time.sleep(rest_ms / 1e3)
            start = time.perf_counter()
            self.backend.forward(batches[run % len(batches)], 0)
            latencies_ms.append((time.perf_counter() - start) * 1e3)
        return {"p50_ms": float(np.percentile(latencies_ms, 50)), "p99_ms": float(np.percentile(latencies_ms, 99))}

    def _empty(self, waiting: queue.SimpleQueue[TokenBatch], stream: int) -> None:
        while True:
            try:
                batch = waiting.get_nowait()
            except queue.Empty:
                return
            self.backend.forward(batch, stream)


def arrival_batches(ids: Sequence[Sequence[int]], max_tokens: int, max_texts: int | None = None) -> list[TokenBatch]:
    """Texts in their order, in batches of at most `max_tokens` real tokens; a longer text is a batch of its own."""
    batches: list[list[Sequence[int]]] = []
    room = 0
    for text in ids:
        if len(text) > room or not batches or len(batches[-1]) == max_texts:
            batches.append([])
            room = max_tokens
        batches[-1].append(text)
        room -= len(text)
    return [pack(batch, alone=False) for batch in batches]


def pack(texts: Sequence[Sequence[int]], *, alone: bool, outputs: Collection[Output] = DENSE) -> TokenBatch:
    ids = np.concatenate([np.asarray(text, np.int32) for text in texts])
    cu_seqlens = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    packed = PackedTexts(ids=ids, type_ids=np.zeros_like(ids), cu_seqlens=cu_seqlens)
    return TokenBatch(texts=packed, outputs=frozenset(outputs), alone=alone)


if __name__ == "__main__":
    backend, dtype, corpus_file, *streams = sys.argv[1:]
    answer(InProcess(backend, dtype, json.loads(Path(corpus_file).read_text())["ids"], *map(int, streams)))
