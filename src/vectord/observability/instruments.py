"""Counters, gauges and histograms that are cheap to change, and the base class of a group of them.

The instruments of prometheus_client take a lock and search the buckets at each step: about 10 us a request with all
families, and 8 ms of import at start. These are plain numbers; the library is imported when Prometheus reads them.

An instrument belongs to the event loop. Another thread reads it (metrics.py) and may see a value in the middle of a
change: off by one event at most.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vectord.errors import VectordError
from vectord.schema import Gauges, ModelInfo

if TYPE_CHECKING:
    from prometheus_client.core import Metric

Labels = tuple[str, ...]


class Counter:
    """One number per label set."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, bare_name: bool = False) -> None:
        """name: without `_total`, which Prometheus's formats append; bare_name: keep it off (metrics.py)."""
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self.bare_name = bare_name
        self.values: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, amount: float, *labels: str) -> None:
        self.values[labels] = self.values.get(labels, 0.0) + amount

    def expect(self, *labels: str) -> None:
        """Show the series at 0 from now on. A series that appears with its first event hides that event from rate()."""
        self.values.setdefault(labels, 0.0)

    def total(self) -> float:
        return sum(self.values.values())

    def family(self) -> Metric:
        """With a bare name of unknown type: OpenMetrics allows no other counter without `_total`."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric  # noqa: PLC0415

        values = list(self.values.items())
        if self.bare_name:
            bare = Metric(self.name, self.meaning, "unknown")
            for labels, value in values:
                bare.add_sample(self.name, dict(zip(self.labels, labels, strict=True)), value)
            return bare
        kind = GaugeMetricFamily if self.kind == "gauge" else CounterMetricFamily
        family = kind(self.name, self.meaning, labels=self.labels)
        for labels, value in values:
            family.add_metric(labels, value)
        return family

    def text(self) -> str:
        """The text format of a counter with a bare name. Label values are our own words and need no escaping."""
        lines = [f"# HELP {self.name} {self.meaning}", f"# TYPE {self.name} counter"]
        for values, value in list(self.values.items()):
            labels = ",".join(f'{label}="{text}"' for label, text in zip(self.labels, values, strict=True))
            lines.append(f"{self.name}{f'{{{labels}}}' if labels else ''} {value}")
        return "".join(f"{line}\n" for line in lines)


class Gauge(Counter):
    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        self.values[labels] = value


class Histogram:
    """One distribution per label set."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], labels: Sequence[str] = ()) -> None:
        """bounds: upper bounds of the buckets, ascending, inclusive; +Inf is implied."""
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self.bounds = tuple(bounds)
        self.children: dict[Labels, Distribution] = {}
        if not labels:
            self.expect()

    def observe(self, value: float, *labels: str) -> None:
        (self.children.get(labels) or self.expect(*labels)).observe(value)

    def expect(self, *labels: str) -> Distribution:
        """The distribution of these labels, shown from now on."""
        child = self.children.get(labels)
        return self.children.setdefault(labels, Distribution(self.bounds)) if child is None else child

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
        # Per bucket, the latest value that has a trace: label, value, Unix time. OpenMetrics shows them.
        self.exemplars: dict[int, tuple[dict[str, str], float, float]] = {}

    def observe(self, value: float, trace_id: str | None = None) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id is not None:
            self.exemplars[bucket] = {"trace_id": trace_id}, value, time.time()

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """(upper bound as Prometheus writes it, number of values up to it); the last bound is "+Inf"."""
        seen = 0
        for bound, count in zip((*map(repr, map(float, self.bounds)), "+Inf"), list(self.counts), strict=True):
            seen += count
            yield bound, seen


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's state at a scrape."""

    gauges: Gauges
    models: Sequence[ModelInfo]
    busy_share: float  # 0 to 1, or slightly more


class MetricFamilies:
    """The metrics of one product. Override what applies; each instrument is an attribute."""

    def expect_model(self, model: ModelInfo) -> None:
        """Show the model's series at zero from now on."""

    def handlers(self) -> Mapping[type, Callable[[Any], None]]:
        """Class of an event (engine/events.py, exchange.py) -> the method that counts it."""
        return {}

    def look(self, snapshot: Snapshot) -> None:
        """Set the gauges before a scrape."""

    def instruments(self) -> Sequence[Counter | Histogram]:
        """In the order in which they are shown: that of their definition."""
        return [value for value in vars(self).values() if isinstance(value, Counter | Histogram)]


class BusyShare:
    """The share of time in which forwards ran, as a decaying mean over the recent past."""

    MEMORY_S = 10.0  # a second's weight halves after seven: fast enough to scale by, slow enough not to oscillate

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._share = 0.0
        self._updated_s = now_s()

    def add(self, seconds: float) -> None:
        """A forward has just ended. seconds: its duration divided by the number of streams."""
        self._share = self.share() - math.expm1(-seconds / self.MEMORY_S)
        self._updated_s = self._now_s()

    def share(self) -> float:
        """0 to 1, or slightly more when long forwards end."""
        return self._share * math.exp((self._updated_s - self._now_s()) / self.MEMORY_S)


def error_names(kind: type[VectordError]) -> frozenset[str]:
    """The names of an error class and its subclasses, as RequestEnded.error has them."""
    return frozenset({kind.__name__}).union(*map(error_names, kind.__subclasses__()))
