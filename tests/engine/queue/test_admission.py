"""Requests are refused early, with an honest time to retry; late ones end in an error and leave the queue."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collection import without_collection
from tests.engine.fakes import (
    CROSS_ENCODER,
    FakeBackend,
    Recorder,
    backend_for,
    close_gate,
    entered,
    expected_row,
    queue_of,
    serving,
    serving_one,
    settle,
    slow,
    spec,
)
from tests.refusals import refuses

from vectord.engine.engine import Engine
from vectord.engine.queue.admission import (
    MAX_PATIENT,
    MAX_QUEUED_TOKENS,
    Admission,
    Speed,
    before,
    check_room,
    check_wait,
    within,
)
from vectord.errors import InferenceTimedOut, Overloaded, QueueTimedOut, TimedOut, Unavailable
from vectord.schema import (
    Caller,
    EmbedRequest,
    MultiRequest,
    Operation,
    RerankRequest,
    TokenizeRequest,
)


async def wait_for_place(admission: Admission) -> asyncio.Task[None]:
    """A task that waits for a place."""
    waiter = asyncio.create_task(admission.enter())
    await asyncio.sleep(0)
    return waiter


async def test_waiting_requests_receive_places_in_order():
    """First come, first served. The limit holds, and newcomers do not overtake."""
    admission = Admission(2, queue_timeout_s=60)
    await admission.enter()
    await admission.enter()
    first, second = [await wait_for_place(admission) for _ in range(2)]
    admission.leave()
    await first
    assert not second.done()
    assert admission.under_way == 2
    newcomer = await wait_for_place(admission)
    admission.leave()
    await second
    assert not newcomer.done()
    admission.leave()
    await newcomer
    admission.leave()
    admission.leave()
    assert admission.under_way == 0


async def test_patient_requests_wait_where_others_are_refused():
    """Even with one place. Their number and their wait are bounded."""
    admission = Admission(1, patience_s=60)
    await admission.enter()
    with pytest.raises(Overloaded):
        await admission.enter()
    waiters = [asyncio.create_task(admission.enter(patient=True)) for _ in range(MAX_PATIENT)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await admission.enter(patient=True)
    for waiter in waiters:
        admission.leave()
        await waiter
    hurried = Admission(1, patience_s=0.001)
    await hurried.enter()
    with pytest.raises(Overloaded):
        await hurried.enter(patient=True)


async def test_a_cancelled_wait_loses_no_place():
    """The place goes to the next request, even if the cancelled one had just received it."""
    admission = Admission(3, queue_timeout_s=60)
    for _ in range(3):
        await admission.enter()
    gone, going, staying = [await wait_for_place(admission) for _ in range(3)]
    gone.cancel()
    admission.leave()  # to `going`, since `gone` was cancelled
    going.cancel()  # before it notices
    await asyncio.wait([gone, going])
    assert gone.cancelled()
    assert going.cancelled()
    await asyncio.wait_for(staying, 5)
    assert admission.under_way == 3


async def test_draining_refuses_waiting_requests():
    """They were not accepted. Active requests are answered."""
    admission = Admission(1, queue_timeout_s=60)
    await admission.enter()
    waiter = await wait_for_place(admission)
    draining = asyncio.create_task(admission.drain())
    with pytest.raises(Unavailable):
        await waiter
    assert not draining.done()
    admission.leave()
    await asyncio.wait_for(draining, 5)


def test_speed_is_unknown_until_measured_then_that_of_all_streams():
    """A server that was never busy refuses nothing. Two streams of 500 tokens/s make 1,000."""
    speed = Speed(streams=2)
    assert speed.tokens_per_s == math.inf
    check_wait(1e9, speed.tokens_per_s, max_wait_s=1)
    for _ in range(3):
        speed.ran(100, 0.2)
    assert speed.tokens_per_s == pytest.approx(1000)


def test_speed_follows_the_device():
    """A tenfold slowdown is measured after some batches."""
    speed = Speed(streams=1)
    for _ in range(100):
        speed.ran(1000, 1)
    for _ in range(60):
        speed.ran(1000, 10)
    assert speed.tokens_per_s == pytest.approx(100, rel=0.1)


@given(st.floats(0, 1e7), st.floats(1, 1e6), st.floats(0.1, 100))
def test_retry_after_is_when_the_wait_becomes_acceptable(ahead, tokens_per_s, max_wait_s):
    """Refused exactly when the wait exceeds the limit; after retry_after_s of work it would be accepted."""
    if ahead / tokens_per_s <= max_wait_s:
        check_wait(ahead, tokens_per_s, max_wait_s)
        return
    with pytest.raises(Overloaded) as refused:
        check_wait(ahead, tokens_per_s, max_wait_s)
    retry_after_s = refused.value.retry_after_s
    assert retry_after_s >= 1
    left = max(0.0, ahead - retry_after_s * tokens_per_s)
    check_wait(left, tokens_per_s, max_wait_s * (1 + 1e-6) + 1e-6)  # rounding


def test_the_queue_has_a_hard_bound():
    """With any number of clients, queued tokens cannot fill the memory."""
    check_room(MAX_QUEUED_TOKENS - 1, 1, 1000.0)
    check_room(0, MAX_QUEUED_TOKENS + 1, 1000.0)
    with refuses(Overloaded, retry_after_s=pytest.approx(5)):
        check_room(MAX_QUEUED_TOKENS - 1, 5001, 1000.0)


SOON_S = 0.05


def embed(text: str) -> EmbedRequest:
    return EmbedRequest(inputs=[text], normalize=False)


def due(seconds: float) -> Caller:
    return Caller(client="client", deadline_s=time.monotonic() + seconds)


async def test_a_request_past_its_deadline_fails_and_leaves_the_queue():
    """Its queued texts do not run. The running forward continues for other requests."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        close_gate(backend)
        running = asyncio.create_task(engine.answer(embed("a"), Caller()))
        await entered(backend)
        with pytest.raises(TimedOut):
            await engine.answer(embed("b"), due(SOON_S))
        backend.gate.set()
        result = await running
    assert result.dense["float"].tolist() == [expected_row("a").tolist()]
    assert backend.texts_run() == ["a"]


async def test_a_request_with_a_passed_deadline_does_not_start():
    """A proxy that waited too long no longer expects an answer."""
    backend = FakeBackend()
    async with serving(backend) as engine:
        with pytest.raises(TimedOut):
            await engine.answer(embed("a"), due(-1))
    assert backend.texts_run() == []


async def test_a_request_that_would_be_late_is_refused():
    """By the measured speed, with a time to retry."""
    backend = FakeBackend()
    async with serving(backend, max_queue_wait_s=1000.0) as engine:
        slow(engine, backend, 1)
        running = asyncio.create_task(engine.answer(embed("a"), Caller(client="client")))
        await entered(backend)
        waiting = asyncio.create_task(engine.answer(embed("bbbbb"), Caller(client="client")))
        while queue_of(engine) != (1, 5):
            await asyncio.sleep(0)
        with pytest.raises(Overloaded) as caught:
            await engine.answer(embed("c"), due(2))
        assert caught.value.retry_after_s >= 1
        in_time = asyncio.create_task(engine.answer(embed("d"), due(3600)))
        backend.gate.set()
        await asyncio.gather(running, waiting, in_time)


@pytest.mark.parametrize("left_s", [None, 3600])
async def test_request_timeout_applies_to_every_request(left_s):
    """Smart Embedder's REQUEST_TIMEOUT, also for callers with a later deadline."""
    backend = FakeBackend()
    async with serving(backend, request_timeout_s=SOON_S) as engine:
        close_gate(backend)
        with pytest.raises(TimedOut):
            await engine.answer(embed("a"), Caller() if left_s is None else due(left_s))
        backend.gate.set()


async def test_rerank_timeout_applies_to_reranking_only():
    """Smart Embedder's RERANK_GPU_TIMEOUT."""
    async with serving_one(CROSS_ENCODER, rerank_timeout_s=SOON_S) as (engine, backend):
        close_gate(backend)
        with pytest.raises(InferenceTimedOut):
            await engine.answer(RerankRequest(query="q", passages=["p"]), Caller())
        backend.gate.set()


def rank(passage):
    return RerankRequest(query="q", passages=[passage])


@asynccontextmanager
async def serving_both(**settings):
    """An engine with one place for requests, and the backends of its two models: one embeds, one reranks."""
    models = [spec(("dense",)), CROSS_ENCODER]
    backends = [*map(backend_for, models)]
    async with serving(*backends, models=models, max_concurrent_requests=1, **settings) as engine:
        yield engine, backends


@pytest.mark.parametrize(
    ("busy", "request_for", "other"), [(0, embed, rank), (1, rank, embed)], ids=["embed", "rerank"]
)
async def test_rerank_requests_have_a_limit_of_their_own(busy, request_for, other):
    """With one place each, a second request of the same type is refused, and one of the other type is answered."""
    async with serving_both(max_concurrent_reranks=1) as (engine, backends):
        close_gate(backends[busy])
        first = asyncio.create_task(engine.answer(request_for("a"), Caller()))
        await entered(backends[busy])
        with pytest.raises(Overloaded):
            await engine.answer(request_for("b"), Caller())
        await engine.answer(other("c"), Caller())
        backends[busy].gate.set()
        await first
        await engine.answer(request_for("b"), Caller())


async def is_full_for(engine: Engine, operation: Operation) -> bool:
    try:
        await engine.check_busy(operation, Caller())
    except Overloaded:
        return True
    return False


async def test_a_full_server_refuses_by_the_operation_of_a_request():
    """Before its body is read, as `answer` would, and counted as there."""
    events = Recorder()
    async with serving_both(max_concurrent_reranks=1, observer=events) as (engine, backends):
        assert not await is_full_for(engine, "embed")
        close_gate(backends[0])
        first = asyncio.create_task(engine.answer(embed("a"), Caller()))
        await entered(backends[0])
        assert await is_full_for(engine, "embed")
        assert not await is_full_for(engine, "rerank")
        assert events.requests == [("", "embed", "Overloaded", 0, 0)]
        assert await is_full_for(engine, "documents")
        assert events.requests[1:] == [("", "documents", "Overloaded", 0, 0)]
        backends[0].gate.set()
        await first
        assert not await is_full_for(engine, "embed")


async def test_a_multi_request_takes_a_place_of_each_type():
    """Its embeddings and its reranks count; the places are free again afterwards."""
    async with serving_both(max_concurrent_reranks=1) as (engine, backends):
        close_gate(backends[0])
        both = asyncio.create_task(engine.answer(MultiRequest(requests=[embed("a"), rank("p")]), Caller()))
        await entered(backends[0])
        for request in (embed("b"), rank("b")):
            with pytest.raises(Overloaded):
                await engine.answer(request, Caller())
        backends[0].gate.set()
        await both
        for request in (embed("b"), rank("b")):
            await engine.answer(request, Caller())
        await engine.drain()


async def test_a_multi_request_takes_its_places_in_one_order():
    """It holds no place for reranks while it waits for the other one, so that two never wait for each other."""
    async with serving_both(max_concurrent_reranks=1, queue_timeout_s=5.0) as (engine, backends):
        close_gate(backends[0])
        first = asyncio.create_task(engine.answer(embed("a"), Caller()))
        await entered(backends[0])
        parts = [rank("p"), TokenizeRequest(inputs=["b"])]
        both = asyncio.create_task(engine.answer(MultiRequest(requests=parts), Caller()))
        await settle()
        await engine.answer(rank("b"), Caller())
        assert not both.done()
        backends[0].gate.set()
        await asyncio.gather(first, both)


async def test_without_their_own_limit_rerank_requests_share_that_of_all():
    """The default."""
    async with serving_both() as (engine, backends):
        close_gate(backends[0])
        first = asyncio.create_task(engine.answer(embed("a"), Caller()))
        await entered(backends[0])
        with pytest.raises(Overloaded):
            await engine.answer(rank("b"), Caller())
        backends[0].gate.set()
        await first


async def test_after_a_hung_forward_the_next_request_is_answered():
    """The model is stalled until another thread has taken the place."""
    backend = FakeBackend()
    async with serving(backend, forward_timeout_s=SOON_S) as engine:
        hung = backend.gate
        close_gate(backend)
        with pytest.raises(InferenceTimedOut):
            await engine.answer(embed("a"), Caller())
        result = await engine.answer(embed("b"), Caller())
        assert engine.readiness() == {"m0": "ready"}
        hung.set()
    assert result.dense["float"].tolist() == [expected_row("b").tolist()]
    assert backend.renewed == 1


@pytest.mark.parametrize(("device", "hangs"), [("cpu", False), ("cuda:0", True)])
async def test_a_gpu_may_have_a_shorter_timeout(device, hangs):
    """The processor keeps its own."""
    backend = FakeBackend(device=device)
    async with serving(backend, forward_timeout_s=3600, gpu_forward_timeout_s=SOON_S) as engine:
        gate = backend.gate
        close_gate(backend)
        answer = asyncio.create_task(engine.answer(embed("a"), Caller()))
        await entered(backend)
        if hangs:
            with pytest.raises(InferenceTimedOut):
                await answer
        gate.set()
        assert hangs or (await answer).dense


@pytest.mark.parametrize("limit_s", [3600, 0], ids=["longer", "none"])
@pytest.mark.parametrize(
    ("model", "hangs"), [(spec(("dense",)), True), (CROSS_ENCODER, False)], ids=["embed", "rerank"]
)
async def test_a_rerankers_forward_has_the_time_of_its_request(model, hangs, limit_s):
    """Smart Embedder's GPU_PROCESS_TIMEOUT ends batches of embeddings only; RERANK_GPU_TIMEOUT is for reranks."""
    async with serving_one(model, forward_timeout_s=SOON_S, rerank_timeout_s=limit_s) as (engine, backend):
        gate = backend.gate
        close_gate(backend)
        request = embed("a") if hangs else rank("a")
        answer = asyncio.create_task(engine.answer(request, Caller()))
        await entered(backend)
        if hangs:
            with pytest.raises(InferenceTimedOut):
                await answer
        else:
            await asyncio.wait([answer], timeout=4 * SOON_S)
            assert not answer.done()
        gate.set()
        assert hangs or len((await answer).scores) == 1


async def test_a_limit_of_reranks_has_no_extra_place():
    """Smart Embedder's RERANK_MAX_QUEUE is exact, whoever holds the places."""
    async with serving_one(CROSS_ENCODER, max_concurrent_reranks=4) as (engine, backend):
        close_gate(backend)
        busy = [asyncio.create_task(engine.answer(rank(f"p{index}"), Caller(client="busy"))) for index in range(4)]
        await entered(backend)
        with pytest.raises(Overloaded):
            await engine.answer(rank("other"), Caller(client="another"))
        backend.gate.set()
        await asyncio.gather(*busy)


async def test_without_a_deadline_there_is_no_timer():
    """And a TimeoutError of the work itself passes through."""

    async def fail() -> None:
        raise TimeoutError("a disk's")

    with pytest.raises(TimeoutError, match="a disk's"):
        await before(time.monotonic() + 60, fail())
    with pytest.raises(TimeoutError, match="a disk's"):
        await within(0, fail())


async def test_few_requests_run_and_the_others_wait_within_the_limit_of_all() -> None:
    """Simple Inference Server's MAX_CONCURRENT and MAX_QUEUE_SIZE: one runs, one waits, the third is refused."""
    admission = Admission(2, queue_timeout_s=60.0, max_running_requests=1)
    await admission.enter()
    waiter = await wait_for_place(admission)
    with pytest.raises(Overloaded) as refused:
        await admission.enter()
    assert not isinstance(refused.value, QueueTimedOut)
    admission.leave()
    await waiter
    admission.leave()


async def test_patient_and_ordinary_requests_wait_in_rooms_of_their_own() -> None:
    """Many patient requests do not cause ordinary ones to be refused, nor the reverse."""
    admission = Admission(1, queue_timeout_s=60.0, patience_s=60.0)
    await admission.enter()
    waiters = [asyncio.create_task(admission.enter(patient=True)) for _ in range(MAX_PATIENT)]
    await asyncio.sleep(0)
    waiters.append(await wait_for_place(admission))
    assert not waiters[-1].done()
    for patient in (False, True):
        with pytest.raises(Overloaded):
            await admission.enter(patient=patient)
    for waiter in waiters:
        admission.leave()
        await waiter


@pytest.mark.parametrize("timeout_s", [0.0, 60.0], ids=["refused", "waiting"])
async def test_a_client_that_floods_the_places_keeps_no_other_out(timeout_s: float) -> None:
    """Clients with fewer than a sixteenth of the places get a quarter more, ahead of the waiting list."""
    admission = Admission(64, queue_timeout_s=timeout_s)
    for _ in range(64):
        await admission.enter("flood")
    waiting = [asyncio.create_task(admission.enter("flood")) for _ in range(64 if timeout_s else 0)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        admission.check("flood")
    for client in ("ann", "ben", "cat", "dan"):
        for _ in range(4):
            admission.check(client)
            await admission.enter(client)
        with pytest.raises(Overloaded):
            await admission.enter(client)
    assert admission.under_way == 80
    with pytest.raises(Overloaded):
        await admission.enter("eve")
    for client in ("ann", "flood"):
        admission.leave(client)
    await admission.enter("ann")
    assert not any(task.done() for task in waiting)
    for task in waiting:
        task.cancel()


async def test_a_limit_of_few_places_is_exact() -> None:
    """A quarter of them is less than one; and a limit of what runs at once is always exact."""
    running = Admission(64, max_running_requests=8)
    for _ in range(8):
        await running.enter("flood")
    with pytest.raises(Overloaded):
        await running.enter("ann")
    admission = Admission(3)
    for _ in range(3):
        await admission.enter("flood")
    with pytest.raises(Overloaded):
        await admission.enter("ann")


async def test_waiting_requests_of_both_kinds_count_among_max_concurrent_requests() -> None:
    """With max_running_requests, no more are in the server than max_concurrent_requests."""
    admission = Admission(3, queue_timeout_s=60.0, patience_s=60.0, max_running_requests=1)
    await admission.enter()
    waiters = [asyncio.create_task(admission.enter(patient=patient)) for patient in (True, False)]
    await asyncio.sleep(0)
    for patient in (True, False):
        with pytest.raises(Overloaded):
            await admission.enter(patient=patient)
    for waiter in waiters:
        admission.leave()
        await waiter


async def test_a_request_that_waits_too_long_for_a_place_is_refused() -> None:
    """After queue_timeout_s, which is also the time to retry, and with an error of its own class."""
    admission = Admission(2, queue_timeout_s=0.01, max_running_requests=1)
    await admission.enter()
    with refuses(QueueTimedOut, limit=0.01, retry_after_s=1.0):
        await admission.enter()


async def test_requests_that_need_no_place_any_more_are_not_counted() -> None:
    """Smart Embedder's MAX_QUEUE_SIZE counts queued requests. A request that waits is admitted when one starts to run,
    at the latest at the end of its wait."""
    running = 0
    admission = Admission(1, queue_timeout_s=0.01, running=lambda: running)
    await admission.enter()
    with pytest.raises(QueueTimedOut):
        await admission.enter()
    waiter = await wait_for_place(admission)
    running = 1
    await waiter  # nobody called admit_waiting
    waiter = await wait_for_place(admission)
    running = 2
    admission.admit_waiting()
    await waiter
    assert admission.under_way == 3
    for _ in range(3):
        admission.leave()
    await asyncio.wait_for(admission.drain(), 5)


async def test_refused_and_late_requests_leave_no_garbage():
    """An error in a variable of a frame of its own traceback would keep the request until the next collection, which
    stops the event loop."""
    async with serving(backend := FakeBackend(), max_concurrent_requests=2) as engine:
        close_gate(backend)
        first = asyncio.create_task(engine.answer(embed("a"), Caller()))
        await entered(backend)
        with without_collection():
            known = {id(one) for one in gc.get_objects() if type(one) in (TimedOut, Overloaded)}  # of other tests
            with pytest.raises(TimedOut):
                await engine.answer(embed("late"), Caller(deadline_s=time.monotonic() + SOON_S))
            second = asyncio.create_task(engine.answer(embed("b"), Caller()))
            await settle()
            with pytest.raises(Overloaded):
                await engine.answer(embed("refused"), Caller())
            left = [one for one in gc.get_objects() if type(one) in (TimedOut, Overloaded) and id(one) not in known]
        assert not left
        backend.gate.set()
        await asyncio.gather(first, second)
