"""What an engine is like at this moment, for whoever looks every few seconds: telemetry/metrics.py, at each scrape.

What happens in between the engine tells its observer. Read on the event loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vectord.compute.backends.base import OwnMemory
from vectord.engine.cache.memory import AnswerCache
from vectord.engine.models.registry import ServedModel
from vectord.engine.queue.admission import Admission
from vectord.schema import Gauges, Lane


def gauges_of(models: Sequence[ServedModel], cache: AnswerCache, admission: Admission, max_wait_s: float) -> Gauges:
    runners = [served.runner for served in models if served.runner is not None]
    queued: Counter[Lane] = Counter({"interactive": 0, "bulk": 0})
    for runner in runners:
        queued.update(runner.queued_by_lane())
    measured = {
        backend.facts.device: backend.device_memory()
        for runner in runners
        for backend in runner.backends
        if isinstance(backend, OwnMemory)
    }
    return Gauges(
        queued_tokens=queued,
        wait_s=max((runner.wait_s() for runner in runners), default=0.0),
        max_wait_s=max_wait_s,
        under_way=admission.under_way,
        places=admission.max_concurrent_requests,
        cached_texts=len(cache),
        cache_bytes=cache.bytes,
        memory_bytes={served.name: served.source.memory_bytes if served.runner else 0 for served in models},
        devices={device: memory for device, memory in measured.items() if memory is not None},
    )
