"""`vectord.Embedder` with one text a call, as a library's user waits for it. A child process.

Nothing else runs, so the calling thread does all of it (Engine.embed_alone).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import answer
from bench.in_process import LATENCY_RUNS
from vectord import Embedder

if __name__ == "__main__":
    backend, dtype, corpus_file = sys.argv[1:]
    texts = json.loads(Path(corpus_file).read_text())["texts"]
    embedder = Embedder(backend=backend, dtype=dtype, offline=True)

    def latency(positions: Sequence[int], rest_ms: float) -> dict[str, Any]:
        """The texts at `positions`, one at a time, LATENCY_RUNS calls in all. rest_ms: the pause before each call."""
        latencies_ms = []
        for run in range(LATENCY_RUNS):
            time.sleep(rest_ms / 1e3)
            start = time.perf_counter()
            embedder.embed(texts[positions[run % len(positions)]])
            latencies_ms.append((time.perf_counter() - start) * 1e3)
        return {"p50_ms": float(np.percentile(latencies_ms, 50)), "p99_ms": float(np.percentile(latencies_ms, 99))}

    answer(latency)
