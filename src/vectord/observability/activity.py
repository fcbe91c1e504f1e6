"""What the console shows besides the present load: an hour of history, sums by model and error, and recent requests.

Contains names of models and keys; server/pages/console.py removes those that a request's key may not see. No text of a
request is kept. Belongs to the event loop.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vectord.engine.events import RequestEnded
from vectord.observability.exchange import Exchange
from vectord.observability.server_metrics import SECONDS

STEP_S = 10.0  # of the history
STEPS = 366  # of the history: a little more than an hour
RECENT = 500  # requests

Figures = Mapping[str, Any]


class Activity:
    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._started_s = now_s()
        self._models: dict[str, list[int]] = {}
        self._errors: Counter[str] = Counter()
        self._recent: deque[tuple[float, Exchange]] = deque(maxlen=RECENT)
        self._steps: deque[Figures] = deque(maxlen=STEPS)
        self._last: Figures | None = None

    # --- events -----------------------------------------------------------------------------------------------

    def observe(self, event: object) -> None:
        if isinstance(event, RequestEnded):
            self._request_ended(event)
        elif isinstance(event, Exchange) and event.dialect != "server":
            if event.model is not None or event.status >= 400:  # not the lists that pages and clients poll
                self._recent.append((time.time(), event))
            if event.status >= 400:
                self._errors[f"{event.status} {event.error or ''}"] += 1

    def _request_ended(self, event: RequestEnded) -> None:
        """The sums of a model: requests, errors, tokens, texts, truncated texts, and answers by duration."""
        if not event.model:
            return
        sums = self._models.setdefault(event.model, [0] * (6 + len(SECONDS)))
        sums[0] += 1
        if event.error is not None:
            sums[1] += 1
            return
        sums[2] += event.tokens
        sums[3] += event.texts
        sums[4] += sum(length.truncated for length in event.lengths)
        sums[5 + bisect_left(SECONDS, event.timings.total_s)] += 1

    # --- figures ----------------------------------------------------------------------------------------------

    def sums(self) -> dict[str, Any]:
        """Since the start: errors by status and class, and the sums of each model."""
        return {
            "unix_s": time.time(),
            "uptime_s": self._now_s() - self._started_s,
            "errors_by": dict(self._errors),
            "models": {name: list(sums) for name, sums in self._models.items()},
        }

    def record(self, figures: Figures) -> None:
        """Add a step to the history. figures: of ServerMetrics, with `sums`; called every STEP_S."""
        if self._last is not None:
            self._steps.append(_step(self._last, figures))
        self._last = figures

    def history(self) -> dict[str, Any]:
        """Steps of the last hour, the oldest first, and the sums at the end of the last one."""
        return {"step_s": STEP_S, "steps": list(self._steps), "last": self._last}

    def recent(self) -> Sequence[dict[str, Any]]:
        """The latest requests that a model answered or that failed, the last one first."""
        return [
            {
                "ended_unix_s": round(ended_unix_s, 3),
                "dialect": each.dialect,
                "method": each.method,
                "route": each.route,
                "status": each.status,
                "error": each.error,
                "model": each.model,
                "texts": each.texts,
                "tokens": each.tokens,
                "ms": round(each.seconds * 1000, 2),
                "key": each.key,
            }
            for ended_unix_s, each in reversed(self._recent)
        ]


_SUMS = ("requests", "errors", "tokens", "run_tokens", "forwards", "forward_fill")


def _step(old: Figures, new: Figures) -> dict[str, Any]:
    """The differences of two figures, and the present sizes of the second. console/history.js makes the same."""
    counts = _difference(new["latency"]["counts"], old["latency"]["counts"])
    errors = {name: count - old["errors_by"].get(name, 0) for name, count in new["errors_by"].items()}
    models = {name: _difference(sums, old["models"].get(name, ())) for name, sums in new["models"].items()}
    return {
        "ended_unix_s": round(new["unix_s"], 1),
        "seconds": round(new["clock_s"] - old["clock_s"], 3),
        **{name: round(new[name] - old[name], 3) for name in _SUMS},
        "counts": counts if any(counts) else [],
        "cache_hits": new["cache"]["hits"] - old["cache"]["hits"],
        "cache_misses": new["cache"]["misses"] - old["cache"]["misses"],
        "queued_tokens": new["queued_tokens"],
        "busy": round(new["busy"], 3),
        "saturation": round(new["saturation"], 3),
        "memory": new["memory"],
        "devices": {name: device["used_bytes"] for name, device in new["devices"].items()},
        "errors_by": {name: count for name, count in errors.items() if count},
        "models": {name: sums for name, sums in models.items() if any(sums)},
    }


def _difference(new: Sequence[int], old: Sequence[int]) -> list[int]:
    """old: may be empty, for zeros."""
    return [value - before for value, before in zip(new, old or [0] * len(new), strict=True)]
