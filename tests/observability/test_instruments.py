"""Histograms and the busy share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open_metrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open_metrics
from prometheus_client.parser import text_string_to_metric_families as read_text
from prometheus_client.samples import Exemplar
from tests.clock import Clock

from vectord.observability.instruments import BusyShare, Counter, Gauge, Histogram


@given(
    bounds=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=10, unique=True).map(sorted),
    values=st.lists(st.floats(-2e6, 2e6), max_size=50),
)
def test_a_bucket_counts_the_values_up_to_its_bound(bounds: list[float], values: list[float]) -> None:
    """Buckets are cumulative and inclusive; +Inf comes last; the sum is kept."""
    histogram = Histogram("h", "", bounds)
    for value in [*values, *bounds]:
        histogram.observe(value)
    (family,) = read_text(histogram.text(in_open_metrics=False))
    shown = {sample.labels.get("le", sample.name): sample.value for sample in family.samples}
    for bound in bounds:
        assert shown[repr(float(bound))] == sum(value <= bound for value in [*values, *bounds])
    assert shown["+Inf"] == shown["h_count"] == len(values) + len(bounds)
    assert shown["h_sum"] == pytest.approx(sum(values) + sum(bounds), abs=1e-3)


Words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=8)
Values = st.floats(min_value=0) | st.integers(0, 2**53)


@pytest.mark.parametrize("kind", [Counter, Gauge])
@given(written=st.dictionaries(st.tuples(Words, Words), Values, max_size=5))
def test_any_label_and_value_is_read_as_it_was_set(kind: type[Counter], written: dict[tuple[str, str], float]) -> None:
    """By the library's readers of both formats."""
    instrument = kind("n", "Meaning", ("b", "a"))
    for labels, value in written.items():
        instrument.add(value, *labels)
    for read, in_open_metrics in ((read_text, False), (read_open_metrics, True)):
        text = instrument.text(in_open_metrics) + "# EOF\n" * in_open_metrics
        (family,) = read(text)
        assert (family.name, family.type, family.documentation) == ("n", instrument.kind, "Meaning")
        assert {(one.labels["b"], one.labels["a"]): one.value for one in family.samples} == written


class Collected:
    """What the library's writers take."""

    def __init__(self, *families: Metric) -> None:
        self.collect = lambda: families


def test_lines_are_those_of_the_official_library() -> None:
    """Byte for byte, in both formats: labels in order, odd characters, buckets, sums, exemplars."""
    odd = 'odd"na\\me\n100 %s'
    counter, gauge = Counter("n", "Counted", ("route", "key")), Gauge("g", "Measured")
    seconds = Histogram("s", "Seconds", (0.5, 1), ("model", "a"))
    their_counter = CounterMetricFamily("n", "Counted", labels=("route", "key"))
    their_seconds = HistogramMetricFamily("s", "Seconds", labels=("model", "a"))
    counter.add(2, "/r", odd)
    their_counter.add_metric(("/r", odd), 2)
    gauge.set(math.inf)
    their_gauge = GaugeMetricFamily("g", "Measured", value=math.inf)
    child = seconds.expect(odd, "x")
    for value, trace in ((0.25, None), (0.75, "ab" * 16), (7.5, None)):
        child.observe(value, trace)
    (exemplar,) = child.exemplars.values()
    at_s = float(exemplar.split()[-1])
    buckets = [("0.5", 1), ("1.0", 2, Exemplar({"trace_id": "ab" * 16}, 0.75, at_s)), ("+Inf", 3)]
    their_seconds.add_metric((odd, "x"), buckets, 8.5)
    theirs = Collected(their_counter, their_gauge, their_seconds)
    ours = (counter, gauge, seconds)
    assert "".join(one.text(in_open_metrics=False) for one in ours) == generate_latest(theirs).decode()
    assert "".join(one.text(in_open_metrics=True) for one in ours) + "# EOF\n" == generate_open_metrics(theirs).decode()


def busy_for(seconds: float, every_s: float, for_s: float) -> tuple[BusyShare, Clock]:
    """A device that ends a forward of `seconds` every `every_s`."""
    clock = Clock()
    busy = BusyShare(clock)
    for _ in range(round(for_s / every_s)):
        clock.now_s += every_s
        busy.add(seconds)
    return busy, clock


@pytest.mark.parametrize("forward_s", [0.001, 1.0])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_the_share_does_not_depend_on_the_length_of_a_forward(forward_s: float, share: float) -> None:
    """After half a minute of constant load."""
    busy, _ = busy_for(forward_s, forward_s / share, 5 * BusyShare.MEMORY_S)
    assert busy.share() == pytest.approx(share, abs=0.06)


def test_the_share_of_an_idle_device_decays() -> None:
    """To half after seven seconds, to nothing after a minute; a device that never ran has none."""
    busy, clock = busy_for(0.02, 0.02, 60)
    clock.now_s += 7
    assert busy.share() == pytest.approx(0.5, abs=0.01)
    clock.now_s += 60
    assert busy.share() < 0.01
    assert BusyShare(Clock()).share() == 0
