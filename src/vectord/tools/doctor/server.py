"""Tests of a running server and one of its models: health, key, vectors, scores, long texts and load.

`test_server` runs all tests, one after another. A test raises NotOffered or Failed, and passes otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

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


def test_server(server: ProbedServer, model: str | None) -> Iterator[Finding]:
    """Run all tests; yields each finding as soon as its test ends. model: None is the first that the server lists."""
    model = server.find_model(model)
    embeds, reranks = find_embed_route(server, model), find_rerank_route(server, model)
    groups: Sequence[tuple[Mapping[str, Callable[[Any], None]], ProbedServer | ProbedRoute | None, str]] = (
        (OF_SERVER, server, ""),
        (OF_VECTORS, embeds, "no route returns vectors"),
        (OF_SCORES, reranks, "no route returns scores"),
        ({"healthy at the end": healthy}, server, ""),
    )
    for tests, subject, missing in groups:
        for name, run in tests.items():
            try:
                if subject is None:
                    raise NotOffered(missing)
                run(subject)
            except NotOffered as reason:
                yield Finding(name, "not offered", str(reason))
            except Failed as reason:
                yield Finding(name, "failed", str(reason))
            else:
                yield Finding(name, "passed")
    if embeds is not None:
        answer = server.get("/vectord/models").json()  # no models for another product
        rows = answer.get("models") if isinstance(answer, dict) else None
        facts = next((row for row in rows or () if isinstance(row, dict) and row.get("name") == model), {})
        vectors = embeds.embed(GOLDEN_TEXTS)[1]
        if vectors is not None:
            yield compare_with_stored(str(facts.get("model_id", model)), str(facts.get("dtype")), vectors)


def _require(holds: object, why: str) -> None:
    if not holds:
        raise Failed(why)


# --- the server -----------------------------------------------------------------------------------------------


def healthy(server: ProbedServer, path: str = "/health") -> None:
    reply = server.get(path)
    if reply.status in (404, 405):
        raise NotOffered(f"GET {path} is {reply.status}")
    _require(reply.status in (200, 204), f"GET {path}: {reply.summary()}")


def requires_token(embeds: ProbedRoute) -> None:
    if embeds.server.token is None:
        raise NotOffered("no --token to test")
    body = json.dumps(embeds.body(["x"])).encode()
    reply = embeds.server.send("POST", embeds.form.path, body, with_token=False)
    _require(reply.status in (401, 403), reply.summary())


# --- vectors --------------------------------------------------------------------------------------------------


def _vectors_of(embeds: ProbedRoute, texts: Sequence[str]) -> FloatArray:
    reply, vectors = embeds.embed(texts)
    if vectors is None:
        raise Failed(f"no finite vector for each of {len(texts)} texts: {reply.summary()}")
    return vectors


def _require_same(
    ones: Sequence[FloatArray] | FloatArray, others: Sequence[FloatArray] | FloatArray, what: str
) -> None:
    least = row_cosines(np.stack(list(ones)), np.stack(list(others))).min()
    _require(least >= SAME_COSINE, f"{what}: cosine {least:.4f}")


def one_vector_per_text(embeds: ProbedRoute) -> None:
    _require(np.linalg.norm(_vectors_of(embeds, TEXTS), axis=1).all(), "a vector of zeros")


def alone_and_in_batch(embeds: ProbedRoute) -> None:
    alone = [_vectors_of(embeds, [text])[0] for text in TEXTS]
    _require_same(alone, _vectors_of(embeds, TEXTS), "a text alone and in a batch")


def order(embeds: ProbedRoute) -> None:
    rotated = _vectors_of(embeds, (*TEXTS[1:], TEXTS[0]))
    _require_same(_vectors_of(embeds, TEXTS), [rotated[-1], *rotated[:-1]], "the same texts in another order")


def similarity(embeds: ProbedRoute) -> None:
    cat, *others = _vectors_of(embeds, TEXTS)
    near, far = row_cosines(np.stack([cat, cat]), np.stack(others))
    _require(near > far, f"cosine of similar texts {near:.3f}, of dissimilar ones {far:.3f}")


def concurrent_clients(embeds: ProbedRoute) -> None:
    texts = [f"{TEXTS[i % 3]} Number {i}." for i in range(CLIENTS)]
    expected = _vectors_of(embeds, texts)
    answers = _embed_at_once(embeds, texts)
    _require(any(reply.status == 200 for reply, _ in answers), f"none of {CLIENTS} was answered")
    for vector, (reply, vectors) in zip(expected, answers, strict=True):
        if vectors is not None:
            _require_same(vectors, [vector], "a client got another text's vector")
        else:
            _require(reply.status in BUSY, f"no finite vector: {reply.summary()}")


def long_texts(embeds: ProbedRoute) -> None:
    """On several streams of the model at once, if it reads that many tokens."""
    texts = [f"{i} " + "word " * LONG_WORDS for i in range(LONG_CLIENTS)]
    for reply, vectors in _embed_at_once(embeds, texts):
        _require(vectors is not None or 400 <= reply.status < 500 or reply.status in BUSY, reply.summary())


def _embed_at_once(embeds: ProbedRoute, texts: Sequence[str]) -> list[tuple[ProbeReply, FloatArray | None]]:
    """Each text in a request of its own."""
    with ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: embeds.embed([text]), texts))


# --- scores ---------------------------------------------------------------------------------------------------


def _scores(reranks: ProbedRoute) -> dict[int, float]:
    reply, scores = reranks.rerank(QUERY, PASSAGES)
    if scores is None:
        raise Failed(f"no finite score for each passage: {reply.summary()}")
    return scores


def relevant_first(reranks: ProbedRoute) -> None:
    scores = _scores(reranks)
    best = max(scores, key=lambda index: scores[index])
    _require(best == RELEVANT, f"its score is {scores[RELEVANT]:.4f}, another passage's is {scores[best]:.4f}")


def same_scores(reranks: ProbedRoute) -> None:
    one, other = _scores(reranks), _scores(reranks)
    difference = max(abs(one[index] - other[index]) for index in one)
    _require(difference <= 0.01 * max(1.0, *map(abs, one.values())), f"scores differ by {difference:.4f}")


OF_SERVER = {"healthy": healthy, "ready": lambda server: healthy(server, "/health/ready")}
OF_VECTORS = {
    "a request without the token is refused": requires_token,
    "one finite vector for each text": one_vector_per_text,
    "a text alone gets the vector that it gets in a batch": alone_and_in_batch,
    "results keep the order of the texts": order,
    "similar texts are closer than dissimilar ones": similarity,
    f"{CLIENTS} concurrent clients get their own results, or are refused": concurrent_clients,
    "long texts of concurrent clients are embedded or refused": long_texts,
}
OF_SCORES = {"the relevant passage ranks first": relevant_first, "the same pairs get the same scores": same_scores}
