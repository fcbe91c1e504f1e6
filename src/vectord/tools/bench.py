"""The requests of `vectord bench`: Smart Embedder's three scenarios, in the form that the server accepts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, repeat
from typing import Any

from vectord.tools.probe import EMBED_FORMS, ProbedServer, find_embed_route, find_rerank_route

SCENARIOS = ("embed_dense", "embed_full", "rerank")

_SUBJECTS = ("The committee", "A small bird", "The new engine", "Her grandmother", "The river", "A quiet village")
_VERBS = ("describes", "crosses", "repairs", "remembers", "measures", "follows")
_OBJECTS = ("an old bridge in the rain", "the results of the last survey", "a letter that was never sent")


@dataclass(frozen=True, slots=True)
class Scenario:
    path: str
    form: str  # the API of the requests
    bodies: Iterator[dict[str, Any]]  # endless


class Unsupported(Exception):
    """The server has no route for a scenario. The message names the routes that were tried."""


def scenario(server: ProbedServer, name: str, *, model: str | None, batch_size: int, repeated: bool) -> Scenario:
    """name: one of SCENARIOS. repeated: one body for all requests; else all texts are new. Raises Unsupported."""
    batches = unseen_batches(batch_size)
    bodies: Iterator[dict[str, Any]]
    if name == "rerank":
        reranks = find_rerank_route(server, model)
        if reranks is None:
            raise Unsupported("no route returns scores")
        form = reranks.form
        queries = (f"Why does report number {number} matter?" for number in _unused_numbers())
        bodies = map(reranks.body, batches, queries)
    elif name == "embed_full":
        form = next(form for form in EMBED_FORMS if form.path == "/embeddings/")
        kinds = {"return_dense": True, "return_sparse": True, "return_colbert": True}
        bodies = ({"sentences": texts, **kinds} for texts in batches)
        reply = server.post(form.path, next(bodies))
        if reply.status != 200:
            raise Unsupported(f"POST {form.path} with dense, sparse and ColBERT vectors: {reply.summary()}")
    else:
        embeds = find_embed_route(server, model)
        if embeds is None:
            raise Unsupported("no route returns vectors")
        form = embeds.form
        bodies = map(embeds.body, batches)
    return Scenario(form.path, form.name, repeat(next(bodies)) if repeated else bodies)


def unseen_batches(texts: int) -> Iterator[list[str]]:
    """Endless batches of sentences of 15 words, which no cache holds: the first sentence has a random number."""
    numbers = _unused_numbers()
    while True:
        yield [_sentence(next(numbers)) for _ in range(texts)]


def _unused_numbers() -> Iterator[int]:
    """Successive numbers of 8 digits, from a random one on."""
    return count(secrets.randbelow(8 * 10**7) + 10**7)


def _sentence(number: int) -> str:
    subject, verb, what = _SUBJECTS[number % 6], _VERBS[number // 6 % 6], _OBJECTS[number // 36 % 3]
    return f"{subject} {verb} {what}, and report number {number} says why it matters."
