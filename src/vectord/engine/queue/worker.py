"""The devices' threads: where requests and devices meet.

    event loop                      │  worker threads, one a stream of a device
    put, cancel, tokens_ahead ──> scheduler, under one lock ──> next_batch
    deliver(outcome) <── one call_soon_threadsafe a batch ── execution.run

Several devices empty one queue: whichever has a stream to spare and runs the least takes the next batch (devices.py).

The lock is held for list operations only, never during a forward. A thread dies when a backend raises what is no
Exception, such as SystemExit: the batch's texts are run again one by one, the one that kills a thread again fails, and
the worker is `stalled` until a new thread has taken the dead one's place.

A thread hangs when a forward does not end within `forward_timeout_s`: `give_up_hung`, which runner.py calls every so
often, fails the batch and leaves the thread to itself. A new one renews the backend's stream and takes the place; what
the old one may answer some day is dropped. After MOST_HUNG of them on one device, or where a stream cannot be renewed,
nobody takes the place any more; and once no thread is left, what waits fails, and all that comes later (`gone`).

What fails on one device is tried once on another, before anybody hears of it.
"""

from __future__ import annotations

import logging
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vectord.engine.queue.batch import Batch, Item
from vectord.engine.queue.devices import Device, Devices, Place
from vectord.engine.queue.execution import Reply
from vectord.engine.queue.scheduler import Scheduler
from vectord.errors import InferenceFailed, InferenceTimedOut, OutOfMemory
from vectord.schema import DeviceState, Lane

logger = logging.getLogger("vectord.engine")

MOST_HUNG = 3  # threads given up on a device, whose memory nobody can take back


@dataclass(slots=True, eq=False)
class Reserved:
    """Texts that go before all others, together, to one of these devices."""

    items: list[Item]
    devices: frozenset[Device]
    tried: bool = False  # no other device tries them again
    suspect: Device | None = None  # they failed there, which is its fault if they have answers here

    @property
    def tokens(self) -> int:
        return sum(item.tokens for item in self.items)

    def batch(self) -> Batch:
        return Batch(self.items, self.tokens, alone=False, pressed=False)


@dataclass(frozen=True, slots=True)
class Running:
    batch: Batch
    free_s: float  # since when the stream could have run it: the end of the batch before, or started_s if it waited
    started_s: float
    place: Place
    reserved: Reserved | None  # what it was before


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one batch: `answers[i]` belongs to `batch.items[i]`."""

    batch: Batch
    answers: Sequence[Reply]
    free_s: float
    started_s: float
    ended_s: float
    device: Device | None  # None: no device ran it


class Worker:
    """Runs one model's queue on its devices. Every public method is called from the event loop."""

    def __init__(
        self,
        name: str,
        devices: Sequence[Device],
        scheduler: Scheduler,
        loop: AbstractEventLoop,
        *,
        forward_timeout_s: float = 0.0,
        deliver: Callable[[Outcome], None],
        stalled_changed: Callable[[bool], None],
    ) -> None:
        """devices: in the scheduler's order. forward_timeout_s: 0: a forward may take for ever. deliver,
        stalled_changed: called on the loop, once a batch and whenever `states` changes."""
        self._name = name
        self._devices = Devices(devices)
        self._told = self._devices.states  # what `states` says; a new one at each change
        self._forward_timeout_s = forward_timeout_s
        self._scheduler = scheduler
        self._loop = loop
        self._deliver = deliver
        self._stalled_changed = stalled_changed
        self._condition = threading.Condition(threading.Lock())
        self._running: dict[threading.Thread, Running] = {}  # of the threads that are not given up
        self._hung: list[tuple[Device, threading.Thread]] = []
        self._reserved: list[Reserved] = []
        self._stopping = False
        self._threads: dict[Place, threading.Thread] = {}

    @staticmethod
    def now_s() -> float:
        """The clock of Outcome.started_s."""
        return time.monotonic()

    @property
    def stalled(self) -> bool:
        """Every device has a stream that is away: while one is whole, the model answers."""
        return "ready" not in self._told.values()

    @property
    def gone(self) -> bool:
        """No thread is left, and none will be."""
        return not self._devices.living

    @property
    def states(self) -> dict[str, DeviceState]:
        """Of each device, by its name."""
        return self._told

    @property
    def living_streams(self) -> int:
        return self._devices.living_streams

    def start(self) -> None:
        for place in self._devices.places:
            self._start_thread(place)

    def put(self, items: Sequence[Item]) -> None:
        with self._condition:
            now_s = self.now_s()
            for item in items:
                self._scheduler.add(item, now_s)
            if len(self._devices.all) == 1:
                self._condition.notify(len(items))
            else:
                self._condition.notify_all()  # whose turn it is, they find out themselves
            self._fail_unserved()

    def put_on(self, device: int, items: Sequence[Item]) -> None:
        """Have that device run these, as one batch; no other tries what fails there."""
        with self._condition:
            self._reserve(Reserved(list(items), frozenset({self._devices.all[device]}), tried=True))
            self._fail_unserved()

    def cancel(self, items: Sequence[Item]) -> list[Item]:
        """Take out of the queue what still waits there; returns those."""
        with self._condition:
            return [item for item in items if self._scheduler.cancel(item) or self._disown(item)]

    def promote(self, item: Item, client: str) -> None:
        with self._condition:
            self._scheduler.promote(item, client, self.now_s())

    def tokens_ahead(self, lane: Lane, client: str, tokens: int) -> float:
        with self._condition:
            return self._scheduler.tokens_ahead(lane, client, tokens)

    def queued(self) -> tuple[int, int]:
        """Texts and tokens that wait."""
        with self._condition:
            texts = len(self._scheduler) + sum(len(reserved.items) for reserved in self._reserved)
            return texts, self._scheduler.tokens + sum(reserved.tokens for reserved in self._reserved)

    def queued_by_lane(self) -> dict[Lane, int]:
        """Tokens that wait in the queue."""
        with self._condition:
            return self._scheduler.tokens_by_lane()

    def stop(self) -> None:
        """Empty the queue and take no further batch."""
        with self._condition:
            self._stopping = True
            self._scheduler.clear()
            self._reserved.clear()
            self._condition.notify_all()

    def give_up_hung(self) -> None:
        """Fail the batches that have been running for longer than forward_timeout_s, and replace their threads."""
        if not self._forward_timeout_s:
            return
        now_s = self.now_s()
        for thread in list(self._threads.values()):
            with self._condition:
                running = self._running.get(thread)
                if running is None or now_s - running.started_s <= self._forward_timeout_s:
                    continue
                del self._running[thread]  # from here on it has nothing to say
                self._devices.ended(running.place)
                self._hung.append((running.place.device, thread))
            self._report_hung(running, now_s)

    def join(self, timeout_s: float) -> bool:
        """Blocks until the threads have ended; False if one still runs after `timeout_s`."""
        deadline_s = self.now_s() + timeout_s
        # Looked up anew each time: a thread that dies puts its successor here before it ends.
        while alive := [thread for thread in self._all_threads() if thread.is_alive()]:
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                return False
            alive[0].join(left_s)
        return True

    def _all_threads(self) -> list[threading.Thread]:
        return [*self._threads.values(), *(thread for _, thread in self._hung)]

    # --- on the worker threads --------------------------------------------------------------------------------

    def _start_thread(self, place: Place, *, renew: bool = False) -> None:
        name = f"vectord-{self._name}-{self._devices.places.index(place)}"
        thread = threading.Thread(target=self._serve, args=(place, renew), name=name, daemon=True)
        self._threads[place] = thread
        thread.start()

    def _serve(self, place: Place, renew: bool) -> None:
        if renew and not self._renewed(place):
            return
        self._set_away(place, False)
        ended_s = self.now_s()
        while (running := self._next_batch(place, ended_s)) is not None:
            try:
                answers = place.device.execution.run(running.batch, place.stream)
            except BaseException as cause:  # SystemExit and its like: this thread ends, its texts must not wait for it
                if not self._done():
                    return
                self._report_death(running, cause)
                if self._replaced(place):
                    return
                self._set_away(place, False)
                ended_s = self.now_s()
            else:
                ended_s = self.now_s()
                if not self._done():
                    return
                self._answered(running, answers, ended_s)

    def _next_batch(self, place: Place, free_s: float) -> Running | None:
        """The next batch for the thread that asks, which runs it from now on. None: it is to end."""
        with self._condition:
            while not (self._stopping or self._devices.is_lost(place)):
                now_s = self.now_s()
                reserved = self._take_reserved(place.device)
                batch = reserved.batch() if reserved is not None else self._take(place.device, now_s)
                if batch is not None:
                    running = Running(batch, free_s, now_s, place, reserved)
                    self._running[threading.current_thread()] = running
                    self._devices.began(place, batch.tokens)
                    if len(self._devices.all) > 1 and len(self._scheduler):
                        self._condition.notify_all()  # it is another's turn now
                    return running
                self._condition.wait(self._hold_s(place.device, now_s))
                free_s = self.now_s()
            return None

    def _take(self, device: Device, now_s: float) -> Batch | None:
        if not self._devices.is_next(device):
            return None
        return self._scheduler.next_batch(
            now_s,
            device.index,
            idle_streams=self._devices.sharers(device),
            busy_streams=self._devices.busy_streams(device),
            busy_tokens=self._least_tokens(device),
        )

    def _hold_s(self, device: Device, now_s: float) -> float | None:
        if not self._devices.is_next(device):
            return None  # who is before it takes something, and says so
        return self._scheduler.hold_s(now_s, device.index, busy_tokens=self._least_tokens(device))

    def _least_tokens(self, device: Device) -> int:
        """What a device that runs one batch at a time waits for: as much as it runs, in each one's share."""
        return self._devices.busy_tokens(device) * self._devices.sharers(device)

    def _take_reserved(self, device: Device) -> Reserved | None:
        for reserved in self._reserved:
            if device in reserved.devices:
                self._reserved.remove(reserved)
                return reserved
        return None

    def _reserve(self, reserved: Reserved) -> None:
        self._reserved.append(reserved)
        self._condition.notify_all()

    def _done(self) -> bool:
        """Whether what this thread ran is still its own to answer: it may have been given up meanwhile."""
        with self._condition:
            running = self._running.pop(threading.current_thread(), None)
            if running is not None:
                self._devices.ended(running.place)
            return running is not None

    def _answered(self, running: Running, answers: Sequence[Reply], ended_s: float) -> None:
        """Deliver what has an answer; what has none is another device's first, where there is one."""
        failed = [
            item
            for item, answer in zip(running.batch.items, answers, strict=True)
            if isinstance(answer, InferenceFailed)
        ]
        self._judge(running, answered=len(failed) < len(answers))
        if failed and self._tried_elsewhere(running, failed, answers):
            running, answers = _without(running, failed, answers)
        if answers:
            self._finish(running, answers, ended_s)

    def _judge(self, running: Running, *, answered: bool) -> None:
        """Whose fault it was that texts failed before, if they have answers here."""
        if not answered or len(self._devices.all) == 1:
            return
        suspect = running.reserved.suspect if running.reserved is not None else None
        with self._condition:
            self._devices.clear(running.place.device)
            given_up = suspect is not None and self._devices.blame(suspect)
            if given_up:
                self._fail_unserved()
                self._condition.notify_all()  # its threads end
                self._tell()
        if suspect is not None and given_up:
            logger.error("%s fails what other devices answer: %s runs there no more", suspect.name, self._name)

    def _tried_elsewhere(self, running: Running, failed: list[Item], answers: Sequence[Reply]) -> bool:
        """Whether another device will run them. For lack of room nobody is blamed."""
        if running.reserved is not None and running.reserved.tried:
            return False
        device = running.place.device
        lacked_room = any(isinstance(answer, OutOfMemory) for answer in answers)
        with self._condition:
            others = self._devices.living - {device}
            if not others or self._stopping:
                return False
            self._reserve(Reserved(failed, others, tried=True, suspect=None if lacked_room else device))
        logger.warning("%d texts failed on %s: another device tries them", len(failed), device.name)
        return True

    def _finish(self, running: Running, answers: Sequence[Reply], ended_s: float) -> None:
        outcome = Outcome(running.batch, answers, running.free_s, running.started_s, ended_s, running.place.device)
        self._post(self._deliver, outcome)

    def _report_death(self, running: Running, cause: BaseException) -> None:
        logger.error("a worker thread of %s died; starting another", self._name, exc_info=cause)
        self._set_away(running.place, True)
        items = running.batch.items
        if len(items) > 1:  # one of them did it, and the others must not pay for that: each is run again, alone
            with self._condition:
                together = running.reserved or Reserved([], self._devices.living)
                for item in items:
                    self._reserve(replace(together, items=[item]))
                self._fail_unserved()
            return
        error = InferenceFailed("The worker died while it ran this text.")
        error.__cause__ = cause
        self._finish(running, [error], self.now_s())

    def _report_hung(self, running: Running, now_s: float) -> None:
        """On the loop. Every text of the batch fails: to run them again one by one could hang as many threads."""
        place, items = running.place, running.batch.items
        seconds = now_s - running.started_s
        logger.error("a forward of %s with %d texts hangs since %.0f s: giving it up", self._name, len(items), seconds)
        self._set_away(place, True)
        error = InferenceTimedOut(f"The model did not answer within {self._forward_timeout_s:g} s.")
        self._finish(running, [error] * len(items), now_s)
        hung = sum(device is place.device for device, _ in self._hung)
        if hung > MOST_HUNG:
            name = place.device.name
            logger.error(
                "%d forwards of %s hang on %s: stream %d is not replaced", hung, self._name, name, place.stream
            )
            self._lose(place)
            return
        self._start_thread(place, renew=True)

    def _renewed(self, place: Place) -> bool:
        try:
            place.device.execution.renew(place.stream)
        except Exception:
            logger.exception("stream %d of %s cannot be renewed: it stays away", place.stream, self._name)
            self._lose(place)
            return False
        return True

    def _lose(self, place: Place) -> None:
        with self._condition:
            self._devices.lose(place)
            self._fail_unserved()
            self._tell()
            self._condition.notify_all()  # what it ran may have kept another from beginning

    def _fail_unserved(self) -> None:
        """Under the lock: what waits for devices of which none will run anything more."""
        living = self._devices.living
        unserved = [reserved for reserved in self._reserved if not reserved.devices & living]
        self._reserved = [reserved for reserved in self._reserved if reserved.devices & living]
        items = [item for reserved in unserved for item in reserved.items]
        if not living:
            items += self._scheduler.take_all()
        if items:
            error = InferenceTimedOut("The model hangs, and the server must be started again for it.")
            now_s = self.now_s()
            batch = Batch(items, sum(item.tokens for item in items), alone=False, pressed=False)
            self._post(self._deliver, Outcome(batch, [error] * len(items), now_s, now_s, now_s, None))

    def _disown(self, item: Item) -> bool:
        for reserved in self._reserved:
            if item in reserved.items:
                reserved.items.remove(item)
                if not reserved.items:
                    self._reserved.remove(reserved)
                return True
        return False

    def _replaced(self, place: Place) -> bool:
        """False if the system gives us no new thread: then the old one has to go on."""
        try:
            self._start_thread(place)
        except RuntimeError:
            logger.exception("no new thread for %s: the old one goes on", self._name)
            self._threads[place] = threading.current_thread()
            return False
        return True

    def _set_away(self, place: Place, away: bool) -> None:
        with self._condition:
            if self._devices.is_lost(place):
                return
            (self._devices.leave if away else self._devices.come_back)(place)
            self._condition.notify_all()  # whose turn it is may have changed
            self._tell()

    def _tell(self) -> None:
        """Under the lock, so that two threads cannot tell it in reverse."""
        if self._devices.states != self._told:
            self._told = self._devices.states
            self._post(self._stalled_changed, self.stalled)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody waits any more
            logger.debug("an outcome of %s found its event loop closed", self._name)


def _without(running: Running, failed: Sequence[Item], answers: Sequence[Reply]) -> tuple[Running, list[Reply]]:
    """Those that have answers, and these. Its time tells nothing of its speed."""
    gone = set(failed)
    pairs = [(item, answer) for item, answer in zip(running.batch.items, answers, strict=True) if item not in gone]
    items = [item for item, _ in pairs]
    batch = Batch(items, sum(item.tokens for item in items), alone=False, pressed=False)
    return replace(running, batch=batch), [answer for _, answer in pairs]
