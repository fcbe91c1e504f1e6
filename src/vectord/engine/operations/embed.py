"""Texts to vectors of every kind, from one model or, for a composite, from several at once; similarity of texts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.models.registry import ModelOrComposite, ServedModel, require
from vectord.engine.operations import postprocess
from vectord.engine.operations.task import Task, compute, placing_errors, together, usage_of
from vectord.engine.operations.vectors import ModelVectors, check_specials, request_of, vectors_to_show
from vectord.engine.queue.runner import NOTHING_RAN
from vectord.errors import InvalidField, VectordError
from vectord.schema import (
    EmbedRequest,
    EmbedResult,
    Float32,
    Precision,
    SimilarityRequest,
    SimilarityResult,
    VectorKind,
)

DENSE: frozenset[VectorKind] = frozenset({"dense"})
OF_UNIT_VECTORS: frozenset[Precision] = frozenset({"int8", "uint8"})  # their scale fits unit vectors


async def embed(target: ModelOrComposite, request: EmbedRequest, task: Task) -> EmbedResult:
    """All requested vectors. Each model of a composite reads each text once; without `outputs`, no model is loaded."""
    parts = target.parts(request.outputs)
    _check(parts, request)
    with placing_errors("inputs", len(request.inputs)):
        task.check_count(len(request.inputs))
    space = space_of(target, request.dimensions, request.normalize)
    if not request.outputs:
        usage = usage_of(task, (), request.inputs, NOTHING_RAN)
        return EmbedResult(model=target.name, fingerprint=space, usage=usage)
    work = [_of_one_model(served, kinds, request, task) for served, kinds in parts]
    made = dict(zip((served.name for served, _ in parts), await together(work), strict=True))
    sources: dict[VectorKind, str] = {kind: served.name for served, kinds in parts for kind in kinds}
    first, *others = made.values()
    return EmbedResult(
        model=target.name,
        fingerprint=space,
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
        failures={index: error for vectors in made.values() for index, error in vectors.failures.items()},
    )


async def similarity(served: ServedModel, name: str, request: SimilarityRequest, task: Task) -> SimilarityResult:
    """The cosine of one text with each of several."""
    require(served, DENSE)
    with placing_errors("sentences", len(request.sentences)):
        task.check_count(len(request.sentences))
    async with task.use(served) as runner:
        task.check_wait(runner)
        texts = [request.source, *request.sentences]
        try:
            sequences = await task.read(runner, request_of(runner, texts, request.text))
            ran = await task.run(runner, sequences, DENSE)
        except VectordError as error:
            if error.index is None:
                raise
            index = error.index - 1 if len(texts) > 2 and error.index else None
            raise error.at(field="sentences" if error.index else "source", index=index) from error.__cause__
    rows = ran.rows("dense")
    scores = await compute(rows.size, lambda: postprocess.cosines(postprocess.finish(rows, None, normalize=True)))
    return SimilarityResult(
        model=name,
        fingerprint=served.spec.fingerprint,
        scores=scores,
        usage=usage_of(task, [sequence.length for sequence in sequences], texts, ran),
    )


def check_dimensions(spec: ModelSpec, dimensions: int | None, *, forced: bool) -> None:
    """Raises InvalidField for more dimensions than the model has, or for an untrained cut unless forced."""
    if dimensions is None:
        return
    if not 1 <= dimensions <= spec.dimensions:
        raise InvalidField(
            "{field} must be between 1 and {limit}; got {given}.",
            field="dimensions",
            limit=spec.dimensions,
            given=dimensions,
        )
    if forced or spec.matryoshka is None or dimensions == spec.dimensions or dimensions in spec.matryoshka:
        return
    template = (
        "{field}: this model was trained to be cut to {trained}; got {given}."
        if spec.matryoshka
        else "{field}: this model was not trained to be cut: its first numbers matter no more than the others; "
        "got {given}."
    ) + " Set {body.force_dimensions} to cut anyway."
    raise InvalidField(template, field="dimensions", given=dimensions, trained=", ".join(map(str, spec.matryoshka)))


def space_of(target: ModelOrComposite, dimensions: int | None, normalize: bool) -> str:
    """The name of the vector space: of the model, the width (None: the model's own) and normalization."""
    cut = dimensions is not None and dimensions != target.lead.spec.dimensions
    width = f":{dimensions}" if cut else ""
    return f"{target.fingerprint}{width}" if normalize else f"{target.fingerprint}{width}:raw"


def check_precisions(precisions: Collection[Precision], *, normalize: bool) -> None:
    """Raises InvalidField for vectors of any length in a precision with a fixed scale."""
    if not normalize and not OF_UNIT_VECTORS.isdisjoint(precisions):
        raise InvalidField(
            "{field}: int8 and uint8 are for vectors of length 1; leave {body.normalize} on, or choose others.",
            field="precisions",
        )


def _check(parts: Sequence[tuple[ServedModel, frozenset[VectorKind]]], request: EmbedRequest) -> None:
    if request.dimensions is not None and "dense" not in request.outputs:
        raise InvalidField("{field} applies to dense vectors only.", field="dimensions")
    check_precisions(request.precisions, normalize=request.normalize)
    check_specials(request.outputs, request.text)
    for served, kinds in parts:
        if "dense" in kinds:
            check_dimensions(served.spec, request.dimensions, forced=request.force_dimensions)


async def _of_one_model(
    served: ServedModel, kinds: frozenset[VectorKind], request: EmbedRequest, task: Task
) -> ModelVectors:
    async with task.use(served) as runner:
        task.check_wait(runner)
        with placing_errors("inputs", len(request.inputs)):
            return await vectors_to_show(runner, request, kinds, task)


async def _finish(rows: Float32, request: EmbedRequest) -> Mapping[Precision, npt.NDArray[np.generic]]:
    def finish() -> Mapping[Precision, npt.NDArray[np.generic]]:
        vectors = postprocess.finish(rows, request.dimensions, request.normalize)
        return {precision: postprocess.in_precision(vectors, precision) for precision in request.precisions}

    return await compute(rows.size, finish)
