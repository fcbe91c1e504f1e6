"""Counters, gauges and histograms that are cheap to change and to write, and the base class of a group of them.

Those of prometheus_client take a lock and search the buckets at each step. These are plain numbers, and what stays the
same in the lines of a series is made once, so that a page takes a twentieth of the time. They belong to the event loop.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any

import msgspec

from vectord.errors import VectordError
from vectord.schema import Gauges, ModelInfo

Labels = tuple[str, ...]

BOUND = "\0"  # in a template, for the label `le`
MAX_LABEL_TEXTS = 2**15  # cached, about 250 bytes each; a page with more series is slower


class Counter:
    """One number per label set."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, bare_name: bool = False) -> None:
        """name: without `_total`, which Prometheus's formats append; bare_name: keep it off (metrics.py)."""
        self.name = name
        self.meaning = meaning
        self.labels = tuple(labels)
        self.bare_name = bare_name
        self.values: dict[Labels, float] = defaultdict(float, {} if labels else {(): 0.0})

    def add(self, amount: float, *labels: str) -> None:
        self.values[labels] += amount

    def expect(self, *labels: str) -> None:
        """Show the series at 0 from now on. A series that appears with its first event hides that event from rate()."""
        self.values.setdefault(labels, 0.0)

    def total(self) -> float:
        return sum(self.values.values())

    def text(self, in_open_metrics: bool) -> str:
        """The lines of all series. A counter with a bare name is of unknown type in OpenMetrics, which allows no other
        counter without `_total`."""
        sample = self.name if self.bare_name or self.kind == "gauge" else f"{self.name}_total"
        kind = "unknown" if self.bare_name and in_open_metrics else self.kind
        head = _head(self.name if in_open_metrics else sample, self.meaning, kind)
        names = self.labels
        lines = [
            f"{sample}{_cached_label_text(names, labels)} {number(value)}\n" for labels, value in self.values.items()
        ]
        return head + "".join(lines)


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

    def text(self, in_open_metrics: bool) -> str:
        blocks = [_head(self.name, self.meaning, "histogram")]
        for labels, child in self.children.items():
            child.template = child.template or self._template(labels)
            counts = list(accumulate(child.counts))
            block = child.template % (*counts, counts[-1], number(child.total))
            if in_open_metrics and child.exemplars:
                lines = block.split("\n")
                for place, exemplar in child.exemplars.items():
                    lines[place] += exemplar
                block = "\n".join(lines)
            blocks.append(block)
        return "".join(blocks)

    def _template(self, labels: Labels) -> str:
        """The lines of one series with a place for each value: the counts up to each bound, all, and the sum."""
        own = _label_text(self.labels, labels).replace("%", "%%")
        with_bound = _label_text((*self.labels, "le"), (*labels, BOUND)).replace("%", "%%")
        bucket = f"{self.name}_bucket{with_bound} %d.0\n"
        buckets = [bucket.replace(BOUND, bound) for bound in (*map(repr, map(float, self.bounds)), "+Inf")]
        return "".join(buckets) + f"{self.name}_count{own} %d.0\n{self.name}_sum{own} %s\n"


class Distribution:
    __slots__ = ("bounds", "counts", "exemplars", "template", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, str] = {}  # per bucket, the latest value that has a trace, as OpenMetrics shows it
        self.template: str | None = None  # made when it is first written

    def observe(self, value: float, trace_id: str | None = None) -> None:
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += 1
        self.total += value
        if trace_id is not None:
            self.exemplars[bucket] = f' # {{trace_id="{trace_id}"}} {number(value)} {time.time()}'


def _head(name: str, meaning: str, kind: str) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def _label_text(names: Labels, values: Labels) -> str:
    """`{name="value",...}` in the order of the names; "" without labels."""
    pairs = [f'{name}="{value.translate(_ESCAPES)}"' for name, value in sorted(zip(names, values, strict=True))]
    return f"{{{','.join(pairs)}}}" if pairs else ""


_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_cached_label_text = lru_cache(MAX_LABEL_TEXTS)(_label_text)


def number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"


class Snapshot(msgspec.Struct, frozen=True):
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

    def figures(self, models: Sequence[ModelInfo]) -> Mapping[str, Any]:
        """The body of `Dialect.figures_path`."""
        return {}

    def instruments(self) -> Sequence[Counter | Histogram]:
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
        now_s = self._now_s()
        left = self._share * math.exp((self._updated_s - now_s) / self.MEMORY_S)
        self._share = left - math.expm1(-seconds / self.MEMORY_S)
        self._updated_s = now_s

    def share(self) -> float:
        """0 to 1, or slightly more when long forwards end."""
        return self._share * math.exp((self._updated_s - self._now_s()) / self.MEMORY_S)


def error_names(kind: type[VectordError]) -> frozenset[str]:
    """The names of an error class and its subclasses, as RequestEnded.error has them."""
    return frozenset({kind.__name__}).union(*map(error_names, kind.__subclasses__()))
