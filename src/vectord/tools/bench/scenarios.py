"""What `vectord bench` asks: Smart Embedder's three scenarios, by the API that the server speaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vectord.tools.probe.forms import EmbedForm, find_embed_form, find_rerank_form
from vectord.tools.probe.server import Server

SCENARIOS = ("embed_dense", "embed_full", "rerank")
VARIANTS = 64  # bodies that differ, so that a cache of answers has not seen each request before

_SUBJECTS = ("The committee", "A small bird", "The new engine", "Her grandmother", "The river", "A quiet village")
_VERBS = ("describes", "crosses", "repairs", "remembers", "measures", "follows")
_OBJECTS = ("an old bridge in the rain", "the results of the last survey", "a letter that was never sent")


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    path: str
    form: str  # the API it is asked by
    bodies: Sequence[dict[str, Any]]


class Unsupported(Exception):
    """The server has no route for this scenario. The text says what was tried."""


def scenario(server: Server, name: str, *, model: str | None, batch_size: int, repeat: bool) -> Scenario:
    """name: one of SCENARIOS. repeat: the same body again and again, as caches like it. Raises Unsupported."""
    batches = [sentences(place, batch_size) for place in range(1 if repeat else VARIANTS)]
    if name == "rerank":
        return _reranking(server, batches, model)
    if name == "embed_full":
        return _full(server, batches)
    form = find_embed_form(server, model)
    if form is None:
        raise Unsupported("no route gives vectors")
    return _embedding(form, batches, model)


def sentences(place: int, count: int) -> list[str]:
    """Of some 15 words, the same for the same place."""
    return [_sentence(place * count + i) for i in range(count)]


def _sentence(number: int) -> str:
    subject, verb = _SUBJECTS[number % 6], _VERBS[number // 6 % 6]
    return f"{subject} {verb} {_OBJECTS[number // 36 % 3]}, and report number {number} says why it matters."


def _embedding(form: EmbedForm, batches: Sequence[list[str]], model: str | None) -> Scenario:
    return Scenario("embed_dense", form.path, form.name, [form.body(texts, model) for texts in batches])


def _full(server: Server, batches: Sequence[list[str]]) -> Scenario:
    wanted = {"return_dense": True, "return_sparse": True, "return_colbert": True}
    bodies = [{"sentences": texts, **wanted} for texts in batches]
    reply = server.post("/embeddings/", bodies[0])
    if reply.status != 200:
        raise Unsupported(f"POST /embeddings/ with dense, sparse and ColBERT vectors: {reply.said()}")
    return Scenario("embed_full", "/embeddings/", "Smart Embedder", bodies)


def _reranking(server: Server, batches: Sequence[list[str]], model: str | None) -> Scenario:
    form = find_rerank_form(server, model)
    if form is None:
        raise Unsupported("no route gives scores")
    bodies = [form.body(f"Why does report number {place} matter?", texts, model) for place, texts in enumerate(batches)]
    return Scenario("rerank", form.path, form.name, bodies)
