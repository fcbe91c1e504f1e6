"""Two servers asked the same: vectors, scores, limits, errors, speed. One request at a time, but for speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from vectord.tools.bench.load import put_load, target
from vectord.tools.bench.scenarios import sentences
from vectord.tools.probe.forms import (
    EmbedForm,
    RerankForm,
    embed,
    find_embed_form,
    find_rerank_form,
    rerank,
)
from vectord.tools.probe.server import Server

# How the lines begin that say whether what clients keep of one server is of use beside the other.
KEPT = ("vectors", "dimensions", "cosine, here and there", "ranking of", "scores of")
SAME_COSINE = 0.99  # from here on an index made by one serves the other
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
LONG_TEXT = "The river rose after two days of rain. " * 90  # some 800 tokens: cut where a model reads fewer
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


@dataclass(frozen=True, slots=True)
class Side:
    server: Server
    model: str | None
    embeds: EmbedForm | None
    reranks: RerankForm | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One thing that was asked of both."""

    what: str
    here: str
    there: str
    verdict: Literal["same", "differs", ""]  # "" where it is no question of right or wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    here: str
    there: str
    lines: Sequence[Line]
    least_cosine: float | None
    mean_cosine: float | None

    @property
    def interchangeable(self) -> bool:
        """Whether something could be compared, and what clients keep (vectors, rankings) is the same on both."""
        kept = [line for line in self.lines if line.what.startswith(KEPT)]
        return any(line.verdict == "same" for line in kept) and not any(line.verdict == "differs" for line in kept)


def compare(
    here: Server, there: Server, *, model_here: str | None = None, model_there: str | None = None
) -> Comparison:
    """model_here, model_there: as each calls it; None: the first that it names."""
    other = _side(there, model_there, None)
    own = _side(here, model_here, other)
    lines = [*_models(own, other)]
    cosines, vector_lines = _vectors(own, other)
    lines += vector_lines
    lines += _rankings(own, other)
    lines += _limits(own, other)
    lines += _errors(own, other)
    lines += _speed(own, other)
    return Comparison(
        here=here.url,
        there=there.url,
        lines=lines,
        least_cosine=round(float(cosines.min()), 6) if cosines is not None else None,
        mean_cosine=round(float(cosines.mean()), 6) if cosines is not None else None,
    )


def _side(server: Server, model: str | None, like: Side | None) -> Side:
    """By the API that `like` is asked by, where this server speaks it."""
    model = model or server.find_model()
    embeds, reranks = (None, None) if like is None else (like.embeds, like.reranks)
    if embeds is None or embed(server, embeds, TEXTS[:1], model)[1] is None:
        embeds = find_embed_form(server, model)
    query = next(iter(QUERIES))
    if reranks is None or rerank(server, reranks, query, QUERIES[query], model)[1] is None:
        reranks = find_rerank_form(server, model)
    return Side(server, model, embeds, reranks)


def _models(own: Side, other: Side) -> list[Line]:
    def shown(form: EmbedForm | RerankForm | None) -> str:
        return "none" if form is None else f"{form.name}, POST {form.path}"

    return [
        Line(what="model", here=own.model or "", there=other.model or "", verdict=""),
        Line(what="API for vectors", here=shown(own.embeds), there=shown(other.embeds), verdict=""),
        Line(what="API for scores", here=shown(own.reranks), there=shown(other.reranks), verdict=""),
    ]


# --- vectors and scores ---------------------------------------------------------------------------------------


def _vectors(own: Side, other: Side) -> tuple[Any, list[Line]]:
    """The cosine of each text's two vectors, None where they cannot be compared."""
    if own.embeds is None or other.embeds is None:
        gives = [side.embeds is not None for side in (own, other)]
        return None, [_line("vectors", *gives)] if any(gives) else []
    ours = embed(own.server, own.embeds, TEXTS, own.model)[1]
    theirs = embed(other.server, other.embeds, TEXTS, other.model)[1]
    if ours is None or theirs is None:
        return None, [_line("vectors", ours is not None, theirs is not None)]
    widths = _line("dimensions", ours.shape[1], theirs.shape[1])
    if widths.verdict == "differs":
        return None, [widths]
    norms = [np.linalg.norm(rows, axis=1) for rows in (ours, theirs)]
    cosines = np.einsum("td,td->t", ours, theirs) / np.maximum(norms[0] * norms[1], 1e-12)
    worst = int(cosines.argmin())
    found = Line(
        what="cosine, here and there",
        here=f"least {cosines.min():.6f} ({TEXTS[worst][:24]!r})",
        there=f"mean {cosines.mean():.6f} of {len(TEXTS)}",
        verdict="same" if cosines.min() >= SAME_COSINE else "differs",
    )
    lengths = Line(
        what="length of vectors",
        here=f"{norms[0].min():.4f} to {norms[0].max():.4f}",
        there=f"{norms[1].min():.4f} to {norms[1].max():.4f}",
        verdict="same" if np.allclose(norms[0], norms[1], rtol=0.01) else "differs",
    )
    return cosines, [widths, found, lengths, *_long(own, other)]


def _long(own: Side, other: Side) -> list[Line]:
    """A text that is cut, by both at the same place or not."""
    assert own.embeds is not None and other.embeds is not None
    reply, ours = embed(own.server, own.embeds, [LONG_TEXT], own.model)
    answer, theirs = embed(other.server, other.embeds, [LONG_TEXT], other.model)
    if ours is None or theirs is None:
        return [_line("a text of 720 words", reply.status, answer.status)]
    cosine = float(ours[0] @ theirs[0] / max(np.linalg.norm(ours[0]) * np.linalg.norm(theirs[0]), 1e-12))
    verdict: Literal["same", "differs"] = "same" if cosine >= SAME_COSINE else "differs"
    return [Line(what="cosine of a text of 720 words", here=f"{cosine:.6f}", there="", verdict=verdict)]


def _rankings(own: Side, other: Side) -> list[Line]:
    if own.reranks is None or other.reranks is None:
        return []
    lines = []
    for query, passages in QUERIES.items():
        ours = rerank(own.server, own.reranks, query, passages, own.model)[1]
        theirs = rerank(other.server, other.reranks, query, passages, other.model)[1]
        if ours is None or theirs is None:
            lines.append(_line(f"scores of {query!r}", ours is not None, theirs is not None))
            continue
        lines.append(_line(f"ranking of {query!r}", _order(ours), _order(theirs)))
        most = max(abs(ours[index] - theirs[index]) for index in ours)
        verdict: Literal["same", "differs"] = "same" if most < 0.005 else "differs"
        shown = [", ".join(f"{scores[index]:.4f}" for index in sorted(scores)) for scores in (ours, theirs)]
        lines.append(Line(what=f"scores, {most:.4f} apart at most", here=shown[0], there=shown[1], verdict=verdict))
    return lines


def _order(scores: dict[int, float]) -> str:
    return " ".join(str(index) for index in sorted(scores, key=lambda index: -scores[index]))


# --- limits, errors, speed ------------------------------------------------------------------------------------


def _limits(own: Side, other: Side) -> list[Line]:
    if own.embeds is None or other.embeds is None:
        return []
    lines = []
    for words in LENGTHS_WORDS:
        lines.append(_statuses(own, other, f"a text of {words:,} words", ["word " * words]))
    for count in BATCHES_TEXTS:
        line = _statuses(own, other, f"{count:,} texts in a request", [f"Text {i}" for i in range(count)])
        if line.verdict == "differs" or count in (BATCHES_TEXTS[0], BATCHES_TEXTS[-1]):
            lines.append(line)
    return lines


def _statuses(own: Side, other: Side, what: str, texts: Sequence[str]) -> Line:
    assert own.embeds is not None and other.embeds is not None
    ours = own.server.post(own.embeds.path, own.embeds.body(texts, own.model)).status
    return _line(what, ours, other.server.post(other.embeds.path, other.embeds.body(texts, other.model)).status)


def _errors(own: Side, other: Side) -> list[Line]:
    """By the path that each is asked by."""
    if own.embeds is None or other.embeds is None:
        return []
    found = []
    for what in ("a body that is cut off", "no texts", "an empty text", "a number for texts", "an unknown model"):
        ours, theirs = (_fault(side, what) for side in (own, other))
        found.append(_line(what, ours, theirs))
    found.append(_line("an unknown path", own.server.get("/nothing").status, other.server.get("/nothing").status))
    return found


def _fault(side: Side, what: str) -> int:
    assert side.embeds is not None
    form = side.embeds
    bodies: dict[str, Any] = {
        "no texts": form.body([], side.model),
        "an empty text": form.body([""], side.model),
        "a number for texts": {
            name: 7.5 if isinstance(value, list) else value for name, value in form.body(["x"], side.model).items()
        },
        "an unknown model": {**form.body(["x"], side.model), "model": "there-is-no-such-model"},
    }
    content = b'{"input": ["cut' if what not in bodies else json.dumps(bodies[what]).encode()
    return side.server.send("POST", form.path, content).status


def _speed(own: Side, other: Side) -> list[Line]:
    """The same load on both, one after the other; what runs beside them counts."""
    if own.embeds is None or other.embeds is None:
        return []
    ours, theirs = _measured(own, own.embeds), _measured(other, other.embeds)
    return [
        Line(what=f"texts/s, {SPEED_CONCURRENCY} callers", here=f"{ours[0]:.1f}", there=f"{theirs[0]:.1f}", verdict=""),
        Line(what="p50 of them, ms", here=_ms(ours[1]), there=_ms(theirs[1]), verdict=""),
        Line(what="p50 of a lone text, ms", here=_ms(ours[2]), there=_ms(theirs[2]), verdict=""),
    ]


def _measured(side: Side, form: EmbedForm) -> tuple[float, float | None, float | None]:
    """Texts a second, and two medians."""

    def load(texts: int, requests: int, concurrency: int) -> Any:
        return put_load(
            "doctor",
            target(side.server.url, form.path, side.server.token),
            [form.body(sentences(place, texts), side.model) for place in range(requests)],
            requests=requests,
            concurrency=concurrency,
            warmup=2,
            timeout_s=60.0,
            units_per_request=texts,
        )

    busy = load(SPEED_TEXTS, SPEED_REQUESTS, SPEED_CONCURRENCY)
    return busy.units_per_s, busy.p50_ms, load(1, 10, 1).p50_ms


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _line(what: str, here: object, there: object) -> Line:
    return Line(what=what, here=str(here), there=str(there), verdict="same" if here == there else "differs")
