"""Tests of a running server and one of its models: health, key, vectors, scores, long texts and load.

`test_server` runs all tests, one after another. A test raises NotOffered or Failed, and passes otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from vectord.tools.doctor.references import GOLDEN_TEXTS, Finding, compare_with_stored
from vectord.tools.probe import (
    PASSAGES,
    QUERY,
    SAME_COSINE,
    FloatArray,
    ProbedRoute,
    ProbedServer,
    ProbeReply,
    find_embed_route,
    find_rerank_route,
    row_cosines,
)

TEXTS = (
    "A cat sits on the warm windowsill.",
    "A kitten is lying by the window in the sun.",
    "The central bank raised interest rates again.",
)
RELEVANT = 1  # the passage of PASSAGES that answers QUERY
BUSY = (429, 503)
CLIENTS = 64  # at once, with a short text each
LONG_WORDS, LONG_CLIENTS = 5000, 4


class NotOffered(Exception):
    """The server does not have this feature."""


class Failed(Exception):
    """The server has this feature, and its response is wrong. The message describes the response."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The server under test, and the routes that it answers for the model."""

    server: ProbedServer
    embed_route: ProbedRoute | None
    rerank_route: ProbedRoute | None

    @property
    def embeds(self) -> ProbedRoute:
        if self.embed_route is None:
            raise NotOffered("no route returns vectors")
        return self.embed_route

    @property
    def reranks(self) -> ProbedRoute:
        if self.rerank_route is None:
            raise NotOffered("no route returns scores")
        return self.rerank_route


TESTS: dict[str, Callable[[Subject], None]] = {}


def _test(name: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    """Add the function to TESTS."""

    def add(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        TESTS[name] = run
        return run

    return add


def test_server(server: ProbedServer, model: str | None) -> Iterator[Finding]:
    """Run all tests; yields each finding as soon as its test ends. model: None is the first that the server lists."""
    model = model or server.find_model()
    subject = Subject(server, find_embed_route(server, model), find_rerank_route(server, model))
    for name, run in TESTS.items():
        try:
            run(subject)
        except NotOffered as reason:
            yield Finding(name, "not offered", str(reason))
        except Failed as reason:
            yield Finding(name, "failed", str(reason))
        else:
            yield Finding(name, "passed")
    if subject.embed_route is not None:
        answer = server.get("/vectord/models").json()  # no models for another product
        rows = answer.get("models") if isinstance(answer, dict) else None
        facts = next((row for row in rows or () if isinstance(row, dict) and row.get("name") == model), {})
        vectors = subject.embed_route.embed(GOLDEN_TEXTS)[1]
        if vectors is not None:
            yield compare_with_stored(str(facts.get("model_id", model)), str(facts.get("dtype")), vectors)


def _require(holds: object, why: str) -> None:
    """Raises Failed."""
    if not holds:
        raise Failed(why)


# --- the server -----------------------------------------------------------------------------------------------


def _require_ok(subject: Subject, path: str) -> None:
    reply = subject.server.get(path)
    if reply.status in (404, 405):
        raise NotOffered(f"GET {path} is {reply.status}")
    _require(reply.status in (200, 204), f"GET {path}: {reply.summary()}")


@_test("healthy")
def _healthy(subject: Subject) -> None:
    _require_ok(subject, "/health")


@_test("ready")
def _ready(subject: Subject) -> None:
    _require_ok(subject, "/health/ready")


@_test("a request without the token is refused")
def _requires_token(subject: Subject) -> None:
    if subject.server.token is None:
        raise NotOffered("no --token to test")
    body = json.dumps(subject.embeds.body(["x"])).encode()
    reply = subject.server.send("POST", subject.embeds.form.path, body, with_token=False)
    _require(reply.status in (401, 403), reply.summary())


# --- vectors --------------------------------------------------------------------------------------------------


def _vectors_of(subject: Subject, texts: Sequence[str]) -> FloatArray:
    reply, vectors = subject.embeds.embed(texts)
    if vectors is None:
        raise Failed(f"no finite vector for each of {len(texts)} texts: {reply.summary()}")
    return vectors


def _require_same(
    ones: Sequence[FloatArray] | FloatArray, others: Sequence[FloatArray] | FloatArray, what: str
) -> None:
    least = row_cosines(np.stack(list(ones)), np.stack(list(others))).min()
    _require(least >= SAME_COSINE, f"{what}: cosine {least:.4f}")


@_test("one finite vector for each text")
def _one_vector_per_text(subject: Subject) -> None:
    _require(np.linalg.norm(_vectors_of(subject, TEXTS), axis=1).all(), "a vector of zeros")


@_test("a text alone gets the vector that it gets in a batch")
def _alone_and_in_batch(subject: Subject) -> None:
    alone = [_vectors_of(subject, [text])[0] for text in TEXTS]
    _require_same(alone, _vectors_of(subject, TEXTS), "a text alone and in a batch")


@_test("results keep the order of the texts")
def _order(subject: Subject) -> None:
    rotated = _vectors_of(subject, (*TEXTS[1:], TEXTS[0]))
    _require_same(_vectors_of(subject, TEXTS), [rotated[-1], *rotated[:-1]], "the same texts in another order")


@_test("similar texts are closer than dissimilar ones")
def _similarity(subject: Subject) -> None:
    cat, *others = _vectors_of(subject, TEXTS)
    near, far = row_cosines(np.stack([cat, cat]), np.stack(others))
    _require(near > far, f"cosine of similar texts {near:.3f}, of dissimilar ones {far:.3f}")


@_test(f"{CLIENTS} concurrent clients get their own results, or are refused")
def _concurrent_clients(subject: Subject) -> None:
    texts = [f"{TEXTS[i % 3]} Number {i}." for i in range(CLIENTS)]
    expected = _vectors_of(subject, texts)
    answers = _embed_at_once(subject, texts)
    _require(any(reply.status == 200 for reply, _ in answers), f"none of {CLIENTS} was answered")
    for vector, (reply, vectors) in zip(expected, answers, strict=True):
        if vectors is not None:
            _require_same(vectors, [vector], "a client got another text's vector")
        else:
            _require(reply.status in BUSY, f"no finite vector: {reply.summary()}")


@_test("long texts of concurrent clients are embedded or refused")
def _long_texts(subject: Subject) -> None:
    """On several streams of the model at once, if it reads that many tokens."""
    texts = [f"{i} " + "word " * LONG_WORDS for i in range(LONG_CLIENTS)]
    for reply, vectors in _embed_at_once(subject, texts):
        _require(vectors is not None or 400 <= reply.status < 500 or reply.status in BUSY, reply.summary())


def _embed_at_once(subject: Subject, texts: Sequence[str]) -> list[tuple[ProbeReply, FloatArray | None]]:
    """Each text in a request of its own."""
    embeds = subject.embeds
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: embeds.embed([text]), texts))


# --- scores ---------------------------------------------------------------------------------------------------


def _scores(subject: Subject) -> dict[int, float]:
    reply, scores = subject.reranks.rerank(QUERY, PASSAGES)
    if scores is None:
        raise Failed(f"no finite score for each passage: {reply.summary()}")
    return scores


@_test("the relevant passage ranks first")
def _relevant_first(subject: Subject) -> None:
    scores = _scores(subject)
    best = max(scores, key=lambda index: scores[index])
    _require(best == RELEVANT, f"its score is {scores[RELEVANT]:.4f}, another passage's is {scores[best]:.4f}")


@_test("the same pairs get the same scores")
def _same_scores(subject: Subject) -> None:
    one, other = _scores(subject), _scores(subject)
    difference = max(abs(one[index] - other[index]) for index in one)
    _require(difference <= 0.01 * max(1.0, *map(abs, one.values())), f"scores differ by {difference:.4f}")


_test("healthy at the end")(_healthy)
