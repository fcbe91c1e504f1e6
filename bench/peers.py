"""`make bench-peers`: vectord next to other servers and libraries, each with the same weights and texts on all cores.

Each peer runs alone with its counterpart, in alternating rounds: a server with `vectord serve`, a library with
`vectord.Embedder` in a process of its own. PEERS has their settings. A peer that cannot be installed, started or
compared has a row with the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.child import Child
from bench.corpus import Corpus
from bench.http_load import HOST, BadAnswer, Request, Round, embedding_request, embedding_requests, request, run_load
from bench.peer_environments import peer_environment, pins
from bench.peer_models import Load, PeerModel
from bench.report import Row, load_name, load_row
from bench.run import best_load
from bench.server_process import Server, free_port
from bench.subject import Subject
from vectord.config import DEFAULT_MODEL

COMPARED_TEXTS = 8
BESIDE_CONNECTIONS = 4
LEAST_AGREEMENT = 0.999  # below it, a peer with the same numbers does different work
SHAPES = ("bge-m3-shape", "mixed", "long")  # random weights
EMBEDDERS = ("minilm", "mpnet", *SHAPES)
ALL = (*EMBEDDERS, "reranker")
OPENAI = ("--host", HOST, "--port", "{port}", "--url-prefix", "/v1")
INFINITY = ("{bin}/infinity_emb", "v2", "--served-model-name", DEFAULT_MODEL, *OPENAI, "--device", "cpu")
NO_TEI = "not found: build it from its repository with `cargo install --path router -F ort` (or `-F mkl`), then name " \
    "text-embeddings-router with --tei or TEI_BINARY"  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A server (`command`) or a library (`library`, a function of bench.peer_child, with `options`)."""

    name: str
    environment: str = ""  # requirements/ENVIRONMENT.txt; empty: TEI's own binary
    form: str = ""  # of bench.peer_files
    command: Sequence[str] = ()
    library: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[str] = ALL
    is_quantized: bool = False  # or converted: its answers may differ
    is_tei: bool = False

    @property
    def settings(self) -> str:
        """For the report: what runs, and the pinned versions."""
        run = " ".join(self.command) if self.command else f"{self.library} {json.dumps(dict(self.options))}"
        return f"{run} ({', '.join(pins(self.environment)) if self.environment else 'binary'})"


PEERS = (
    Peer(
        name="infinity, torch",
        environment="infinity",
        command=(*INFINITY, "--model-id", "{model}", "--engine", "torch"),
    ),
    Peer(
        name="infinity, optimum (ONNX)",
        environment="infinity-onnx",
        form="onnx",
        # In the model's folder, because infinity passes the path of the ONNX file where optimum expects its name.
        command=(
            *("env", "--chdir={model}", *INFINITY, "--model-id", "."),
            *("--engine", "optimum", "--pooling-method", "{pooling}"),
        ),
    ),
    Peer(
        name="TEI",
        form="onnx",
        command=(
            "{bin}/text-embeddings-router", "--model-id", "{model}", "--hostname", HOST, "--port", "{port}",
            "--auto-truncate", "--max-client-batch-size", "128",
        ),
        is_tei=True,
    ),
    Peer(
        name="sentence-transformers, torch",
        environment="sentence-transformers",
        library="sentence_transformers",
    ),
    Peer(
        name="sentence-transformers, ONNX",
        environment="sentence-transformers-exported",
        form="onnx",
        library="sentence_transformers",
        options={"backend": "onnx", "file_name": "model.onnx"},
    ),
    Peer(
        name="sentence-transformers, OpenVINO int8",
        environment="sentence-transformers-exported",
        form="openvino int8",
        library="sentence_transformers",
        options={"backend": "openvino", "file_name": "openvino/openvino_model_qint8_quantized.xml"},
        models=EMBEDDERS,
        is_quantized=True,
    ),
    Peer(name="fastembed", environment="fastembed", form="onnx", library="fastembed"),
    *(
        Peer(
            name=f"llama.cpp, {numbers}",
            environment="llama-cpp",
            form=f"gguf {numbers}",
            library="llama_cpp",
            models=("minilm", *SHAPES),  # llama.cpp has no MPNet
            is_quantized=numbers == "Q8_0",
        )
        for numbers in ("F16", "Q8_0")
    ),
    Peer(
        name="model2vec, both sides with a static table",
        environment="model2vec",
        form="static",
        library="model2vec",
        models=EMBEDDERS,
    ),
)  # fmt: skip


@dataclass(slots=True)
class Found:
    """reason: why there are no rounds. agreement: the least cosine of vectors, or the correlation of scores."""

    peer: Peer
    reason: str = ""
    agreement: float = 0.0
    rounds: dict[Load, list[tuple[Round, Round]]] = field(default_factory=lambda: defaultdict(list))  # ours, theirs
    beside: list[tuple[Round, Round]] = field(default_factory=list)  # of single texts beside those of the corpus


def measure(
    subject: Subject, model: PeerModel, tei: str, only: Sequence[str], install: bool, rounds: int, texts: int
) -> list[Found]:
    """Compare each peer whose name starts with one of `only` (default: all); a failure ends only its own comparison."""
    found = []
    for peer in PEERS:
        if only and not peer.name.startswith(tuple(only)):
            continue
        print(peer.name, file=sys.stderr)
        one = Found(peer)
        found.append(one)
        try:
            _compare(one, subject, model, tei, install, rounds, texts)
        except subprocess.CalledProcessError as error:
            one.reason = _last_line(error.stderr or str(error))
        except (RuntimeError, BadAnswer, OSError) as error:
            one.reason = _last_line(str(error))
    return found


def _last_line(text: str) -> str:
    return text.strip().splitlines()[-1][:300]


def _compare(
    found: Found, subject: Subject, model: PeerModel, tei: str, install: bool, rounds: int, texts: int
) -> None:
    """Raises RuntimeError, BadAnswer, OSError or CalledProcessError, whose last line is the reason."""
    peer = found.peer
    if model.name not in peer.models:
        raise RuntimeError(f"does not support {model.name}")
    binaries = find_tei(tei).parent if peer.is_tei else peer_environment(peer.environment, install)
    by_peer = {"python": binaries / "python"} if peer.form.startswith("openvino") else {}
    files = model.files(peer.form, **by_peer)
    with ExitStack() as stack:
        ours: Side
        theirs: Side
        if peer.command:
            rerank = ("/rerank", "texts") if peer.is_tei else ("/v1/rerank", "documents")
            options = (str(model.folder), "--served-model-name", DEFAULT_MODEL)
            ours = ServerSide(stack.enter_context(subject.start_server(*options)), model, *rerank)
            theirs = ServerSide(
                stack.enter_context(_start(peer, binaries, files, model, subject.folder)), model, *rerank
            )
            loads = [load for load in model.server_loads if load[1] <= texts]
        else:
            corpus_file = str(model.corpus_file(subject.folder))
            own = str(files if peer.form == "static" else model.folder)
            settings = {"dtype": subject.dtype, "backend": "auto" if peer.form == "static" else subject.backend}
            ours = LibrarySide(
                stack.enter_context(_child(subject.command.parent, "vectord", own, corpus_file, settings)), model
            )
            theirs = LibrarySide(
                stack.enter_context(_child(binaries, peer.library, str(files), corpus_file, peer.options)), model
            )
            loads = model.library_loads(texts)
        found.agreement = agreement(ours.answers(), theirs.answers())
        if found.agreement < LEAST_AGREEMENT and not peer.is_quantized:
            raise RuntimeError(f"its answers differ from vectord's: agreement {found.agreement:.4f}")
        for _ in range(rounds):
            for load in loads:
                found.rounds[load].append((ours.run(load, texts), theirs.run(load, texts)))
            if isinstance(ours, ServerSide) and isinstance(theirs, ServerSide) and model.beside is not None:
                found.beside.append((ours.run_beside(model.beside), theirs.run_beside(model.beside)))


def find_tei(named: str) -> Path:
    """TEI's binary: `named`, TEI_BINARY, or on PATH. Raises RuntimeError, with what to do, if there is none."""
    path = shutil.which(named or os.environ.get("TEI_BINARY") or "text-embeddings-router")
    if path is None:
        raise RuntimeError(NO_TEI)
    return Path(path).absolute()


def _start(peer: Peer, binaries: Path, files: Path, model: PeerModel, logs: Path) -> Server:
    port = free_port()
    places = {"bin": binaries, "model": files, "port": port, "pooling": model.pooling}
    argv = [word.format(**places) for word in peer.command]
    return Server(argv, port, logs / "peer.log")


def _child(binaries: Path, library: str, folder: str, corpus_file: str, options: Mapping[str, Any]) -> Child:
    words = (library, folder, corpus_file, json.dumps(dict(options)))
    return Child(binaries / "python", "bench.peer_child", *words)


def agreement(ours: Any, theirs: Any) -> float:
    """The least cosine of rows (N, D), or the correlation of scores (N,)."""
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    if ours.ndim == 1:
        return float(np.corrcoef(ours, theirs)[0, 1])
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return float(((ours * theirs).sum(axis=1) / lengths).min())


# --- the two sides of a comparison ----------------------------------------------------------------------------


class Side(Protocol):
    def answers(self) -> Any:
        """Vectors or scores of the first COMPARED_TEXTS; also warms up."""

    def run(self, load: Load, texts: int) -> Round:
        """The first `texts` under a load."""


@dataclass(frozen=True, slots=True)
class ServerSide:
    server: Server
    model: PeerModel
    rerank_path: str
    rerank_key: str  # of the passages

    def answers(self) -> Any:
        first = self.model.corpus.first(COMPARED_TEXTS)
        if self.model.query is None:
            question = embedding_request(first.texts)
            self.server.wait_until_answering(question=question)
            return [item["embedding"] for item in self.server.ask(question)["data"]]
        question = self._rerank(first.texts)
        self.server.wait_until_answering(question=question)
        answer = self.server.ask(question)
        ranked = answer["results"] if isinstance(answer, dict) else answer
        return [
            item.get("relevance_score", item.get("score")) for item in sorted(ranked, key=lambda item: item["index"])
        ]

    def run(self, load: Load, texts: int) -> Round:
        connections, per_request = load
        part = self.model.corpus.first(texts)
        requests = embedding_requests(part, per_request)
        if self.model.query is not None:
            requests = [Request(self._rerank(part.texts[:per_request]), per_request, part.first(per_request).tokens)]
        return run_load(self.server.port, requests, connections, self.model.limit_s)

    def run_beside(self, short: Corpus) -> Round:
        """Single short texts, one after the other, while four connections send texts of the corpus."""
        others = (self.server.port, embedding_requests(self.model.corpus, 1), BESIDE_CONNECTIONS, self.model.limit_s)
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(run_load, *others)
            found = run_load(self.server.port, embedding_requests(short, 1), 1, self.model.limit_s / 2)
            running.result()
        return found

    def _rerank(self, passages: Sequence[str]) -> bytes:
        body = {"query": self.model.query, self.rerank_key: passages}
        return request(self.rerank_path, body if self.rerank_key == "texts" else {"model": DEFAULT_MODEL, **body})


@dataclass(frozen=True, slots=True)
class LibrarySide:
    child: Child
    model: PeerModel

    def answers(self) -> Any:
        return self.child.ask(texts=COMPARED_TEXTS, texts_per_call=COMPARED_TEXTS, limit_s=0)["first"]

    def run(self, load: Load, texts: int) -> Round:
        _, per_call = load
        answer = self.child.ask(texts=texts, texts_per_call=per_call, limit_s=self.model.limit_s)
        calls = len(answer["latencies_ms"])
        return Round(
            requests=calls,
            texts=calls * per_call,
            tokens=self.model.corpus.first(calls * per_call).tokens,
            elapsed_s=answer["elapsed_s"],
            latencies_ms=answer["latencies_ms"],
            client_us=0.0,
        )


# --- findings as rows -----------------------------------------------------------------------------------------


def rows(found: Sequence[Found]) -> list[Row]:
    """Best rounds; `value` is vectord's tokens per second as a multiple of the peer's: below 1, the peer is ahead."""
    table = []
    for one in found:
        if one.reason:
            table.append(Row(what=f"{one.peer.name}: not measured: {one.reason}"))
        for load, rounds in one.rounds.items():
            ours, theirs = (best_load([pair[side] for pair in rounds]) for side in (0, 1))
            what = f"{one.peer.name}, {load_name(*load) if one.peer.command else _call_name(load[1])}"
            table.append(load_row(what, theirs, value=f"{ours.tokens_per_s / theirs.tokens_per_s:.2f} x"))
        if one.beside:
            ours, theirs = (
                min((pair[side] for pair in one.beside), key=lambda measured: measured.percentile_ms(99))
                for side in (0, 1)
            )
            ratio = f"{theirs.percentile_ms(99) / ours.percentile_ms(99):.2f} x at p99"
            what = f"{one.peer.name}, 1 connection x 1 short text beside {BESIDE_CONNECTIONS} of the others"
            table.append(load_row(what, theirs, value=ratio))
        if one.rounds:
            table.append(Row(what=f"{one.peer.name}, agreement with vectord", value=f"{one.agreement:.5f}"))
    return table


def _call_name(texts: int) -> str:
    return f"calls of {texts} text{'s'[: texts > 1]}"


def rounds_of(found: Sequence[Found]) -> Mapping[str, Sequence[Any]]:
    """For the JSON report."""
    return {
        f"{one.peer.name}, {load_name(*load)}": [{"vectord": ours, "peer": theirs} for ours, theirs in rounds]
        for one in found
        for load, rounds in one.rounds.items()
    }
