"""Texts or pairs of texts to a score a label. Called by engine.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.models.registry import ServedModel
from vectord.engine.operations import ranking
from vectord.engine.operations.task import Task, usage_of
from vectord.engine.queue.runner import ModelRunner, Text
from vectord.errors import ModelCannot, TooManyInputs
from vectord.schema import ClassifyRequest, ClassifyResult, Float32, ScoreKind
from vectord.text.encoded import EncodedPair, EncodedText

Encoded: TypeAlias = EncodedText | EncodedPair

MAX_SCORES = 2**20  # inputs times labels; with their names, some 50 MB of an answer


def classifies(spec: ModelSpec) -> bool:
    """Whether it gives a score a label; a language model that says yes or no has no labels."""
    return bool(spec.labels)


async def classify(served: ServedModel, name: str, request: ClassifyRequest, task: Task) -> ClassifyResult:
    """A score for every label of every input. Raises ModelCannot for a model without labels."""
    if not classifies(served.spec):
        raise ModelCannot(f"The model {name} does not classify: it has no labels.", field="model")
    task.check_count(len(request.inputs), "inputs")
    _check_scores(len(request.inputs), len(served.spec.labels), "inputs")
    async with task.use(served) as runner:
        task.check_wait(runner)
        encoded = await task.encode(request.inputs, lambda part: _encode(runner, request, part))
        texts = [Text(ids=text.ids, type_ids=text.type_ids) for text in encoded]
        ran = await task.run(runner, texts, frozenset({"scores"}), "inputs")
    scores, kind = _activated(served.spec, ran.rows("scores"), request.raw)
    return ClassifyResult(
        model=name,
        fingerprint=served.spec.fingerprint,
        labels=served.spec.labels,
        scores=scores,
        kind=kind,
        usage=usage_of(task, [text.length for text in encoded], request.inputs, ran),
    )


def _check_scores(inputs: int, labels: int, field: str) -> None:
    """Raises TooManyInputs where so many inputs of so many labels would make an answer that fills memory."""
    if inputs * labels > MAX_SCORES:
        limit = max(1, MAX_SCORES // labels)
        raise TooManyInputs(
            f"`{field}` may hold at most {limit} inputs for a model of {labels} labels; got {inputs}.",
            field=field,
            limit=limit,
            given=inputs,
        )


def _encode(runner: ModelRunner, request: ClassifyRequest, part: range) -> Sequence[Encoded]:
    """Pairs and single texts may come mixed: each part is encoded in runs of one sort."""
    truncate = runner.truncates(request.text)
    encoded: list[Encoded] = []
    for run in _runs(request.inputs, part):
        if isinstance(request.inputs[run.start], str):
            texts = cast(Sequence[str], request.inputs)
            encoded += runner.encoder.encode(texts, request.text, truncate=truncate, field="inputs", part=run)
        else:
            pairs = cast(Sequence[tuple[str, str]], request.inputs)
            encoded += runner.encoder.encode_pair_list(pairs, request.text, truncate=truncate, field="inputs", part=run)
    return encoded


def _runs(inputs: Sequence[str | tuple[str, str]], part: range) -> list[range]:
    """Stretches of `part` whose inputs are all texts or all pairs."""
    runs: list[range] = []
    for index in part:
        if runs and isinstance(inputs[index], str) == isinstance(inputs[runs[-1].start], str):
            runs[-1] = range(runs[-1].start, index + 1)
        else:
            runs.append(range(index, index + 1))
    return runs


def _activated(spec: ModelSpec, logits: Float32, raw: bool) -> tuple[Float32, ScoreKind]:
    if raw or spec.score_activation == "identity":
        return logits, "logit"
    if spec.score_activation == "softmax":
        return ranking.softmax(logits), "probability"
    return ranking.sigmoid(logits), "probability"
