"""Counters, gauges and histograms that cost next to nothing to move, and how Prometheus reads them.

The library's own instruments take a lock and a walk over the buckets at each step, some 10 us a request with all the
families we keep, and 8 ms of import at start. These are plain numbers; the library is imported when they are read.

An instrument belongs to one thread, the event loop. It is read in another (metrics.py), which may see a step half done:
off by one event, never wrong for long.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Labels = tuple[str, ...]


class Counter:
    """A number a label set. As a gauge it may be set; as a counter only added to."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        """name: without _total, which the exposition puts there."""
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self.values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def expect(self, *labels: str) -> None:
        """Shown at 0 from now on: a series that appears only with its first event hides that event from rate()."""
        self.values.setdefault(labels, 0.0)

    def family(self) -> Metric:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415

        kind = GaugeMetricFamily if self.kind == "gauge" else CounterMetricFamily
        family = kind(self.name, self.meaning, labels=self.labels)
        for labels, value in list(self.values.items()):
            family.add_metric(labels, value)
        return family


class Gauge(Counter):
    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value


class Histogram:
    """How often values fell into each bucket, a label set."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        """bounds: upper bounds of the buckets, ascending, inclusive; one above them all is implied."""
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self.bounds = tuple(bounds)
        self.children: dict[Labels, Distribution] = {}
        if not labels:
            self.expect()

    def observe(self, value: float, *labels: str) -> None:
        child = self.children.get(labels)
        if child is None:
            child = self.expect(*labels)
        child.observe(value)

    def expect(self, *labels: str) -> Distribution:
        """Of these labels; shown from now on."""
        return self.children.setdefault(labels, Distribution(self.bounds))

    def family(self) -> Metric:
        from prometheus_client.core import HistogramMetricFamily  # noqa: PLC0415
        from prometheus_client.samples import Exemplar  # noqa: PLC0415

        family = HistogramMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, child in list(self.children.items()):
            seen = {place: Exemplar(*exemplar) for place, exemplar in list(child.exemplars.items())}
            buckets = [
                (bound, count, seen[place]) if place in seen else (bound, count)
                for place, (bound, count) in enumerate(child.cumulative())
            ]
            family.add_metric(labels, buckets=buckets, sum_value=child.total)
        return family


class Distribution:
    __slots__ = ("bounds", "counts", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        # By bucket, the last value there that has a trace: label, value, Unix time. OpenMetrics shows them.
        self.exemplars: dict[int, tuple[dict[str, str], float, float]] = {}

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def observe_traced(self, value: float, trace_id: str) -> None:
        self.observe(value)
        self.exemplars[bisect_left(self.bounds, value)] = {"trace_id": trace_id}, value, time.time()

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """(upper bound as Prometheus writes it, values up to it), the last one "+Inf"."""
        seen = 0
        for bound, count in zip((*map(repr, map(float, self.bounds)), "+Inf"), list(self.counts), strict=True):
            seen += count
            yield bound, seen


def instruments_of(families: object) -> Sequence[Counter | Histogram]:
    """All instruments among the attributes of an object, in the order in which they were made."""
    return [made for made in vars(families).values() if isinstance(made, Counter | Histogram)]
