"""Compare two servers: vectors, scores, limits and errors. Requests go out one at a time."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, Literal, TypeAlias

import numpy as np

from vectord.errors import ConfigError
from vectord.tools.probe import (
    SAME_COSINE,
    ProbedRoute,
    ProbedServer,
    find_embed_route,
    find_rerank_route,
    row_cosines,
)

# Lines that decide whether clients can use stored vectors and rankings of one server with the other.
DECISIVE = ("vectors", "dimensions", "cosine, here and there", "ranking of", "scores of")
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
START_TIMEOUT_S = 600.0  # a large model has to be read and compiled
STOP_TIMEOUT_S = 30.0
BAD_BODIES: Mapping[str, Callable[[ProbedRoute], bytes]] = {
    "truncated JSON": lambda route: b'{"input": ["cut',
    "no texts": lambda route: json.dumps(route.body([])).encode(),
    "an empty text": lambda route: json.dumps(route.body([""])).encode(),
    "a number for texts": lambda route: json.dumps(route.body(7.5)).encode(),
    "an unknown model": lambda route: json.dumps({**route.body(["x"]), "model": "there-is-no-such-model"}).encode(),
}
Verdict: TypeAlias = Literal["same", "differs", ""]  # "" if neither server is right or wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One comparison."""

    what: str
    here: str
    there: str
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    here: str
    there: str
    lines: Sequence[Line]
    least_cosine: float | None
    mean_cosine: float | None

    @property
    def compared(self) -> bool:
        """Vectors or rankings of both servers were compared."""
        return any(line.what.startswith(("dimensions", "ranking of")) for line in self.lines)

    @property
    def interchangeable(self) -> bool:
        return self.compared and not self.reasons

    @property
    def reasons(self) -> list[str]:
        """Why stored vectors or rankings of one server do not serve the other: the decisive lines that differ."""
        found = [line for line in self.lines if line.what.startswith(DECISIVE) and line.verdict == "differs"]
        return [
            f"the least cosine is below {SAME_COSINE}"
            if line.what.startswith("cosine")
            else f"{line.what}: {line.here} here, {line.there} there"
            for line in found
        ]


def compare(
    here: ProbedServer, there: ProbedServer, *, model_here: str | None = None, model_there: str | None = None
) -> Comparison:
    """model_here, model_there: each server's name of the model; None: the first that it lists."""
    own_model, other_model = here.find_model(model_here), there.find_model(model_there)
    other_embeds, other_reranks = find_embed_route(there, other_model), find_rerank_route(there, other_model)
    own_embeds = find_embed_route(here, own_model, like=other_embeds)
    own_reranks = find_rerank_route(here, own_model, like=other_reranks)
    lines = [
        _line("model", own_model or "", other_model or "", same=None),
        _line("API for vectors", _form(own_embeds), _form(other_embeds), same=None),
        _line("API for scores", _form(own_reranks), _form(other_reranks), same=None),
    ]
    cosines = None
    if own_embeds is not None and other_embeds is not None:
        cosines = _compare_vectors(own_embeds, other_embeds, lines)
    elif own_embeds is not other_embeds:
        lines.append(_same_if_equal("vectors", own_embeds is not None, other_embeds is not None))
    if own_reranks is not None and other_reranks is not None:
        lines += _rankings(own_reranks, other_reranks)
    if own_embeds is not None and other_embeds is not None:
        for compared in (_limits, _errors):
            lines += compared(own_embeds, other_embeds)
    return Comparison(
        here=here.url,
        there=there.url,
        lines=lines,
        least_cosine=None if cosines is None else round(float(cosines.min()), 6),
        mean_cosine=None if cosines is None else round(float(cosines.mean()), 6),
    )


def _form(route: ProbedRoute | None) -> str:
    return "none" if route is None else f"{route.form.name}, POST {route.form.path}"


def _line(what: str, here: object, there: object, *, same: object) -> Line:
    """same: a truth value, or None if neither server is right or wrong."""
    verdict: Verdict = "" if same is None else "same" if same else "differs"
    return Line(what=what, here=str(here), there=str(there), verdict=verdict)


def _same_if_equal(what: str, here: object, there: object) -> Line:
    return _line(what, here, there, same=here == there)


# --- vectors and scores ---------------------------------------------------------------------------------------


def _compare_vectors(own: ProbedRoute, other: ProbedRoute, lines: list[Line]) -> Any:
    """Append lines. Returns each text's cosine between the servers, or None if there is no such cosine."""
    ours, theirs = own.embed(TEXTS)[1], other.embed(TEXTS)[1]
    if ours is None or theirs is None:
        lines.append(_same_if_equal("vectors", ours is not None, theirs is not None))
        return None
    lines.append(_same_if_equal("dimensions", ours.shape[1], theirs.shape[1]))
    if ours.shape[1] != theirs.shape[1]:
        return None
    cosines = row_cosines(ours, theirs)
    least = f"least {cosines.min():.6f} ({TEXTS[int(cosines.argmin())][:24]!r})"
    mean = f"mean {cosines.mean():.6f} of {len(TEXTS)}"
    lines.append(_line("cosine, here and there", least, mean, same=cosines.min() >= SAME_COSINE))
    lengths = [np.linalg.norm(rows, axis=1) for rows in (ours, theirs)]
    ranges = [f"{rows.min():.4f} to {rows.max():.4f}" for rows in lengths]
    lines.append(_line("length of vectors", *ranges, same=np.allclose(lengths[0], lengths[1], rtol=0.01)))
    (own_reply, ours), (other_reply, theirs) = own.embed([LONG_TEXT]), other.embed([LONG_TEXT])
    if ours is None or theirs is None:
        lines.append(_same_if_equal("a text of 720 words", own_reply.status, other_reply.status))
    else:  # equal only if both truncate at the same place
        cosine = float(row_cosines(ours, theirs)[0])
        lines.append(_line("cosine of a text of 720 words", f"{cosine:.6f}", "", same=cosine >= SAME_COSINE))
    return cosines


def _rankings(own: ProbedRoute, other: ProbedRoute) -> Iterator[Line]:
    def order(scores: dict[int, float]) -> str:
        return " ".join(str(index) for index in sorted(scores, key=lambda index: -scores[index]))

    for query, passages in QUERIES.items():
        ours, theirs = own.rerank(query, passages)[1], other.rerank(query, passages)[1]
        if ours is None or theirs is None:
            yield _same_if_equal(f"scores of {query!r}", ours is not None, theirs is not None)
            continue
        yield _same_if_equal(f"ranking of {query!r}", order(ours), order(theirs))
        difference = max(abs(ours[index] - theirs[index]) for index in ours)
        here, there = (", ".join(f"{scores[index]:.4f}" for index in sorted(scores)) for scores in (ours, theirs))
        yield _line(f"scores, at most {difference:.4f} apart", here, there, same=difference < 0.005)


# --- limits and errors ----------------------------------------------------------------------------------------


def _limits(own: ProbedRoute, other: ProbedRoute) -> Iterator[Line]:
    """Statuses of long texts and large requests."""

    def compared(what: str, texts: Sequence[str]) -> Line:
        return _same_if_equal(what, *(route.post(route.body(texts)).status for route in (own, other)))

    for words in LENGTHS_WORDS:
        yield compared(f"a text of {words:,} words", ["word " * words])
    for count in BATCHES_TEXTS:
        line = compared(f"{count:,} texts in a request", [f"Text {i}" for i in range(count)])
        if line.verdict == "differs" or count in (BATCHES_TEXTS[0], BATCHES_TEXTS[-1]):
            yield line


def _errors(own: ProbedRoute, other: ProbedRoute) -> Iterator[Line]:
    """Statuses of bad requests."""
    for what, bad_body in BAD_BODIES.items():
        replies = [route.server.send("POST", route.form.path, bad_body(route)) for route in (own, other)]
        yield _same_if_equal(what, *(reply.status for reply in replies))
    yield _same_if_equal("an unknown path", *(route.server.get("/nothing").status for route in (own, other)))


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
    # The comparison would exceed a rate limit. The last line of the log has the reason of a failed start.
    own = ("--host", host, "--port", str(port), "--rate-limit-requests-per-minute", "0", "--log-level", "warning")
    command = [sys.executable, "-m", "vectord", "serve", *words, *own]
    with TemporaryFile() as log, subprocess.Popen(command, stdout=log, stderr=log) as process:  # noqa: S603
        try:
            with ProbedServer(f"http://{host}:{port}", token, timeout_s) as server:
                deadline_s = time.monotonic() + START_TIMEOUT_S
                while server.get("/health/ready").status != 200:
                    if time.monotonic() < deadline_s and process.poll() is None:
                        time.sleep(0.1)
                        continue
                    log.seek(0)
                    lines = log.read()[-4000:].decode(errors="replace").splitlines()
                    reason = (
                        lines[-1] if lines and process.poll() is not None else f"no answer within {START_TIMEOUT_S:g} s"
                    )
                    raise ConfigError(f"the models of this machine could not be served: {reason}")
                yield server
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
