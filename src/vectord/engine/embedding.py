"""Texts to vectors of every kind, from one model or, for a composite, from several at once. Called by engine.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from vectord.artifacts.spec import ModelSpec
from vectord.engine import dense
from vectord.engine.batch import Kind
from vectord.engine.encoding import EncodedText
from vectord.engine.registry import Served, Target, require
from vectord.engine.runner import ModelRunner, Ran, Text
from vectord.engine.task import Task, compute, together, usage_of
from vectord.errors import InvalidField, TooManyInputs
from vectord.schema import (
    EmbedRequest,
    EmbedResult,
    Float32,
    Input,
    Precision,
    SimilarityRequest,
    SimilarityResult,
    TextLength,
    TextOptions,
    VectorKind,
)

DENSE: frozenset[VectorKind] = frozenset({"dense"})
MAX_SHOWN_NUMBERS = 2**24  # of the token vectors in an answer: 64 MiB, as JSON 195 MB; 16,384 tokens of BGE-M3
MAX_HELD_NUMBERS = 2**27  # of those that an answer is made of: 512 MiB; 256 passages of 512 tokens of BGE-M3
OF_UNIT_VECTORS: frozenset[Precision] = frozenset({"int8", "uint8"})  # their range is that of unit vectors


@dataclass(frozen=True, slots=True)
class Vectors:
    """What one model made of some texts."""

    ran: Ran
    lengths: Sequence[TextLength]
    colbert: Sequence[Float32] | None  # of the tokens that count


async def embed(target: Target, request: EmbedRequest, task: Task) -> EmbedResult:
    """All vectors the request asks for. Each model of a composite reads each text once."""
    parts = target.parts(request.outputs)
    _check(parts, request)
    task.check_count(len(request.inputs), request.field)
    work = [_of_one_model(served, kinds, request, task) for served, kinds in parts]
    made = dict(zip((served.name for served, _ in parts), await together(work), strict=True))
    sources: dict[VectorKind, str] = {kind: served.name for served, kinds in parts for kind in kinds}
    first, *others = made.values()
    return EmbedResult(
        model=target.name,
        fingerprint=space_of(target, request.dimensions, request.normalize),
        dense=await _finish(made[sources["dense"]].ran.rows("dense"), request) if "dense" in sources else {},
        sparse=made[sources["sparse"]].ran.each("sparse") if "sparse" in sources else None,
        colbert=made[sources["colbert"]].colbert if "colbert" in sources else None,
        tokens=made[sources["tokens"]].ran.each("tokens") if "tokens" in sources else None,
        usage=usage_of(
            task,
            first.lengths,
            request.inputs,
            first.ran,
            further_tokens=sum(length.kept for vectors in others for length in vectors.lengths),
        ),
        sources=sources,
        lengths={name: vectors.lengths for name, vectors in made.items()},
        limits={served.name: served.spec.max_tokens for served, _ in parts},
    )


async def similarity(served: Served, name: str, request: SimilarityRequest, task: Task) -> SimilarityResult:
    """The cosine of one text with each of several."""
    require(served, DENSE)
    task.check_count(len(request.sentences), "sentences")
    async with task.use(served) as runner:
        runner.check_wait(task.caller)
        encoded = await _read(runner, [request.source], request.text, task, "source_sentence")
        encoded += await _read(runner, request.sentences, request.text, task, "sentences")
        ran = await runner.run([_text(runner.spec, text) for text in encoded], DENSE, task.caller, "sentences")
    rows = ran.rows("dense")
    scores = await compute(rows.size, lambda: dense.cosines(dense.finish(rows, None, normalize=True)))
    lengths = [text.length for text in encoded]
    return SimilarityResult(
        model=name,
        fingerprint=served.spec.fingerprint,
        scores=scores,
        usage=usage_of(task, lengths, [request.source, *request.sentences], ran),
    )


async def vectors_of(
    runner: ModelRunner,
    inputs: Sequence[Input],
    options: TextOptions,
    kinds: frozenset[VectorKind],
    task: Task,
    field: str,
    *,
    shown: bool = False,
) -> Vectors:
    """What the model makes of the texts, raw; shown: vectors of tokens are themselves the answer.

    Raises TooManyInputs for more numbers of those than fit.
    """
    encoded = await _read(runner, inputs, options, task, field)
    _check_numbers(runner.spec, encoded, kinds, field, MAX_SHOWN_NUMBERS if shown else MAX_HELD_NUMBERS)
    asked: frozenset[Kind] = frozenset(kinds)
    ran = await runner.run([_text(runner.spec, text) for text in encoded], asked, task.caller, field)
    colbert = (
        [rows[_kept(runner.spec, text)] for rows, text in zip(ran.each("colbert"), encoded, strict=True)]
        if "colbert" in kinds
        else None
    )
    return Vectors(ran, [text.length for text in encoded], colbert)


def check_dimensions(spec: ModelSpec, dimensions: int | None, *, forced: bool) -> None:
    """Raises InvalidField for a width the model does not have, or was not trained to be cut to unless forced."""
    if dimensions is None:
        return
    if not 1 <= dimensions <= spec.dimensions:
        raise InvalidField(
            f"`dimensions` must be between 1 and {spec.dimensions}; got {dimensions}.",
            field="dimensions",
            limit=spec.dimensions,
            given=dimensions,
        )
    if forced or spec.matryoshka is None or dimensions == spec.dimensions or dimensions in spec.matryoshka:
        return
    trained = (
        f"was trained to be cut to {', '.join(map(str, spec.matryoshka))}"
        if spec.matryoshka
        else "was not trained to be cut: its first numbers matter no more than the others"
    )
    raise InvalidField(
        f"`dimensions`: this model {trained}; got {dimensions}. Set `force_dimensions` to have it all the same.",
        field="dimensions",
        given=dimensions,
    )


def space_of(target: Target, dimensions: int | None, normalize: bool) -> str:
    """The name of the space that the target's vectors of this width (None: the model's own) belong to, raw or not."""
    cut = dimensions is not None and dimensions != target.lead.spec.dimensions
    width = f":{dimensions}" if cut else ""
    return f"{target.fingerprint}{width}" if normalize else f"{target.fingerprint}{width}:raw"


def _check(parts: Sequence[tuple[Served, frozenset[VectorKind]]], request: EmbedRequest) -> None:
    if request.dimensions is not None and "dense" not in request.outputs:
        raise InvalidField("`dimensions` applies to dense vectors alone.", field="dimensions")
    if not request.normalize and not OF_UNIT_VECTORS.isdisjoint(request.precisions):
        raise InvalidField(
            "`precisions`: int8 and uint8 are for vectors of length 1; leave `normalize` on or ask for another.",
            field="precisions",
        )
    for served, kinds in parts:
        if "dense" in kinds:
            check_dimensions(served.spec, request.dimensions, forced=request.force_dimensions)


def _check_numbers(
    spec: ModelSpec, texts: Sequence[Any], kinds: frozenset[VectorKind], field: str, max_numbers: int
) -> None:
    """Raises TooManyInputs before any is made: a vector a token is a hundred times a vector a text."""
    width = 0
    if "tokens" in kinds:
        width += spec.hidden_size
    if "colbert" in kinds and spec.colbert is not None:
        width += spec.colbert.dimensions
    tokens = sum(len(text.ids) for text in texts) if width else 0
    if tokens * width > max_numbers:
        raise TooManyInputs(
            f"`{field}` may have at most {max_numbers // width} tokens in all where each gets vectors of {width} "
            f"numbers; got {tokens}.",
            field=field,  # without limit and given, which some dialects word as numbers of inputs
        )


async def _of_one_model(served: Served, kinds: frozenset[VectorKind], request: EmbedRequest, task: Task) -> Vectors:
    async with task.use(served) as runner:
        runner.check_wait(task.caller)
        return await vectors_of(runner, request.inputs, request.text, kinds, task, request.field, shown=True)


async def _read(
    runner: ModelRunner, inputs: Sequence[Input], options: TextOptions, task: Task, field: str
) -> list[Any]:
    """The texts' tokens: EncodedText, or EncodedColbert where the model reads them so."""
    encode = partial(
        runner.encoder.encode_colbert if _reads_as_colbert(runner.spec) else runner.encoder.encode,
        inputs,
        options,
        truncate=runner.truncates(options),
        field=field,
    )
    return await task.encode(inputs, lambda part: encode(part=part), each=len(options.prompt or ""))


def _reads_as_colbert(spec: ModelSpec) -> bool:
    """A model of token vectors alone marks queries and documents; BGE-M3 reads every text alike."""
    return spec.colbert is not None and spec.pooling is None


def _text(spec: ModelSpec, text: Any) -> Text:
    if _reads_as_colbert(spec):
        keys = None if text.attended == len(text.ids) else text.attended
        return Text(ids=text.ids, type_ids=text.type_ids, keys=keys)
    return Text(ids=text.ids, type_ids=text.type_ids, spans=pooled_span(spec, text))


def pooled_span(spec: ModelSpec, text: EncodedText) -> npt.NDArray[np.int32] | None:
    """(1, 2): the rows to pool where the prompt's do not count; None: all."""
    if spec.include_prompt or not text.prompt_tokens:
        return None
    return np.array([[min(text.prompt_tokens, len(text.ids) - 1), len(text.ids)]], np.int32)


def _kept(spec: ModelSpec, text: Any) -> npt.NDArray[np.int32] | slice:
    """Which of a text's token vectors count."""
    if _reads_as_colbert(spec):
        kept: npt.NDArray[np.int32] = text.kept
        return kept
    return slice(1, None) if spec.colbert is not None and spec.colbert.drops_first else slice(None)


async def _finish(rows: Float32, request: EmbedRequest) -> Mapping[Precision, npt.NDArray[np.generic]]:
    return await compute(rows.size, lambda: _in_precisions(rows, request))


def _in_precisions(rows: Float32, request: EmbedRequest) -> Mapping[Precision, npt.NDArray[np.generic]]:
    vectors = dense.finish(rows, request.dimensions, request.normalize)
    return {precision: dense.in_precision(vectors, precision) for precision in request.precisions}
