"""sentence-transformers' `encode` as its users call it. A child process in its own environment.

Every round includes tokenization, as every HTTP request does.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from bench.child import answer

BATCH_TEXTS = 32  # the library's default


class Peer:
    def __init__(self, model: str, texts: list[str]) -> None:
        self.model = SentenceTransformer(model, device="cpu", model_kwargs={"dtype": "float32"})
        self.texts = texts

    def __call__(self, texts: int, texts_per_call: int) -> dict[str, Any]:
        """Encode the first `texts`. One call with all of them lets the library sort them by length first."""
        start = time.perf_counter()
        vectors = [
            self.model.encode(self.texts[i : i + texts_per_call], batch_size=BATCH_TEXTS, show_progress_bar=False)
            for i in range(0, texts, texts_per_call)
        ]
        return {"elapsed_s": time.perf_counter() - start, "first_vectors": vectors[0][:8].tolist()}


if __name__ == "__main__":
    model, corpus_file = sys.argv[1:]
    answer(Peer(model, json.loads(Path(corpus_file).read_text())["texts"]))
