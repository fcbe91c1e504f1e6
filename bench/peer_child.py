"""A library in process, as its users call it: `python -m bench.peer_child LIBRARY FOLDER CORPUS OPTIONS`.

A child process in the library's own environment, which imports this file without vectord. Every call
includes tokenization, as every HTTP request does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.child import answer

BATCH_TEXTS = 32  # sentence-transformers' default
Call = Callable[[list[str]], Any]  # texts to rows of numbers, or passages to one score each


def vectord(folder: str, query: str | None, dtype: str = "auto", backend: str = "auto") -> Call:
    from vectord import Embedder  # noqa: PLC0415 - each environment has one library

    embedder = Embedder(folder, dtype=dtype, backend=backend, offline=True)
    if query is None:
        return lambda texts: embedder.encode(texts, show_progress_bar=False)

    def scores(passages: list[str]) -> list[float]:
        ranked = embedder.rerank(query, passages)
        return [one.score for one in sorted(ranked, key=lambda one: one.index)]

    return scores


def sentence_transformers(folder: str, query: str | None, backend: str = "torch", **model_kwargs: Any) -> Call:
    from sentence_transformers import CrossEncoder, SentenceTransformer  # noqa: PLC0415

    if backend == "torch":
        model_kwargs = {"dtype": "float32"}
    options: Any = {"device": "cpu", "backend": backend, "model_kwargs": model_kwargs, "local_files_only": True}
    if query is not None:
        reranker = CrossEncoder(folder, **options)
        return lambda passages: reranker.predict([(query, passage) for passage in passages], batch_size=BATCH_TEXTS)
    model = SentenceTransformer(folder, **options)
    return lambda texts: model.encode(texts, batch_size=BATCH_TEXTS, show_progress_bar=False)


def fastembed(folder: str, query: str | None) -> Call:
    """The library makes batches of 256 texts (64 passages) from a longer call, in order of arrival."""
    from fastembed import TextEmbedding  # noqa: PLC0415
    from fastembed.common.model_description import ModelSource, PoolingType  # noqa: PLC0415
    from fastembed.rerank.cross_encoder import TextCrossEncoder  # noqa: PLC0415

    source: Any = {"sources": ModelSource(hf="local/model"), "model_file": "model.onnx"}
    if query is not None:
        TextCrossEncoder.add_custom_model("local/model", **source)
        reranker = TextCrossEncoder("local/model", specific_model_path=folder)
        return lambda passages: list(reranker.rerank(query, passages))
    pooling = json.loads((Path(folder) / "1_Pooling/config.json").read_text())
    kind = PoolingType.CLS if pooling.get("pooling_mode_cls_token") else PoolingType.MEAN
    TextEmbedding.add_custom_model(
        "local/model", pooling=kind, normalization=True, dim=pooling["word_embedding_dimension"], **source
    )
    model = TextEmbedding("local/model", specific_model_path=folder)
    return lambda texts: list(model.embed(texts))


def model2vec(folder: str, query: str | None) -> Call:
    from model2vec import StaticModel  # noqa: PLC0415

    assert query is None
    return StaticModel.from_pretrained(folder, force_download=False).encode


def llama_cpp(folder: str, query: str | None) -> Call:
    """All cores, instead of half of them, and batches of 2,048 tokens; the rest are defaults."""
    from llama_cpp import Llama  # noqa: PLC0415

    assert query is None
    threads = len(os.sched_getaffinity(0))
    (file,) = Path(folder).glob("*.gguf")
    model = Llama(
        str(file), embedding=True, n_ctx=2048, n_batch=2048, n_ubatch=2048, n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip
    return lambda texts: model.embed(texts, normalize=True)


LIBRARIES: Mapping[str, Callable[..., Call]] = {
    function.__name__: function for function in (vectord, sentence_transformers, fastembed, model2vec, llama_cpp)
}


class Library:
    def __init__(self, call: Call, texts: list[str]) -> None:
        self.call = call
        self.texts = texts

    def __call__(self, texts: int, texts_per_call: int, limit_s: float) -> dict[str, Any]:
        """Call with the first `texts` until all are done or `limit_s` is over, and time each call."""
        latencies_ms: list[float] = []
        first: Sequence[Any] = ()
        began_s = time.perf_counter()
        for start in range(0, texts - texts_per_call + 1, texts_per_call):
            called_s = time.perf_counter()
            rows = self.call(self.texts[start : start + texts_per_call])
            latencies_ms.append((time.perf_counter() - called_s) * 1e3)
            first = first or [row.tolist() if hasattr(row, "tolist") else row for row in rows[:8]]
            if time.perf_counter() - began_s > limit_s:
                break
        return {"latencies_ms": latencies_ms, "elapsed_s": time.perf_counter() - began_s, "first": first}


if __name__ == "__main__":
    library, folder, corpus_file, options = sys.argv[1:]
    corpus = json.loads(Path(corpus_file).read_text())
    answer(Library(LIBRARIES[library](folder, corpus["query"], **json.loads(options)), corpus["texts"]))
