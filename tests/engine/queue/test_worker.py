"""The device's threads: every item is delivered on the loop, also after failures of the backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from tests.engine.fakes import SPECIAL_IDS, FakeBackend, broken_log, entered, sequence_of, spec

from vectord.engine.queue.batch import Item
from vectord.engine.queue.devices import Device
from vectord.engine.queue.execution import Execution
from vectord.engine.queue.scheduler import BatchLimits, Scheduler
from vectord.engine.queue.worker import MAX_HUNG, BatchOutcome, Worker
from vectord.errors import InferenceTimedOut
from vectord.text.sequence import Texts

PATIENCE_S = 120.0


def item(text: str) -> Item:
    return Item(Texts.of([sequence_of(text)]), frozenset({"dense"}), "", "interactive")


def device_of(backend: FakeBackend, index: int = 0) -> Device:
    execution = Execution(backend, spec(), SPECIAL_IDS)
    return Device(index, f"d{index}", execution, backend.facts.streams, backend.facts.pipelined)


class Desk:
    """Receives outcomes."""

    def __init__(self, worker: Worker, outcomes: asyncio.Queue[BatchOutcome], changes: list[bool]) -> None:
        self.worker = worker
        self.outcomes = outcomes
        self.changes = changes

    async def answers(self, count: int) -> dict[Item, object]:
        """The next `count` answers."""
        answers: dict[Item, object] = {}
        while len(answers) < count:
            outcome = await asyncio.wait_for(self.outcomes.get(), 10)
            answers |= outcome.replies
        return answers


@asynccontextmanager
async def working(*backends: FakeBackend, forward_timeout_s: float = 0.0) -> AsyncIterator[Desk]:
    """A worker with a device for each backend."""
    outcomes: asyncio.Queue[BatchOutcome] = asyncio.Queue()
    changes: list[bool] = []
    worker = Worker(
        "m",
        [device_of(backend, index) for index, backend in enumerate(backends)],
        Scheduler([BatchLimits(max_batch_tokens=backend.facts.max_batch_tokens) for backend in backends]),
        asyncio.get_running_loop(),
        forward_timeout_s=forward_timeout_s,
        deliver=outcomes.put_nowait,
        stalled_changed=changes.append,
    )
    worker.start()
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield Desk(worker, outcomes, changes)
    finally:
        worker.stop()
        for backend in backends:
            backend.gate.set()
        assert await asyncio.to_thread(worker.join, 60)


class UntidyBackend(FakeBackend):
    def free_memory(self) -> None:
        raise RuntimeError("the device is busy")


async def test_a_failure_to_free_memory_fails_no_answer(caplog):
    """Batches before and after it are answered, and the log names it once."""
    async with working(UntidyBackend(max_batch_tokens=1)) as desk:
        items = [item(text) for text in "abc"]
        desk.worker.put(items)
        answers = await desk.answers(3)
    assert set(answers) == set(items)
    assert all(isinstance(answer, Mapping) for answer in answers.values())
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]


async def test_a_log_handler_that_raises_fails_no_answer():
    """Of an application that embeds in its own process: the lines about failed batches are dropped."""

    def fail(tokens):
        if ord("!") in tokens.texts.ids:
            raise RuntimeError

    with broken_log():
        async with working(UntidyBackend(fail=fail)) as desk:
            items = [item(text) for text in ("a", "b", "!")]
            desk.worker.put(items)
            answers = await desk.answers(3)
    assert [isinstance(answers[one], Mapping) for one in items] == [True, True, False]


async def test_streams_run_at_the_same_time():
    """Two texts on two idle streams are two concurrent forwards."""
    backend = FakeBackend(streams=2)
    backend.gate.clear()
    async with working(backend) as desk:
        desk.worker.put([item("a"), item("b")])
        await entered(backend, 2)
        backend.gate.set()
        await desk.answers(2)
    assert not any(tokens.alone for tokens in backend.batches)


async def test_a_stream_is_free_from_the_end_of_its_batch():
    """The time until its next batch counts for that batch, unless the queue was empty."""
    backend = FakeBackend(max_batch_tokens=1)
    backend.gate.clear()
    async with working(backend) as desk:
        desk.worker.put([item(text) for text in "abc"])
        await entered(backend, 1)
        backend.gate.set()
        first, *others = [await asyncio.wait_for(desk.outcomes.get(), 10) for _ in "abc"]
        assert [each.free_s for each in others] == [first.ended_s, others[0].ended_s]
        while not desk.worker._condition._waiters:  # type: ignore[attr-defined] # until the thread waits
            await asyncio.sleep(0.001)
        rested_s = desk.worker.now_s()
        desk.worker.put([item("d")])
        after_rest = await asyncio.wait_for(desk.outcomes.get(), 10)
    assert after_rest.free_s >= rested_s
    assert all(each.free_s <= each.started_s <= each.ended_s for each in (first, *others, after_rest))


async def test_the_rest_of_a_request_can_be_cancelled_while_its_first_texts_run():
    """Those are delivered; nothing of the request stays in the queue."""
    backend = FakeBackend(max_batch_tokens=2)
    backend.gate.clear()
    async with working(backend) as desk:
        request = Item(Texts.of([sequence_of(text) for text in "abcd"]), frozenset({"dense"}), "", "interactive")
        desk.worker.put([request])
        await entered(backend)
        (rest,) = desk.worker.cancel([request])
        assert rest.places.tolist() == [2, 3]
        assert desk.worker.queued() == (0, 0)
        backend.gate.set()
        ((running, _),) = (await desk.answers(1)).items()
        assert running.places.tolist() == [0, 1]
    assert backend.texts_run() == ["a", "b"]


async def test_a_hung_forward_fails_its_batch_and_its_thread_is_replaced():
    """A later result of the old thread is dropped."""
    backend = FakeBackend(streams=2)
    backend.gate.clear()
    hung = backend.gate
    async with working(backend, forward_timeout_s=1e-9) as desk:
        stuck, fine = [item("a"), item("b")], item("c")
        desk.worker.put(stuck[:1])
        await entered(backend, 1)
        desk.worker.give_up_hung()
        assert isinstance((await desk.answers(1))[stuck[0]], InferenceTimedOut)
        desk.worker.put([fine])
        answers = await desk.answers(1)
        assert isinstance(answers[fine], Mapping)
        hung.set()
        desk.worker.put([item("d")])
        await desk.answers(1)
        assert desk.outcomes.empty()
        assert backend.renewed == 1
        assert desk.changes == [True, False]


async def test_a_forward_within_its_timeout_continues():
    """Any number of checks changes nothing."""
    backend = FakeBackend()
    backend.gate.clear()
    async with working(backend, forward_timeout_s=60) as desk:
        desk.worker.put([item("a")])
        await entered(backend, 1)
        desk.worker.give_up_hung()
        backend.gate.set()
        (answer,) = (await desk.answers(1)).values()
        assert isinstance(answer, Mapping)
        assert not desk.changes


async def test_after_too_many_hangs_a_thread_is_not_replaced():
    """Each costs a thread and memory that cannot be freed. The worker stays stalled."""
    backend = FakeBackend()
    gates = []
    async with working(backend, forward_timeout_s=1e-9) as desk:
        for _ in range(MAX_HUNG + 1):
            backend.gate.clear()
            gates.append(backend.gate)
            desk.worker.put([item("a")])
            await entered(backend, 1)
            desk.worker.give_up_hung()
            await desk.answers(1)
            await renewed(desk, backend, len(gates))
        assert desk.worker.stalled
        assert not desk.worker.living_streams
        assert backend.renewed == MAX_HUNG
        late = item("b")
        desk.worker.put([late])
        assert isinstance((await desk.answers(1))[late], InferenceTimedOut)
        assert desk.worker.queued() == (0, 0)
        for gate in gates:
            gate.set()


async def test_of_streams_that_hang_at_once_only_the_excess_is_lost():
    """Found by one check, they count one after the other. The model continues on those that were replaced."""
    backend = FakeBackend(streams=MAX_HUNG + 1)
    backend.gate.clear()
    stuck = backend.gate
    async with working(backend, forward_timeout_s=1e-9) as desk:
        desk.worker.put([item("a") for _ in range(MAX_HUNG + 1)])
        await entered(backend, MAX_HUNG + 1)
        desk.worker.give_up_hung()
        await desk.answers(MAX_HUNG + 1)
        assert desk.worker.living_streams == MAX_HUNG
        assert desk.worker.living_streams
        stuck.set()
        late = item("b")
        desk.worker.put([late])
        assert isinstance((await desk.answers(1))[late], Mapping)


async def test_texts_for_a_lost_stream_fail():
    """A stream that cannot be renewed is lost, as with the operator's own class."""
    backend = FakeBackend()
    backend.renew = lambda stream: 1 / 0  # type: ignore[method-assign]
    backend.gate.clear()
    async with working(backend, forward_timeout_s=1e-9) as desk:
        hung, waiting = item("a"), item("b")
        desk.worker.put([hung])
        await entered(backend, 1)
        desk.worker.put([waiting])
        desk.worker.give_up_hung()
        answers = await desk.answers(2)
        assert all(isinstance(answers[one], InferenceTimedOut) for one in (hung, waiting))
        assert not desk.worker.living_streams
        assert desk.worker.stalled


async def renewed(desk: Desk, backend: FakeBackend, times: int) -> None:
    """Waits until the new thread has reported, if there is one."""
    while times <= MAX_HUNG and (backend.renewed < times or desk.worker.stalled):
        await asyncio.sleep(0.001)


async def test_a_stopped_worker_runs_no_further_batch():
    """The queue is emptied; the threads end after their present forward."""
    backend = FakeBackend()
    backend.gate.clear()
    async with working(backend) as desk:
        desk.worker.put([item("a")])
        await entered(backend, 1)
        desk.worker.put([item("b")])
        desk.worker.stop()
        assert desk.worker.queued() == (0, 0)
        assert not await asyncio.to_thread(desk.worker.join, 0.01)
    assert backend.texts_run() == ["a"]


def test_an_outcome_for_a_closed_loop_is_dropped():
    """The thread ends without an exception, on which pytest would fail."""
    backend = FakeBackend()
    backend.gate.clear()

    async def leave_a_forward_behind() -> Worker:
        scheduler = Scheduler([BatchLimits(max_batch_tokens=16)])
        loop = asyncio.get_running_loop()
        worker = Worker("m", [device_of(backend)], scheduler, loop, deliver=_never, stalled_changed=_never)
        worker.start()
        worker.put([item("a")])
        await entered(backend, 1)
        worker.stop()
        return worker

    worker = asyncio.run(leave_a_forward_behind())
    backend.gate.set()
    assert worker.join(10)


def _never(*args: Sequence[object]) -> None:
    raise AssertionError("called on a closed loop")
