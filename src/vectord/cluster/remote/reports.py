"""The engines of several processes, counted as one: this process's own, and those that tell it (reporter.py).

What counts up goes to the metrics as it comes. What goes up and down is kept by engine and told as a sum; when a
process ends, its share is gone. On the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from vectord.cluster.remote.messages import (
    Active,
    Disbelieved,
    EngineNote,
    Looked,
    LookedUp,
    Queued,
    Ran,
    Reported,
)
from vectord.cluster.remote.together import gauges_together, models_together
from vectord.engine.observer import Observer, Passing, Silent
from vectord.schema import Gauges, ModelInfo


@dataclass(slots=True)
class _Other:
    """What one other engine has under way, and was last like."""

    active: Counter[str] = field(default_factory=Counter)
    queued: tuple[int, int] = (0, 0)
    looked: Looked | None = None


class Reports(Passing):
    """This process's own engine tells it as its Observer."""

    def __init__(self) -> None:
        super().__init__(Silent())
        self._own_queue = (0, 0)
        self._others: dict[object, _Other] = {}

    def over(self, then: Observer) -> Self:
        """then: the metrics."""
        self._then = then
        return self

    def gauges(self, own: Gauges) -> Gauges:
        return gauges_together([own, *(one.looked.gauges for one in self._others.values() if one.looked is not None)])

    def models(self, own: Sequence[ModelInfo]) -> list[ModelInfo]:
        return models_together([own, *(one.looked.models for one in self._others.values() if one.looked is not None)])

    def queue_changed(self, texts: int, tokens: int) -> None:
        self._own_queue = texts, tokens
        self._tell_queue()

    def heard(self, source: object, note: EngineNote) -> None:
        """source: the same for all notes of one process."""
        other = self._others.setdefault(source, _Other())
        match note:
            case Active():
                self._tell_active(other.active, Counter(note.requests))
                other.active = Counter(note.requests)
            case Reported():
                self._then.request_answered(note.report)
            case Ran():
                self._then.batch_ran(note.report)
            case Queued():
                other.queued = note.texts, note.tokens
                self._tell_queue()
            case LookedUp(shared=False):
                self._then.cache_looked_up(note.model, note.hits, note.misses)
            case LookedUp():
                self._then.shared_cache_looked_up(note.model, note.hits, note.misses)
            case Disbelieved():
                self._then.shared_cache_refused(note.model, note.values)
            case Looked():
                other.looked = note

    def gone(self, source: object) -> None:
        """It is nobody's any more. Does nothing for who never told anything."""
        other = self._others.pop(source, None)
        if other is None:
            return
        self._tell_active(other.active, Counter())
        self._tell_queue()

    def _tell_active(self, before: Counter[str], now: Counter[str]) -> None:
        for operation in (now - before).elements():
            self._then.request_began(operation)
        for operation in (before - now).elements():
            self._then.request_ended(operation)

    def _tell_queue(self) -> None:
        queues = [self._own_queue, *(one.queued for one in self._others.values())]
        self._then.queue_changed(sum(texts for texts, _ in queues), sum(tokens for _, tokens in queues))
