"""Scores of passages for a query, by whichever method the model supports.

    scores    a cross-encoder's logit, or a language model's probability of "yes", for each pair; the cosines of a
              listwise reranker, which reads all passages together
    dense     cosine of the query's vector with each passage's
    colbert   for each token of the query its best match among the passage's, summed (BGE-M3: averaged)
    sparse    dot product of the sparse vectors
    weighted  BGE-M3's: a weighted mean of dense, sparse and colbert

With vectors the query is read once, and query and passages may be images. With pairs it is tokenized once, and a causal
model runs the tokens that all pairs begin with once per batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import msgspec
import numpy as np
from msgspec.structs import replace

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.models.registry import ModelOrComposite, ServedModel
from vectord.engine.operations import postprocess
from vectord.engine.operations.embed import ModelVectors, check_specials, vectors_by
from vectord.engine.operations.task import Task, compute, placing_errors, together, usage_of
from vectord.engine.queue.runner import ModelRunner, RunResult
from vectord.errors import InvalidField, ModelCannot
from vectord.schema import (
    AnswerKind,
    EmbedRequest,
    Float32,
    InputKind,
    Item,
    RerankMethod,
    RerankRequest,
    RerankResult,
    ScoreKind,
    Span,
    TextLength,
    TextLengths,
    VectorKind,
    best_first,
)
from vectord.text.sequence import CutText, Prefix, ReadRequest, Texts

# The vectors that each method needs of a model, in the order of preference where the request names no method.
NEEDS: Mapping[RerankMethod, frozenset[VectorKind]] = {
    "scores": frozenset(),
    "weighted": frozenset({"dense", "sparse", "colbert"}),
    "dense": frozenset({"dense"}),
    "colbert": frozenset({"colbert"}),
    "sparse": frozenset({"sparse"}),
}
SCORES: frozenset[AnswerKind] = frozenset({"scores"})
LEAST_SHARED_TOKENS = 8  # a shorter shared prefix is not worth a text of its own in the batch


class Pieces(msgspec.Struct, frozen=True):
    """The texts that are scored: the passages, or their chunks."""

    texts: Sequence[Item]
    spans: Sequence[Span]  # of chunks
    owners: Sequence[int]  # the passage of each text, ascending; every passage has at least one

    def best(self, scores: Float32, logits: Float32 | None) -> list[int]:
        """The place of each passage's best text, the first one of equals."""
        best: dict[int, int] = {}
        for place in best_first(scores, logits).tolist():
            best.setdefault(self.owners[place], place)
        return [best[owner] for owner in sorted(best)]


class Scored(msgspec.Struct, frozen=True):
    """Scores of the pieces."""

    scores: Float32  # (pieces,)
    logits: Float32 | None  # (pieces,) before the activation function, if there is one
    kind: ScoreKind
    ran: RunResult
    query: TextLength
    pieces: TextLengths
    read: TextLengths  # the tokens that the model read, for usage
    further_tokens: int = 0


def method_of(kinds: frozenset[AnswerKind], reranks: bool, requested: RerankMethod | None) -> RerankMethod | None:
    """The method for a model with these kinds of answers; None if it has none, or not the requested one."""
    supported = [method for method, needs in NEEDS.items() if (needs <= kinds if needs else reranks)]
    if requested is not None:
        return requested if requested in supported else None
    return supported[0] if supported else None


async def rerank(target: ModelOrComposite, request: RerankRequest, task: Task) -> RerankResult:
    """The score of every passage, in order."""
    served = target.lead
    method = _check(served, target.name, request, task)
    async with task.use(served) as runner:
        with placing_errors("query"):
            (query,), (query_cut,) = await _cut(runner, [request.query], request.max_query_tokens, task)
        passages, cuts = await _cut(runner, request.passages, request.max_passage_tokens, task)
        pieces = await _pieces(runner, request, passages, task)
        read_request = replace(request, query=query)
        if method == "scores":
            scored = await _by_scores(runner, read_request, pieces, task)
        else:
            scored = await _by_vectors(served, method, read_request, pieces, task)
    best = pieces.best(scored.scores, scored.logits)
    read = [*scored.read]
    last = {owner: place for place, owner in enumerate(pieces.owners)}  # each passage's last piece
    for cut, place in zip(cuts, last.values(), strict=True):
        read[place] = cut.whole(read[place])
    return RerankResult(
        model=target.name,
        fingerprint=served.fingerprint,
        scores=scored.scores[best],
        logits=None if scored.logits is None else scored.logits[best],
        kind=scored.kind,
        usage=usage_of(
            task,
            TextLengths.of(read),
            [request.query, *request.passages],
            scored.ran,
            further_tokens=scored.further_tokens,
        ),
        query=query_cut.whole(scored.query),
        passages=TextLengths.of([cut.whole(scored.pieces[place]) for cut, place in zip(cuts, best, strict=True)]),
        max_tokens=served.spec.max_tokens,
        spans=[pieces.spans[place] for place in best] if request.chunks is not None else None,
    )


def _check(served: ServedModel, name: str, request: RerankRequest, task: Task) -> RerankMethod:
    method = method_of(served.kinds, served.spec.reranks, request.method)
    if method is None:
        by = f" by {request.method}" if request.method else ""
        raise ModelCannot("The model {model} cannot rerank{by}.", field="model", model=name, by=by)
    template = served.spec.yes_no
    reads_instruction = served.spec.listwise is not None or (template is not None and template.reads_instruction)
    if request.instruction and not (method == "scores" and reads_instruction):
        raise InvalidField(
            "{field} is for language models; this model does not read it. Leave it out.", field="instruction"
        )
    weights = request.weights
    if weights is not None and not (min(weights) >= 0 and 0 < sum(weights) < np.inf):
        raise InvalidField("{field} must be three numbers of at least 0, and not all 0.", field="weights")
    for field, most in (
        ("max_passage_tokens", request.max_passage_tokens),
        ("max_query_tokens", request.max_query_tokens),
    ):
        if most is not None and most < 1:
            raise InvalidField("{field} must be at least {limit}; got {given}.", field=field, limit=1, given=most)
    check_specials(NEEDS[method], request.text)
    task.check_count("passages", len(request.passages))
    return method


async def _cut(
    runner: ModelRunner, items: Sequence[Item], max_tokens: int | None, task: Task
) -> tuple[Sequence[Item], Sequence[CutText]]:
    """The items, and the cut of each. With `max_tokens`, they are texts of at most so many tokens."""
    if max_tokens is None:
        return items, [CutText("", 0, 0)] * len(items)
    texts = _texts(items)
    cuts = await task.encode(texts, lambda part: runner.tokenizer.cut(texts, max_tokens, part))
    return [cut.text for cut in cuts], cuts


def _texts(items: Sequence[Item]) -> Sequence[str]:
    """The items, which must be texts."""
    for index, item in enumerate(items):
        if not isinstance(item, str):
            template = "{field} is or has an image; this model, or a field of this request, reads texts only."
            raise InvalidField(template, index=index)
    return cast("Sequence[str]", items)


async def _pieces(runner: ModelRunner, request: RerankRequest, items: Sequence[Item], task: Task) -> Pieces:
    if request.chunks is None:
        return Pieces(items, (), range(len(items)))
    passages = _texts(items)
    chunked = await task.chunk(runner, passages, request.chunks)
    spans = [
        [Span(chunk.start, chunk.stop) for chunk in chunks] or [Span(0, len(passage))]  # a passage without text
        for passage, chunks in zip(passages, chunked, strict=True)
    ]
    owners = [i for i, own in enumerate(spans) for _ in own]
    task.check_count("passages", len(owners), "chunk")
    texts = [passages[i][span.start : span.stop] for i, own in enumerate(spans) for span in own]
    return Pieces(texts, [span for own in spans for span in own], owners)


# --- pairs and lists ------------------------------------------------------------------------------------------


async def _by_scores(runner: ModelRunner, request: RerankRequest, pieces: Pieces, task: Task) -> Scored:
    reads_images = runner.spec.template is not None
    with placing_errors("query"):
        (question,) = [request.query] if reads_images else _texts([request.query])
    with placing_errors(owners=pieces.owners):
        read = ReadRequest(
            inputs=pieces.texts if reads_images else _texts(pieces.texts),
            options=request.text,
            truncate=request.text.truncates(runner.auto_truncate),
            query=question,
            instruction=request.instruction,
        )
        texts = await task.read(runner, read)
        prefix = _shared_prefix(runner, texts)
        ran = await task.run(runner, replace(texts, prefix=prefix) if prefix else texts, SCORES)
        lengths = TextLengths.of([passage for parts in texts.parts for passage in parts[1:]])
        if request.text.count_all:
            lengths = await task.whole_lengths(runner, pieces.texts, lengths)
    query = texts.parts[0][0]
    if request.text.count_all:
        with placing_errors("query"):
            (query,) = await task.whole_lengths(runner, [question], TextLengths.of([query]))
    if runner.spec.listwise is not None:
        states = np.split(ran.rows("scores"), np.cumsum(texts.all_pooled)[:-1])
        scores = await compute(sum(part.size for part in states), partial(postprocess.list_scores, states))
        around = len(texts.ids) - sum(lengths.kept)
        return Scored(scores, None, "cosine", ran, query, lengths, lengths, further_tokens=around)
    rows = ran.rows("scores")  # (N, L)
    logits = rows[:, -1] - rows[:, 0] if rows.shape[1] == 2 else rows[:, 0]  # (N,): of two numbers, "yes" minus "no"
    if runner.spec.scores_by_words and runner.spec.yes_no is not None:
        logits = logits / np.float32(runner.spec.yes_no.divisor)
    scores, kind = _activated(runner.spec, logits, request.raw)
    return Scored(scores, None if scores is logits else logits, kind, ran, query, lengths, texts.lengths)


def _shared_prefix(runner: ModelRunner, pairs: Texts) -> Prefix | None:
    """The tokens that all pairs begin with, if a causal model may read them once; each pair keeps at least one token.
    A backend that pads reads every text separately, so a prefix would save nothing."""
    template = runner.spec.yes_no
    if template is None or not template.shares_prefix or runner.facts.cost == "padded" or len(pairs) < 2:
        return None
    if pairs.images is not None:  # rows of different images have the same token
        return None
    first, *others = np.split(pairs.ids, pairs.cu_seqlens[1:-1])
    most = int(pairs.sizes.min()) - 1
    differ = [np.flatnonzero(first[:most] != ids[:most]) for ids in others]
    same = min([most, *(int(places[0]) for places in differ if len(places))])
    return Prefix(first[:same]) if same >= LEAST_SHARED_TOKENS else None


def _activated(spec: ModelSpec, logits: Float32, raw: bool | None) -> tuple[Float32, ScoreKind]:
    """logits (N,) as scores (N,). raw None: a cross-encoder's logit, a language model's probability.

    An activation function other than sigmoid is the author's choice, which replaces both.
    """
    if raw is not True and spec.score_activation not in ("identity", "sigmoid"):
        scores, kind = postprocess.activate(logits[:, None], spec.score_activation)
        return scores[:, 0], kind
    if raw is None:
        raw = spec.yes_no is None
    return (logits, "logit") if raw else (postprocess.activate(logits, "sigmoid")[0], "probability")


# --- vectors --------------------------------------------------------------------------------------------------


async def _by_vectors(
    served: ServedModel, method: RerankMethod, request: RerankRequest, pieces: Pieces, task: Task
) -> Scored:
    kinds = NEEDS[method]

    async def read(items: Sequence[Item], use: InputKind) -> ModelVectors:
        with placing_errors("query") if use == "query" else placing_errors(owners=pieces.owners):
            asked = EmbedRequest(inputs=items, text=replace(request.text, kind=use), outputs=kinds)
            return await vectors_by(served, kinds, asked, task)

    query, passages = await together([read([request.query], "query"), read(pieces.texts, "document")])
    scores = {kind: await _similarity(kind, served.spec, query, passages) for kind in sorted(kinds)}
    if method == "weighted":
        shares = np.array(request.weights or (1.0, 1.0, 1.0))
        columns = np.stack([scores["dense"], scores["sparse"], scores["colbert"]], axis=1)  # (pieces, 3)
        values = (columns @ (shares / shares.sum())).astype(np.float32)
    else:
        (values,) = scores.values()
    return Scored(
        values,
        None,
        _KINDS[method],
        passages.ran,
        query.lengths[0],
        passages.lengths,
        passages.lengths,
        further_tokens=query.lengths[0].kept,
    )


async def _similarity(kind: VectorKind, spec: ModelSpec, query: ModelVectors, passages: ModelVectors) -> Float32:
    if kind == "sparse":
        words = passages.ran.each("sparse")
        size = sum(passage.values.size for passage in words)
        return await compute(size, partial(postprocess.sparse_dots, query.ran.each("sparse")[0], words))
    if kind == "dense":
        rows = np.concatenate([query.ran.rows("dense"), passages.ran.rows("dense")])
        finish = partial(postprocess.finish, rows, spec.truncate_dim, normalize=True)
        return await compute(rows.size, lambda: postprocess.cosines(finish()))
    assert query.colbert is not None and passages.colbert is not None, "both have colbert vectors"
    (tokens,) = query.colbert
    size = sum(rows.size for rows in passages.colbert)
    sums = await compute(size, partial(postprocess.max_sims, tokens, passages.colbert))
    mean = spec.colbert is not None and spec.colbert.linear is not None  # BGE-M3: FlagEmbedding averages
    return sums / np.float32(max(1, len(tokens))) if mean else sums


_KINDS: Mapping[RerankMethod, ScoreKind] = {
    "dense": "cosine",
    "colbert": "maxsim",
    "sparse": "dot",
    "weighted": "weighted",
}
