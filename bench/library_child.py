"""`vectord.Embedder` as its users call it, without a server. A child process in an environment without torch."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from bench.child import answer
from vectord import Embedder


class Library:
    def __init__(self, model: str, dtype: str, texts: list[str]) -> None:
        self.embedder = Embedder(model, dtype=dtype)
        self.texts = texts

    def __call__(self, texts: int, texts_per_call: int) -> dict[str, Any]:
        """Encode the first `texts`, as bench.peer_sentence_transformers does."""
        start = time.perf_counter()
        vectors = [
            self.embedder.encode(self.texts[i : i + texts_per_call], show_progress_bar=False)
            for i in range(0, texts, texts_per_call)
        ]
        return {"elapsed_s": time.perf_counter() - start, "first_vectors": vectors[0][:8].tolist()}


if __name__ == "__main__":
    model, dtype, corpus_file = sys.argv[1:]
    answer(Library(model, dtype, json.loads(Path(corpus_file).read_text())["texts"]))
