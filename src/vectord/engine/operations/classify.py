"""Texts or pairs of texts to a score for each label."""

from __future__ import annotations

from collections.abc import Sequence

from vectord.engine.models.registry import ModelOrComposite
from vectord.engine.operations import postprocess
from vectord.engine.operations.task import Task, usage_of
from vectord.errors import ModelCannot, TooManyInputs
from vectord.schema import AnswerKind, ClassifyRequest, ClassifyResult
from vectord.text.sequence import ReadRequest, TextOrPair

MAX_SCORES = 2**20  # inputs times labels; with the labels' names, about 50 MB of response


async def classify(target: ModelOrComposite, request: ClassifyRequest, task: Task) -> ClassifyResult:
    """A score for every label of every input, or of its tokens."""
    served = target.lead
    labels = served.spec.token_labels if request.each_token else served.spec.labels
    if not labels:
        template = "The model {model} does not classify: it has no labels."
        if request.each_token:
            template = "The model {model} does not classify tokens: it has no such head."
        raise ModelCannot(template, field="model", model=target.name)
    kind_of_answer: AnswerKind = "token_scores" if request.each_token else "scores"
    inputs: Sequence[TextOrPair] = request.ids or request.inputs
    task.check_count("inputs", len(inputs))
    _check_scores(len(inputs), len(labels))
    async with task.use(served) as runner:
        truncate = request.text.truncates(runner.auto_truncate)
        texts = await task.read(runner, ReadRequest(inputs=inputs, options=request.text, truncate=truncate))
        if request.each_token:
            _check_scores(len(texts.ids), len(labels), "tokens")
        ran = await task.run(runner, texts, frozenset({kind_of_answer}))
    logits = ran.rows(kind_of_answer)
    activation = "identity" if request.raw else served.spec.score_activation
    scores, kind = postprocess.activate(logits, activation)
    return ClassifyResult(
        model=target.name,
        fingerprint=served.spec.fingerprint,
        labels=labels,
        scores=scores,
        logits=None if activation == "identity" else logits,
        tokens=[len(rows) for rows in ran.each(kind_of_answer)] if request.each_token else (),
        kind=kind,
        usage=usage_of(task, texts.lengths, inputs, ran),
    )


def _check_scores(inputs: int, labels: int, what: str = "inputs") -> None:
    if inputs * labels > MAX_SCORES:
        raise TooManyInputs(
            "{field} may hold at most {limit} {what} for a model of {labels} labels; got {given}.",
            limit=max(1, MAX_SCORES // labels),
            given=inputs,
            labels=labels,
            what=what,
        )
