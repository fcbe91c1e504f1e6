"""Inputs as the model reads them: their tokens, whom those attend to, and which of them are pooled.

Called by the operations that make vectors, on the event loop; the tokens are made on the tokenising threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from vectord.checkpoints.spec import ModelSpec
from vectord.engine.operations.task import Task
from vectord.engine.queue.runner import ModelRunner, Text
from vectord.errors import InvalidRequest
from vectord.schema import Input, Int32, TextOptions
from vectord.text.encoded import EncodedColbert, EncodedText

Encoded: TypeAlias = EncodedText | EncodedColbert
Encode: TypeAlias = Callable[[range], Sequence[Encoded]]


async def read(
    runner: ModelRunner, inputs: Sequence[Input], options: TextOptions, task: Task, field: str
) -> list[Encoded]:
    """The tokens of each input. Raises InvalidRequest with the index of one that cannot be read."""
    encode = _encode(runner, inputs, options, field)
    return await task.encode(inputs, encode, each=len(options.prompt or ""))


async def read_each(
    runner: ModelRunner, inputs: Sequence[Input], options: TextOptions, task: Task, field: str
) -> list[Encoded | InvalidRequest]:
    """As `read`, but an input that cannot be read has its error in its place."""
    encode = _encode(runner, inputs, options, field)
    return await task.encode(inputs, partial(_one_by_one_if_need_be, encode), each=len(options.prompt or ""))


def for_network(spec: ModelSpec, text: Encoded) -> Text:
    """What the network is to do with a text: whom its tokens attend to, and which of them are pooled."""
    if isinstance(text, EncodedColbert):
        keys = None if text.attended == len(text.ids) else text.attended
        return Text(ids=text.ids, type_ids=text.type_ids, keys=keys)
    return Text(ids=text.ids, type_ids=text.type_ids, spans=_pooled_span(spec, text))


def colbert_rows(spec: ModelSpec, text: Encoded) -> Int32 | slice:
    """Which of a text's token vectors count."""
    if isinstance(text, EncodedColbert):
        return text.kept
    return slice(1, None) if spec.colbert is not None and spec.colbert.drops_first else slice(None)


def _encode(runner: ModelRunner, inputs: Sequence[Input], options: TextOptions, field: str) -> Encode:
    # A model of token vectors alone marks queries and documents; BGE-M3 reads every text alike.
    as_colbert = runner.spec.colbert is not None and runner.spec.pooling is None
    encode: Callable[..., Sequence[Encoded]] = partial(
        runner.encoder.encode_colbert if as_colbert else runner.encoder.encode,
        inputs,
        options,
        truncate=runner.truncates(options),
        field=field,
    )
    return lambda part: encode(part=part)


def _one_by_one_if_need_be(encode: Encode, part: range) -> list[Encoded | InvalidRequest]:
    try:
        return list(encode(part))
    except InvalidRequest as error:
        if error.index is None:  # of the whole request: a prompt that the model does not have
            raise
    return [_encoded_or_error(encode, index) for index in part]


def _encoded_or_error(encode: Encode, index: int) -> Encoded | InvalidRequest:
    try:
        (encoded,) = encode(range(index, index + 1))
    except InvalidRequest as error:
        return error.with_traceback(None)  # which would keep all that was being tokenised
    return encoded


def _pooled_span(spec: ModelSpec, text: EncodedText) -> Int32 | None:
    """(1, 2): the rows to pool where the prompt's do not count; None: all."""
    if spec.include_prompt or not text.prompt_tokens:
        return None
    return np.array([[min(text.prompt_tokens, len(text.ids) - 1), len(text.ids)]], np.int32)
