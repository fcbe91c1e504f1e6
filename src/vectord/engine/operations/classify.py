"""Texts or pairs of texts to a score for each label."""

from __future__ import annotations

from collections.abc import Sequence

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.models.registry import ServedModel
from vectord.engine.operations import postprocess
from vectord.engine.operations.task import Task, placing_errors, usage_of
from vectord.errors import ModelCannot, TooManyInputs
from vectord.schema import ClassifyRequest, ClassifyResult
from vectord.text.sequence import ReadRequest, TextOrPair

MAX_SCORES = 2**20  # inputs times labels; with the labels' names, about 50 MB of response


def classifies(spec: ModelSpec) -> bool:
    """Whether the model has labels; a language model that answers yes or no has none."""
    return bool(spec.labels)


async def classify(served: ServedModel, name: str, request: ClassifyRequest, task: Task) -> ClassifyResult:
    """A score for every label of every input. Raises ModelCannot for a model without labels."""
    if not classifies(served.spec):
        raise ModelCannot("The model {model} does not classify: it has no labels.", field="model", model=name)
    inputs: Sequence[TextOrPair] = request.ids or request.inputs
    with placing_errors("inputs", len(inputs)):
        task.check_count(len(inputs))
        _check_scores(len(inputs), len(served.spec.labels))
        async with task.use(served) as runner:
            task.check_wait(runner)
            options = request.text
            read = ReadRequest(inputs=inputs, options=options, truncate=runner.truncates(options))
            sequences = await task.read(runner, read)
            ran = await task.run(runner, sequences, frozenset({"scores"}))
    activation = "identity" if request.raw else served.spec.score_activation
    scores, kind = postprocess.activate(ran.rows("scores"), activation)
    return ClassifyResult(
        model=name,
        fingerprint=served.spec.fingerprint,
        labels=served.spec.labels,
        scores=scores,
        kind=kind,
        usage=usage_of(task, [sequence.length for sequence in sequences], inputs, ran),
    )


def _check_scores(inputs: int, labels: int) -> None:
    """Raises TooManyInputs if the scores of all labels would make a response that fills memory."""
    if inputs * labels > MAX_SCORES:
        raise TooManyInputs(
            "{field} may hold at most {limit} inputs for a model of {labels} labels; got {given}.",
            limit=max(1, MAX_SCORES // labels),
            given=inputs,
            labels=labels,
        )
