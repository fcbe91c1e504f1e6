"""One large model in its own process: time of a batch, and anonymous memory.

Texts are random ids with the corpus's lengths, since speed does not depend on the words.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import answer
from bench.in_process import pack
from vectord.checkpoints.hub import resolve
from vectord.checkpoints.reader import read_spec
from vectord.checkpoints.spec import Output
from vectord.compute.backends.base import Backend, BackendOptions, TokenBatch

SAMPLE_S = 0.01
WORDS = 150_000


class MostAnonymous:
    """Samples memory every SAMPLE_S, on its own thread, until the process ends."""

    def __init__(self) -> None:
        self.bytes = 0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self.bytes = max(self.bytes, _anonymous_bytes())
            time.sleep(SAMPLE_S)


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class Large:
    def __init__(self, backend: str, folder: str, dtype: str = "auto") -> None:
        self._most = MostAnonymous()
        start = time.perf_counter()
        spec = read_spec(resolve(folder))
        self.backend: Backend = import_module(f"vectord.compute.backends.{backend}").load(
            spec, BackendOptions(dtype=dtype)
        )
        self.loaded_s = time.perf_counter() - start

    def __call__(self, measure: str, **arguments: Any) -> Any:
        assert measure in {"facts", "throughput", "longest", "cosine", "most_anonymous"}
        return getattr(self, measure)(**arguments)

    def facts(self) -> dict[str, Any]:
        facts = self.backend.facts
        return {"dtype": facts.dtype, "streams": facts.streams, "loaded_s": self.loaded_s}

    def throughput(self, lengths: list[int], outputs: Collection[Output], words: int = WORDS) -> dict[str, Any]:
        """Texts of these lengths in full batches, on all streams. words: of the vocabulary."""
        batches = self._batches(lengths, outputs, words)
        start = time.perf_counter()
        threads = [
            threading.Thread(target=self._run, args=(batches[stream :: self.backend.facts.streams], stream))
            for stream in range(self.backend.facts.streams)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"tokens": sum(lengths), "elapsed_s": time.perf_counter() - start}

    def longest(self, tokens: int) -> dict[str, Any]:
        """One text of `tokens` tokens."""
        (batch,) = self._batches([tokens], ["dense"])
        start = time.perf_counter()
        self.backend.forward(batch, 0)
        return {"tokens": tokens, "elapsed_s": time.perf_counter() - start}

    def cosine(self, lengths: list[int], words: int = WORDS) -> float:
        """The least cosine of a text's vector with that in float32."""
        batches = self._batches(lengths, ["dense"], words)
        vectors = np.concatenate([self.backend.forward(batch, 0)["dense"] for batch in batches])
        exact = np.concatenate([self.backend.forward_exact(batch)["dense"] for batch in batches])
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(exact, axis=1)
        return float(((vectors * exact).sum(axis=1) / norms).min())

    def most_anonymous(self) -> int:
        """Peak bytes of anonymous memory so far, loading included."""
        return self._most.bytes

    def _batches(self, lengths: list[int], outputs: Collection[Output], words: int = WORDS) -> list[TokenBatch]:
        rng = np.random.default_rng(0)
        texts = [rng.integers(5, words, length).tolist() for length in lengths]
        batches: list[list[list[int]]] = []
        room = 0
        for text in texts:
            if len(text) > room or not batches:
                batches.append([])
                room = self.backend.facts.max_batch_tokens
            batches[-1].append(text)
            room -= len(text)
        return [pack(batch, alone=False, outputs=outputs) for batch in batches]

    def _run(self, batches: list[TokenBatch], stream: int) -> None:
        for batch in batches:
            self.backend.forward(batch, stream)


if __name__ == "__main__":
    answer(Large(*sys.argv[1:]))
