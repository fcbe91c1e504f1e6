"""A query and passages to scores, by whatever the model has: one door for every kind of reranker.

    scores    a cross-encoder's logit, or a language model's probability of "yes", for each pair
    dense     cosine of the query's vector with each passage's
    colbert   for each of the query's tokens its best match among the passage's, summed (BGE-M3: averaged)
    sparse    product of the sparse vectors
    weighted  BGE-M3's: a weighted mean of dense, sparse and colbert

Called by engine.py. With vectors the query is read once; with pairs it is tokenised once, and a causal model runs the
tokens that all pairs begin with once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.models.registry import ServedModel
from vectord.engine.operations import dense, ranking
from vectord.engine.operations.task import Task, blaming, compute, together, usage_of
from vectord.engine.operations.vectors import Vectors, check_specials, vectors_of
from vectord.engine.queue.batch import Kind, Prefix
from vectord.engine.queue.runner import ModelRunner, Ran, Text
from vectord.errors import InvalidField, ModelCannot
from vectord.schema import (
    Float32,
    Int32,
    RerankMethod,
    RerankRequest,
    RerankResult,
    ScoreKind,
    Span,
    TextLength,
    VectorKind,
)
from vectord.text.encoded import Chunk, CutText, EncodedPair

# The vectors each method needs of a model, in the order in which they are chosen where the request names none.
NEEDS: Mapping[RerankMethod, frozenset[VectorKind]] = {
    "scores": frozenset(),
    "weighted": frozenset({"dense", "sparse", "colbert"}),
    "dense": frozenset({"dense"}),
    "colbert": frozenset({"colbert"}),
    "sparse": frozenset({"sparse"}),
}
LEAST_SHARED_TOKENS = 8  # fewer are not worth a text of their own in the batch


@dataclass(frozen=True, slots=True)
class Pieces:
    """What is scored: the passages, or their chunks."""

    texts: Sequence[str]
    spans: Sequence[Span]
    owners: Sequence[int]  # the passage of each text, rising; every passage has one at least

    def best(self, scores: Float32) -> list[int]:
        """The place of each passage's best text, the first one of equals."""
        best: dict[int, int] = {}
        for place, owner in enumerate(self.owners):
            if owner not in best or scores[place] > scores[best[owner]]:
                best[owner] = place
        return list(best.values())

    def last(self) -> list[int]:
        """The place of each passage's last text."""
        return list({owner: place for place, owner in enumerate(self.owners)}.values())


@dataclass(frozen=True, slots=True)
class Scored:
    scores: Float32  # (passages,)
    kind: ScoreKind
    ran: Ran
    query: TextLength
    passages: Sequence[TextLength]
    run: Sequence[TextLength]  # what the model read, for usage
    further_tokens: int = 0


def method_of(kinds: frozenset[Kind], reranks: bool, wanted: RerankMethod | None) -> RerankMethod | None:
    """The method for a model of these kinds of answers; None if it has none, or not the one wanted."""
    able = [method for method, needs in NEEDS.items() if (needs <= kinds if needs else reranks)]
    if wanted is not None:
        return wanted if wanted in able else None
    return able[0] if able else None


async def rerank(served: ServedModel, name: str, request: RerankRequest, task: Task) -> RerankResult:
    """The score of every passage, in order. Raises ModelCannot if the model has no such method."""
    method = _check(served, name, request, task)
    async with task.use(served) as runner:
        task.check_wait(runner)
        cut = await _cut(runner, request, task)
        pieces = await _pieces(runner, request, [passage.text for passage in cut], task)
        if method == "scores":
            scored = await _by_pairs(runner, request, pieces, task)
        else:
            scored = await _by_vectors(runner, method, request, pieces, task)
    best = pieces.best(scored.scores)
    read = list(scored.run)
    for passage, place in zip(cut, pieces.last(), strict=True):
        read[place] = passage.whole(read[place])
    return RerankResult(
        model=name,
        fingerprint=served.fingerprint,
        scores=scored.scores[best],
        kind=scored.kind,
        usage=usage_of(
            task, read, [request.query, *request.passages], scored.ran, further_tokens=scored.further_tokens
        ),
        query=scored.query,
        passages=[passage.whole(scored.passages[place]) for passage, place in zip(cut, best, strict=True)],
        max_tokens=served.spec.max_tokens,
        spans=[pieces.spans[place] for place in best] if request.chunks is not None else None,
    )


def _check(served: ServedModel, name: str, request: RerankRequest, task: Task) -> RerankMethod:
    """What can be refused before the model is in memory. Returns how the model is to score."""
    method = method_of(served.kinds, served.spec.reranks, request.method)
    if method is None:
        raise ModelCannot(f"The model {name} cannot rerank by {request.method or 'anything it has'}.", field="model")
    if request.instruction is not None and (method != "scores" or served.spec.yes_no is None):
        raise InvalidField("`instruction` is for language models; this model reads none.", field="instruction")
    weights = request.weights
    if weights is not None and not (min(weights) >= 0 and 0 < sum(weights) < np.inf):
        raise InvalidField("`weights` must be three numbers from 0 on, not all of them 0.", field="weights")
    if request.max_passage_tokens is not None and request.max_passage_tokens < 1:
        raise InvalidField(
            f"`max_passage_tokens` must be at least 1; got {request.max_passage_tokens}.",
            field="max_passage_tokens",
            limit=1,
            given=request.max_passage_tokens,
        )
    check_specials(NEEDS[method], request.text)
    task.check_count(len(request.passages), "passages")
    return method


async def _cut(runner: ModelRunner, request: RerankRequest, task: Task) -> Sequence[CutText]:
    """What is read of each passage at most."""
    passages, max_tokens, cut = request.passages, request.max_passage_tokens, runner.encoder.cut
    if max_tokens is None:
        return [CutText(passage, 0, 0) for passage in passages]
    return await task.encode(passages, lambda part: cut(passages, max_tokens, field="passages", part=part))


async def _pieces(runner: ModelRunner, request: RerankRequest, passages: Sequence[str], task: Task) -> Pieces:
    options, encoder = request.chunks, runner.encoder
    if options is None:
        return Pieces(passages, [Span(0, len(passage)) for passage in passages], range(len(passages)))
    chunked = await task.chunk(
        passages, lambda i: encoder.chunk(passages[i], options, field="passages", index=i), "passages"
    )
    spans = [_spans(passage, chunks) for passage, chunks in zip(passages, chunked, strict=True)]
    owners = [i for i, own in enumerate(spans) for _ in own]
    task.check_count(len(owners), "passages", "chunk")
    texts = [passages[i][span.start : span.stop] for i, own in enumerate(spans) for span in own]
    return Pieces(texts, [span for own in spans for span in own], owners)


def _spans(passage: str, chunks: Sequence[Chunk]) -> list[Span]:
    """Those of its chunks; a passage without text has none, and is scored as it is."""
    return [Span(chunk.start, chunk.stop) for chunk in chunks] or [Span(0, len(passage))]


# --- pairs ----------------------------------------------------------------------------------------------------


async def _by_pairs(runner: ModelRunner, request: RerankRequest, pieces: Pieces, task: Task) -> Scored:
    spec = runner.spec
    encode: Callable[..., Sequence[EncodedPair]] = partial(runner.encoder.encode_pairs, request.query, pieces.texts)
    each = 0
    if spec.yes_no is not None:  # which is one text, query and all, for each passage
        each = len(request.query) + len(request.instruction or "")
        encode = partial(runner.encoder.encode_yes_no, request.query, pieces.texts, request.instruction)
    encode = partial(
        encode,
        request.text,
        truncate=runner.truncates(request.text),
        field="passages",
    )
    with blaming(pieces.owners):
        pairs = await task.encode(pieces.texts, lambda part: encode(part=part), beside=len(request.query), each=each)
        prefix = _shared(runner, [pair.ids for pair in pairs])
        texts = [Text(ids=pair.ids, type_ids=pair.type_ids, prefix=prefix) for pair in pairs]
        ran = await task.run(runner, texts, frozenset({"scores"}), "passages")
    scores, kind = _judged(spec, ran.rows("scores"), request.raw)
    return Scored(scores, kind, ran, pairs[0].query, [pair.passage for pair in pairs], [pair.length for pair in pairs])


def _shared(runner: ModelRunner, pairs: Sequence[Int32]) -> Prefix | None:
    """The tokens that all pairs begin with, where a causal model may read them once; at least one stays each pair's.

    A backend that pads reads every text on its own: it would gain nothing.
    """
    if runner.spec.yes_no is None or runner.facts.cost == "padded" or len(pairs) < 2:
        return None
    first = pairs[0]
    most = min(map(len, pairs)) - 1
    same = min(_agree(first[:most], pair[:most]) for pair in pairs[1:])
    return Prefix(first[:same]) if same >= LEAST_SHARED_TOKENS else None


def _agree(a: Int32, b: Int32) -> int:
    differ = np.flatnonzero(a != b)
    return int(differ[0]) if len(differ) else len(a)


def _judged(spec: ModelSpec, logits: Float32, raw: bool | None) -> tuple[Float32, ScoreKind]:
    """logits (N, L) as scores (N,). raw None: a cross-encoder's logit, a language model's probability."""
    odds = logits[:, 1] - logits[:, 0] if spec.scores_by_words else logits[:, 0]  # (N,) by words: of "yes" against "no"
    if raw is None:
        raw = spec.yes_no is None
    return (odds, "logit") if raw else (ranking.sigmoid(odds), "probability")


# --- vectors --------------------------------------------------------------------------------------------------


async def _by_vectors(
    runner: ModelRunner, method: RerankMethod, request: RerankRequest, pieces: Pieces, task: Task
) -> Scored:
    kinds = NEEDS[method]
    asked, found = await together(
        [
            vectors_of(runner, [request.query], replace(request.text, kind="query"), kinds, task, "query"),
            _vectors_of_passages(runner, request, kinds, pieces, task),
        ]
    )
    scores = {kind: await _likeness(kind, runner.spec, asked, found) for kind in sorted(kinds)}
    values, kind = _combined(method, scores, request.weights)
    return Scored(
        values, kind, found.ran, asked.lengths[0], found.lengths, found.lengths, further_tokens=asked.lengths[0].kept
    )


async def _vectors_of_passages(
    runner: ModelRunner, request: RerankRequest, kinds: frozenset[VectorKind], pieces: Pieces, task: Task
) -> Vectors:
    with blaming(pieces.owners):
        return await vectors_of(runner, pieces.texts, replace(request.text, kind="document"), kinds, task, "passages")


async def _likeness(kind: VectorKind, spec: ModelSpec, asked: Vectors, found: Vectors) -> Float32:
    """How like the query each passage is by one kind of vector. (passages,)"""
    if kind == "sparse":
        words = found.ran.each("sparse")
        return await compute(
            sum(passage.values.size for passage in words),
            partial(ranking.dots, asked.ran.each("sparse")[0], words),
        )
    if kind == "dense":
        rows = np.concatenate([asked.ran.rows("dense"), found.ran.rows("dense")])
        return await compute(rows.size, lambda: dense.cosines(dense.finish(rows, None, normalize=True)))
    assert asked.colbert is not None and found.colbert is not None, "both were asked for colbert"
    (query,) = asked.colbert
    size = sum(rows.size for rows in found.colbert)
    sums = await compute(size, partial(ranking.sums_of_best, query, found.colbert))
    mean = spec.colbert is not None and spec.colbert.linear is not None  # BGE-M3: FlagEmbedding averages
    return sums / np.float32(max(1, len(query))) if mean else sums


_KINDS: Mapping[RerankMethod, ScoreKind] = {
    "dense": "cosine",
    "colbert": "maxsim",
    "sparse": "dot",
    "weighted": "weighted",
}


def _combined(
    method: RerankMethod, scores: Mapping[VectorKind, Float32], weights: tuple[float, float, float] | None
) -> tuple[Float32, ScoreKind]:
    if method != "weighted":
        (values,) = scores.values()
        return values, _KINDS[method]
    shares = np.array(weights or (1.0, 1.0, 1.0))
    shares /= shares.sum()
    columns = np.stack([scores["dense"], scores["sparse"], scores["colbert"]], axis=1)  # (passages, 3)
    return (columns @ shares).astype(np.float32), "weighted"
