"""Texts to tokens and back, for their own routes: nothing goes to the network."""

from __future__ import annotations

import time

from vectord.engine.models.registry import ModelOrComposite
from vectord.engine.operations.task import Task, characters, usage_of
from vectord.engine.queue.runner import NOTHING_RAN
from vectord.schema import DecodeRequest, DecodeResult, TextLengths, TokenizeRequest, TokenizeResult


async def tokenize(target: ModelOrComposite, request: TokenizeRequest, task: Task) -> TokenizeResult:
    """The tokens of every text, not limited by the model."""
    task.check_count("inputs", len(request.inputs))
    async with task.use(target.lead) as runner:
        began_s = time.perf_counter()
        tokens = await task.pool.run(
            characters(request.inputs),
            lambda: runner.tokenizer.tokenize(
                request.inputs, add_special_tokens=request.add_special_tokens, prompt_name=request.prompt_name
            ),
        )
        task.tokenizing_s = time.perf_counter() - began_s
    usage = usage_of(task, TextLengths([*map(len, tokens)]), request.inputs, NOTHING_RAN)
    return TokenizeResult(model=target.name, tokens=tokens, usage=usage, max_input_tokens=target.lead.spec.max_tokens)


async def decode(target: ModelOrComposite, request: DecodeRequest, task: Task) -> DecodeResult:
    """The text of every list of ids."""
    task.check_count("ids", len(request.ids))
    async with task.use(target.lead) as runner:
        texts = await task.pool.run(
            characters(request.ids),
            lambda: runner.tokenizer.decode(request.ids, skip_special_tokens=request.skip_special_tokens),
        )
    return DecodeResult(model=target.name, texts=texts)
