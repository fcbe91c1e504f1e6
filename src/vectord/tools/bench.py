"""The requests of `vectord bench`: Smart Embedder's three scenarios, in the form that the server accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vectord.tools.probe import ProbedServer, find_embed_route, find_rerank_route

SCENARIOS = ("embed_dense", "embed_full", "rerank")
VARIANTS = 64  # different bodies, so that a cache does not answer every request

_SUBJECTS = ("The committee", "A small bird", "The new engine", "Her grandmother", "The river", "A quiet village")
_VERBS = ("describes", "crosses", "repairs", "remembers", "measures", "follows")
_OBJECTS = ("an old bridge in the rain", "the results of the last survey", "a letter that was never sent")


@dataclass(frozen=True, slots=True)
class Scenario:
    path: str
    form: str  # the API of the requests
    bodies: Sequence[dict[str, Any]]


class Unsupported(Exception):
    """The server has no route for a scenario. The message names the routes that were tried."""


def scenario(server: ProbedServer, name: str, *, model: str | None, batch_size: int, repeat: bool) -> Scenario:
    """name: one of SCENARIOS. repeat: one body for all requests. Raises Unsupported."""
    batches = [sentences(number, batch_size) for number in range(1 if repeat else VARIANTS)]
    if name == "rerank":
        reranks = find_rerank_route(server, model)
        if reranks is None:
            raise Unsupported("no route returns scores")
        queries = [f"Why does report number {number} matter?" for number in range(len(batches))]
        bodies = [reranks.body(texts, query) for query, texts in zip(queries, batches, strict=True)]
        return Scenario(reranks.form.path, reranks.form.name, bodies)
    if name == "embed_full":
        kinds = {"return_dense": True, "return_sparse": True, "return_colbert": True}
        bodies = [{"sentences": texts, **kinds} for texts in batches]
        reply = server.post("/embeddings/", bodies[0])
        if reply.status != 200:
            raise Unsupported(f"POST /embeddings/ with dense, sparse and ColBERT vectors: {reply.summary()}")
        return Scenario("/embeddings/", "Smart Embedder", bodies)
    embeds = find_embed_route(server, model)
    if embeds is None:
        raise Unsupported("no route returns vectors")
    return Scenario(embeds.form.path, embeds.form.name, [embeds.body(texts) for texts in batches])


def sentences(batch: int, count: int) -> list[str]:
    """`count` sentences of 15 words; each batch number has its own."""
    return [
        f"{_SUBJECTS[number % 6]} {_VERBS[number // 6 % 6]} {_OBJECTS[number // 36 % 3]}, and report number {number} "
        "says why it matters."
        for number in range(batch * count, (batch + 1) * count)
    ]
