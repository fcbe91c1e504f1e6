"""Static models next to MiniLM and model2vec: the same texts by the backends alone, by encode, and over HTTP.

A text counts, not a token: the tokenizers differ. Texts are cut to CHARACTERS, so that no library truncates them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.http_load import Request, embedding_request, run_load
from bench.in_process import arrival_batches
from bench.report import Row, at_least
from bench.subject import Subject
from vectord.checkpoints.spec import Located, ModelSpec
from vectord.compute.backends.base import Backend, BackendOptions
from vectord.config import DEFAULT_MODEL
from vectord.schema import TextOptions
from vectord.text.sequence import ReadRequest

CHARACTERS = 400
MINILM_TEXTS = 256  # of a round: it is a hundred times slower
TEXTS_PER_REQUEST = 16
CONNECTIONS = 32
TARGET = 100  # times MiniLM's texts per second


def measure(subject: Subject, folder: Path, rounds: int, texts: int) -> Mapping[str, Sequence[float]]:
    """Texts per second of every round. Imports model2vec, which the development environment has."""
    from model2vec import StaticModel  # noqa: PLC0415 - peers are imported where they run

    from vectord.checkpoints.reader import read_spec  # noqa: PLC0415

    some = [text[:CHARACTERS] for text in subject.corpus.first(texts).texts]
    spec = read_spec(Located(folder=folder, model_id=folder.name, revision=None, source="folder"))
    library = StaticModel.from_pretrained(folder)
    minilm = read_spec(Located(folder=subject.model_folder, model_id="minilm", revision=None, source="folder"))
    forwards = {
        "MiniLM, backend": _Forward(minilm, subject.backend, subject.dtype, some[:MINILM_TEXTS]),
        "static, backend": _Forward(spec, "static", "auto", some),
    }
    requests = [
        Request(embedding_request(some[i : i + TEXTS_PER_REQUEST]), TEXTS_PER_REQUEST, 0)
        for i in range(0, len(some) - TEXTS_PER_REQUEST + 1, TEXTS_PER_REQUEST)
    ]
    found: dict[str, list[float]] = defaultdict(list)
    with subject.start_server(str(folder), "--served-model-name", DEFAULT_MODEL) as server:
        server.wait_until_answering()
        for _ in range(rounds):
            for name, forward in forwards.items():
                found[name].append(forward.texts_per_s())
            started_s = time.perf_counter()
            library.encode(some)
            found["model2vec encode"].append(len(some) / (time.perf_counter() - started_s))
            load = run_load(server.port, requests, CONNECTIONS)
            found["static, HTTP"].append(load.texts / load.elapsed_s)
    return found


class _Forward:
    """Token ids to vectors by one backend, in full batches, one after the other on one stream."""

    def __init__(self, spec: ModelSpec, backend: str, dtype: str, texts: Sequence[str]) -> None:
        from vectord.text.tokenizer import TextEncoder  # noqa: PLC0415

        options = BackendOptions(dtype=dtype, streams=1)
        self._backend: Backend = import_module(f"vectord.compute.backends.{backend}").load(spec, options)
        read = TextEncoder(spec).read(ReadRequest(inputs=texts, options=TextOptions(), truncate=True))
        ids: list[Any] = [sequence.ids for sequence in read]
        self._batches = arrival_batches(ids, self._backend.facts.max_batch_tokens)
        self._texts = len(texts)
        self.texts_per_s()

    def texts_per_s(self) -> float:
        started_s = time.perf_counter()
        for batch in self._batches:
            self._backend.forward(batch, 0)
        return self._texts / (time.perf_counter() - started_s)


def rows(found: Mapping[str, Sequence[float]]) -> list[Row]:
    """Best rounds; `value` is texts per second."""
    best = {name: max(rates) for name, rates in found.items()}
    ratio = best["static, backend"] / best["MiniLM, backend"]
    peer = best["static, HTTP"] / best["model2vec encode"]
    return [
        *(Row(what=name, value=f"{rate:,.0f} texts/s") for name, rate in best.items()),
        Row(what="static to MiniLM, backend", value=f"{ratio:.0f} x", **at_least(ratio, TARGET, " x")),
        Row(what="HTTP to model2vec encode", value=f"{peer:.2f} x"),
    ]
