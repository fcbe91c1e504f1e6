"""The device's threads: where requests and the device meet.

    event loop                      │  worker threads, one a stream
    put, cancel, tokens_ahead ──> scheduler, under one lock ──> next_batch
    deliver(outcome) <── one call_soon_threadsafe a batch ── execution.run

The lock is held for list operations only, never during a forward. A thread dies when a backend raises what is no
Exception, such as SystemExit: the batch's texts are run again one by one, the one that kills a thread again fails, and
the worker is `stalled` until a new thread has taken the dead one's place.
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
from vectord.errors import InferenceFailed
from vectord.schema import Lane

logger = logging.getLogger("vectord.engine")


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
        deliver: Callable[[Outcome], None],
        stalled_changed: Callable[[bool], None],
    ) -> None:
        """deliver, stalled_changed: called on the loop, once a batch and whenever `stalled` changes."""
        self._name = name
        self._execution = execution
        self._streams = streams
        self._scheduler = scheduler
        self._loop = loop
        self._deliver = deliver
        self._stalled_changed = stalled_changed
        self._condition = threading.Condition(threading.Lock())
        self._busy_streams = 0
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

    def start(self) -> None:
        for stream in range(self._streams):
            self._start_thread(stream)

    def put(self, items: Sequence[Item]) -> None:
        with self._condition:
            now_s = self.now_s()
            for item in items:
                self._scheduler.add(item, now_s)
            self._condition.notify(len(items))

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

    def stop(self) -> None:
        """Empty the queue and take no further batch."""
        with self._condition:
            self._stopping = True
            self._scheduler.clear()
            self._orphans.clear()
            self._condition.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Blocks until the threads have ended; False if one still runs after `timeout_s`."""
        deadline_s = self.now_s() + timeout_s
        # Looked up anew each time: a thread that dies puts its successor here before it ends.
        while alive := [thread for thread in self._threads.values() if thread.is_alive()]:
            left_s = deadline_s - self.now_s()
            if left_s <= 0:
                return False
            alive[0].join(left_s)
        return True

    # --- on the worker threads --------------------------------------------------------------------------------

    def _start_thread(self, stream: int) -> None:
        thread = threading.Thread(
            target=self._serve, args=(stream,), name=f"vectord-{self._name}-{stream}", daemon=True
        )
        self._threads[stream] = thread
        thread.start()

    def _serve(self, stream: int) -> None:
        self._set_dead(stream, False)
        while (batch := self._next_batch()) is not None:
            started_s = self.now_s()
            try:
                answers = self._execution.run(batch, stream)
            except BaseException as cause:  # SystemExit and its like: this thread ends, its texts must not wait for it
                self._report_death(stream, batch, started_s, cause)
                if self._replaced(stream):
                    return
                self._set_dead(stream, False)
            else:
                self._finish(batch, answers, started_s)

    def _next_batch(self) -> Batch | None:
        with self._condition:
            while not self._stopping:
                if self._orphans:
                    self._busy_streams += 1
                    item = self._orphans.pop()
                    return Batch([item], item.tokens, alone=False, pressed=False)
                now_s = self.now_s()
                idle_streams = self._streams - self._busy_streams
                batch = self._scheduler.next_batch(now_s, idle_streams=idle_streams, busy_streams=self._busy_streams)
                if batch is not None:
                    self._busy_streams += 1
                    return batch
                self._condition.wait(self._scheduler.hold_s(now_s))
            return None

    def _finish(self, batch: Batch, answers: Sequence[Reply], started_s: float) -> None:
        ended_s = self.now_s()
        with self._condition:
            self._busy_streams -= 1
        self._post(self._deliver, Outcome(batch, answers, started_s, ended_s))

    def _report_death(self, stream: int, batch: Batch, started_s: float, cause: BaseException) -> None:
        logger.error("a worker thread of %s died; starting another", self._name, exc_info=cause)
        self._set_dead(stream, True)
        if len(batch.items) > 1:  # one of them did it, and the others must not pay for that
            with self._condition:
                self._busy_streams -= 1
                self._orphans.extend(batch.items)
                self._condition.notify_all()
            return
        error = InferenceFailed("The worker died while it ran this text.")
        error.__cause__ = cause
        self._finish(batch, [error], started_s)

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
