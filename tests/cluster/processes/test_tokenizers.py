"""A front-end's tokens are those that the engine would make, and the engine computes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace
from tests.cluster.remote.linked import front_end, linked
from tests.cluster.remote.values import same
from tests.server.fakes import FakeEngine

from vectord.cluster.processes.tokenizers import MAX_READING, Tokenizers
from vectord.cluster.remote.client import RemoteEngine
from vectord.cluster.remote.codec import EngineState
from vectord.config import Config, DeviceConfig, EngineConfig
from vectord.engine.engine import Engine
from vectord.engine.models import open_models
from vectord.engine.operations.task import EncoderPool
from vectord.errors import Unavailable, VectordError
from vectord.schema import ANYONE, Caller, EmbedRequest, EmbedResult, Request, RerankRequest, Result, TextOptions
from vectord.text.sequence import TokenizedTexts
from vectord.text.tokenizer import TextEncoder

CONFIG = Config(device=DeviceConfig(backend="fake"), engine=EngineConfig(cache_bytes=0, max_client_batch_size=4))
LONG = "word " * 600  # more tokens than the model reads
ONE = EmbedRequest(inputs=["one"])


@asynccontextmanager
async def loaded() -> AsyncIterator[tuple[Engine, Tokenizers, EngineState]]:
    """An engine with the default model, and a front-end that has loaded its tokenizer."""
    engine, tokenizers = Engine(open_models(CONFIG), CONFIG.engine), Tokenizers(CONFIG)
    await engine.start()
    try:
        async with asyncio.timeout(60):
            await engine.loaded.wait()
            state = EngineState(readiness=engine.readiness(), models=engine.models(), names=engine.names())
            assert await tokenizers.read(ONE, state) is None  # the first request does not wait for it
            while await tokenizers.read(ONE, state) is None:
                await asyncio.sleep(0)
        yield engine, tokenizers, state
    finally:
        tokenizers.close()
        await engine.close()


async def test_the_answers_are_those_of_a_single_process() -> None:
    """With every option that changes how texts are read or vectors made, and for texts that exceed the threads'
    threshold. The vectors are those of one process to the last bit, and are made in the front-end."""
    inputs = ["a text", [101, 2023, 102], LONG[:1000], LONG[:1100]]
    ask = partial(EmbedRequest, inputs=inputs)
    requests = [
        ask(),
        ask(text=TextOptions(truncate=True, max_tokens=8)),
        ask(text=TextOptions(truncate=True, truncate_side="left")),
        ask(text=TextOptions(prompt="query: ")),
        ask(text=TextOptions(add_special_tokens=False, truncate=True)),
        ask(normalize=False),
        ask(dimensions=8, force_dimensions=True, precisions=("int8", "float", "ubinary")),
        ask(outputs=frozenset()),
    ]
    async with loaded() as (engine, tokenizers, _), linked(engine) as found, front_end(found) as link:
        remote = RemoteEngine(link, tokenizers=tokenizers)
        for request in requests:
            near, far = await engine.answer(request, ANYONE), await remote.answer(request, ANYONE)
            assert isinstance(near, EmbedResult)
            assert isinstance(far, EmbedResult)
            assert near.dense.keys() == far.dense.keys() == (set(request.precisions) if request.outputs else set())
            for precision, rows in near.dense.items():
                assert rows.dtype == far.dense[precision].dtype
                np.testing.assert_array_equal(rows, far.dense[precision])
            assert same(near.usage.lengths, far.usage.lengths)
            assert near.fingerprint == far.fingerprint


async def test_the_engine_computes_the_tokens_unless_the_model_has_changed() -> None:
    """Tokens of a model with another fingerprint are ignored."""
    async with loaded() as (engine, tokenizers, state):
        other = EmbedRequest(inputs=["two"])
        tokens = await tokenizers.read(other, state)
        assert tokens is not None

        async def rows(request: EmbedRequest, tokenized: TokenizedTexts | None = None) -> list[list[float]]:
            result = await engine.answer(request, ANYONE, tokenized)
            assert isinstance(result, EmbedResult)
            made = result if tokenized is None else await tokenizers.finish(result, request)
            assert isinstance(made, EmbedResult)
            return made.dense["float"].tolist()  # type: ignore[no-any-return]

        one, two = await rows(ONE), await rows(other)
        assert await rows(ONE, tokens) == two != one
        assert await rows(ONE, replace(tokens, fingerprint="another")) == one


WRONG: Mapping[str, Request] = {
    "none": EmbedRequest(inputs=[]),
    "too many": EmbedRequest(inputs=["text"] * 5),
    "too long": EmbedRequest(inputs=["text", LONG], text=TextOptions(truncate=False)),
    "model": EmbedRequest(inputs=["text"], model="unknown"),
    "outputs": EmbedRequest(inputs=["text"], outputs=frozenset({"sparse"})),
    "ids": EmbedRequest(inputs=["text", [99_999_999]]),
    "surrogate": EmbedRequest(inputs=["half of a pair: \ud83d"]),
    "another operation": RerankRequest(query="q", passages=[]),
}


async def test_the_engine_finds_what_is_wrong() -> None:
    """A front-end sends such requests without tokens, so that they have one error in any number of processes."""
    async with loaded() as (engine, tokenizers, state):
        for what, request in WRONG.items():
            assert await tokenizers.read(request, state) is None, what
            with pytest.raises(VectordError):
                await engine.answer(request, ANYONE)


async def test_a_bounded_number_of_requests_waits_for_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait behind the engine's admission, with fair shares for all clients."""
    gate = asyncio.Event()

    async def spread(self: EncoderPool, *arguments: object, **options: object) -> list[object]:
        await gate.wait()
        raise Unavailable("closed")

    async with loaded() as (_, tokenizers, state):
        monkeypatch.setattr(EncoderPool, "spread", spread)
        waiting = [asyncio.create_task(tokenizers.read(ONE, state)) for _ in range(MAX_READING)]
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            assert await tokenizers.read(ONE, state) is None
        gate.set()
        assert await asyncio.gather(*waiting) == [None] * MAX_READING


@pytest.mark.parametrize("step", ["load", "read"])
async def test_the_engine_tokenizes_where_a_front_end_fails(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory or threads, for example."""

    def fail(*arguments: object, **options: object) -> None:
        raise MemoryError

    async with loaded() as (_, tokenizers, state):
        monkeypatch.setattr(*((TextEncoder, "__init__") if step == "load" else (EncoderPool, "spread")), fail)
        failing = Tokenizers(CONFIG) if step == "load" else tokenizers
        before = asyncio.all_tasks()
        assert await failing.read(ONE, state) is None
        if loading := asyncio.all_tasks() - before:
            await asyncio.wait(loading)
        assert await failing.read(ONE, state) is None


class Receiving(FakeEngine):
    """Keeps the tokens of each request."""

    def __init__(self) -> None:
        super().__init__()
        self.tokenized: list[TokenizedTexts | None] = []

    async def answer(self, request: Request, caller: Caller, tokenized: TokenizedTexts | None = None) -> Result:
        self.tokenized.append(tokenized)
        return await super().answer(request, caller)


async def test_tokens_arrive_unchanged_in_the_engines_process() -> None:
    """As arrays, and with the facts for the request."""
    receiving = Receiving()
    async with loaded() as (_, tokenizers, state), linked(receiving) as found, front_end(found) as link:
        sent = await tokenizers.read(EmbedRequest(inputs=["some words", "one"]), state)

        async def tokenize(request: Request, state: EngineState) -> TokenizedTexts | None:
            return sent if request is not ONE else None

        engine = RemoteEngine(link, tokenizers=SimpleNamespace(read=tokenize, finish=tokenizers.finish))
        await engine.answer(EmbedRequest(inputs=["some words", "one"]), ANYONE)
        await engine.answer(ONE, ANYONE)
    first, second = receiving.tokenized
    assert second is None
    assert sent is not None
    assert first is not None
    assert same(sent, first)
    assert isinstance(first.texts.ids, np.ndarray)
