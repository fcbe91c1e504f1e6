"""Several devices share one queue and its load; a failure of one does not affect the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fakes import (
    FakeBackend,
    Recorder,
    close_gate,
    entered,
    expected_row,
    sequence_of,
    serving,
    source,
    spec,
)
from tests.engine.queue.test_worker import Desk, item, working

from vectord.compute.backends.base import TokenBatch
from vectord.config import EngineConfig
from vectord.engine.engine import Engine
from vectord.engine.queue.batch import Batch, Item, unscheduled_batch
from vectord.engine.queue.devices import MAX_BLAMED, Device, Devices, DeviceStream, RunningBatch
from vectord.engine.queue.execution import Execution
from vectord.engine.queue.scheduler import BatchLimits, Scheduler
from vectord.engine.queue.worker import MAX_HUNG
from vectord.errors import InferenceFailed, InferenceTimedOut, OutOfMemory
from vectord.schema import ANYONE, EmbedRequest
from vectord.text.sequence import Texts

BUDGET = 64


def some(*streams: int, pipelined: bool = False) -> Devices:
    """Devices without a backend."""
    execution = cast(Execution, None)
    return Devices([Device(n, f"d{n}", execution, streams, pipelined) for n, streams in enumerate(streams)])


def begin(devices: Devices, stream: DeviceStream, batch: Batch) -> RunningBatch:
    running = RunningBatch(batch, 0.0, 0.0, stream)
    devices.began(running)
    return running


def take(devices: Devices, scheduler: Scheduler, away: Collection[DeviceStream] = ()) -> list[RunningBatch]:
    """The batches of all free devices, until none takes another. away: streams that are busy, hung or lost."""
    taken: dict[DeviceStream, RunningBatch] = {}
    found = True
    while found:
        found = False
        for stream in devices.all_streams:
            device = stream.device
            if stream in taken or stream in away or not devices.is_next(device):
                continue
            least = devices.busy_tokens(device) * devices.sharers(device)
            batch = scheduler.next_batch(
                0.0, device.index, idle_streams=devices.sharers(device), busy_tokens=least, busy_streams=0
            )
            if batch is not None:
                taken[stream] = begin(devices, stream, batch)
                found = True
    return list(taken.values())


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(st.integers(1, 100), min_size=1, max_size=8)),
        st.tuples(st.sampled_from(["end", "hang", "renew", "lose"]), st.integers(0, 9)),
    ),
    max_size=40,
)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.booleans(), steps)
def test_no_device_idles_while_texts_are_queued(streams, pipelined, steps):
    """In any sequence of arrivals, ends and hangs: each text runs once, on the least busy device."""
    devices = some(*streams, pipelined=pipelined)
    scheduler = Scheduler([BatchLimits(max_batch_tokens=BUDGET, pipelined=pipelined) for _ in streams])
    busy: dict[DeviceStream, RunningBatch] = {}
    hung: set[DeviceStream] = set()
    lost: set[DeviceStream] = set()
    added, run = 0, 0
    for step, value in steps:
        stream = devices.all_streams[value % len(devices.all_streams)] if isinstance(value, int) else None
        if step == "add":
            for tokens in value:
                scheduler.add(item("x" * tokens), 0.0)
                added += 1
        elif step == "end" and stream in busy:
            assert devices.ended(busy.pop(stream))
        elif step == "hang" and busy:
            given_up = devices.give_up(1.0)
            assert not devices.ended(given_up)
            assert busy.pop(given_up.stream) is given_up
            hung.add(given_up.stream)
        elif step == "renew" and stream in hung:
            devices.renewed(stream)
            hung.discard(stream)
        elif step == "lose" and stream not in busy:
            devices.lose([stream])
            lost.add(stream)
        taken = take(devices, scheduler, {*busy, *hung, *lost})
        busy |= {running.stream: running for running in taken}
        run += sum(len(running.batch.items) for running in taken)
        assert run + scheduler.texts == added
        if scheduler.texts:
            free = {stream.device for stream in devices.all_streams if stream not in {*busy, *hung, *lost}}
            assert not any(pipelined is False or not devices.busy_streams(device) for device in free)


@given(st.lists(st.integers(1, BUDGET), min_size=20, max_size=60), st.integers(2, 4))
def test_equal_devices_receive_equal_shares(sizes, count):
    """Also for texts that arrive one by one, each after the end of the last."""
    devices = some(*[1] * count)
    scheduler = Scheduler([BatchLimits(max_batch_tokens=BUDGET)] * count)
    shares = Counter(dict.fromkeys(devices.all, 0))
    for tokens in sizes:
        scheduler.add(item("x" * tokens), 0.0)
        (running,) = take(devices, scheduler)
        shares[running.stream.device] += tokens
        devices.ended(running)
    assert max(shares.values()) - min(shares.values()) <= max(sizes)


def test_the_device_with_the_fewest_running_tokens_is_next():
    """Running tokens count before past ones. Streams that are lost do not count."""
    devices = some(2, 2)
    first, second = devices.all
    begin(devices, DeviceStream(first, 0), unscheduled_batch([item("x" * 10)]))
    begin(devices, DeviceStream(second, 0), unscheduled_batch([item("x" * 30)]))
    assert devices.is_next(first)
    assert not devices.is_next(second)
    devices.lose([DeviceStream(first, 1)])
    assert devices.is_next(second)


def broken(tokens: TokenBatch) -> None:
    raise RuntimeError("an illegal memory access was encountered")


def full(tokens: TokenBatch) -> None:
    raise MemoryError


def poisoned(tokens: TokenBatch) -> None:
    if ord("!") in tokens.texts.ids:
        raise RuntimeError("poison")


async def one_by_one(desk: Desk, count: int) -> list[object]:
    """The answers to this many texts, sent one by one."""
    answers: list[object] = []
    for _ in range(count):
        desk.worker.put([item("x")])
        answers += (await desk.answers(1)).values()
    return answers


async def test_a_hung_device_does_not_affect_the_others():
    """Its batch fails. The others run all later texts, and the model is not stalled."""
    stuck, fine = FakeBackend(), FakeBackend()
    stuck.renew = lambda stream: 1 / 0  # type: ignore[method-assign]
    stuck.gate.clear()
    async with working(stuck, fine, forward_timeout_s=1e-9) as desk:
        hung = item("a")
        desk.worker.put_on(0, [hung])
        await entered(stuck)
        assert all(isinstance(answer, Mapping) for answer in await one_by_one(desk, 20))
        desk.worker.give_up_hung()
        assert isinstance((await desk.answers(1))[hung], InferenceTimedOut)
        while desk.worker.states["d0"] != "lost":
            await asyncio.sleep(0.001)
        assert all(isinstance(answer, Mapping) for answer in await one_by_one(desk, 20))
        assert desk.worker.states == {"d0": "lost", "d1": "ready"}
        assert not (desk.worker.stalled or not desk.worker.living_streams or any(desk.changes))
        late = item("b")
        desk.worker.put_on(0, [late])
        assert isinstance((await desk.answers(1))[late], InferenceTimedOut)


async def test_hangs_are_counted_per_device():
    """Hangs of one device do not prevent the replacement of another's thread."""
    stuck, fine = FakeBackend(), FakeBackend()
    gates = []
    async with working(stuck, fine, forward_timeout_s=1e-9) as desk:
        for count in range(1, MAX_HUNG + 2):
            stuck.gate.clear()
            gates.append(stuck.gate)
            desk.worker.put_on(0, [item("a")])
            await entered(stuck)
            desk.worker.give_up_hung()
            await desk.answers(1)
            while count <= MAX_HUNG and (stuck.renewed < count or desk.worker.states["d0"] != "ready"):
                await asyncio.sleep(0.001)
        fine.gate.clear()
        gates.append(fine.gate)
        desk.worker.put([item("b")])
        await entered(fine)
        desk.worker.give_up_hung()
        await desk.answers(1)
        assert isinstance((await one_by_one(desk, 1))[0], Mapping)
        assert desk.worker.states == {"d0": "lost", "d1": "ready"}
        for gate in gates:
            gate.set()


async def test_a_device_whose_batches_fail_is_lost():
    """Requests succeed on another device. After MAX_BLAMED failures in a row the device is lost and its threads end."""
    bad, good = FakeBackend(fail=broken), FakeBackend()
    async with working(bad, good) as desk:
        answers = await one_by_one(desk, 6 * MAX_BLAMED)
        assert all(isinstance(answer, Mapping) for answer in answers)
        assert desk.worker.states == {"d0": "lost", "d1": "ready"}
        ran = len(bad.batches)
        await one_by_one(desk, 10)
        assert len(bad.batches) == ran
        assert not any(desk.changes)
        desk.worker._threads[DeviceStream(desk.worker._devices.all[0], 0)].join(60)


async def test_a_device_that_fails_now_and_then_is_not_lost():
    """Each batch that it answers ends its failures in a row."""
    runs = 0

    def fail_half(tokens: TokenBatch) -> None:
        nonlocal runs
        runs += 1
        if runs % 2:
            raise RuntimeError

    async with working(FakeBackend(fail=fail_half), FakeBackend()) as desk:
        assert all(isinstance(answer, Mapping) for answer in await one_by_one(desk, 8 * MAX_BLAMED))
        assert desk.worker.states == {"d0": "ready", "d1": "ready"}
    assert runs > 2 * MAX_BLAMED


async def test_running_out_of_memory_is_not_blamed_on_the_device():
    """Another device runs the text. The first still runs texts that fit."""
    small, large = FakeBackend(fail=full), FakeBackend()
    async with working(small, large) as desk:
        assert all(isinstance(answer, Mapping) for answer in await one_by_one(desk, 6 * MAX_BLAMED))
        assert desk.worker.states == {"d0": "ready", "d1": "ready"}


async def test_a_text_that_fails_on_two_devices_is_its_own_fault():
    """It fails after the second device; the other texts of its batch have answers from the first."""
    backends = [FakeBackend(fail=poisoned), FakeBackend(fail=poisoned)]
    async with working(*backends) as desk:
        for _ in range(2 * MAX_BLAMED):
            poison, other = item("!"), item("x")
            desk.worker.put([poison, other])
            answers = await desk.answers(2)
            assert isinstance(answers[poison], InferenceFailed)
            assert isinstance(answers[other], Mapping)
        assert desk.worker.states == {"d0": "ready", "d1": "ready"}


async def test_only_the_texts_of_a_request_that_failed_are_retried():
    """The others have answers from the first device."""
    bad, good = FakeBackend(fail=poisoned), FakeBackend()
    async with working(bad, good) as desk:
        close_gate(good)
        blocker, request = (
            item("x"),
            Item(Texts.of([*map(sequence_of, "ab!c!")]), frozenset({"dense"}), "", "interactive"),
        )
        desk.worker.put_on(1, [blocker])
        await entered(good)
        desk.worker.put([request])
        answered = [place for part in await desk.answers(3) for place in part.places.tolist()]
        assert sorted(answered) == [0, 1, 3]
        good.gate.set()
        answers = await desk.answers(3)
        del answers[blocker]
        assert sorted(part.places.tolist()[0] for part in answers) == [2, 4]
        assert all(isinstance(answer, Mapping) for answer in answers.values())
    assert good.texts_run() == ["x", "!", "!"]


async def test_a_text_that_fits_on_no_device_is_out_of_memory():
    """The error names the lack of memory."""
    async with working(FakeBackend(fail=full), FakeBackend(fail=full)) as desk:
        (answer,) = await one_by_one(desk, 1)
        assert isinstance(answer, OutOfMemory)


async def test_retries_can_be_cancelled():
    """Like queued texts."""
    bad, good = FakeBackend(fail=broken), FakeBackend()
    close_gate(good)
    async with working(bad, good) as desk:
        desk.worker.put_on(1, [item("a")])
        await entered(good)
        waiting = item("bb")
        desk.worker.put([waiting])
        while desk.worker.queued() != (1, 2) or len(bad.batches) < 1:
            await asyncio.sleep(0.001)
        assert desk.worker.cancel([waiting]) == [waiting]
        assert desk.worker.queued() == (0, 0)


async def test_a_model_on_several_devices_answers_as_on_one():
    """Regardless of the device. Its facts, metrics and limits name both devices."""
    backends = [
        FakeBackend(device="cuda:0", max_batch_tokens=90),
        FakeBackend(device="cuda:1"),
        FakeBackend(device="cuda:1"),
    ]
    observer = Recorder()
    async with serving(backends, observer=observer) as engine:
        texts = [f"text {n}" for n in range(60)]
        result = await engine.answer(EmbedRequest(inputs=texts, normalize=False), ANYONE)
        for text, row in zip(texts, result.dense["float"], strict=True):
            assert row == pytest.approx(expected_row(text), rel=1e-5)
        served = engine.models()
        (info,) = served.models
    assert info.device == "cuda:0,cuda:1"
    assert info.devices == dict.fromkeys(["cuda:0", "cuda:1/0", "cuda:1/1"], "ready")
    assert served.limits.max_batch_tokens == 90
    assert {report.device for report in observer.batch_reports} == set(info.devices)
    assert {report.streams for report in observer.batch_reports} == {3}
    assert all(backend.closed for backend in backends)


@pytest.mark.parametrize("fail", [broken, None], ids=["fails", "answers otherwise"])
async def test_every_device_is_tested_before_the_model_is_ready(fail: Callable[[TokenBatch], None] | None):
    """A device that fails, or answers a text differently, fails the load."""
    good, bad = FakeBackend(), FakeBackend(fail=fail)
    if fail is None:
        bad.answers = lambda batch, poison: {  # type: ignore[method-assign]
            output: rows[:, ::-1].copy() for output, rows in good.answers(batch, poison).items()
        }
    engine = Engine([source([good, bad], "m", model=spec(("dense",)))], EngineConfig())
    await engine.start()
    await asyncio.wait_for(engine.loaded.wait(), 60)
    assert engine.readiness() == {"m": "failed"}
    assert good.closed and bad.closed
    await engine.close()


async def test_a_lost_device_is_reported_and_no_longer_counts():
    """The model stays ready on the other device with the speed of the remaining streams."""
    bad, good = FakeBackend(device="cuda:0"), FakeBackend(device="cuda:1")
    observer = Recorder()
    async with serving([bad, good], observer=observer, cache_bytes=0) as engine:
        before = len(observer.states)
        bad.fail = broken
        for n in range(24 * MAX_BLAMED):  # d0 may have run more tokens of the self-test
            await engine.answer(EmbedRequest(inputs=[f"text {n}"]), ANYONE)
        (info,) = engine.models().models
        assert info.devices == {"cuda:0": "lost", "cuda:1": "ready"}
        assert info.state == "ready"
        assert observer.states[before:] == [("m0", "ready")]
        assert engine._registry.models[0].runner._speed.streams == 1
