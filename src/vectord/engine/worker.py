"""The device's threads: where requests and the device meet.

    event loop                      │  worker threads, one a stream
    put, cancel, tokens_ahead ──> scheduler, under one lock ──> next_batch
    deliver(outcome) <── one call_soon_threadsafe a batch ── execution.run

The lock is held for list operations only, never during a forward. A thread dies when a backend raises what is no
Exception, such as SystemExit: the batch's texts are run again one by one, the one that kills a thread again fails, and
the worker is `stalled` until a new thread has taken the dead one's place.

A thread hangs when a forward does not end within `forward_timeout_s`: `give_up_hung`, which runner.py calls every so
often, fails the batch and leaves the thread to itself. A new one renews the backend's stream and takes the place; what
the old one may answer some day is dropped. After MOST_HUNG of them, or where a stream cannot be renewed, nobody takes
the place any more; and once no thread is left, what waits fails, and all that comes later (`gone`).
"""

from __future__ import annotations

import logging
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vectord.engine.batch import Batch, Item
from vectord.engine.execution import Execution, Reply
from vectord.engine.scheduler import Scheduler
from vectord.errors import InferenceFailed, InferenceTimedOut
from vectord.schema import Lane

logger = logging.getLogger("vectord.engine")

MOST_HUNG = 3  # threads given up, whose memory nobody can take back


@dataclass(frozen=True, slots=True)
class Running:
    batch: Batch
    started_s: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one batch: `answers[i]` belongs to `batch.items[i]`."""

    batch: Batch
    answers: Sequence[Reply]
    started_s: float
    ended_s: float


class Worker:
    """Runs one model's queue on its backend. Every public method is called from the event loop."""

    def __init__(
        self,
        name: str,
        execution: Execution,
        scheduler: Scheduler,
        loop: AbstractEventLoop,
        *,
        streams: int,
        forward_timeout_s: float = 0.0,
        deliver: Callable[[Outcome], None],
        stalled_changed: Callable[[bool], None],
    ) -> None:
        """forward_timeout_s: 0: a forward may take for ever. deliver, stalled_changed: called on the loop, once a batch
        and whenever `stalled` changes."""
        self._name = name
        self._execution = execution
        self._streams = streams
        self._forward_timeout_s = forward_timeout_s
        self._scheduler = scheduler
        self._loop = loop
        self._deliver = deliver
        self._stalled_changed = stalled_changed
        self._condition = threading.Condition(threading.Lock())
        self._running: dict[threading.Thread, Running] = {}  # of the threads that are not given up
        self._hung: list[threading.Thread] = []
        self._lost_streams: set[int] = set()  # for good
        self._orphans: list[Item] = []  # texts of a batch in which a thread died: each is run again, alone
        self._stopping = False
        self._dead_streams: set[int] = set()
        self._threads: dict[int, threading.Thread] = {}

    @staticmethod
    def now_s() -> float:
        """The clock of Outcome.started_s."""
        return time.monotonic()

    @property
    def stalled(self) -> bool:
        return bool(self._dead_streams)

    @property
    def gone(self) -> bool:
        """No thread is left, and none will be."""
        return len(self._lost_streams) == self._streams

    def start(self) -> None:
        for stream in range(self._streams):
            self._start_thread(stream)

    def put(self, items: Sequence[Item]) -> None:
        with self._condition:
            now_s = self.now_s()
            for item in items:
                self._scheduler.add(item, now_s)
            self._condition.notify(len(items))
            self._fail_if_gone()

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
            tokens = self._scheduler.tokens + sum(item.tokens for item in self._orphans)
            return len(self._scheduler) + len(self._orphans), tokens

    def queued_by_lane(self) -> dict[Lane, int]:
        """Tokens that wait in the queue."""
        with self._condition:
            return self._scheduler.tokens_by_lane()

    def stop(self) -> None:
        """Empty the queue and take no further batch."""
        with self._condition:
            self._stopping = True
            self._scheduler.clear()
            self._orphans.clear()
            self._condition.notify_all()

    def give_up_hung(self) -> None:
        """Fail the batches that have been running for longer than forward_timeout_s, and replace their threads."""
        if not self._forward_timeout_s:
            return
        now_s = self.now_s()
        for stream, thread in list(self._threads.items()):
            with self._condition:
                running = self._running.get(thread)
                if running is None or now_s - running.started_s <= self._forward_timeout_s:
                    continue
                del self._running[thread]  # from here on it has nothing to say
                self._hung.append(thread)
            self._report_hung(stream, running, now_s)

    def join(self, timeout_s: float) -> bool:
        """Blocks until the threads have ended; False if one still runs after `timeout_s`."""
        deadline_s = self.now_s() + timeout_s
        # Looked up anew each time: a thread that dies puts its successor here before it ends.
        while alive := [thread for thread in (*self._threads.values(), *self._hung) if thread.is_alive()]:
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                return False
            alive[0].join(left_s)
        return True

    # --- on the worker threads --------------------------------------------------------------------------------

    def _start_thread(self, stream: int, *, renew: bool = False) -> None:
        thread = threading.Thread(
            target=self._serve, args=(stream, renew), name=f"vectord-{self._name}-{stream}", daemon=True
        )
        self._threads[stream] = thread
        thread.start()

    def _serve(self, stream: int, renew: bool) -> None:
        if renew and not self._renewed(stream):
            return
        self._set_dead(stream, False)
        while (running := self._next_batch()) is not None:
            try:
                answers = self._execution.run(running.batch, stream)
            except BaseException as cause:  # SystemExit and its like: this thread ends, its texts must not wait for it
                if not self._done():
                    return
                self._report_death(stream, running, cause)
                if self._replaced(stream):
                    return
                self._set_dead(stream, False)
            else:
                if not self._done():
                    return
                self._finish(running, answers)

    def _next_batch(self) -> Running | None:
        """The next batch for the thread that asks, which runs it from now on."""
        with self._condition:
            while not self._stopping:
                now_s = self.now_s()
                busy_tokens = sum(running.batch.tokens for running in self._running.values())
                batch = self._orphan() or self._scheduler.next_batch(
                    now_s,
                    idle_streams=self._streams - len(self._running),
                    busy_streams=len(self._running),
                    busy_tokens=busy_tokens,
                )
                if batch is not None:
                    running = Running(batch, now_s)
                    self._running[threading.current_thread()] = running
                    return running
                self._condition.wait(self._scheduler.hold_s(now_s, busy_tokens))
            return None

    def _orphan(self) -> Batch | None:
        if not self._orphans:
            return None
        item = self._orphans.pop()
        return Batch([item], item.tokens, alone=False, pressed=False)

    def _done(self) -> bool:
        """Whether what this thread ran is still its own to answer: it may have been given up meanwhile."""
        with self._condition:
            return self._running.pop(threading.current_thread(), None) is not None

    def _finish(self, running: Running, answers: Sequence[Reply]) -> None:
        self._post(self._deliver, Outcome(running.batch, answers, running.started_s, self.now_s()))

    def _report_death(self, stream: int, running: Running, cause: BaseException) -> None:
        logger.error("a worker thread of %s died; starting another", self._name, exc_info=cause)
        self._set_dead(stream, True)
        items = running.batch.items
        if len(items) > 1:  # one of them did it, and the others must not pay for that
            with self._condition:
                self._orphans.extend(items)
                self._condition.notify_all()
            return
        error = InferenceFailed("The worker died while it ran this text.")
        error.__cause__ = cause
        self._finish(running, [error])

    def _report_hung(self, stream: int, running: Running, now_s: float) -> None:
        """On the loop. Every text of the batch fails: to run them again one by one could hang as many threads."""
        seconds, items = now_s - running.started_s, running.batch.items
        logger.error("a forward of %s with %d texts hangs since %.0f s: giving it up", self._name, len(items), seconds)
        self._set_dead(stream, True)
        error = InferenceTimedOut(f"The model did not answer within {self._forward_timeout_s:g} s.")
        self._finish(running, [error] * len(items))
        if len(self._hung) > MOST_HUNG:
            logger.error("%d forwards of %s hang: stream %d is not replaced", len(self._hung), self._name, stream)
            self._lose(stream)
            return
        self._start_thread(stream, renew=True)

    def _renewed(self, stream: int) -> bool:
        try:
            self._execution.renew(stream)
        except Exception:
            logger.exception("stream %d of %s cannot be renewed: it stays away", stream, self._name)
            self._lose(stream)
            return False
        return True

    def _lose(self, stream: int) -> None:
        with self._condition:
            self._lost_streams.add(stream)
            self._fail_if_gone()
            self._condition.notify_all()  # what it ran may have kept another from beginning

    def _fail_if_gone(self) -> None:
        """Under the lock: what waits, if nobody is left to run it."""
        if not self.gone:
            return
        items = [*self._scheduler.take_all(), *self._orphans]
        self._orphans.clear()
        if items:
            error = InferenceTimedOut("The model hangs, and the server must be started again for it.")
            now_s = self.now_s()
            batch = Batch(items, sum(item.tokens for item in items), alone=False, pressed=False)
            self._post(self._deliver, Outcome(batch, [error] * len(items), now_s, now_s))

    def _disown(self, item: Item) -> bool:
        if item not in self._orphans:
            return False
        self._orphans.remove(item)
        return True

    def _replaced(self, stream: int) -> bool:
        """False if the system gives us no new thread: then the old one has to go on."""
        try:
            self._start_thread(stream)
        except RuntimeError:
            logger.exception("no new thread for %s: the old one goes on", self._name)
            self._threads[stream] = threading.current_thread()
            return False
        return True

    def _set_dead(self, stream: int, dead: bool) -> None:
        with self._condition:
            was_stalled = self.stalled
            (self._dead_streams.add if dead else self._dead_streams.discard)(stream)
            if self.stalled != was_stalled:  # told under the lock, so that two streams cannot tell it in reverse
                self._post(self._stalled_changed, self.stalled)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop is closed: nobody waits any more
            logger.debug("an outcome of %s found its event loop closed", self._name)
