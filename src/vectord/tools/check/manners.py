"""Probes, lists, errors, keys, limits: what a server does beside vectors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from vectord.tools.check.subject import Check, Failed, NotOffered, Subject, demand
from vectord.tools.probe.forms import PASSAGES, QUERY
from vectord.tools.probe.server import Reply

HEALTH = ("/health", "/health/live", "/ping", "/")
LISTS = ("/v1/models", "/models", "/info", "/api/tags", "/vectord/models")
REFUSALS = (429, 503)


def healthy(subject: Subject) -> None:
    for path in HEALTH:
        reply = subject.server.get(path)
        if reply.status not in (404, 405):
            demand(reply.status in (200, 204), f"GET {path}: {reply.said()}")
            return
    raise NotOffered(f"none of {', '.join(HEALTH)}")


def ready(subject: Subject) -> None:
    reply = subject.offered("GET", "/health/ready")
    demand(reply.status in (200, 204), reply.said())


def lists_models(subject: Subject) -> None:
    for path in LISTS:
        reply = subject.server.get(path)
        if reply.status == 200:
            demand(reply.json() is not None, f"GET {path}: no JSON")
            return
    raise NotOffered(f"none of {', '.join(LISTS)}")


def metrics(subject: Subject) -> None:
    reply = subject.offered("GET", "/metrics")
    demand(reply.status == 200 and (b"# TYPE" in reply.body or b"# HELP" in reply.body), f"no metrics: {reply.said()}")


def unknown_path(subject: Subject) -> None:
    reply = subject.server.get("/there/is/nothing/here")
    demand(reply.status in (401, 403, 404), f"a path that nobody serves: {reply.said()}")


def broken_json(subject: Subject) -> None:
    _refused(subject.server.send("POST", subject.embed_form.path, b'{"input": ["cut of'), "a body that is cut off")


def wrong_type(subject: Subject) -> None:
    form = subject.embed_form
    body = {name: 7.5 if isinstance(value, list) else value for name, value in form.body(["x"], subject.model).items()}
    _refused(subject.server.post(form.path, body), "a number for texts")


def no_texts(subject: Subject) -> None:
    form = subject.embed_form
    reply = subject.server.post(form.path, form.body([], subject.model))
    demand(reply.status == 200 or 400 <= reply.status < 500, f"no texts: {reply.said()}")


def _refused(reply: Reply, what: str) -> None:
    demand(400 <= reply.status < 500, f"{what}: {reply.said()}")
    demand(isinstance(reply.json(), dict | list), f"{what}: the error is no JSON")


def demands_token(subject: Subject) -> None:
    if subject.server.token is None:
        raise NotOffered("no --token to check")
    form = subject.embed_form
    body = json.dumps(form.body(["x"], subject.model)).encode()
    reply = subject.server.send("POST", form.path, body, with_token=False)
    demand(reply.status in (401, 403), f"without the token: {reply.said()}")


def limit_checks(subject: Subject) -> list[Check]:
    """One for each limit that the operator says there is: one more than it is refused."""
    said = subject.limits
    wanted: tuple[tuple[str, int | None, bool], ...] = (
        ("max sentences", said.max_sentences, False),
        ("max sentence chars", said.max_sentence_chars, False),
        ("max total chars", said.max_total_chars, False),
        ("max rerank passages", said.max_rerank_passages, True),
        ("max rerank text chars", said.max_rerank_text_chars, True),
        ("max rerank total chars", said.max_rerank_total_chars, True),
    )
    return [
        Check(f"{name}: {most + 1} is refused", _over(_texts(name, most), reranks=reranks))
        for name, most, reranks in wanted
        if most is not None
    ]


def _texts(name: str, most: int) -> list[str]:
    """One more than is allowed."""
    if "chars" not in name:
        return ["x"] * (most + 1)
    if "total" not in name:
        return ["x" * (most + 1)]
    piece = 1000  # so that no single text is too long
    return ["x" * piece] * (most // piece) + ["x" * (most % piece + 1)]


def _over(texts: Sequence[str], *, reranks: bool) -> Callable[[Subject], None]:
    def run(subject: Subject) -> None:
        if reranks:
            path, body = subject.rerank_form.path, subject.rerank_form.body(QUERY, texts, subject.model)
        else:
            path, body = subject.embed_form.path, subject.embed_form.body(texts, subject.model)
        reply = subject.server.post(path, body)
        demand(400 <= reply.status < 500, f"one more than the limit: {reply.said()}")

    return run


def backpressure(subject: Subject) -> None:
    """So many at once are answered or refused in order: 429 or 503, and healthy afterwards."""
    form, count = subject.embed_form, subject.backpressure_requests
    if count == 0:
        raise NotOffered("--backpressure-requests 0")
    bodies = [form.body([f"Request {i}: {PASSAGES[i % 3]}"], subject.model) for i in range(count)]
    with ThreadPoolExecutor(min(count, 256)) as pool:
        replies = list(pool.map(lambda body: subject.server.post(form.path, body), bodies))
    bad = [reply for reply in replies if reply.status != 200 and reply.status not in REFUSALS]
    if bad:
        raise Failed(f"{len(bad)} of {count} neither answered nor refused in order; the first: {bad[0].said()}")
    demand(any(reply.status == 200 for reply in replies), f"none of {count} was answered")


CHECKS = (
    Check("healthy", healthy),
    Check("ready", ready),
    Check("names its models", lists_models),
    Check("metrics for Prometheus", metrics),
    Check("a path that nobody serves is 404", unknown_path),
    Check("a body that is cut off is the caller's error, in JSON", broken_json),
    Check("a wrong type is the caller's error, in JSON", wrong_type),
    Check("no texts are an empty answer or the caller's error", no_texts),
    Check("no answer without the token", demands_token),
)
LAST = (
    Check("many requests at once are answered or refused in order", backpressure),
    Check("healthy after all that", healthy),
)
