"""The devices' threads: where requests and devices meet.

    event loop                      │  worker threads, one per stream of a device
    put, cancel, tokens_ahead ──> scheduler, under one lock ──> next_batch
    deliver(outcome) <── one call_soon_threadsafe per batch ── execution.run

Several devices share one queue: the least loaded device with a free stream takes the next batch (devices.py). The lock
is held for list operations only, never during a forward.

A batch that fails on one device is retried once on another (`Reservation`). A forward that does not end within
`forward_timeout_s` hangs: its batch fails, and a new thread renews the backend's stream and takes it. After MAX_HUNG
hung threads on a device, or if a stream cannot be renewed, the stream is lost. Without any stream left, queued texts
and all later ones fail.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from vectord.engine.queue.batch import Answers, Batch, Item, unscheduled_batch
from vectord.engine.queue.devices import Device, Devices, DeviceStream, Reservation, Reservations, RunningBatch
from vectord.engine.queue.execution import Reply
from vectord.engine.queue.scheduler import Scheduler
from vectord.errors import InferenceFailed, InferenceTimedOut, OutOfMemory
from vectord.housekeeping import GuardedLogger, Housekeeping
from vectord.schema import DeviceState, Lane

MAX_HUNG = 3  # hung threads per device; their memory cannot be freed

logger = GuardedLogger(logging.getLogger("vectord.engine"))


class BatchOutcome(msgspec.Struct, frozen=True):
    """The result of one batch."""

    batch: Batch
    replies: Sequence[Reply]  # to all of its texts
    free_s: float
    started_s: float
    ended_s: float
    device: Device | None  # None: no device ran it


class Worker:
    """Runs one model's queue on its devices. Every public method but `run_alone` and `is_idle` is called from the event
    loop."""

    def __init__(
        self,
        name: str,
        devices: Sequence[Device],
        scheduler: Scheduler,
        loop: AbstractEventLoop,
        *,
        forward_timeout_s: float = 0.0,
        deliver: Callable[[BatchOutcome], None],
        stalled_changed: Callable[[bool], None],
    ) -> None:
        """devices: in the scheduler's order. forward_timeout_s: 0: a forward may take any time. deliver,
        stalled_changed: called on the loop, once per batch and after each change of `states`."""
        self._name = name
        self._devices = Devices(devices)
        self.states: Mapping[str, DeviceState] = self._devices.states  # by device; replaced at each change
        self._scheduler = scheduler
        self._loop = loop
        self._deliver = deliver
        self._stalled_changed = stalled_changed
        self._condition = threading.Condition(threading.Lock())
        self._forward_timeout_s = forward_timeout_s
        self._reservations = Reservations()
        self._stopping = False
        self._pid = os.getpid()
        self._threads: dict[DeviceStream, threading.Thread] = {}
        self._locks = {stream: threading.Lock() for stream in self._devices.all_streams}  # held during a forward
        self._hung_threads: list[tuple[Device, threading.Thread]] = []
        self._housekeeping = Housekeeping(f"freeing the memory of {name}")

    now_s = staticmethod(time.perf_counter)  # the clock of BatchOutcome.started_s

    @property
    def stalled(self) -> bool:
        """No device is ready. While one is, the model answers."""
        return "ready" not in self.states.values()

    @property
    def is_idle(self) -> bool:
        """The one device is ready and runs nothing, and no text is queued. Without the lock: at some moment."""
        return (
            len(self._devices.all) == 1
            and not self.queued_tokens()
            and self._devices.is_idle
            and not (self._stopping or self.stalled or self._locks[self._devices.all_streams[0]].locked())
        )

    @property
    def living_streams(self) -> int:
        return self._devices.living_streams

    def start(self) -> None:
        _ended_at_exit().add(self)
        for stream in self._devices.all_streams:
            self._start_thread(stream)

    def put(self, items: Sequence[Item]) -> None:
        with self._condition:
            now_s = self.now_s()
            for item in items:
                self._scheduler.add(item, now_s)
            if len(self._devices.all) == 1:
                self._condition.notify(sum(len(item.places) for item in items))
            else:
                self._condition.notify_all()  # each thread checks whether its device is next
            if not self._devices.living:
                self._fail_unserved()

    def run_now(self, item: Item) -> None:
        """Run the item on the event loop and deliver the replies: for a quick forward."""
        device, started_s = self._devices.all[0], self.now_s()
        batch = unscheduled_batch([item], alone=len(item) == 1)
        replies = device.execution.run(batch, 0)
        self._deliver(BatchOutcome(batch, replies, started_s, started_s, self.now_s(), device))

    def run_alone(self, item: Item) -> Answers | None:
        """The answers, computed in the calling thread, which may be any. None: the worker stops, or the queue has to
        run the item. Threads of the queue wait meanwhile. Has no timeout. Raises what Execution.run_alone raises."""
        stream = self._devices.all_streams[0]
        with self._locks[stream]:
            return None if self._stopping else stream.device.execution.run_alone(item, stream.number)

    def put_on(self, device: int, items: Sequence[Item]) -> None:
        """Run these as one batch on that device, without a retry on another."""
        with self._condition:
            self._reserve(Reservation(list(items), frozenset({self._devices.all[device]})))
            self._fail_unserved()

    def cancel(self, items: Sequence[Item], places: Sequence[int] | None = None) -> list[Item]:
        """Remove the queued texts at these places of their request, None: all of the items'; returns them."""
        with self._condition:
            cancelled = [self._scheduler.cancel(item, places) for item in items]
            if self._reservations.texts:
                for texts in {id(item.texts): item.texts for item in items}.values():
                    cancelled += self._reservations.cancel(texts, places)
            return [part for part in cancelled if part is not None]

    def promote(self, items: Sequence[Item], places: Sequence[int], client: str) -> list[Item]:
        """Move the texts at these places of queued bulk items to the interactive lane and to `client`; returns them."""
        with self._condition:
            now_s = self.now_s()
            bulk = [item for item in items if item.lane == "bulk"]
            moved = [self._scheduler.promote(item, places, client, now_s) for item in bulk]
            return [part for part in moved if part is not None]

    def tokens_ahead(self, lane: Lane, client: str, tokens: int) -> float:
        with self._condition:
            return self._scheduler.tokens_ahead(lane, client, tokens)

    def queued(self) -> tuple[int, int]:
        """The number of queued texts and tokens."""
        with self._condition:
            return self._scheduler.texts + self._reservations.texts, self._scheduler.tokens + self._reservations.tokens

    def queued_tokens(self) -> int:
        """The number of queued tokens. Without the lock: each of the two numbers is right at some moment."""
        return self._scheduler.tokens + self._reservations.tokens

    def are_queued(self, groups: Sequence[Sequence[Item]]) -> list[bool]:
        """Whether texts of any item of each group are in the queue, without retries."""
        with self._condition:
            return [any(item in self._scheduler for item in group) for group in groups]

    def queued_by_lane(self) -> dict[Lane, int]:
        """Queued tokens, without retries."""
        with self._condition:
            return self._scheduler.tokens_by_lane()

    def stop(self) -> None:
        """Empty the queue and take no further batch."""
        with self._condition:
            self._stopping = True
            self._scheduler.take_all()
            self._reservations.clear()
            self._condition.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Blocks until the threads have ended; False if one still runs after `timeout_s`."""
        deadline_s = self.now_s() + timeout_s
        threads = [*self._threads.values(), *(thread for _, thread in self._hung_threads)]
        for thread in threads:
            thread.join(max(0.0, deadline_s - self.now_s()))
        if any(thread.is_alive() for thread in threads):
            return False
        lock = self._locks[self._devices.all_streams[0]]  # a caller's thread may hold it
        if has_ended := lock.acquire(timeout=max(0.0, deadline_s - self.now_s())):
            lock.release()
        return has_ended

    def end_at_exit(self) -> None:
        """Blocks until no thread is in native code any more, except for hung ones. Called on the main thread."""
        if os.getpid() != self._pid:  # in a fork, no thread of its parent lives, and one may have held a lock
            return
        self.stop()
        hung = [thread for _, thread in self._hung_threads]
        for stream, thread in self._threads.items():
            if thread not in hung:
                thread.join()
                with self._locks[stream]:  # a caller's thread may run a text
                    pass

    def give_up_hung(self) -> None:
        """Fail the batches that have run for longer than forward_timeout_s, and replace their threads.

        Their texts are not run again one by one: that could hang as many threads.
        """
        now_s = self.now_s()
        # One after the other: of several that hang at once on a device, the first MAX_HUNG are replaced.
        while self._forward_timeout_s:
            with self._condition:
                running = self._devices.give_up(now_s - self._forward_timeout_s)
                if running is None:
                    return
                self._condition.notify_all()  # another device may be next now
                self._report_states()
            stream, batch, seconds = running.stream, running.batch, now_s - running.started_s
            logger.error("a forward of %s with %d texts hangs for %.0f s: giving up", self._name, batch.texts, seconds)
            error = InferenceTimedOut("The model did not answer within {limit} s.", limit=self._forward_timeout_s)
            self._finish(running, [(item, error) for item in batch.items], now_s)
            self._hung_threads.append((stream.device, self._threads[stream]))
            hung = sum(device is stream.device for device, _ in self._hung_threads)
            if hung <= MAX_HUNG:
                self._start_thread(stream, renew=True)
                continue
            where = stream.device.name, stream.number
            logger.error("%d forwards of %s hang on %s: stream %d is lost", hung, self._name, *where)
            self._lose([stream])

    # --- on the worker threads --------------------------------------------------------------------------------

    def _start_thread(self, stream: DeviceStream, *, renew: bool = False) -> None:
        name = f"vectord-{self._name}-{self._devices.all_streams.index(stream)}"
        thread = threading.Thread(target=self._serve, args=(stream, renew), name=name, daemon=True)
        self._threads[stream] = thread
        thread.start()

    def _serve(self, stream: DeviceStream, renew: bool) -> None:
        if renew:
            try:
                stream.device.execution.backend.renew(stream.number)
            except Exception:
                logger.exception("stream %d of %s cannot be renewed: it is lost", stream.number, self._name)
                self._lose([stream])
                return
            with self._condition:
                self._locks[stream] = threading.Lock()  # the hung forward holds the other one
                self._devices.renewed(stream)
                self._condition.notify_all()  # another device may be next now
                self._report_states()
        ended_s = self.now_s()
        while (running := self._next_batch(stream, ended_s)) is not None:
            with self._locks[stream]:
                replies = stream.device.execution.run(running.batch, stream.number)
            ended_s = self.now_s()
            with self._condition:
                if not self._devices.ended(running):
                    return
            self._answered(running, replies, ended_s)
            self._housekeeping.run(stream.device.execution.backend.free_memory)

    def _next_batch(self, stream: DeviceStream, free_s: float) -> RunningBatch | None:
        """Waits for the calling thread's next batch. None: the thread must end."""
        device = stream.device
        with self._condition:
            while not (self._stopping or self._devices.is_lost(stream)):
                now_s = self.now_s()
                reservation = self._reservations.take(device)
                batch = self._take(device, now_s) if reservation is None else unscheduled_batch(reservation.items)
                if batch is not None:
                    running = RunningBatch(batch, free_s, now_s, stream, reservation)
                    self._devices.began(running)
                    if len(self._devices.all) > 1 and self._scheduler.texts:
                        self._condition.notify_all()  # another device may be next now
                    return running
                hold_s = None  # another device is next, and notifies the others when it takes a batch
                if self._scheduler.texts and self._devices.is_next(device):
                    hold_s = self._scheduler.hold_s(now_s, device.index, busy_tokens=self._least_tokens(device))
                self._condition.wait(hold_s)
                free_s = self.now_s()
            return None

    def _take(self, device: Device, now_s: float) -> Batch | None:
        if not self._scheduler.texts or not self._devices.is_next(device):
            return None
        return self._scheduler.next_batch(
            now_s,
            device.index,
            idle_streams=self._devices.sharers(device),
            busy_streams=self._devices.busy_streams(device),
            busy_tokens=self._least_tokens(device),
        )

    def _least_tokens(self, device: Device) -> int:
        """How many tokens must be queued before a busy device that runs one batch at a time takes the next one."""
        busy_tokens = self._devices.busy_tokens(device)
        return busy_tokens and busy_tokens * self._devices.sharers(device)

    def _reserve(self, reservation: Reservation) -> None:
        self._reservations.add(reservation)
        self._condition.notify_all()

    def _answered(self, running: RunningBatch, replies: Sequence[Reply], ended_s: float) -> None:
        """Deliver the replies; texts that failed are retried on another device, if there is one."""
        failed = [(item, error) for item, error in replies if isinstance(error, InferenceFailed)]
        suspect = None if running.reservation is None else running.reservation.suspect
        is_lost = False
        if len(failed) < len(replies) and len(self._devices.all) > 1:
            with self._condition:
                self._devices.clear(running.stream.device)
                is_lost = suspect is not None and self._devices.blame(suspect)
        if suspect is not None and is_lost:
            logger.error("%s fails texts that other devices answer: %s no longer uses it", suspect.name, self._name)
            self._lose([stream for stream in self._devices.all_streams if stream.device is suspect])
        if failed and self._retried_elsewhere(running, failed):
            replies = [reply for reply in replies if not isinstance(reply[1], InferenceFailed)]
            running = replace(running, batch=unscheduled_batch([item for item, _ in replies]))
        if replies:
            self._finish(running, replies, ended_s)

    def _retried_elsewhere(self, running: RunningBatch, failed: Sequence[tuple[Item, InferenceFailed]]) -> bool:
        """Whether another device will run them. A lack of memory is no device's fault."""
        if running.reservation is not None:
            return False
        device = running.stream.device
        out_of_memory = any(isinstance(error, OutOfMemory) for _, error in failed)
        items = [item for item, _ in failed]
        with self._condition:
            others = self._devices.living - {device}
            if not others or self._stopping:
                return False
            self._reserve(Reservation(items, others, suspect=None if out_of_memory else device))
        logger.warning("%d texts failed on %s: another device retries them", sum(map(len, items)), device.name)
        return True

    def _finish(self, running: RunningBatch, replies: Sequence[Reply], ended_s: float) -> None:
        outcome = BatchOutcome(
            running.batch, replies, running.free_s, running.started_s, ended_s, running.stream.device
        )
        self._post(self._deliver, outcome)

    # --- states -----------------------------------------------------------------------------------------------

    def _lose(self, streams: Sequence[DeviceStream]) -> None:
        with self._condition:
            self._devices.lose(streams)
            self._fail_unserved()
            self._report_states()
            self._condition.notify_all()  # its batch may have kept another from starting; its threads end

    def _fail_unserved(self) -> None:
        """Fail the texts whose devices are all lost. Called under the lock."""
        living = self._devices.living
        items = self._reservations.take_unserved(living)
        if not living:
            items += self._scheduler.take_all()
        if items:
            error = InferenceTimedOut("The model hangs, and the server must be restarted.")
            now_s = self.now_s()
            replies = [(item, error) for item in items]
            outcome = BatchOutcome(unscheduled_batch(items), replies, now_s, now_s, now_s, None)
            self._post(self._deliver, outcome)

    def _report_states(self) -> None:
        """Called under the lock, so that two threads cannot report in reverse order."""
        if self._devices.states != self.states:
            self.states = self._devices.states
            self._post(self._stalled_changed, self.stalled)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: no request waits any more
            logger.debug("an outcome of %s found its event loop closed", self._name)


@cache
def _ended_at_exit() -> WeakSet[Worker]:
    """The workers that the end of the program waits for.

    A daemon thread that returns from native code while the interpreter ends aborts the process (exit code 134).
    """
    workers = WeakSet[Worker]()

    def end() -> None:
        for worker in list(workers):
            worker.end_at_exit()

    threading._register_atexit(end)  # type: ignore[attr-defined]  # atexit runs after the end of thread pools
    return workers
