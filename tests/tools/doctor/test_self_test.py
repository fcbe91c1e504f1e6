"""The check of the configured models in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.engine import fakes
from tests.engine.fakes import FakeBackend, serving, spec

from vectord.compute.backends.base import TokenBatch
from vectord.config import Config
from vectord.engine.engine import Engine
from vectord.tools.doctor import self_test


@pytest.mark.parametrize("fails", [False, True], ids=["right", "long texts fail"])
async def test_long_texts_are_embedded_on_all_streams(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they fail, the report says so. Longer than 4,096 tokens: the memory of such batches is released anew."""
    longest = 0

    def check(batch: TokenBatch) -> None:
        nonlocal longest
        longest = max(longest, int(batch.texts.cu_seqlens[-1]))
        if fails and longest > 4096:
            raise RuntimeError("memory is in use")

    backend = FakeBackend(streams=2, max_batch_tokens=32_768, fail=check)

    @asynccontextmanager
    async def running(_: Config) -> AsyncIterator[Engine]:
        async with serving(backend, models=[spec(max_tokens=30_000)]) as engine:
            yield engine

    monkeypatch.setattr(self_test, "running_engine", running)
    monkeypatch.setattr(fakes, "MAX_TOKENS", 30_000)
    (tested,) = await self_test.self_tests(Config(), with_library=False)
    assert longest > 4096
    assert bool(tested.problem) == fails


async def test_a_model_with_a_low_limit_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of the references beyond its limit is truncated, as sentence-transformers does."""

    @asynccontextmanager
    async def running(_: Config) -> AsyncIterator[Engine]:
        async with serving(FakeBackend(), models=[spec(max_tokens=fakes.MAX_TOKENS)]) as engine:
            yield engine

    monkeypatch.setattr(self_test, "running_engine", running)
    (tested,) = await self_test.self_tests(Config(), with_library=False)
    assert (tested.problem, len(tested.references)) == (None, 1)
