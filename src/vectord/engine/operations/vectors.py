"""Texts to the raw vectors of one model, of any kinds in one forward pass. Used by embed, similarity, rerank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.operations.task import Task
from vectord.engine.queue.batch import Answer
from vectord.engine.queue.runner import NOTHING_RAN, ModelRunner, RunResult
from vectord.errors import InvalidField, InvalidRequest, TooManyInputs, VectordError
from vectord.schema import EmbedRequest, Float32, Input, Sparse, TextLength, TextOptions, VectorKind
from vectord.text.sequence import Encoder, ReadRequest, TokenSequence

MAX_SHOWN_NUMBERS = 2**24  # of the token vectors in a response: 64 MiB, as JSON 195 MB; 16,384 tokens of BGE-M3
MAX_HELD_NUMBERS = 2**27  # of the token vectors that scores are computed from: 512 MiB; 256 passages of 512 tokens


@dataclass(frozen=True, slots=True)
class ModelVectors:
    """The vectors of some texts by one model."""

    ran: RunResult
    lengths: Sequence[TextLength]
    colbert: Sequence[Float32] | None  # of the tokens that count
    failures: Mapping[int, VectordError] = field(default_factory=dict)  # by input, with `partial`


def check_specials(kinds: frozenset[VectorKind], options: TextOptions) -> None:
    """Raises InvalidField for ColBERT vectors without special tokens: those mark queries and documents."""
    if "colbert" in kinds and not options.add_special_tokens:
        raise InvalidField("{field} cannot be off for ColBERT vectors.", field="add_special_tokens")


async def vectors_of(
    runner: ModelRunner,
    inputs: Sequence[Input],
    options: TextOptions,
    kinds: frozenset[VectorKind],
    task: Task,
    *,
    shown: bool = False,
) -> ModelVectors:
    """The vectors of all inputs. shown: they go into the response.

    Raises TooManyInputs for more numbers of token vectors than fit in a response, or in memory.
    """
    sequences = await task.read(runner, request_of(runner, inputs, options))
    _check_numbers(runner.spec, sequences, kinds, MAX_SHOWN_NUMBERS if shown else MAX_HELD_NUMBERS)
    ran = await task.run(runner, sequences, frozenset(kinds))
    colbert = _colbert(ran, sequences) if "colbert" in kinds else None
    return ModelVectors(ran, [sequence.length for sequence in sequences], colbert)


async def vectors_to_show(
    runner: ModelRunner, request: EmbedRequest, kinds: frozenset[VectorKind], task: Task
) -> ModelVectors:
    """The vectors of a response. With `partial`, an input that cannot be read or run fails alone, with zeros or nothing
    as vectors."""
    if not request.partial:
        return await vectors_of(runner, request.inputs, request.text, kinds, task, shown=True)
    spec, count = runner.spec, len(request.inputs)
    read = partial(_read_each, runner.encoder, request_of(runner, request.inputs, request.text))
    inputs = await task.encode(request.inputs, read, each=len(request.text.prompt or ""))
    failures: dict[int, VectordError] = {
        i: one.at(field="inputs") for i, one in enumerate(inputs) if isinstance(one, InvalidRequest)
    }
    readable = {i: one for i, one in enumerate(inputs) if not isinstance(one, InvalidRequest)}
    sequences = list(readable.values())
    _check_numbers(spec, sequences, kinds, MAX_SHOWN_NUMBERS)
    ran = await task.run(runner, sequences, frozenset(kinds), partial=True) if sequences else NOTHING_RAN
    answers = [_no_vectors(spec)] * count
    for i, (place, answer) in enumerate(zip(readable, ran.answers, strict=True)):
        if i in ran.failures:
            failures[place] = ran.failures[i].at(field="inputs", index=place)
        else:
            answers[place] = answer
    whole = RunResult(answers, ran.queue_s, ran.inference_s)
    ran_sequences = [None if i in failures else readable[i] for i in range(count)]
    colbert = _colbert(whole, ran_sequences) if "colbert" in kinds else None
    lengths = [readable[i].length if i in readable else TextLength(0, 0) for i in range(count)]
    return ModelVectors(whole, lengths, colbert, failures)


def request_of(runner: ModelRunner, inputs: Sequence[Input], options: TextOptions) -> ReadRequest:
    return ReadRequest(inputs=inputs, options=options, truncate=runner.truncates(options))


def _read_each(encoder: Encoder, request: ReadRequest, part: range) -> list[TokenSequence | InvalidRequest]:
    try:
        return list(encoder.read(request, part))
    except InvalidRequest as error:
        if error.index is None:  # an option, such as a prompt that the model does not have
            raise
    return [_read_one(encoder, request, index) for index in part]


def _read_one(encoder: Encoder, request: ReadRequest, index: int) -> TokenSequence | InvalidRequest:
    try:
        (sequence,) = encoder.read(request, range(index, index + 1))
    except InvalidRequest as error:
        return error.with_traceback(None)  # which would keep the tokens of this part in memory
    return sequence


def _colbert(ran: RunResult, sequences: Sequence[TokenSequence | None]) -> list[Float32]:
    """The vectors of the tokens that count; None: a text that failed."""
    return [
        rows if sequence is None or sequence.rows is None else rows[sequence.rows]
        for rows, sequence in zip(ran.each("colbert"), sequences, strict=True)
    ]


def _no_vectors(spec: ModelSpec) -> Answer:
    """The answer to a text that failed."""
    colbert = 0 if spec.colbert is None else spec.colbert.dimensions
    return {
        "dense": np.zeros((1, spec.dimensions), np.float32),
        "sparse": Sparse(np.zeros(0, np.int32), np.zeros(0, np.float32)),
        "colbert": np.zeros((0, colbert), np.float32),
        "tokens": np.zeros((0, spec.hidden_size), np.float32),
    }


def _check_numbers(
    spec: ModelSpec, sequences: Sequence[TokenSequence], kinds: frozenset[VectorKind], max_numbers: int
) -> None:
    """Raises TooManyInputs before any vector exists: a vector a token is a hundred times a vector a text."""
    width = 0
    if "tokens" in kinds:
        width += spec.hidden_size
    if "colbert" in kinds and spec.colbert is not None:
        width += spec.colbert.dimensions
    tokens = sum(len(sequence.ids) for sequence in sequences) if width else 0
    if tokens * width > max_numbers:
        raise TooManyInputs(  # without limit and given, which some products word as numbers of inputs
            "{field} may have at most {most} tokens in all where each gets vectors of {width} numbers; got {tokens}.",
            most=max_numbers // width,
            width=width,
            tokens=tokens,
        )
