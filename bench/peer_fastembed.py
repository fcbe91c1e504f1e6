"""fastembed's `embed` as its users call it. A child process in its own environment."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from fastembed import TextEmbedding

from bench.child import answer

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class Peer:
    def __init__(self, folder: str, texts: list[str]) -> None:
        self.model = TextEmbedding(MODEL, specific_model_path=folder)
        self.texts = texts

    def __call__(self, texts: int, texts_per_call: int) -> dict[str, Any]:
        """Embed the first `texts`. The library makes batches of 256 from a longer call, in order of arrival."""
        start = time.perf_counter()
        vectors = [list(self.model.embed(self.texts[i : i + texts_per_call])) for i in range(0, texts, texts_per_call)]
        return {"elapsed_s": time.perf_counter() - start, "first_vectors": [row.tolist() for row in vectors[0][:8]]}


if __name__ == "__main__":
    folder, corpus_file = sys.argv[1:]
    answer(Peer(folder, json.loads(Path(corpus_file).read_text())["texts"]))
