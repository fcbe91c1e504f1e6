"""`make bench-peers`: vectord and its peers on the same texts, in alternating rounds, with default settings."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import Child
from bench.http_load import HOST, Round, embedding_requests, run_load
from bench.peer_environments import peer_environment
from bench.report import Row, at_least, load_name, load_row
from bench.run import best_load, best_rate
from bench.server_process import Server, free_port
from bench.subject import Subject
from vectord.config import DEFAULT_MODEL

LOADS = [(32, 1), (1, 1), (8, 16)]  # connections, texts per request
LOAD_S = 30.0  # time limit of a load in a round
COMPARED_TEXTS = 8
LEAST_COSINE = 0.999  # to the float32 reference; below it, a peer does different work


@dataclass(frozen=True, slots=True)
class Found:
    rounds: Mapping[str, Sequence[Any]]
    cosines: Mapping[str, float]  # least over COMPARED_TEXTS, to sentence-transformers


def measure(subject: Subject, rounds: int, texts: int) -> Found:
    """Start all three, then load each in turn, `rounds` times. Raises RuntimeError if their vectors differ."""
    library = peer_environment("sentence-transformers", ".venv-peer-st")
    infinity = peer_environment("infinity", ".venv-peer-infinity")
    library_arguments = (str(subject.model_folder), str(subject.corpus_file))
    found: dict[str, list[Any]] = defaultdict(list)
    with (
        Child(library / "python", "bench.peer_sentence_transformers", *library_arguments) as encode,
        start_infinity(infinity, subject) as peer,
        subject.start_server() as vectord,
    ):
        servers = {"vectord": vectord, "infinity": peer}
        for server in servers.values():
            server.wait_until_answering()
        subject.check(vectord)
        cosines = _compare(subject, encode, servers)
        steps = _steps(subject, texts, encode, servers)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for name, step in steps.items():
                found[name].append(step())
    return Found(found, cosines)


def start_infinity(environment: Path, subject: Subject) -> Server:
    """With its default settings and vectord's model name, so that both servers get the same bytes."""
    port = free_port()
    model = ["--model-id", str(subject.model_folder), "--served-model-name", DEFAULT_MODEL]
    engine = ["--engine", "torch", "--device", "cpu"]
    where = ["--host", HOST, "--port", str(port), "--url-prefix", "/v1"]
    return Server(
        [str(environment / "infinity_emb"), "v2", *model, *engine, *where], port, subject.folder / "infinity.log"
    )


def _compare(subject: Subject, encode: Child, servers: Mapping[str, Server]) -> dict[str, float]:
    reference = np.array(encode.ask(texts=COMPARED_TEXTS, texts_per_call=COMPARED_TEXTS)["first_vectors"])
    cosines = {}
    for name, server in servers.items():
        vectors, _ = server.embed(subject.corpus.first(COMPARED_TEXTS).texts)
        cosines[name] = float((np.array(vectors) * reference).sum(axis=1).min())  # all have length 1
        if cosines[name] < LEAST_COSINE:
            raise RuntimeError(f"{name} gives other vectors than sentence-transformers: cosine {cosines[name]:.4f}")
    return cosines


def _steps(subject: Subject, texts: int, encode: Child, servers: Mapping[str, Server]) -> dict[str, Callable[[], Any]]:
    part = subject.corpus.first(texts)

    def encode_all(texts_per_call: int) -> dict[str, Any]:
        answer = encode.ask(texts=texts, texts_per_call=texts_per_call)
        return {"tokens": part.tokens, "elapsed_s": answer["elapsed_s"]}

    steps: dict[str, Callable[[], Any]] = {
        "encode as they arrive": partial(encode_all, 32),
        "encode sorted": partial(encode_all, texts),
    }
    for connections, n in LOADS:
        requests = embedding_requests(part, n)
        for name, server in servers.items():
            steps[f"{name} {connections} x {n}"] = partial(run_load, server.port, requests, connections, LOAD_S)
    return steps


# --- findings as rows -----------------------------------------------------------------------------------------


def rows(found: Found) -> list[Row]:
    """Best rounds; `value` is vectord's tokens per second as a multiple of the peer's."""
    ours = {load: best_load(found.rounds[f"vectord {load[0]} x {load[1]}"]) for load in LOADS}
    table = []
    for load in LOADS:
        connections, texts = load
        what = load_name(connections, texts)
        theirs = best_load(found.rounds[f"infinity {connections} x {texts}"])
        table.append(load_row(f"vectord, {what}", ours[load]))
        table.append(_peer_row(f"infinity torch, {what}", ours[load], theirs, target=9 if load == (32, 1) else None))
    most = ours[32, 1].tokens_per_s
    for what, name, target in (
        ("sentence-transformers encode, 32 texts per call as they arrive", "encode as they arrive", 6),
        ("sentence-transformers encode, all in one call (it sorts them)", "encode sorted", None),
    ):
        rate = best_rate(found.rounds[name])
        table.append(Row(what=what, value=f"{most / rate:.1f} x", tokens_per_s=rate, **_target(most / rate, target)))
    return table + [Row(what=f"least cosine, {name}", value=f"{cosine:.5f}") for name, cosine in found.cosines.items()]


def _peer_row(what: str, ours: Round, theirs: Round, target: float | None) -> Row:
    times = ours.tokens_per_s / theirs.tokens_per_s
    return load_row(what, theirs, value=f"{times:.1f} x", **_target(times, target))


def _target(times: float, target: float | None) -> dict[str, Any]:
    return {} if target is None else at_least(times, target, " x")
