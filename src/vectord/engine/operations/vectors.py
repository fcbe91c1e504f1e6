"""What one model makes of texts: raw vectors of any kinds, from one pass. Called by the operations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.operations.reading import Encoded, colbert_rows, for_network, read, read_each
from vectord.engine.operations.task import Task
from vectord.engine.queue.batch import Answer
from vectord.engine.queue.runner import NOTHING_RAN, ModelRunner, Ran
from vectord.errors import InvalidField, InvalidRequest, TooManyInputs, VectordError
from vectord.schema import EmbedRequest, Float32, Input, Sparse, TextLength, TextOptions, VectorKind

MAX_SHOWN_NUMBERS = 2**24  # of the token vectors in an answer: 64 MiB, as JSON 195 MB; 16,384 tokens of BGE-M3
MAX_HELD_NUMBERS = 2**27  # of those that an answer is made of: 512 MiB; 256 passages of 512 tokens of BGE-M3


@dataclass(frozen=True, slots=True)
class Vectors:
    """What one model made of some texts."""

    ran: Ran
    lengths: Sequence[TextLength]
    colbert: Sequence[Float32] | None  # of the tokens that count
    failures: Mapping[int, VectordError] = field(default_factory=dict)  # by input, where they may fail alone


def check_specials(kinds: frozenset[VectorKind], options: TextOptions) -> None:
    """Raises InvalidField for ColBERT vectors of a text without special tokens: those say what the text is."""
    if "colbert" in kinds and not options.add_special_tokens:
        raise InvalidField("`add_special_tokens` cannot be off for ColBERT vectors.", field="add_special_tokens")


async def vectors_of(
    runner: ModelRunner,
    inputs: Sequence[Input],
    options: TextOptions,
    kinds: frozenset[VectorKind],
    task: Task,
    field: str,
) -> Vectors:
    """Vectors to compute with. Raises TooManyInputs for more numbers of token vectors than fit in memory."""
    return await _vectors_of(runner, inputs, options, kinds, task, field, MAX_HELD_NUMBERS)


async def vectors_to_show(
    runner: ModelRunner, request: EmbedRequest, kinds: frozenset[VectorKind], task: Task
) -> Vectors:
    """Vectors that are themselves the answer. Raises TooManyInputs for more numbers of token vectors than fit in one.

    Where the request allows it, an input that cannot be read or run fails alone: it has an error, and zeros or nothing
    for vectors.
    """
    if request.partial:
        return await _some_vectors_of(runner, request, kinds, task)
    return await _vectors_of(runner, request.inputs, request.text, kinds, task, "inputs", MAX_SHOWN_NUMBERS)


async def _vectors_of(
    runner: ModelRunner,
    inputs: Sequence[Input],
    options: TextOptions,
    kinds: frozenset[VectorKind],
    task: Task,
    field: str,
    max_numbers: int,
) -> Vectors:
    encoded = await read(runner, inputs, options, task, field)
    _check_numbers(runner.spec, encoded, kinds, field, max_numbers)
    ran = await task.run(runner, [for_network(runner.spec, text) for text in encoded], frozenset(kinds), field)
    colbert = _colbert(runner.spec, ran, encoded) if "colbert" in kinds else None
    return Vectors(ran, [text.length for text in encoded], colbert)


async def _some_vectors_of(
    runner: ModelRunner, request: EmbedRequest, kinds: frozenset[VectorKind], task: Task
) -> Vectors:
    spec = runner.spec
    inputs = await read_each(runner, request.inputs, request.text, task, "inputs")
    failures: dict[int, VectordError] = {i: one for i, one in enumerate(inputs) if isinstance(one, InvalidRequest)}
    readable = {i: one for i, one in enumerate(inputs) if not isinstance(one, InvalidRequest)}
    _check_numbers(spec, readable.values(), kinds, "inputs", MAX_SHOWN_NUMBERS)
    texts = [for_network(spec, text) for text in readable.values()]
    ran = await task.run(runner, texts, frozenset(kinds), "inputs", partial=True) if texts else NOTHING_RAN
    answers = [_no_vectors(spec)] * len(inputs)
    for i, (place, answer) in enumerate(zip(readable, ran.answers, strict=True)):
        if i in ran.failures:
            failures[place] = ran.failures[i]
            failures[place].index = place
        else:
            answers[place] = answer
    whole = Ran(answers, ran.queue_s, ran.inference_s)
    made = [None if i in failures else readable[i] for i in range(len(inputs))]
    colbert = _colbert(spec, whole, made) if "colbert" in kinds else None
    lengths = [readable[i].length if i in readable else TextLength(0, 0) for i in range(len(inputs))]
    return Vectors(whole, lengths, colbert, failures)


def _colbert(spec: ModelSpec, ran: Ran, texts: Sequence[Encoded | None]) -> list[Float32]:
    """The vectors of the tokens that count; None: a text that has failed."""
    return [
        rows if text is None else rows[colbert_rows(spec, text)]
        for rows, text in zip(ran.each("colbert"), texts, strict=True)
    ]


def _no_vectors(spec: ModelSpec) -> Answer:
    """In place of what a model would have made of a text."""
    colbert = 0 if spec.colbert is None else spec.colbert.dimensions
    return {
        "dense": np.zeros((1, spec.dimensions), np.float32),
        "sparse": Sparse(np.zeros(0, np.int32), np.zeros(0, np.float32)),
        "colbert": np.zeros((0, colbert), np.float32),
        "tokens": np.zeros((0, spec.hidden_size), np.float32),
    }


def _check_numbers(
    spec: ModelSpec, texts: Collection[Encoded], kinds: frozenset[VectorKind], field: str, max_numbers: int
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
