"""One model's runner: shared caches, limits, and how sequences become items."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec.structs import replace
from tests.engine.fakes import (
    CROSS_ENCODER,
    JUDGE,
    ByteEncoder,
    FakeBackend,
    backend_for,
    close_gate,
    entered,
    expected_logits,
    expected_row,
    ids_of,
    settle,
    sizes,
    spans_of,
    spec,
)
from tests.engine.fakes import sequence_of as text

from vectord.checkpoints.spec import ModelSpec, StaticTable
from vectord.config import EngineConfig
from vectord.engine.cache.lookup import AnswerCache, ModelCache
from vectord.engine.events import discard
from vectord.engine.queue.runner import ALONE_TOKENS, ModelRunner
from vectord.errors import Unavailable
from vectord.schema import Caller, Span
from vectord.text.sequence import Prefix, Texts, TokenSequence

DENSE_MODEL = spec(("dense",))


@asynccontextmanager
async def running(
    backend: FakeBackend,
    cache: AnswerCache | None = None,
    max_batch_texts: int | None = None,
    model: ModelSpec = DENSE_MODEL,
    **settings: Any,
) -> AsyncIterator[ModelRunner]:
    """settings: EngineConfig's."""
    runner = ModelRunner(
        "m",
        model,
        ByteEncoder(),
        [backend],
        config=EngineConfig(**settings),
        max_batch_texts=max_batch_texts,
        cache=ModelCache("m", model, "float32", AnswerCache(0) if cache is None else cache, None, discard),
        observer=discard,
        stalled_changed=lambda stalled: None,
        queue_changed=lambda: None,
    )
    try:
        yield runner
    finally:
        runner.stop()
        backend.gate.set()
        await asyncio.to_thread(runner.close, 10)


def run(runner: ModelRunner, *texts: TokenSequence, prefix: Prefix | None = None) -> asyncio.Task:
    return asyncio.create_task(runner.run(Texts.of(texts, prefix), runner.kinds, Caller()))


async def test_a_running_text_of_another_runner_is_not_shared():
    """The other runner may be the same model, unloaded with a hung forward. Cached answers are shared."""
    cache = AnswerCache(2**20)
    old, new = FakeBackend(), FakeBackend()
    async with running(old, cache) as before, running(new, cache) as after:
        close_gate(old)
        waiting = run(before, text("ab"))
        await entered(old)
        ran = await asyncio.wait_for(run(after, text("ab")), 10)
        np.testing.assert_array_equal(ran.rows("dense"), [expected_row("ab")])
        before.stop()
        with pytest.raises(Unavailable):
            await waiting
        await run(after, text("ab"))
    assert new.texts_run() == ["ab"]


BATCHES = {
    "no limit": (DENSE_MODEL, {}, {}, 12),
    "the operator's": (DENSE_MODEL, {}, {"max_batch_texts": 5}, 5),
    "the device's": (DENSE_MODEL, {"max_batch_texts": 3}, {}, 3),
    "both, the device's is lower": (DENSE_MODEL, {"max_batch_texts": 3}, {"max_batch_texts": 5}, 3),
    "both, the operator's is lower": (DENSE_MODEL, {"max_batch_texts": 3}, {"max_batch_texts": 2}, 2),
    "a quick batch": (DENSE_MODEL, {"quick_tokens": 100}, {"max_batch_texts": 2}, 2),
    "pairs of a language model": (JUDGE, {}, {"qwen_rerank_batch_size": 2}, 2),
    "pairs of a cross-encoder": (CROSS_ENCODER, {}, {"qwen_rerank_batch_size": 2}, 12),
    "pairs of any reranker": (CROSS_ENCODER, {}, {"max_reranking_batch_size": 3}, 3),
}


@pytest.mark.parametrize(("model", "device", "settings", "most"), BATCHES.values(), ids=BATCHES)
async def test_a_batch_respects_the_operators_and_the_devices_limit(model, device, settings, most):
    """A device that returns a whole vocabulary per text has memory for few texts. Pairs of every reranker have a limit,
    MAX_RERANKING_BATCH_SIZE, and those of language models another: Smart Embedder's QWEN_RERANK_BATCH_SIZE."""
    backend = backend_for(model, **device)
    async with running(backend, model=model, **settings) as runner:
        await run(runner, *[text("x" * n) for n in range(1, 13)])
    assert max(len(sizes(batch)) for batch in backend.batches) == most


@pytest.mark.parametrize(("joins", "batches"), [("always", 1), ("never", 2)])
async def test_requests_share_a_forward_unless_batching_is_off(joins, batches):
    """Two requests that are queued together."""
    backend = FakeBackend()
    async with running(backend, join_requests=joins, batch_window_ms=20.0) as runner:
        await asyncio.gather(run(runner, text("ab"), text("cd")), run(runner, text("ef"), text("gh")))
    assert [len(sizes(batch)) for batch in backend.batches] == [4 // batches] * batches


async def test_spans_and_keys_are_counted_after_the_prefix():
    """The prefix is not part of the text in the batch."""
    begun = Prefix(ids_of("begun "))
    spans = np.array([[0, 2], [3, 4]], np.int32)
    backend = FakeBackend()
    async with running(backend) as runner:
        ran = await run(runner, text("begun abcd", spans=spans, keys=3), text("begun e"), prefix=begun)
    (batch,) = backend.batches
    assert sizes(batch) == [6, 4, 1]
    assert spans_of(batch) == [Span(6, 8), Span(9, 10), Span(10, 11)]
    assert batch.texts.keys.tolist() == [6, 3, 1]
    np.testing.assert_array_equal(ran.rows("dense"), [expected_row("ab"), expected_row("d"), expected_row("e")])


async def test_the_cache_key_does_not_depend_on_the_prefix():
    """The same tokens have the same answer with and without a shared prefix."""
    backend = backend_for(JUDGE)
    async with running(backend, AnswerCache(2**20), model=JUDGE) as runner:
        first = await run(runner, text("begun a"), prefix=Prefix(ids_of("begun ")))
        again = await run(runner, text("begun a"))
    assert len(backend.batches) == 1
    for ran in (first, again):
        np.testing.assert_array_equal(ran.rows("scores"), [expected_logits(ids_of("begun a"), 2)])


async def test_a_text_can_be_requested_again_after_cancellation():
    """A cancelled text is not waited for."""
    backend = FakeBackend()
    async with running(backend, AnswerCache(2**20)) as runner:
        close_gate(backend)
        blocker = run(runner, text("blocker"))
        await entered(backend)
        leaver = run(runner, text("left"))
        await settle()
        leaver.cancel()
        await settle()
        again = run(runner, text("left"))
        await settle()
        backend.gate.set()
        await asyncio.wait_for(asyncio.gather(blocker, again), 10)
    assert backend.texts_run() == ["blocker", "left"]


async def test_a_quick_batch_does_not_wait_for_busy_streams():
    """The table of a static model answers a query faster than a thread would be woken."""
    backend = FakeBackend(quick_tokens=5)
    async with running(backend) as runner:
        close_gate(backend)
        long = run(runner, text("longer"))
        await entered(backend)
        threads: list[int] = []
        backend.fail = lambda batch: threads.append(threading.get_ident())
        backend.gate.set()
        ran = await run(runner, text("ab"), text("cd"))
        await long
    np.testing.assert_array_equal(ran.rows("dense"), [expected_row("ab"), expected_row("cd")])
    assert threads.count(threading.get_ident()) == 1


@pytest.mark.parametrize(
    ("count", "tokens", "facts", "runs"),
    [
        (1, ALONE_TOKENS, {}, True),
        (1, ALONE_TOKENS + 1, {}, False),
        (2, 2, {}, False),  # they are for a batch
        (1, 2, {"device": "cuda:0"}, False),  # a GPU may hang
        (3, 30, {"quick_tokens": 90}, True),
        (3, 31, {"quick_tokens": 90}, False),
        (3, 30, {"quick_tokens": 90, "max_batch_texts": 2}, False),
    ],
)
async def test_few_tokens_may_run_in_a_callers_thread(count, tokens, facts, runs):
    """The way to other threads and back takes as long as a tenth of a small model's forward. A lone text may use the
    whole device."""
    threads: list[int] = []
    backend = FakeBackend(fail=lambda batch: threads.append(threading.get_ident()), **facts)
    async with running(backend) as runner:
        ran = runner.run_alone(Texts.of([text("x" * tokens)] * count), runner.kinds)
    assert threads == [threading.get_ident()] * runs
    assert [batch.alone for batch in backend.batches] == [count == 1] * runs
    if ran is not None:
        np.testing.assert_array_equal(ran.rows("dense"), [expected_row("x" * tokens)] * count)


async def test_a_callers_thread_leaves_cached_and_failed_texts_to_the_queue():
    """There the cache answers, and the text that failed gets its error."""
    backend = FakeBackend()
    async with running(backend, AnswerCache(2**20)) as runner:
        assert runner.run_alone(Texts.of([text("ab")]), runner.kinds) is None
    backend.poison = ids_of("!")[0]
    async with running(backend) as runner:
        assert runner.run_alone(Texts.of([text("!")]), runner.kinds) is None
    assert backend.texts_run() == ["!"]
    for error in (RuntimeError("the device failed"), MemoryError(), KeyError("a part of the model")):
        async with running(FakeBackend(fail=Mock(side_effect=error))) as runner:
            assert runner.run_alone(Texts.of([text("ab")]), runner.kinds) is None


async def test_a_callers_thread_and_the_queue_never_share_a_stream():
    """A busy device runs no caller's text, and the other way round. Closing waits for both."""
    backend, lone = FakeBackend(), Texts.of([text("lone")])
    async with running(backend) as runner:
        close_gate(backend)
        queued = run(runner, text("queued"))
        await entered(backend)
        assert runner.run_alone(lone, runner.kinds) is None
        backend.gate.set()
        await queued
        close_gate(backend)
        calling = asyncio.create_task(asyncio.to_thread(runner.run_alone, lone, runner.kinds))
        await entered(backend)
        assert runner.run_alone(lone, runner.kinds) is None
        queued = run(runner, text("after"))
        assert not await asyncio.to_thread(backend.entered.acquire, timeout=0.1)
        backend.gate.set()
        await asyncio.wait_for(asyncio.gather(calling, queued), 10)
        close_gate(backend)
        calling = asyncio.create_task(asyncio.to_thread(runner.run_alone, lone, runner.kinds))
        await entered(backend)
        runner.stop()
        assert not runner.close(0.01)
        assert not backend.closed
        backend.gate.set()
        await calling
        assert runner.close(10)
        assert backend.closed
        assert runner.run_alone(lone, runner.kinds) is None


async def test_a_text_that_fails_in_a_quick_batch_fails_alone():
    """As in a batch of the queue."""
    backend = FakeBackend(quick_tokens=100)
    backend.poison = ids_of("!")[0]
    async with running(backend) as runner:
        texts = Texts.of([text("ab"), text("!"), text("cd")])
        ran = await runner.run(texts, runner.kinds, Caller(), partial=True)
    assert list(ran.failures) == [1]
    np.testing.assert_array_equal(ran.rows("dense")[[0, 2]], [expected_row("ab"), expected_row("cd")])


async def test_answers_of_a_static_table_are_not_kept():
    """Adding rows of the table is faster than looking an answer up."""
    cache = AnswerCache(2**20)
    table = replace(DENSE_MODEL, static=StaticTable(tensor="embeddings"))
    backend = FakeBackend(quick_tokens=100)
    async with running(backend, cache, model=table) as runner:
        await run(runner, text("ab"))
        await run(runner, text("ab"))
    assert backend.texts_run() == ["ab", "ab"]
    assert not len(cache)
