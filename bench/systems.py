"""`python -m bench systems`: the benchmarks that the systems whose APIs vectord serves have published, on this machine.

Their figures stand next to vectord's as they were published, with their own hardware: they are no comparison of speed.
Models without published weights here have random ones in the same shape.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import random_models
from bench.http_load import Request, Round, embedding_request, request, run_load
from bench.report import Row, load_name, load_row
from bench.run import best_load
from bench.subject import Subject
from vectord.config import DEFAULT_MODEL

CELL_S = 15.0
# As the benchmark of the product with these limits advises; and no request is refused for its wait.
UNLIMITED = ("--rate-limit-requests-per-minute", "1000000", "--max-queue-wait-s", "3600")
SENTENCES = 64  # different requests of a scenario
SENTENCE_TOKENS = 20


@dataclass(frozen=True, slots=True)
class Scenario:
    """One published figure. path, fields: of the request, empty: OpenAI's; texts_field: where its texts go."""

    what: str
    published: str
    model: str
    connections: int
    texts: int
    path: str = ""
    texts_field: str = ""
    fields: Mapping[str, Any] | None = None


LAPTOP = "an RTX 4060 Laptop"
RYZEN = "16 cores of a Ryzen 9 5950X"
SCENARIOS = (
    Scenario("MiniLM", f"7,000 tokens/s, p95 300 ms on {RYZEN}", "minilm", 1, 32),
    Scenario("bge-small", f"5,000 tokens/s, p95 400 ms on {RYZEN}", "bge-small", 1, 32),
    Scenario("embed_dense", f"44.5 requests/s, p50 177 ms on {LAPTOP}", "bge-m3", 8, 4, "/embeddings", "sentences",
             {"return_sparse": False, "return_colbert": False}),
    Scenario("embed_full", f"28.7 requests/s, p50 294 ms on {LAPTOP}", "bge-m3", 8, 4, "/embeddings", "sentences", {}),
    Scenario("rerank", f"37.8 requests/s, p50 206 ms on {LAPTOP}", "reranker", 8, 4, "/rerank", "passages",
             {"query": "how do trains find their way in the dark"}),
)  # fmt: skip


def measure(subject: Subject, models_folder: Path, rounds: int) -> dict[str, list[Round]]:
    """The rounds of each scenario."""
    folders = {
        "minilm": subject.model_folder,
        "bge-small": random_models.bert(models_folder / "bge-small", random_models.BGE_SMALL),
        "bge-m3": random_models.bge_m3(models_folder / "bge-m3"),
        "reranker": random_models.bge_reranker(models_folder / "bge-reranker-v2-m3"),
    }
    found = {}
    for scenario in SCENARIOS:
        print(scenario.what, file=sys.stderr)
        requests = _requests(subject, scenario)
        named = str(folders[scenario.model]), "--served-model-name", DEFAULT_MODEL
        with subject.start_server(*named, *UNLIMITED) as server:
            server.wait_until_answering(question=requests[0].payload)
            run_load(server.port, requests, scenario.connections, CELL_S / 3)
            found[scenario.what] = [
                run_load(server.port, requests * 100, scenario.connections, CELL_S) for _ in range(rounds)
            ]
    return found


def rows(found: Mapping[str, Sequence[Round]]) -> list[Row]:
    return [
        load_row(
            f"{one.what}, {load_name(one.connections, one.texts)}",
            best_load(found[one.what]),
            value=f"published: {one.published}",
        )
        for one in SCENARIOS
    ]


def _requests(subject: Subject, scenario: Scenario) -> list[Request]:
    """SENTENCES requests; their tokens are those of all-MiniLM-L6-v2."""
    corpus = subject.corpus
    positions = corpus.nearest(SENTENCE_TOKENS, SENTENCES * scenario.texts) if scenario.path else range(len(corpus.ids))
    requests = []
    for start in range(0, SENTENCES * scenario.texts, scenario.texts):
        part = corpus.pick(positions[start : start + scenario.texts])
        body = embedding_request(part.texts)
        if scenario.path:
            body = request(scenario.path, {scenario.texts_field: part.texts, **(scenario.fields or {})})
        requests.append(Request(body, scenario.texts, part.tokens))
    return requests
