"""The server's load, for the console's charts: sums since the start, of which the page takes differences.

Built from the instruments that /metrics shows, on the event loop, when the page asks: once a second while one is open.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from mmap import PAGESIZE
from pathlib import Path
from typing import Any

from vectord.observability.instruments import Counter, Distribution, Histogram
from vectord.products.vectord.metrics import SECONDS, OwnFamilies
from vectord.schema import Gauges

_STATM = Path("/proc/self/statm")  # Linux alone has it


def live_figures(own: OwnFamilies, gauges: Gauges) -> dict[str, Any]:
    """Counts and seconds since the start; queues, memory and shares of now. Names no model and no client."""
    latency = [child for labels, child in own.request_seconds.children.items() if labels[0] != "server"]
    forwards = _only(own.batch_fill)
    return {
        "clock_s": time.monotonic(),
        "requests": sum(value for labels, value in own.requests.values.items() if labels[0] != "server"),
        "errors": sum(value for labels, value in own.requests.values.items() if _is_error(labels)),
        "refused": _sum(own.rejected),
        "tokens": _sum(own.tokens),
        "run_tokens": _sum(own.forward_tokens),
        "forwards": sum(forwards.counts),
        "forward_fill": forwards.total,
        "forward_texts": _only(own.batch_texts).total,
        "latency": {"bounds_s": SECONDS, "counts": _added(latency)},
        "queued_tokens": gauges.queued_tokens,
        "under_way": gauges.under_way,
        "places": gauges.places,
        "wait_s": gauges.wait_s,
        "busy": min(1.0, own.busy_share()),
        "saturation": own.saturation.values[()],
        "cache": {
            "hits": _sum(own.cache_hits),
            "misses": _sum(own.cache_misses),
            "bytes": gauges.cache_bytes,
            "texts": gauges.cached_texts,
        },
        "memory": {"resident_bytes": _resident_bytes(), "models_bytes": sum(gauges.memory_bytes.values())},
        "devices": {
            name: {"used_bytes": memory.total - memory.free, "total_bytes": memory.total}
            for name, memory in gauges.devices.items()
        },
    }


def _is_error(labels: tuple[str, ...]) -> bool:
    dialect, _, status = labels
    return dialect != "server" and status >= "400"


def _sum(counter: Counter) -> float:
    return sum(counter.values.values())


def _only(histogram: Histogram) -> Distribution:
    """Of a histogram without labels."""
    return histogram.children[()]


def _added(children: Iterable[Distribution]) -> list[int]:
    """How many values fell into each bucket, all children together."""
    counts = [0] * (len(SECONDS) + 1)
    for child in children:
        counts = [count + more for count, more in zip(counts, child.counts, strict=True)]
    return counts


def _resident_bytes() -> int | None:
    """Of this process; None where the system does not say."""
    try:
        return int(_STATM.read_text("ascii").split()[1]) * PAGESIZE
    except OSError:
        return None
