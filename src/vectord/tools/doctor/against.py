"""Compare two servers: vectors, scores, limits, errors and speed. Requests go out one at a time, except for speed."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, Literal

import numpy as np

from vectord.errors import ConfigError
from vectord.tools.bench import sentences
from vectord.tools.load import Figures, put_load, target
from vectord.tools.probe import EmbedForm, ProbedServer, RerankForm, embed, find_embed_form, find_rerank_form, rerank

# Lines that decide whether clients can use stored vectors and rankings of one server with the other.
DECISIVE = ("vectors", "dimensions", "cosine, here and there", "ranking of", "scores of")
SAME_COSINE = 0.99  # from this cosine on, an index of one server serves the other
TEXTS = (
    "A cat sits on the warm windowsill.",
    "The central bank raised interest rates again.",
    "def add(a, b):\n    return a + b",
    "Die Bücherei schließt um acht Uhr.",
    "機械学習は人工知能の一分野です。",
    "What is the capital of France?",
    "a",
    "UPPER CASE, lower case and 12,345.67 numbers!",
    "The quick brown fox jumps over the lazy dog. " * 12,
    "naïve café ﬁnance e\u0301 👋🏽",
)
LONG_TEXT = "The river rose after two days of rain. " * 90  # about 800 tokens: truncated by many models
QUERIES = {
    "What is machine learning?": (
        "Machine learning is a subset of artificial intelligence that learns from data.",
        "The weather is nice today.",
        "Deep learning uses neural networks with many layers.",
        "My neighbour's cat sleeps on the roof.",
    ),
    "How do I reset my password?": (
        "Open Settings, choose Security, and follow the link that is sent by mail.",
        "Our office is closed on Sundays.",
        "Passwords must have at least twelve characters.",
    ),
}
LENGTHS_WORDS = (100, 400, 1_000, 4_000, 16_000)
BATCHES_TEXTS = (1, 8, 32, 33, 64, 128, 129, 256, 512, 1_024)
SPEED_REQUESTS = 48
SPEED_CONCURRENCY = 8
SPEED_TEXTS = 4
START_TIMEOUT_S = 600.0  # a large model has to be read and compiled
STOP_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Side:
    server: ProbedServer
    model: str | None
    embeds: EmbedForm | None
    reranks: RerankForm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One comparison."""

    what: str
    here: str
    there: str
    verdict: Literal["same", "differs", ""]  # "" if neither is right or wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    here: str
    there: str
    lines: Sequence[Line]
    least_cosine: float | None
    mean_cosine: float | None

    @property
    def interchangeable(self) -> bool:
        """At least one decisive line was compared, and all of them are the same."""
        decisive = [line for line in self.lines if line.what.startswith(DECISIVE)]
        return any(line.verdict == "same" for line in decisive) and all(line.verdict != "differs" for line in decisive)


def compare(here: ProbedServer, there: ProbedServer, *, model_there: str | None = None) -> Comparison:
    """model_there: that server's name of the model; None: the first that it lists."""
    other = _side(there, model_there, None)
    own = _side(here, None, other)
    lines = [
        Line(what="model", here=own.model or "", there=other.model or "", verdict=""),
        Line(what="API for vectors", here=_form(own.embeds), there=_form(other.embeds), verdict=""),
        Line(what="API for scores", here=_form(own.reranks), there=_form(other.reranks), verdict=""),
    ]
    cosines = None
    if own.embeds is not None and other.embeds is not None:
        cosines = _compare_vectors(own, own.embeds, other, other.embeds, lines)
    elif own.embeds is not other.embeds:
        lines.append(_line("vectors", own.embeds is not None, other.embeds is not None))
    if own.reranks is not None and other.reranks is not None:
        lines += _rankings(own, own.reranks, other, other.reranks)
    if own.embeds is not None and other.embeds is not None:
        lines += [*_limits(own, other), *_errors(own, other), *_speed(own, other)]
    return Comparison(
        here=here.url,
        there=there.url,
        lines=lines,
        least_cosine=None if cosines is None else round(float(cosines.min()), 6),
        mean_cosine=None if cosines is None else round(float(cosines.mean()), 6),
    )


def _side(server: ProbedServer, model: str | None, like: Side | None) -> Side:
    """A server with its forms: those of `like`, if this server accepts them."""
    model = model or server.find_model()
    embeds, reranks = (None, None) if like is None else (like.embeds, like.reranks)
    if embeds is None or embed(server, embeds, TEXTS[:1], model)[1] is None:
        embeds = find_embed_form(server, model)
    query = next(iter(QUERIES))
    if reranks is None or rerank(server, reranks, query, QUERIES[query], model)[1] is None:
        reranks = find_rerank_form(server, model)
    return Side(server, model, embeds, reranks)


def _form(form: EmbedForm | RerankForm | None) -> str:
    return "none" if form is None else f"{form.name}, POST {form.path}"


def _line(what: str, here: object, there: object) -> Line:
    return Line(what=what, here=str(here), there=str(there), verdict="same" if here == there else "differs")


def _verdict(is_same: bool) -> Literal["same", "differs"]:
    return "same" if is_same else "differs"


# --- vectors and scores ---------------------------------------------------------------------------------------


def _compare_vectors(own: Side, own_form: EmbedForm, other: Side, other_form: EmbedForm, lines: list[Line]) -> Any:
    """Append lines. Returns each text's cosine between the servers, or None if there is no such cosine."""
    ours = embed(own.server, own_form, TEXTS, own.model)[1]
    theirs = embed(other.server, other_form, TEXTS, other.model)[1]
    if ours is None or theirs is None:
        lines.append(_line("vectors", ours is not None, theirs is not None))
        return None
    lines.append(_line("dimensions", ours.shape[1], theirs.shape[1]))
    if ours.shape[1] != theirs.shape[1]:
        return None
    norms = [np.linalg.norm(rows, axis=1) for rows in (ours, theirs)]
    cosines = np.einsum("td,td->t", ours, theirs) / np.maximum(norms[0] * norms[1], 1e-12)
    lines.append(
        Line(
            what="cosine, here and there",
            here=f"least {cosines.min():.6f} ({TEXTS[int(cosines.argmin())][:24]!r})",
            there=f"mean {cosines.mean():.6f} of {len(TEXTS)}",
            verdict=_verdict(cosines.min() >= SAME_COSINE),
        )
    )
    lines.append(
        Line(
            what="length of vectors",
            here=f"{norms[0].min():.4f} to {norms[0].max():.4f}",
            there=f"{norms[1].min():.4f} to {norms[1].max():.4f}",
            verdict=_verdict(np.allclose(norms[0], norms[1], rtol=0.01)),
        )
    )
    reply, ours = embed(own.server, own_form, [LONG_TEXT], own.model)
    other_reply, theirs = embed(other.server, other_form, [LONG_TEXT], other.model)
    if ours is None or theirs is None:
        lines.append(_line("a text of 720 words", reply.status, other_reply.status))
    else:  # equal only if both truncate at the same place
        cosine = float(ours[0] @ theirs[0] / max(np.linalg.norm(ours[0]) * np.linalg.norm(theirs[0]), 1e-12))
        verdict = _verdict(cosine >= SAME_COSINE)
        lines.append(Line(what="cosine of a text of 720 words", here=f"{cosine:.6f}", there="", verdict=verdict))
    return cosines


def _rankings(own: Side, own_form: RerankForm, other: Side, other_form: RerankForm) -> Iterator[Line]:
    def order(scores: dict[int, float]) -> str:
        return " ".join(str(index) for index in sorted(scores, key=lambda index: -scores[index]))

    for query, passages in QUERIES.items():
        ours = rerank(own.server, own_form, query, passages, own.model)[1]
        theirs = rerank(other.server, other_form, query, passages, other.model)[1]
        if ours is None or theirs is None:
            yield _line(f"scores of {query!r}", ours is not None, theirs is not None)
            continue
        yield _line(f"ranking of {query!r}", order(ours), order(theirs))
        apart = max(abs(ours[index] - theirs[index]) for index in ours)
        here, there = (", ".join(f"{scores[index]:.4f}" for index in sorted(scores)) for scores in (ours, theirs))
        yield Line(what=f"scores, at most {apart:.4f} apart", here=here, there=there, verdict=_verdict(apart < 0.005))


# --- limits, errors, speed ------------------------------------------------------------------------------------


def _limits(own: Side, other: Side) -> Iterator[Line]:
    """Statuses of long texts and large requests."""
    for words in LENGTHS_WORDS:
        texts = ["word " * words]
        yield _line(f"a text of {words:,} words", _status(own, texts), _status(other, texts))
    for count in BATCHES_TEXTS:
        texts = [f"Text {i}" for i in range(count)]
        line = _line(f"{count:,} texts in a request", _status(own, texts), _status(other, texts))
        if line.verdict == "differs" or count in (BATCHES_TEXTS[0], BATCHES_TEXTS[-1]):
            yield line


def _status(side: Side, texts: Sequence[str]) -> int:
    assert side.embeds is not None
    return side.server.post(side.embeds.path, side.embeds.body(texts, side.model)).status


def _errors(own: Side, other: Side) -> Iterator[Line]:
    """Statuses of bad requests."""
    ours, theirs = _bad_bodies(own), _bad_bodies(other)
    for what in ours:
        found = []
        for side, bodies in ((own, ours), (other, theirs)):
            assert side.embeds is not None
            found.append(side.server.send("POST", side.embeds.path, bodies[what]).status)
        yield _line(what, *found)
    yield _line("an unknown path", own.server.get("/nothing").status, other.server.get("/nothing").status)


def _bad_bodies(side: Side) -> dict[str, bytes]:
    assert side.embeds is not None
    form, model = side.embeds, side.model
    bodies: dict[str, Any] = {
        "no texts": form.body([], model),
        "an empty text": form.body([""], model),
        "a number for texts": form.wrong_body(model),
        "an unknown model": {**form.body(["x"], model), "model": "there-is-no-such-model"},
    }
    return {"truncated JSON": b'{"input": ["cut', **{what: json.dumps(body).encode() for what, body in bodies.items()}}


def _speed(own: Side, other: Side) -> Iterator[Line]:
    """The same load on both servers, one after the other. Other load on their machines counts."""

    def load(side: Side, texts: int, requests: int, concurrency: int) -> Figures:
        assert side.embeds is not None
        return put_load(
            "doctor",
            target(side.server.url, side.embeds.path, side.server.token),
            [side.embeds.body(sentences(number, texts), side.model) for number in range(requests)],
            requests=requests,
            concurrency=concurrency,
            warmup=2,
            timeout_s=60.0,
            units_per_request=texts,
        )

    def ms(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    busy = [load(side, SPEED_TEXTS, SPEED_REQUESTS, SPEED_CONCURRENCY) for side in (own, other)]
    single = [load(side, 1, 10, 1) for side in (own, other)]
    for what, (here, there) in {
        f"texts/s, {SPEED_CONCURRENCY} clients": [f"{one.units_per_s:.1f}" for one in busy],
        "p50 of them, ms": [ms(one.p50_ms) for one in busy],
        "p50 of a single text, ms": [ms(one.p50_ms) for one in single],
    }.items():
        yield Line(what=what, here=here, there=there, verdict="")


# --- a server of this machine ---------------------------------------------------------------------------------


@contextmanager
def own_server(words: Sequence[str], token: str | None, timeout_s: float) -> Iterator[ProbedServer]:
    """`vectord serve` as a child process on a free port, until the end of the context.

    words: its options and models. Raises ConfigError if it does not start.
    """
    host = "127.0.0.1"
    with socket.socket() as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    # A rate limit would distort the measured speed.
    own = ("--host", host, "--port", str(port), "--rate-limit-requests-per-minute", "0")
    command = [sys.executable, "-m", "vectord", "serve", *words, *own]
    with TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:  # noqa: S603
        try:
            with ProbedServer(f"http://{host}:{port}", token, timeout_s) as server:
                if not _becomes_ready(server, process):
                    log.seek(0)
                    lines = log.read()[-4000:].decode(errors="replace").splitlines()
                    reason = lines[-1] if lines else f"no answer within {START_TIMEOUT_S:g} s"
                    raise ConfigError(f"the models of this machine could not be served: {reason}")
                yield server
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _becomes_ready(server: ProbedServer, process: subprocess.Popen[bytes]) -> bool:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        if server.get("/health/ready").status == 200:
            return True
        time.sleep(0.1)
    return False
