"""The checks of `vectord check`: the server itself, vectors, scores, limits, and the examples of its OpenAPI document.

`open_subject` finds out which requests the server accepts. `run_checks` runs all checks, one after another. A check
raises NotOffered or Failed, and passes otherwise.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from vectord.tools.probe import (
    PASSAGES,
    QUERY,
    SAME_COSINE,
    WRONG_SHAPE,
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
SCRIPTS = ("Ciao mondo!", "你好世界", "مرحبا بالعالم", "Grüße 👋🏽", "e\u0301")
RELEVANT = 1  # the passage of PASSAGES that answers QUERY
HEALTH = ("/health", "/health/live", "/ping", "/")
BUSY = (429, 503)
LONG_WORDS, LONG_CLIENTS = 5000, 4
LISTS = ("/v1/models", "/models", "/info", "/api/tags", "/vectord/models")
MAX_EXAMPLES = 1000
# Statuses of an example that needs another type of model, or the operator's key.
_NOT_OFFERED = (401, 403, 404, 405, 409, 415, 422, 424, 501)
Verdict: TypeAlias = Literal["passed", "failed", "not offered"]


class NotOffered(Exception):
    """The server does not have this feature."""


class Failed(Exception):
    """The server has this feature, and its response is wrong. The message describes the response."""


@dataclass(frozen=True, slots=True)
class CheckedServer:
    """The server under test."""

    server: ProbedServer
    openapi: Any  # its OpenAPI document, of any shape
    embed_route: ProbedRoute | None
    rerank_route: ProbedRoute | None
    backpressure_requests: int

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

    def send(self, method: str, path: str, body: object = None) -> ProbeReply:
        """The reply of a route. Raises NotOffered if there is no such route."""
        reply = self.server.get(path) if method == "GET" else self.server.post(path, body)
        if reply.status in (404, 405, 501):
            raise NotOffered(f"{method} {path} is {reply.status}")
        return reply


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    run: Callable[[CheckedServer], None]  # raises NotOffered or Failed


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    verdict: Verdict
    why: str
    elapsed_ms: float


CHECKS: list[Check] = []


def require(holds: object, why: str) -> None:
    """Raises Failed."""
    if not holds:
        raise Failed(why)


def open_subject(server: ProbedServer, *, model: str | None, backpressure_requests: int) -> CheckedServer:
    """The server and the forms that it accepts. Raises ConfigError if no server answers."""
    server.check_reachable("--url")
    model = model or server.find_model()
    openapi = server.get("/openapi.json").json()
    embeds, reranks = find_embed_route(server, model), find_rerank_route(server, model)
    return CheckedServer(server, openapi, embeds, reranks, backpressure_requests)


def check(name: str) -> Callable[[Callable[[CheckedServer], None]], Callable[[CheckedServer], None]]:
    """Add the function to CHECKS."""

    def add(run: Callable[[CheckedServer], None]) -> Callable[[CheckedServer], None]:
        CHECKS.append(Check(name, run))
        return run

    return add


def run_checks(subject: CheckedServer) -> Iterator[Finding]:
    """Run all checks; yields each finding as soon as its check ends."""
    last = (Check("concurrent requests are answered or refused", _backpressure), Check("healthy at the end", healthy))
    for one in (*CHECKS, *_example_checks(subject), *last):
        began_s = time.perf_counter()
        verdict: Verdict = "passed"
        why = ""
        try:
            one.run(subject)
        except NotOffered as reason:
            verdict, why = "not offered", str(reason)
        except Failed as reason:
            verdict, why = "failed", str(reason)
        yield Finding(one.name, verdict, why, round((time.perf_counter() - began_s) * 1e3, 1))


# --- the server -----------------------------------------------------------------------------------------------


@check("healthy")
def healthy(subject: CheckedServer) -> None:
    for path in HEALTH:
        reply = subject.server.get(path)
        if reply.status not in (404, 405):
            require(reply.status in (200, 204), f"GET {path}: {reply.summary()}")
            return
    raise NotOffered(f"none of {', '.join(HEALTH)}")


@check("ready")
def ready(subject: CheckedServer) -> None:
    reply = subject.send("GET", "/health/ready")
    require(reply.status in (200, 204), reply.summary())


@check("lists its models")
def lists_models(subject: CheckedServer) -> None:
    for path in LISTS:
        reply = subject.server.get(path)
        if reply.status == 200:
            require(reply.json() is not None, f"GET {path}: not JSON")
            return
    raise NotOffered(f"none of {', '.join(LISTS)}")


@check("metrics for Prometheus")
def metrics(subject: CheckedServer) -> None:
    reply = subject.send("GET", "/metrics")
    has_metrics = reply.status == 200 and (b"# TYPE" in reply.body or b"# HELP" in reply.body)
    require(has_metrics, f"no metrics: {reply.summary()}")


@check("an unknown path gets 404")
def unknown_path(subject: CheckedServer) -> None:
    reply = subject.server.get("/there/is/nothing/here")
    require(reply.status in (401, 403, 404), f"unknown path: {reply.summary()}")


@check("truncated JSON gets a 4xx error")
def truncated_json(subject: CheckedServer) -> None:
    _require_error(subject.server.send("POST", subject.embeds.form.path, b'{"input": ["cut of'))


@check("a number for texts gets a 4xx error")
def wrong_type(subject: CheckedServer) -> None:
    _require_error(subject.embeds.post(subject.embeds.body(7.5)))


def _require_error(reply: ProbeReply) -> None:
    require(400 <= reply.status < 500, reply.summary())
    is_text = reply.headers.get("content-type", "").startswith("text/plain")  # text-embeddings-inference
    require(is_text or isinstance(reply.json(), dict | list), "the error is neither JSON nor plain text")


@check("no texts get 200 or a 4xx error")
def no_texts(subject: CheckedServer) -> None:
    reply = subject.embeds.post(subject.embeds.body([]))
    require(reply.status == 200 or 400 <= reply.status < 500, reply.summary())


@check("a request without the token is refused")
def requires_token(subject: CheckedServer) -> None:
    if subject.server.token is None:
        raise NotOffered("no --token to test")
    body = json.dumps(subject.embeds.body(["x"])).encode()
    reply = subject.server.send("POST", subject.embeds.form.path, body, with_token=False)
    require(reply.status in (401, 403), reply.summary())


# --- vectors --------------------------------------------------------------------------------------------------


def vectors_of(subject: CheckedServer, texts: Sequence[str]) -> FloatArray:
    """Raises Failed."""
    reply, vectors = subject.embeds.embed(texts)
    if vectors is None:
        raise Failed(f"no finite vector for each of {len(texts)} texts: {reply.summary()}")
    return vectors


def _require_same(
    ones: Sequence[FloatArray] | FloatArray, others: Sequence[FloatArray] | FloatArray, what: str
) -> None:
    least = row_cosines(np.stack(list(ones)), np.stack(list(others))).min()
    require(least >= SAME_COSINE, f"{what}: cosine {least:.4f}")


@check("one finite vector for each text")
def one_vector_per_text(subject: CheckedServer) -> None:
    require(np.linalg.norm(vectors_of(subject, TEXTS), axis=1).all(), "a vector of zeros")


@check("the same text gets the same vector")
def same_text(subject: CheckedServer) -> None:
    _require_same(vectors_of(subject, TEXTS[:1]), vectors_of(subject, TEXTS[:1]), "one text, twice")


@check("a text alone gets the vector that it gets in a batch")
def alone_and_in_batch(subject: CheckedServer) -> None:
    alone = [vectors_of(subject, [text])[0] for text in TEXTS]
    _require_same(alone, vectors_of(subject, TEXTS), "a text alone and in a batch")


@check("results keep the order of the texts")
def order(subject: CheckedServer) -> None:
    rotated = vectors_of(subject, (*TEXTS[1:], TEXTS[0]))
    _require_same(vectors_of(subject, TEXTS), [rotated[-1], *rotated[:-1]], "the same texts in another order")


@check("similar texts are closer than dissimilar ones")
def similarity(subject: CheckedServer) -> None:
    cat, *others = vectors_of(subject, TEXTS)
    near, far = row_cosines(np.stack([cat, cat]), np.stack(others))
    require(near > far, f"cosine of similar texts {near:.3f}, of dissimilar ones {far:.3f}")


@check("texts in several scripts")
def scripts(subject: CheckedServer) -> None:
    vectors_of(subject, SCRIPTS)


@check("16 concurrent clients get their own results")
def concurrent_clients(subject: CheckedServer) -> None:
    texts = [f"{TEXTS[i % 3]} Number {i}." for i in range(16)]
    expected = vectors_of(subject, texts)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda text: subject.embeds.embed([text]), texts))
    # A server may accept a single request at a time.
    answered = [
        (vector, *answer) for vector, answer in zip(expected, answers, strict=True) if answer[0].status not in BUSY
    ]
    require(answered, f"none of 16 was answered: {answers[0][0].summary()}")
    for vector, reply, vectors in answered:
        if vectors is None:
            raise Failed(f"no finite vector: {reply.summary()}")
        _require_same(vectors, [vector], "a client got another text's vector")


@check("20,000 words are truncated or refused")
def long_text(subject: CheckedServer) -> None:
    reply, vectors = subject.embeds.embed(["word " * 20_000])
    require(vectors is not None or 400 <= reply.status < 500, reply.summary())


@check("long texts of concurrent clients are truncated or refused")
def long_texts(subject: CheckedServer) -> None:
    """On several streams of the model at once, if it reads that many tokens."""
    texts = [f"{i} " + "word " * LONG_WORDS for i in range(LONG_CLIENTS)]
    with ThreadPoolExecutor(LONG_CLIENTS) as pool:
        for reply, vectors in pool.map(lambda text: subject.embeds.embed([text]), texts):
            refused = 400 <= reply.status < 500 or reply.status in BUSY
            require(vectors is not None or refused, reply.summary())


@check("base64 holds the same numbers")
def base64_vectors(subject: CheckedServer) -> None:
    embeds = subject.embeds
    if embeds.form.name not in ("OpenAI", "infinity"):
        raise NotOffered(f"{embeds.form.name} has no encoding_format")
    texts = TEXTS[: embeds.texts_at_once]
    reply = embeds.post({**embeds.body(texts), "encoding_format": "base64"})
    if 400 <= reply.status < 500:
        raise NotOffered(f"encoding_format base64 is {reply.status}")
    vectors = embeds.read_vectors(reply, len(texts))
    if vectors is None:
        raise Failed(reply.summary())
    _require_same(vectors, vectors_of(subject, texts), "base64 and numbers")


# --- scores ---------------------------------------------------------------------------------------------------


def _scores(subject: CheckedServer) -> dict[int, float]:
    reply, scores = subject.reranks.rerank(QUERY, PASSAGES)
    if scores is None:
        raise Failed(f"no finite score for each passage: {reply.summary()}")
    return scores


@check("the relevant passage ranks first")
def relevant_first(subject: CheckedServer) -> None:
    scores = _scores(subject)
    best = max(scores, key=lambda index: scores[index])
    require(best == RELEVANT, f"its score is {scores[RELEVANT]:.4f}, another passage's is {scores[best]:.4f}")


@check("scores are in descending order")
def descending(subject: CheckedServer) -> None:
    found = list(_scores(subject).values())
    require(found == sorted(found, reverse=True), f"scores {found}")


@check("the same pairs get the same scores")
def same_scores(subject: CheckedServer) -> None:
    one, other = _scores(subject), _scores(subject)
    difference = max(abs(one[index] - other[index]) for index in one)
    require(difference <= 0.01 * max(1.0, *map(abs, one.values())), f"scores differ by {difference:.4f}")


@check("no passages get 200 or a 4xx error")
def no_passages(subject: CheckedServer) -> None:
    reply = subject.reranks.post(subject.reranks.body([], QUERY))
    require(reply.status == 200 or 400 <= reply.status < 500, reply.summary())


# --- backpressure and examples -------------------------------------------------------------------------------


def _backpressure(subject: CheckedServer) -> None:
    """Concurrent requests get 200, 429 or 503, and at least one of them gets 200."""
    embeds, count = subject.embeds, subject.backpressure_requests
    if count == 0:
        raise NotOffered("--backpressure-requests 0")
    bodies = [embeds.body([f"Request {i}: {PASSAGES[i % 3]}"]) for i in range(count)]
    with ThreadPoolExecutor(min(count, 256)) as pool:
        replies = list(pool.map(embeds.post, bodies))
    bad = [reply for reply in replies if reply.status not in (200, *BUSY)]
    require(not bad, f"{len(bad)} of {count} failed; the first: {bad[0].summary() if bad else ''}")
    require(any(reply.status == 200 for reply in replies), f"none of {count} was answered")


def _example_checks(subject: CheckedServer) -> list[Check]:
    """One check for each route of the server's OpenAPI document: its own examples are answered."""
    checks = []
    for method, path, name, body in _examples(subject.openapi):
        shown = f"{method} {path}" + (f", {name}" if name else "")
        checks.append(Check(shown, partial(_send_example, method, path, body)))
    return checks[:MAX_EXAMPLES]


def _send_example(method: str, path: str, body: Any, subject: CheckedServer) -> None:
    reply = subject.send(method, path, body)
    if reply.status in _NOT_OFFERED or (method == "POST" and reply.status == 400):
        raise NotOffered(f"{method} {path}: {reply.summary()}")
    require(200 <= reply.status < 400, reply.summary())


def _examples(openapi: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Method, path, the example's name, and body. The document may contain anything."""
    paths = openapi.get("paths") if isinstance(openapi, dict) else None
    for path, operations in paths.items() if isinstance(paths, dict) else ():
        if not isinstance(operations, dict) or not path.startswith("/") or "{" in path:
            continue
        if isinstance(operations.get("get"), dict):
            yield "GET", path, "", None
        try:
            content = operations["post"]["requestBody"]["content"]["application/json"]
            examples = content.get("examples")
            if "example" in content:
                yield "POST", path, "", content["example"]
        except WRONG_SHAPE:
            continue
        for name, example in examples.items() if isinstance(examples, dict) else ():
            if isinstance(example, dict) and "value" in example:
                yield "POST", path, str(name), example["value"]
